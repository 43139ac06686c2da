"""Maps machine types and accelerators of Google's training services.

Scale tiers and legacy machine types, with the Compute Engine types that they stood for:
https://cloud.google.com/ai-platform/training/docs/machine-types"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

from cloudtrain.core.cloud import Cloud, clouds
from cloudtrain.core.model import canonical_name
from cloudtrain.importers.draft import Draft
from cloudtrain.importers.values import Value

Machine = tuple[str, str, int]
"""Machine type, accelerator, number of accelerators."""

LEGACY: Mapping[str, Machine] = {
    "standard": ("n1-standard-4", "", 0),
    "large_model": ("n1-highmem-8", "", 0),
    "complex_model_s": ("n1-highcpu-8", "", 0),
    "complex_model_m": ("n1-highcpu-16", "", 0),
    "complex_model_l": ("n1-highcpu-32", "", 0),
    "standard_gpu": ("n1-standard-8", "K80", 1),
    "complex_model_m_gpu": ("n1-standard-16", "K80", 4),
    "complex_model_l_gpu": ("n1-standard-32", "K80", 8),
    "standard_p100": ("n1-standard-8", "P100", 1),
    "complex_model_m_p100": ("n1-standard-16", "P100", 4),
    "standard_v100": ("n1-standard-8", "V100", 1),
    "large_model_v100": ("n1-highmem-8", "V100", 1),
    "complex_model_m_v100": ("n1-standard-16", "V100", 4),
    "complex_model_l_v100": ("n1-standard-32", "V100", 8),
}

TIERS: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "BASIC": {"chief": (1, "n1-standard-4")},
    "BASIC_GPU": {"chief": (1, "standard_gpu")},
    "STANDARD_1": {
        "chief": (1, "n1-highcpu-8"),
        "worker": (4, "n1-highcpu-8"),
        "ps": (3, "n1-standard-4"),
    },
    "PREMIUM_1": {
        "chief": (1, "n1-highcpu-16"),
        "worker": (19, "n1-highcpu-16"),
        "ps": (11, "n1-highmem-8"),
    },
}
"""Scale tier → role → number and machine type."""

TPUS = ("cloud_tpu", "BASIC_TPU")


def cloud_of_google() -> Cloud:
    return next(cloud for cloud in clouds() if cloud.store_scheme == "gs")


def put_machine(
    draft: Draft,
    role: str,
    machine: Value | None,
    kind: Value | None = None,
    count: Value | None = None,
) -> None:
    """The machine and accelerator of a role: a Compute Engine type, or a legacy one."""
    name = machine.text if machine else ""
    kind_name, number = (kind.text if kind else ""), (count.number if count else None) or 0
    if name in LEGACY:
        name, built_in, built_in_number = LEGACY[name]
        kind_name, number = kind_name or built_in, number or built_in_number
    if kind_name.upper().startswith("TPU"):
        draft.tpu = True
        assert kind
        draft.lose(kind, f"{kind_name}: a TPU is not mapped; see `cloudtrain docs strategies`")
        kind_name = ""
    if name:
        comment = f"was {machine.text}" if machine and machine.text in LEGACY else ""
        draft.put(("nodes", role, "machine"), name, machine, comment)
    origin = kind or machine
    if kind_name and kind_name != "ACCELERATOR_TYPE_UNSPECIFIED" and origin:
        put_accelerator(draft, role, kind_name, max(number, 1), origin)


def put_accelerator(draft: Draft, role: str, kind: str, number: int, origin: Value) -> None:
    """An accelerator by any spelling; one that is no longer offered is replaced, and named."""
    name, comment = canonical_name(kind), ""
    for family in cloud_of_google().families:
        if family.kind == name and not family.machines and family.gone(date.today()):
            comment = f"was {name}:{number}"
            lost = f"{name} is retired: the cloud no longer offers it; {family.instead} instead"
            draft.lose(origin, lost)
            name, number = canonical_name(family.instead), min(number, 4)
    draft.gpus = max(draft.gpus, number)
    draft.put(("nodes", role, "accelerator"), f"{name}:{number}", origin, comment)
