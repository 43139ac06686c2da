"""Microsoft's GPU machines that are not available both on demand and as spot.

tools/generate_docs.py copies the rows to docs/machines.md.
"""

from datetime import date

from cloudtrain.core.cloud import Family

_AZURE = "https://learn.microsoft.com/azure/virtual-machines/sizes/retirement"
_NCV3 = "https://learn.microsoft.com/azure/virtual-machines/ncv3-nc6s-nc12s-nc24s-retirement"
_NV = "https://learn.microsoft.com/azure/virtual-machines/sizes/gpu-accelerated"
_AMD = "its GPUs are AMD's, and TensorFlow's wheels support NVIDIA's only"
_READ = date(2026, 11, 22)

FAMILIES = (
    Family(
        machines=r"Standard_NC\d+r?(_Promo)?",
        shown="NC, NC_Promo",
        kind="K80",
        retired=date(2023, 8, 31),
        instead="Standard_NC4as_T4_v3",
        source=_AZURE,
        read=_READ,
    ),
    Family(
        machines=r"Standard_NC\d+r?s_v2(_Promo)?",
        shown="NCv2",
        kind="P100",
        retired=date(2023, 8, 31),
        instead="Standard_NC4as_T4_v3",
        source=_AZURE,
        read=_READ,
    ),
    Family(
        machines=r"Standard_NC24rs_v3",
        shown="NC24rs_v3",
        kind="V100",
        retired=date(2025, 3, 31),
        instead="Standard_NC24ads_A100_v4",
        source=_AZURE,
        read=_READ,
    ),
    Family(
        machines=r"Standard_NC(6|12|24)s_v3",
        shown="NC6s_v3, NC12s_v3, NC24s_v3",
        kind="V100",
        retired=date(2025, 9, 30),
        instead="Standard_NC24ads_A100_v4",
        source=_NCV3,
        read=_READ,
    ),
    Family(
        machines=r"Standard_ND\d+r?s",
        shown="ND (v1)",
        kind="P40",
        retired=date(2023, 8, 31),
        instead="Standard_NC24ads_A100_v4",
        source=_AZURE,
        read=_READ,
    ),
    Family(
        machines=r"Standard_ND40rs_v2",
        shown="NDv2",
        kind="V100-32GB",
        retired=date(2025, 9, 30),
        instead="Standard_ND96asr_v4",
        source=_AZURE,
        read=_READ,
    ),
    Family(
        machines=r"Standard_NV\d+(s_v2)?(_Promo)?",
        shown="NV, NVv2",
        kind="M60",
        retired=date(2023, 8, 31),
        instead="Standard_NC4as_T4_v3",
        source=_AZURE,
        read=_READ,
    ),
    Family(
        machines=r"Standard_NV\d+s_v3",
        shown="NVv3",
        kind="M60",
        retired=date(2026, 9, 30),
        instead="Standard_NC4as_T4_v3",
        source=_AZURE,
        read=_READ,
    ),
    Family(
        machines=r"Standard_NV\d+as_v4",
        shown="NVv4",
        kind="MI25",
        retired=date(2026, 9, 30),
        instead="Standard_NC4as_T4_v3",
        unfit=_AMD,
        source=_AZURE,
        read=_READ,
    ),
    Family(
        machines=r"Standard_N[CV]\d+a(m)?ds_A10_v[45]",
        shown="NVads_A10_v5, NCads_A10_v4",
        kind="A10",
        unfit="Azure's A10 are shares of one, which need NVIDIA's GRID driver",
        instead="Standard_NC4as_T4_v3",
        source=f"{_NV}/nvadsa10v5-series",
        read=_READ,
    ),
    Family(
        machines=r"Standard_N[GV]\d+\w*_(V620|V710)_v\d",
        shown="NGads_V620_v1, NVads_V710_v5",
        kind="V620, V710",
        unfit=_AMD,
        instead="Standard_NC4as_T4_v3",
        source=_NV,
        read=_READ,
    ),
    Family(
        machines=r"Standard_ND\w*_MI3\w*",
        shown="ND_MI300X_v5",
        kind="MI300X",
        unfit=_AMD,
        instead="Standard_ND96isr_H200_v5",
        source=_NV,
        read=_READ,
    ),
    Family(
        machines=r"Standard_NP\d+s",
        shown="NP",
        kind="FPGA",
        unfit="it has an FPGA, not a GPU",
        instead="Standard_NC4as_T4_v3",
        source=_NV,
        read=_READ,
    ),
    Family(
        machines=r"Standard_ND\w*GB[23]00\w*",
        shown="ND_GB200_v6, ND_GB300_v6",
        kind="GB200",
        arm=True,
        instead="Standard_ND96isr_H200_v5",
        source=_NV,
        read=_READ,
    ),
)
