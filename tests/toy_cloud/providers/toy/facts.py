"""Facts of `provider: toy`."""

from datetime import date
from pathlib import Path

from cloudtrain.core.cloud import Cloud, DiskPrice, NodeParts, Preemption

FACTS = Cloud(
    name="toy",
    title="Toy",
    vendor="Toys",
    project_word="room",
    project_variable="TOY_ROOM",
    store_scheme="toy",
    machines=Path(__file__).parent / "machines.csv",
    default_machine="toy.small",
    desk_machine="toy.small",
    gpu_machines=r"toy\.gpu.*",
    first_region="playroom",
    zone=r"([a-z]+)-\d",
    region_likeness=0.6,
    preemption=Preemption(
        address="http://metadata.toy",
        path="/taken",
        answer="yes",
        seconds=60.0,
        source="https://toy.example/docs",
    ),
    stopped_keeps_address=True,
    parts=NodeParts(
        disks=(DiskPrice(kind="cardboard", per_gb=0.05),),
        address=0.01,
        regions={"playroom": 1.0},
        elsewhere=2.0,
        source="https://toy.example/prices",
        read=date(2026, 11, 24),
    ),
    end_takes=60.0,
)
