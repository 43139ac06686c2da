"""Which of AWS's quotas a machine counts against."""

from __future__ import annotations

import pytest

from cloudtrain.providers.aws import quota

# ── Check ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("machine", "spot", "code"),
    [
        ("g4dn.xlarge", False, "L-DB2E81BA"),
        ("g6e.xlarge", True, "L-3819A6DF"),
        ("gr6.4xlarge", False, "L-DB2E81BA"),
        ("p3.2xlarge", False, "L-417A185B"),
        ("p4d.24xlarge", True, "L-7212CCBC"),
        ("p5en.48xlarge", True, "L-C4BD4855"),
        ("p6-b200.48xlarge", False, "L-417A185B"),
        ("p6-b200.48xlarge", True, None),
        ("m5.large", False, "L-1216C47A"),
        ("c7gn.large", True, "L-34B43A08"),
        ("im4gn.large", False, "L-1216C47A"),
        ("x2idn.large", False, None),
        ("inf2.xlarge", False, None),
        ("trn1.2xlarge", False, None),
        ("dl1.24xlarge", False, None),
        ("mac2.metal", False, None),
        ("hpc7g.4xlarge", False, None),
    ],
)
def test_which_quota_counts(machine: str, spot: bool, code: str | None) -> None:
    found = quota.quota_of(machine, spot=spot)
    assert (found.code if found else None) == code
