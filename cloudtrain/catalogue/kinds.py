"""Names of accelerators and machines: which spellings mean the same, and what is retired."""

from __future__ import annotations

import re

RETIRED: dict[str, tuple[tuple[str, str], ...]] = {
    # A pattern of the machine type, and today's equivalent.
    "aws": (  # https://aws.amazon.com/ec2/previous-generation/
        (r"p2\..*", "g4dn.xlarge (T4:1)"),
        (r"g2\..*", "g4dn.xlarge (T4:1)"),
        (r"g3s?\..*", "g4dn.xlarge (T4:1)"),
    ),
    "azure": (  # https://learn.microsoft.com/azure/virtual-machines/sizes/retirement
        (r"Standard_NC\d+r?(_Promo)?", "Standard_NC4as_T4_v3 (T4:1)"),
        (r"Standard_NC\d+r?s_v2(_Promo)?", "Standard_NC4as_T4_v3 (T4:1)"),
        (r"Standard_ND\d+r?s", "Standard_NC24ads_A100_v4 (A100-80GB:1)"),
        (r"Standard_NV\d+(_Promo)?", "Standard_NC4as_T4_v3 (T4:1)"),
        (r"Standard_NV\d+s_v2(_Promo)?", "Standard_NC4as_T4_v3 (T4:1)"),
    ),
    "gcp": (),
}
RETIRED_KINDS = {"K80": "T4", "M60": "T4", "P40": "A10", "K520": "T4"}
"""Accelerators that no cloud of ours rents any more, and what does their work today."""

ENDING = (
    # https://learn.microsoft.com/azure/virtual-machines/ncv3-nc6s-nc12s-nc24s-retirement
    (
        r"Standard_NC(6|12|24)s_v3",
        "Microsoft retires it on 2025-09-30; Standard_NC24ads_A100_v4 is today's equivalent",
    ),
)
"""Machines that an account may still hold quota for, though they are going."""


def retired(provider: str, machine: str) -> str | None:
    """Today's equivalent, where the cloud makes no such machine any more."""
    for pattern, today in RETIRED.get(provider, ()):
        if re.fullmatch(pattern, machine, re.IGNORECASE):
            return today
    return None


def ending(machine: str) -> str | None:
    """What the vendor announced of this machine, where it is going."""
    for pattern, text in ENDING:
        if re.fullmatch(pattern, machine, re.IGNORECASE):
            return text
    return None


def spelling(kind: str) -> str:
    """One spelling for each accelerator: `nvidia-tesla-t4`, `t4` and `T4` are T4.

    A100 and V100 are the small ones (40 and 16 GB), the others A100-80GB and V100-32GB.
    """
    plain = re.sub(r"[ _]+", "-", kind.strip()).upper()
    plain = re.sub(r"^(NVIDIA-)?(TESLA-)?", "", plain)
    plain = re.sub(r"-(SXM\d?|NVL|MEGA|PCIE|AC|GRID)\b", "", plain)
    workstation = re.match(r"RTX-?PRO-?(?:SERVER-?)?(\d+)\b", plain)
    if workstation:
        return f"RTXPRO{workstation[1]}"
    plain = re.sub(r"^(A10)-(\d+)(Q|C|GB?)$", r"\1", plain)
    plain = re.sub(r"^(A100|V100|H100|H200|[BG]+[23]00)-?(\d+)(GB?)?$", r"\1-\2GB", plain)
    plain = re.sub(r"^(H100|H200|GH200|G?B200|G?B300)-\d+GB$", r"\1", plain)
    return {"A100-40GB": "A100", "V100-16GB": "V100"}.get(plain, plain)
