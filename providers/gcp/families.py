"""Ways in which Google sells its TPUs, and its GPU machines if not on demand and as spot alone.

tools/generate_docs.py copies the rows to docs/machines.md.
"""

from datetime import date

from cloudtrain.core.cloud import EVERY_WAY, WAITED_FOR, Family, TpuFamily

_GCP = "https://cloud.google.com/compute/docs/accelerator-optimized-machines"
_READ = date(2026, 11, 22)
_OPTIONS = "https://docs.cloud.google.com/ai-hypercomputer/docs/consumption-models"
"""Updated 2026-04-06. Flex-start: "Any GPU machine except A4X Max and A4X"; an older copy of
https://cloud.google.com/compute/docs/instances/about-flex-start-vms leaves out G4 and has
accelerator-optimized machines only, so that none is taken to be sold for n1 with GPUs."""
_OPTIONS_READ = date(2026, 11, 24)

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
        machines=r"a2-(highgpu|megagpu)-.*",
        shown="a2-highgpu, a2-megagpu",
        kind="A100",
        markets=EVERY_WAY,
        source=_OPTIONS,
        read=_OPTIONS_READ,
    ),
    Family(
        machines=r"a2-ultragpu-.*",
        shown="a2-ultragpu",
        kind="A100-80GB",
        markets=EVERY_WAY,
        source=_OPTIONS,
        read=_OPTIONS_READ,
    ),
    Family(
        machines=r"g2-.*",
        shown="g2",
        kind="L4",
        markets=EVERY_WAY,
        source=_OPTIONS,
        read=_OPTIONS_READ,
    ),
    Family(
        machines=r"g4-.*",
        shown="g4",
        kind="RTXPRO6000",
        markets=EVERY_WAY,
        source=_OPTIONS,
        read=_OPTIONS_READ,
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
        machines=r"a3-(highgpu-8g|megagpu-.*)",
        shown="a3-highgpu-8g, a3-megagpu",
        kind="H100",
        markets=EVERY_WAY,
        source=_OPTIONS,
        read=_OPTIONS_READ,
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

_PRICED = date(2025, 1, 17)
"""Day of skypilot-org/skypilot#4579, which has one of these prices; the copies have no date."""
_TPU = "https://docs.cloud.google.com/tpu/docs/"
"""Pages `v2` … `v6e` (chips, hosts), `regions-zones` and `runtimes`, read on `_READ`. The prices
are those of Google's page https://cloud.google.com/tpu/pricing as gpuhunt 0.1.34 and SkyPilot have
copied it: of 2025, not checked against a bill; where a single device and a slice differ, the higher
one. Regions without a price are not in these copies."""

TPUS = (
    TpuFamily(
        prefix="v2",
        cores_per_chip=2,
        one_host=4,
        most=256,
        zones=("us-central1-a", "us-central1-b", "us-central1-c", "europe-west4-a", "asia-east1-c"),
        prices={
            "us-central1": (1.5, 0.45),
            "europe-west4": (1.65, 0.495),
            "asia-east1": (1.305, 0.3915),
        },
        priced=_PRICED,
        runtime="tpu-ubuntu2204-base",
        source=f"{_TPU}v2",
        read=_READ,
    ),
    TpuFamily(
        prefix="v3",
        cores_per_chip=2,
        one_host=4,
        most=1024,
        zones=("us-central1-a", "us-central1-b", "europe-west4-a"),
        prices={"europe-west4": (2.2, 0.66)},
        priced=_PRICED,
        runtime="tpu-ubuntu2204-base",
        source=f"{_TPU}v3",
        read=_READ,
    ),
    TpuFamily(
        prefix="v4",
        cores_per_chip=2,
        one_host=4,
        most=4096,
        zones=("us-central2-b",),
        prices={"us-central2": (3.22, 0.966)},
        priced=_PRICED,
        runtime="tpu-ubuntu2204-base",
        source=f"{_TPU}v4",
        read=_READ,
    ),
    TpuFamily(
        prefix="v5litepod",
        cores_per_chip=1,
        one_host=8,
        most=256,
        zones=(
            "us-central1-a",
            "us-south1-a",
            "us-west1-c",
            "us-west4-a",
            "europe-west4-b",
        ),
        prices={
            "us-central1": (1.2, 0.6),
            "us-south1": (1.2, 0.6),
            "us-west1": (1.2, 0.6),
            "us-west4": (1.2, 0.6),
            "europe-west1": (1.3213, 0.6607),
            "europe-west4": (1.56, 0.78),
            "asia-southeast1": (1.56, 0.78),
        },
        priced=_PRICED,
        runtime="v2-alpha-tpuv5-lite",
        source=f"{_TPU}v5e",
        read=_READ,
    ),
    TpuFamily(
        prefix="v5p",
        cores_per_chip=2,
        one_host=4,
        most=6144,
        zones=("us-central1-a", "us-east5-a", "europe-west4-b"),
        prices={
            "us-central1": (4.2, None),
            "us-east5": (4.2, 2.1),
        },
        priced=_PRICED,
        runtime="v2-alpha-tpuv5",
        source=f"{_TPU}v5p",
        read=_READ,
    ),
    TpuFamily(
        prefix="v6e",
        cores_per_chip=1,
        one_host=8,
        most=256,
        zones=("us-central1-b", "us-east1-d", "us-east5-a", "us-east5-b", "europe-west4-a"),
        prices={},
        priced=_PRICED,
        runtime="v2-alpha-tpuv6e",
        source=f"{_TPU}v6e",
        read=_READ,
    ),
)
"""The Cloud TPU API has none later: it "is not supported on TPU7x and later" (page `runtimes`)."""
