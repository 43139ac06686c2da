"""Rates that a GPU should reach: NVIDIA's figures, next to which a run's proof shows its own.

The documents (`source`) were read as others quote them: github.com/winston-zhang-orz/gpu-specs,
github.com/kentjliu/acml-project1, glennklockwood.com/garden/processors. A10G: quotes of its sheet
say 70 twice and 125, the A10's, once. The links of K80, P100 and P4 are what PCIe 3.0 x16 carries.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from cloudtrain.core.model import canonical_name

_READ = date(2026, 11, 23)
_PRODUCTS = "https://www.nvidia.com/en-us/data-center"
_SHEETS = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center"
_K80 = f"{_SHEETS}/tesla-product-literature/Tesla-K80-BoardSpec-07317-001-v05.pdf"
_P100 = f"{_SHEETS}/tesla-p100/pdf/nvidia-tesla-p100-PCIe-datasheet.pdf"
_P4 = (
    "https://images.nvidia.com/content/pdf/tesla/184457-Tesla-P4-Datasheet-NV-Final-Letter-Web.pdf"
)
_VOLTA = (
    "https://images.nvidia.com/content/technologies/volta/pdf/"
    "volta-v100-datasheet-update-us-1165301-r5.pdf"
)
_A100 = f"{_SHEETS}/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
_A10G = (
    "https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf"
)


@dataclass(frozen=True, kw_only=True)
class Rate:
    kind: str
    tflops: float
    """TFLOP/s of a product of float16 matrices, added up in float32, without sparsity. Before Volta
    it is computed in float32."""
    link: float
    """GB/s to another GPU of the machine, in one direction: NVLink, else PCIe."""
    source: str
    read: date = _READ


# The form that clouds rent most: SXM of V100, A100, H100 and H200.
RATES = (
    Rate(kind="K80", tflops=4.4, link=16, source=_K80),
    Rate(kind="P100", tflops=9.3, link=16, source=_P100),
    Rate(kind="P4", tflops=5.5, link=16, source=_P4),
    Rate(kind="V100", tflops=125, link=150, source=_VOLTA),
    Rate(kind="V100-32GB", tflops=125, link=150, source=_VOLTA),
    Rate(
        kind="T4",
        tflops=65,
        link=16,
        source=f"{_SHEETS}/tesla-t4/t4-tensor-core-datasheet-951643.pdf",
    ),
    Rate(kind="A100", tflops=312, link=300, source=_A100),
    Rate(kind="A100-80GB", tflops=312, link=300, source=_A100),
    Rate(kind="A10", tflops=125, link=32, source=f"{_SHEETS}/a10/pdf/a10-datasheet.pdf"),
    Rate(kind="A10G", tflops=70, link=32, source=_A10G),
    Rate(kind="L4", tflops=121, link=32, source=f"{_PRODUCTS}/l4/"),
    Rate(kind="L40S", tflops=362, link=32, source=f"{_PRODUCTS}/l40s/"),
    Rate(kind="H100", tflops=989, link=450, source=f"{_PRODUCTS}/h100/"),
    Rate(kind="H200", tflops=989, link=450, source=f"{_PRODUCTS}/h200/"),
    Rate(kind="GH200", tflops=989, link=450, source=f"{_PRODUCTS}/grace-hopper-superchip/"),
)
"""Kinds that a released TensorFlow runs on, and whose figures were found."""

_BY_KIND = {row.kind: row for row in RATES}


def rate(kind: str) -> Rate | None:
    """The row of this accelerator under any of its names; None if the table lacks it."""
    return _BY_KIND.get(canonical_name(kind))
