"""Facts of `provider: gcp`."""

from pathlib import Path

from cloudtrain.cloud import Cloud, Egress, NodeIdentity, Preemption, TokenQuery
from cloudtrain.providers.gcp.families import FAMILIES, TPUS

_DIRECTION = "(?:north|south|east|west|central|northeast|northwest|southeast|southwest)"

DISK_GB, GPU_DISK_GB = 50, 100
"""Default disk sizes in GB; CUDA and TensorFlow with CUDA take 20 GB."""

EGRESS = Egress(
    regions=0.02,
    internet=0.12,
    # A read is free in every region inside a multi-region
    areas={"us": "us-.+", "eu": "europe-.+", "asia": "asia-.+"},
    # Not from an API: internet by the page's examples, regions and areas by its tables of 2025
    source="https://cloud.google.com/storage/pricing-examples, 2026-11-22",
)

FACTS = Cloud(
    name="gcp",
    title="GCP",
    vendor="Google",
    packages=("libcloud", "google.auth"),
    project_word="project",
    project_variable="GOOGLE_CLOUD_PROJECT",
    store_scheme="gs",
    bucket_schemes=("gs",),
    identity=NodeIdentity(
        word="the e-mail address of a service account",
        example="trainer@PROJECT.iam.gserviceaccount.com",
        pattern=r"([a-z0-9][a-z0-9-]*@(?:[a-z0-9][a-z0-9.-]*\.)?gserviceaccount\.com)",
        token=TokenQuery(
            address="http://metadata.google.internal",
            path="/computeMetadata/v1/instance/service-accounts/default/token",
            headers={"Metadata-Flavor": "Google"},
            key="access_token",
            scopes_path="/computeMetadata/v1/instance/service-accounts/default/scopes",
            scope="https://www.googleapis.com/auth/cloud-platform",
            source="https://cloud.google.com/compute/docs/access/authenticate-workloads",
        ),
        # `name` and `email` of IAM's discovery document, ServiceAccount
        source="https://iam.googleapis.com/$discovery/rest?version=v1, 2026-11-22",
    ),
    machines=Path(__file__).parent / "machines.csv",
    gpuhunt="gcp",
    default_machine="e2-standard-4",
    gpu_machines=r"(a[2-9]\d?x?|g[2-9]\d?)-.+",
    attaches="n1-",
    families=FAMILIES,
    first_region="us-central1",
    egress=EGRESS,
    disk_gb=DISK_GB,
    gpu_disk_gb=GPU_DISK_GB,
    # https://cloud.google.com/compute/docs/disks/local-ssd: those that come with local SSDs
    scratch_machines=r"(a2-ultragpu|a3|a4|z3)-.+|.+-lssd",
    zone=r"(.+\d)-[a-z]",
    # https://cloud.google.com/compute/docs/regions-zones, 2026-11-22
    region=rf"(?:africa|asia|australia|europe|me|northamerica|southamerica|us)-{_DIRECTION}\d\d?",
    region_likeness=0.6,
    preemption=Preemption(
        address="http://metadata.google.internal",
        path="/computeMetadata/v1/instance/preempted",
        headers={"Metadata-Flavor": "Google"},
        answer=r"TRUE\s*",
        # preemptionNoticeDuration (requests.py), then the shutdown: skipGuestOsShutdown of the
        # discovery document, compute v1, revision 20261106, has 30 s for spot VMs
        seconds=120.0 + 30.0,
        source="https://cloud.google.com/compute/docs/instances/create-use-spot#detect-preemption",
    ),
    # https://cloud.google.com/compute/docs/reference/rest/v1/instances/setScheduling
    fixed_end="Google moves the end of stopped VMs only",
    tpus=TPUS,
    # Discovery document of tpu v2, revision 20261001: neither Node nor SchedulingConfig has an end
    tpu_end="the Cloud TPU API has no lifetime",
)
