"""The kinds of findings of `check`: what is true of one kind alone, by `Finding.what`."""

from __future__ import annotations

from typing import NamedTuple


class FindingKind(NamedTuple):
    ignorable: bool = False
    """It may be wrong (from a table, or not stated explicitly by a cloud): `--ignore` takes it."""
    of_machine: bool = False
    """Another machine type may not have it."""
    this_machine: bool = False
    """It is about this machine, and nobody doubts that it is good."""


# A finding is made in checks/ or a cloud's checks.py, and joins a list of checks/check.py: that is
# the same everywhere, `findings_of_all`; of a place, `fitting_findings`, which `up` has too;
# `check` alone, `further_findings`.
FINDINGS = {
    "quota": FindingKind(ignorable=True, of_machine=True),
    "price": FindingKind(ignorable=True),
    "machines": FindingKind(ignorable=True, of_machine=True),
    "gpus": FindingKind(ignorable=True),
    "permissions": FindingKind(ignorable=True, of_machine=True),
    "identity": FindingKind(ignorable=True),
    "placement": FindingKind(ignorable=True, of_machine=True),
    "disk": FindingKind(ignorable=True, this_machine=True),
    "account": FindingKind(of_machine=True),
    **dict.fromkeys(("system", "folder", "memory", "loopback"), FindingKind(this_machine=True)),
    **dict.fromkeys(
        (
            # offline, of the file and the code
            *("setup", "code", "command", "fill in", "secrets", "script", "buckets", "note"),
            # of an account and its networks
            *("credentials", "provider", "project", "services", "policies", "resource group"),
            *(
                "Cloud TPU API",
                "OS Login",
                "network",
                "subnet",
                "firewall",
                "bastion",
                "ssh",
                "ssm",
            ),
            # of machines and their end
            *(
                "image",
                "disk key",
                "reservation",
                "spot",
                "spot price",
                "machine facts",
                "lifetime",
            ),
            *("shared home", "cluster", "end", "rehearsal", "trial", "trial end", "trial upload"),
            # of stores
            *("store", "blobs", "egress"),
        ),
        FindingKind(),
    ),
}
"""All kinds; data has one for each dataset, `data.NAME`."""

IGNORABLE = tuple(name for name, kind in FINDINGS.items() if kind.ignorable)
OF_MACHINE = frozenset(name for name, kind in FINDINGS.items() if kind.of_machine)
THIS_MACHINE = frozenset(name for name, kind in FINDINGS.items() if kind.this_machine)
