"""Facts of `provider: gcp`."""

from pathlib import Path

from cloudtrain.cloud import Cloud, Preemption
from cloudtrain.providers.gcp.families import FAMILIES

_DIRECTION = "(?:north|south|east|west|central|northeast|northwest|southeast|southwest)"

FACTS = Cloud(
    name="gcp",
    title="GCP",
    vendor="Google",
    packages=("libcloud", "google.auth"),
    project_word="project",
    project_variable="GOOGLE_CLOUD_PROJECT",
    store_scheme="gs",
    machines=Path(__file__).parent / "machines.csv",
    gpuhunt="gcp",
    default_machine="e2-standard-4",
    gpu_machines=r"(a[2-9]\d?x?|g[2-9]\d?)-.+",
    attaches="n1-",
    families=FAMILIES,
    first_region="us-central1",
    zone=r"(.+\d)-[a-z]",
    # https://cloud.google.com/compute/docs/regions-zones, 2026-11-22
    region=rf"(?:africa|asia|australia|europe|me|northamerica|southamerica|us)-{_DIRECTION}\d\d?",
    region_likeness=0.6,
    preemption=Preemption(
        address="http://metadata.google.internal",
        path="/computeMetadata/v1/instance/preempted",
        headers={"Metadata-Flavor": "Google"},
        answer=r"TRUE\s*",
        source="https://cloud.google.com/compute/docs/instances/create-use-spot#detect-preemption",
    ),
    # https://cloud.google.com/compute/docs/reference/rest/v1/instances/setScheduling
    fixed_end="Google moves the end of stopped VMs only",
    tpus=True,
)
