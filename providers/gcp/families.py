"""Google's GPU machines that are not available both on demand and as spot.

tools/generate_docs.py copies the rows to docs/machines.md.
"""

from datetime import date

from cloudtrain.cloud import WAITED_FOR, Family

_GCP = "https://cloud.google.com/compute/docs/accelerator-optimized-machines"
_READ = date(2026, 11, 22)

FAMILIES = (
    Family(
        machines="",
        shown="n1 with K80",
        kind="K80",
        markets=(),
        instead="T4",
        source="https://cloud.google.com/compute/docs/eol/k80-eol",
        read=_READ,
    ),
    Family(
        machines=r"a3-highgpu-[124]g",
        shown="a3-highgpu-1g, -2g, -4g",
        kind="H100",
        markets=("spot", "flex-start"),
        source=_GCP,
        read=_READ,
    ),
    Family(
        machines=r"a3-ultragpu-.*",
        shown="a3-ultragpu",
        kind="H200",
        markets=WAITED_FOR,
        source=_GCP,
        read=_READ,
    ),
    Family(
        machines=r"a4-.*",
        shown="a4",
        kind="B200",
        markets=WAITED_FOR,
        source=_GCP,
        read=_READ,
    ),
    Family(
        machines=r"a4x-.*",
        shown="a4x",
        kind="GB200",
        markets=("reservation",),
        arm=True,
        instead="a3-ultragpu-8g",
        source=_GCP,
        read=_READ,
    ),
)
