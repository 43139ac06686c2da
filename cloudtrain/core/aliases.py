"""Spellings of accelerator names."""

from __future__ import annotations

import re


def canonical_name(kind: str) -> str:
    """Return one spelling for each accelerator: `nvidia-tesla-t4`, `t4` and `T4` are T4.

    A100 and V100 are the small ones (40 and 16 GB), the others A100-80GB and V100-32GB.
    """
    plain = re.sub(r"[ _]+", "-", kind.strip()).upper()
    plain = re.sub(r"^(NVIDIA-)?(TESLA-)?", "", plain)
    plain = re.sub(r"-(SXM\d?|NVL|MEGA|PCIE|AC|GRID)\b", "", plain)
    workstation = re.match(r"RTX-?PRO-?(?:SERVER-?)?(\d{4})(?!\d)", plain)
    if workstation:
        return f"RTXPRO{workstation[1]}"
    plain = re.sub(r"^(A10)-(\d+)(Q|C|GB?)$", r"\1", plain)
    plain = re.sub(r"^(A100|V100|H100|H200|[BG]+[23]00)-?([1-9]\d{1,2})(GB?)?$", r"\1-\2GB", plain)
    plain = re.sub(r"^(H100|H200|GH200|G?B200|G?B300)-\d+GB$", r"\1", plain)
    return {"A100-40GB": "A100", "V100-16GB": "V100"}.get(plain, plain)


def is_same_accelerator(reported: str, wanted: str) -> bool:
    """True if a cloud's own name may mean this kind: EC2 uses A100 for both sizes of memory."""
    one, other = canonical_name(reported), canonical_name(wanted)
    plain = {re.sub(r"[^A-Z0-9]", "", name) for name in (one, other)}
    return len(plain) == 1 or other.startswith(f"{one}-")
