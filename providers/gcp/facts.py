"""Facts of `provider: gcp`."""

from datetime import date
from pathlib import Path

from cloudtrain.core.cloud import (
    EVERY_WAY,
    Cloud,
    DiskPrice,
    Egress,
    NodeIdentity,
    NodeParts,
    Preemption,
    ResourceName,
    TagRules,
    TokenQuery,
)
from cloudtrain.providers.base.fact_tables import disk_prices, families, tpus
from cloudtrain.providers.gcp.ssh_service import SERVICE

FOLDER = Path(__file__).parent

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

PARTS = NodeParts(
    disks=(
        DiskPrice(
            kind="pd-balanced",
            # machine_types.PERSISTENT_DISK; a test compares them
            machines=r"(a2|c2d?|c3d?|e2|f1|g[12]|h3|m[123]|n1|n2d?|t2[ad]|z3)-.+"
            r"|a3-(high|mega|edge)gpu-.+",
            per_gb=0.10,
        ),
        # hyperdisk-balanced: $0.08 for each GB and month. We request no IOPS, so it gets Google's
        # default, which exceeds the 3000 IOPS and 140 MiB/s that are included by little: `fixed`
        # is an upper bound from memory, not read.
        DiskPrice(kind="hyperdisk-balanced", per_gb=0.10, fixed=10.0),
    ),
    # Of a VM on demand; that of a spot VM costs half of it, which is not counted
    address=0.005,
    regions=disk_prices(FOLDER),
    elsewhere=2.0,
    source="pricing.yml of 2025-03-06 of "
    "https://github.com/Cyclenerd/google-cloud-pricing-cost-calculator, which reads Google's price "
    "list (`balanced`); https://cloud.google.com/vpc/network-pricing#ipaddress",
    read=date(2026, 11, 24),
)

FACTS = Cloud(
    name="gcp",
    title="GCP",
    vendor="Google",
    packages=("libcloud", "google.auth"),
    project_word="project",
    project_variable="GOOGLE_CLOUD_PROJECT",
    store_scheme="gs",
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
    disk_key=ResourceName(
        word="the resource name of a Cloud KMS key",
        example="projects/keys/locations/{region}/keyRings/training/cryptoKeys/disks",
        pattern=r"(projects/[^/ ]+/locations/(?:[a-z0-9-]+|\{region\})/keyRings/[\w-]{1,63}"
        r"/cryptoKeys/[\w-]{1,63})(?:/cryptoKeyVersions/\d+)?",
        # CustomerEncryptionKey.kmsKeyName of the discovery document, compute v1
        source="https://cloud.google.com/compute/docs/disks/customer-managed-encryption, "
        "2026-11-24",
    ),
    vpc=ResourceName(
        word="the name of a network, or projects/PROJECT/global/networks/NAME",
        example="projects/net-host/global/networks/corp",
        pattern=r"(?:(projects/[^/ ]+)/global/networks/)?([a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)",
        # `pattern` of Network.name in the discovery document, compute v1, revision 20261106
        source="https://cloud.google.com/compute/docs/reference/rest/v1/networks, 2026-11-24",
    ),
    firewall=ResourceName(
        word="the network tag of your firewall rules",
        example="training-nodes",
        pattern=r"([a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)",
        # `pattern` of Tags.items in the discovery document, compute v1, revision 20261106
        source="https://cloud.google.com/vpc/docs/add-remove-network-tags, 2026-11-24",
    ),
    most_firewalls=64,
    firewalls_of_subnets=True,
    tags=TagRules(
        # International letters are allowed; Google decides which of them are lower case.
        name=r"[a-z\u0080-\U0010ffff][a-z0-9_\u0080-\U0010ffff-]{0,62}",
        value=r"[a-z0-9_\u0080-\U0010ffff-]{0,63}",
        words="up to 63 lower-case letters, digits, `_` and `-`, its name beginning with a letter",
        most=54,
        # Labels that Google's own services set: https://cloud.google.com/compute/docs/
        # labeling-resources, "goog-…", by general knowledge
        reserved=("goog-",),
        # Resource Manager's "Requirements for labels": 64 labels each
        source="https://cloud.google.com/resource-manager/docs/labels-overview, 2026-11-24",
    ),
    ssh_proxy=SERVICE,
    os_login=True,
    machines=FOLDER / "machines.csv",
    gpuhunt="gcp",
    default_machine="e2-standard-4",
    desk_machine="e2-standard-2",
    # Google's own, with Private Service Connect (p.googleapis.com), and the universes of partners
    # and of Google Cloud Dedicated: the domains of `universe_domain` in credentials.
    # https://cloud.google.com/vpc/docs/about-accessing-google-apis-endpoints
    # https://documentation.s3ns.fr and https://cloud.google.com/dedicated, 2026-11-26
    credential_hosts=(".googleapis.com", ".s3nsapis.fr", ".apis-berlin-build0.goog"),
    address_variables=(
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_IAM",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU",
        "STORAGE_EMULATOR_HOST",
    ),
    gpu_machines=r"(a[2-9]\d?x?|g[2-9]\d?)-.+",
    attaches="n1-",
    markets=EVERY_WAY,
    # Reservations are for all but the smallest shared-core machines:
    # https://cloud.google.com/compute/docs/instances/reservations-overview#restrictions
    usual_markets=("on-demand", "spot", "reservation"),
    # https://cloud.google.com/compute/docs/instances/create-flex-start-vm: between 10 minutes and
    # seven days
    run_times={"flex-start": (600.0, 7 * 86400.0)},
    families=families(FOLDER),
    first_region="us-central1",
    egress=EGRESS,
    parts=PARTS,
    # A minute until Google acts (assumed), then the shutdown: 120 s at most
    # (`skipGuestOsShutdown` of the discovery document, compute v1, revision 20261106)
    end_takes=180.0,
    # It stops: https://cloud.google.com/compute/docs/instances/stop-start-instance. "Stopped
    # instances do not incur VM usage charges", disks do (instances.stop of the discovery document,
    # compute v1, revision 20261106). instanceTerminationAction is "performed at the end of the run
    # duration" (Scheduling.maxRunDuration); that a shutdown from inside is none of it is suspected.
    shutdown_leaves="its disk",
    disk_gb=DISK_GB,
    gpu_disk_gb=GPU_DISK_GB,
    # https://cloud.google.com/compute/docs/disks/local-ssd: those that come with local SSDs
    scratch_machines=r"(a2-ultragpu|a3|a4|z3)-.+|.+-lssd",
    # ai1a: https://cloud.google.com/compute/docs/regions-zones/ai-zones, 2026-11-26
    zone=r"(.+\d)-(?:ai\d)?[a-z]",
    # The page lists a to f; us-east1 and europe-west1 begin with b
    zone_names=r"(?!(?:us-east1|europe-west1)-a).+-(?:ai\d)?[a-f]",
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
    tpus=tpus(FOLDER),
    # Discovery document of tpu v2, revision 20261001: neither Node nor SchedulingConfig has an end
    tpu_end="the Cloud TPU API has no lifetime",
)
