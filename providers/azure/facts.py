"""Facts of `provider: azure`."""

from datetime import date
from pathlib import Path

from cloudtrain.core.cloud import (
    Cloud,
    DiskPrice,
    Egress,
    NodeIdentity,
    NodeParts,
    Preemption,
    ReservationName,
    ResourceName,
    TagRules,
    TokenQuery,
)
from cloudtrain.providers.azure.ssh_service import SERVICE
from cloudtrain.providers.base.fact_tables import families

FOLDER = Path(__file__).parent

IMAGE_GB = 30
"""Size of Ubuntu's image, and so of a disk without GPUs."""

GPU_DISK_GB = 128
"""Disk size in GB with GPUs: 64 for ubuntu-hpc or 30 for Ubuntu, and 50 more, as CUDA's libraries
for TensorFlow take 7 GB and their downloads another 3 GB. Disks are billed in steps, of which this
is one: https://azure.microsoft.com/pricing/details/managed-disks/ (read 2026-11-22)"""

EGRESS = Egress(
    regions=0.02,
    internet=0.087,
    # Not from an API: summaries of Azure's page; also c3x.dev/blog/azure-egress-bandwidth-cost
    source="https://lucidity.cloud/feeds/blog/azure-storage-egress-cost, 2026-11-22",
)

PARTS = NodeParts(
    # Standard SSD, locally redundant, in East US: E1 to E80. Billed by these steps, also while its
    # VM is deallocated. Operations, $0.002 for 10,000, are not counted.
    disks=(
        DiskPrice(
            kind="StandardSSD_LRS",
            # $0.30 for 4 GiB, twice as much for twice the size; the largest has 32767 GiB
            steps=tuple((min(size, 32767), size * 0.075) for size in (4 << n for n in range(14))),
        ),
    ),
    # A Standard static IPv4 address, which is billed whether its VM runs or not
    address=0.005,
    regions={"eastus": 1.0},
    # No list of all regions was read: twice is above every region that was seen
    elsewhere=2.0,
    source="https://azure.microsoft.com/pricing/details/managed-disks/ and "
    "https://azure.microsoft.com/pricing/details/ip-addresses/",
    read=date(2026, 11, 22),
)

FACTS = Cloud(
    name="azure",
    title="Azure",
    vendor="Microsoft",
    packages=("libcloud", "azure.identity"),
    project_word="subscription",
    project_variable="AZURE_SUBSCRIPTION_ID",
    store_scheme="az",
    identity=NodeIdentity(
        word="the resource id, or GROUP/NAME, of a user-assigned managed identity",
        example="ml-identities/trainer",
        pattern=r"/subscriptions/[0-9a-f-]{36}/resourceGroups/([-\w.()]{1,90})"
        r"/providers/Microsoft\.ManagedIdentity/userAssignedIdentities/([a-z0-9][\w-]{2,127})"
        r"|([-\w.()]{1,90})/([a-z0-9][\w-]{2,127})",
        token=TokenQuery(
            address="http://169.254.169.254",
            path="/metadata/identity/oauth2/token?api-version=2018-02-01"
            "&resource=https%3A%2F%2Fstorage.azure.com%2F",
            headers={"Metadata": "true"},
            key="access_token",
            source="https://learn.microsoft.com/entra/identity/managed-identities-azure-resources/"
            "how-to-use-vm-token",
        ),
        source="https://learn.microsoft.com/azure/azure-resource-manager/management/"
        "resource-name-rules (Microsoft.ManagedIdentity), 2026-11-22",
    ),
    resource_group=ResourceName(
        word="the name of an existing resource group",
        example="ml-training",
        pattern=r"([-\w.()]{0,89}[-\w()])",
        # resourceGroups of Microsoft.Resources
        source="https://learn.microsoft.com/azure/azure-resource-manager/management/"
        "resource-name-rules, 2026-11-24",
    ),
    disk_key=ResourceName(
        word="the resource id, or GROUP/NAME, of a disk encryption set",
        example="ml-keys/disks-{region}",
        pattern=r"/subscriptions/[0-9a-f-]{36}/resourceGroups/([-\w.(){}]{1,90})"
        r"/providers/Microsoft\.Compute/diskEncryptionSets/([\w{}-]{1,88})"
        r"|([-\w.()]{1,90})/([\w{}-]{1,88})",
        # ManagedDiskParameters.disk_encryption_set of azure-mgmt-compute 39
        source="https://learn.microsoft.com/azure/virtual-machines/disk-encryption, 2026-11-24",
    ),
    firewall=ResourceName(
        word="the resource id of a network security group",
        example="/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/nets"
        "/providers/Microsoft.Network/networkSecurityGroups/training",
        pattern=r"/subscriptions/([0-9a-f-]{36})/resourceGroups/([-\w.()]{1,90})"
        r"/providers/Microsoft\.Network/networkSecurityGroups/([\w][\w.-]{0,79})",
        source="https://learn.microsoft.com/azure/azure-resource-manager/management/"
        "resource-name-rules, 2026-11-24",
    ),
    firewalls_of_subnets=True,
    tags=TagRules(
        name=r"[^<>%&\\?/]{1,512}",
        value=r".{0,256}",
        words="no `<>%&\\?/` in its name, and at most 256 characters in its value",
        most=39,
        reserved=("microsoft", "azure", "windows"),
        ignores_case=True,
        # 50 tags each; for reserved beginnings azure-mgmt-resource, tags.create_or_update
        source="https://learn.microsoft.com/azure/azure-resource-manager/management/"
        "tag-resources#limitations, 2026-11-24",
    ),
    markets=("on-demand", "spot", "reservation"),
    reservations={
        "reservation": ReservationName(
            word="the name, GROUP/NAME or resource id of a capacity reservation group",
            example="capacity/a100",
            pattern=r"(?=/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft\.Compute/"
            r"capacityReservationGroups/[^/]+\Z|[^/]+(?:/[^/]+)?\Z)"
            r"(?:/subscriptions/(?P<subscription>[0-9a-f-]{36})/resourceGroups/)?"
            r"(?:(?P<group>[-\w.()]{1,90})/(?:providers/Microsoft\.Compute/"
            r"capacityReservationGroups/)?)?(?P<name>[\w.-]{1,80})",
            source="https://learn.microsoft.com/azure/azure-resource-manager/management/"
            "resource-name-rules (Microsoft.Compute), 2026-11-24",
        ),
    },
    ssh_proxy=SERVICE,
    machines=FOLDER / "machines.csv",
    gpuhunt="azure",
    default_machine="Standard_D4s_v3",
    desk_machine="Standard_D2s_v3",
    address_variables=("ARM_ENDPOINT", "AZURE_AUTHORITY_HOST"),
    # The public, the US Government's and China's cloud; Germany's of 2015 is closed, and its
    # domains may be anybody's. `.azure.com` is none: customers are below cloudapp.azure.com.
    # https://learn.microsoft.com/entra/identity-platform/authentication-national-cloud
    # https://learn.microsoft.com/azure/storage/common/storage-account-overview, 2026-11-26
    credential_hosts=(
        *("management.azure.com", ".management.azure.com", "management.usgovcloudapi.net"),
        "management.chinacloudapi.cn",
        *("login.microsoftonline.com", "login.windows.net", "login.microsoftonline.us"),
        *("login.chinacloudapi.cn", "login.partner.microsoftonline.cn"),
        *(".blob.core.windows.net", ".blob.core.usgovcloudapi.net", ".blob.core.chinacloudapi.cn"),
        ".blob.storage.azure.net",
    ),
    gpu_machines=r"Standard_N.+",
    families=families(FOLDER),
    first_region="eastus",
    egress=EGRESS,
    disk_gb=IMAGE_GB,
    # https://learn.microsoft.com/azure/virtual-machines/azure-vms-no-temp-disk: all with a d in
    # their features, all with GPUs, and those of older versions
    scratch_machines=r"Standard_(N.+|[A-Z]+\d+[a-z-]*\d*[a-z]*d[a-z]*_.+|.+_v[123]|[^_]+)",
    gpu_disk_gb=GPU_DISK_GB,
    zone=r"(.+)-\d",
    zone_names=r".+-[1-3]",
    region_likeness=0.9,
    preemption=Preemption(
        address="http://169.254.169.254",
        path="/metadata/scheduledevents?api-version=2020-07-01",
        headers={"Metadata": "true"},
        event_type="Preempt",
        seconds=30.0,
        source="https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events",
    ),
    stopped_keeps_address=True,
    parts=PARTS,
    keeps_parts=True,
    # requests.deadline: the deallocation begins then, and is retried for 30 minutes
    end_takes=1800.0,
    soonest_end=35 * 60.0,  # expiry.SOONEST
    # https://learn.microsoft.com/azure/virtual-machines/sizes/gpu-accelerated/nvadsa10v5-series
    no_driver={"A10": "the A10 of Azure are shares of one and need NVIDIA's GRID driver"},
    # Azure connects InfiniBand only between VMs of one scale set or one availability set:
    # https://learn.microsoft.com/azure/virtual-machines/setup-infiniband
    # `r` in the name: https://learn.microsoft.com/azure/virtual-machines/vm-naming-conventions
    infiniband=r"standard_(n[cd]|h[bc])\d+[a-z]*r[a-z]*(_.*)?",
)
