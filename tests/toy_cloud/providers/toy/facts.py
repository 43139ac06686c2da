"""Facts of `provider: toy`."""

from pathlib import Path

from cloudtrain.cloud import Cloud, Preemption

FACTS = Cloud(
    name="toy",
    title="Toy",
    vendor="Toys",
    project_word="room",
    project_variable="TOY_ROOM",
    store_scheme="toy",
    machines=Path(__file__).parent / "machines.csv",
    default_machine="toy.small",
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
)
