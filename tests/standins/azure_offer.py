"""What this Azure has to offer: regions, sizes, images, quotas, API versions."""

from __future__ import annotations

from dataclasses import dataclass

ZONES = ("1", "2", "3")

REGIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "eastus": ("East US", ZONES),
    "eastus2": ("East US 2", ZONES),
    "southcentralus": ("South Central US", ZONES),
    "westus": ("West US", ()),
    "westus2": ("West US 2", ZONES),
    "westus3": ("West US 3", ZONES),
    "northcentralus": ("North Central US", ()),
    "northeurope": ("North Europe", ZONES),
    "westeurope": ("West Europe", ZONES),
    "swedencentral": ("Sweden Central", ZONES),
}


@dataclass(frozen=True, kw_only=True)
class Size:
    family: str
    """As Microsoft.Compute/skus writes it; usages write it otherwise: FAMILIES."""
    vcpus: int
    memory_gb: int
    gpus: int = 0
    generations: str = "V1,V2"
    spot: bool = True
    architecture: str = "x64"
    controllers: str = ""
    """Disk controllers that it boots from, where Azure lists them: v6 and later have NVMe alone."""
    temporary_mib: int = 0
    """Of the temporary disk, as on the size's page of learn.microsoft.com."""
    nvme_mib: int = 0
    """Of its NVMe disks together."""
    regions: tuple[str, ...] = tuple(REGIONS)
    zones: tuple[str, ...] = ZONES
    """Of a region that has zones."""

    def zones_in(self, region: str) -> tuple[str, ...]:
        return tuple(zone for zone in REGIONS[region][1] if zone in self.zones)


_GIB = 1024
_T4 = "standardNCASv3_T4Family"
_V100 = "standardNCSv3Family"
_A10 = "StandardNVADSA10v5Family"
_A100 = "StandardNCADSA100v4Family"
_H100 = "StandardNCadsH100v5Family"
_FEW = ("eastus", "southcentralus", "westus2", "westeurope")

SIZES = {
    "Standard_B1s": Size(family="standardBSFamily", vcpus=1, memory_gb=1),
    "Standard_B2s": Size(family="standardBSFamily", vcpus=2, memory_gb=4, spot=False),
    "Standard_D2s_v3": Size(
        family="standardDSv3Family", vcpus=2, memory_gb=8, temporary_mib=16 * _GIB
    ),
    "Standard_D2s_v5": Size(family="standardDSv5Family", vcpus=2, memory_gb=8),
    "Standard_D4s_v5": Size(family="standardDSv5Family", vcpus=4, memory_gb=16),
    "Standard_D4s_v6": Size(
        family="standardDSv5Family", vcpus=4, memory_gb=16, generations="V2", controllers="NVMe"
    ),
    "Standard_D8s_v5": Size(family="standardDSv5Family", vcpus=8, memory_gb=32),
    "Standard_NC4as_T4_v3": Size(
        family=_T4, vcpus=4, memory_gb=28, gpus=1, temporary_mib=176 * _GIB
    ),
    "Standard_NC8as_T4_v3": Size(
        family=_T4, vcpus=8, memory_gb=56, gpus=1, temporary_mib=352 * _GIB
    ),
    "Standard_NC16as_T4_v3": Size(
        family=_T4, vcpus=16, memory_gb=110, gpus=1, temporary_mib=352 * _GIB
    ),
    "Standard_NC64as_T4_v3": Size(
        family=_T4, vcpus=64, memory_gb=440, gpus=4, temporary_mib=2816 * _GIB
    ),
    "Standard_NC6s_v3": Size(family=_V100, vcpus=6, memory_gb=112, gpus=1, zones=("1",)),
    "Standard_NC12s_v3": Size(family=_V100, vcpus=12, memory_gb=224, gpus=2, zones=("1",)),
    "Standard_NC24s_v3": Size(family=_V100, vcpus=24, memory_gb=448, gpus=4, zones=("1",)),
    "Standard_NC24ads_A100_v4": Size(
        family=_A100,
        vcpus=24,
        memory_gb=220,
        gpus=1,
        generations="V2",
        zones=("1", "2"),
        temporary_mib=64 * _GIB,
        nvme_mib=894 * _GIB,
    ),
    "Standard_NC48ads_A100_v4": Size(
        family=_A100, vcpus=48, memory_gb=440, gpus=2, generations="V2", zones=("1", "2")
    ),
    "Standard_NC96ads_A100_v4": Size(
        family=_A100, vcpus=96, memory_gb=880, gpus=4, generations="V2", zones=("1", "2")
    ),
    "Standard_ND96asr_v4": Size(
        family="StandardNDASv4_A100Family",
        vcpus=96,
        memory_gb=900,
        gpus=8,
        generations="V2",
        regions=_FEW,
        zones=(),
    ),
    "Standard_NC40ads_H100_v5": Size(
        family=_H100, vcpus=40, memory_gb=320, gpus=1, generations="V2", regions=_FEW
    ),
    "Standard_NC80adis_H100_v5": Size(
        family=_H100, vcpus=80, memory_gb=640, gpus=2, generations="V2", regions=_FEW
    ),
    "Standard_ND96isr_H100_v5": Size(
        family="standardNDSH100v5Family",
        vcpus=96,
        memory_gb=1900,
        gpus=8,
        generations="V2",
        regions=_FEW,
    ),
    "Standard_NV36ads_A10_v5": Size(family=_A10, vcpus=36, memory_gb=440, gpus=1),
    "Standard_NV72ads_A10_v5": Size(family=_A10, vcpus=72, memory_gb=880, gpus=2),
    "Standard_D4ps_v5": Size(
        family="standardDPSv5Family", vcpus=4, memory_gb=16, architecture="Arm64", generations="V2"
    ),
    "Standard_NC64lds_T4_v9": Size(family="standardNCLDSv9Family", vcpus=64, memory_gb=512, gpus=4),
    "Standard_NC80s_X99_v9": Size(family="standardNCSv9Family", vcpus=80, memory_gb=512, gpus=2),
}


@dataclass(frozen=True, kw_only=True)
class Image:
    versions: tuple[str, ...]
    gb: int = 30
    generation: str = "V2"
    architecture: str = "x64"
    controllers: str = "SCSI, NVMe"
    plan: str = ""
    """The name of its purchase plan, where it is sold with one."""


IMAGES = {
    ("Canonical", "0001-com-ubuntu-server-jammy", "22_04-lts-gen2"): Image(
        versions=("22.04.202506200", "22.04.202507300")
    ),
    ("Canonical", "0001-com-ubuntu-server-jammy", "22_04-lts"): Image(
        versions=("22.04.202506200", "22.04.202507300"), generation="V1"
    ),
    ("Canonical", "ubuntu-24_04-lts", "server"): Image(versions=("24.04.202506060",)),
    ("Canonical", "ubuntu-24_04-lts", "server-gen1"): Image(
        versions=("24.04.202506060",), generation="V1"
    ),
    ("microsoft-dsvm", "ubuntu-hpc", "2204"): Image(versions=("22.04.2025041101",), gb=64),
    ("Canonical", "ubuntu-24_04-lts", "server-arm64"): Image(
        versions=("24.04.202506060",), architecture="Arm64"
    ),
    ("nvidia", "ngc_azure_17_11", "ngc-base-version-24_10_1_gen2"): Image(
        versions=("24.10.1",), gb=64, plan="ngc-base-version-24_10_1_gen2"
    ),
    ("microsoft-dsvm", "ubuntu-2204", "2204-gen2"): Image(
        versions=("25.05.15",), gb=128, controllers=""
    ),
}

CORES = "cores"
SPOT_CORES = "lowPriorityCores"
VMS = "virtualMachines"
FAMILIES = {
    _T4: "Standard NCASv3_T4 Family",
    _A100: "StandardNCADSA100v4Family",
    "StandardNDASv4_A100Family": "Standard NDASv4_A100 Family",
    _H100: "StandardNCadsH100v5Family",
    "standardDSv5Family": "standardDSv5Family",
}
"""What usages call a family of skus: the two differ in spaces and capitals.
https://github.com/skypilot-org/skypilot/issues/10120 (against the live APIs),
https://github.com/Azure/azure-cli/issues/27118"""


def quota_of(family: str) -> str:
    return FAMILIES.get(family, family)


COMPUTE_QUOTAS = {CORES: 2000, SPOT_CORES: 2000, VMS: 25000} | {
    quota_of(size.family): 2000 for size in SIZES.values()
}
PUBLIC_ADDRESSES = "IPv4StandardSkuPublicIpAddresses"
"""As `az network list-usages` shows it."""
NETWORK_QUOTAS = {
    "VirtualNetworks": 1000,
    "NetworkInterfaces": 65536,
    "NetworkSecurityGroups": 5000,
    "PublicIPAddresses": 1000,
    PUBLIC_ADDRESSES: 1000,
}
QUOTA_NAMES = {
    CORES: "Total Regional vCPUs",
    SPOT_CORES: "Total Regional Spot vCPUs",
    VMS: "Virtual Machines",
    "VirtualNetworks": "Virtual Networks",
    "NetworkInterfaces": "Network Interfaces",
    "NetworkSecurityGroups": "Network Security Groups",
    "PublicIPAddresses": "Public IP Addresses - Basic",
    PUBLIC_ADDRESSES: "Public IPv4 Addresses - Standard",
}

_COMPUTE = """
2015-06-15 2016-03-30 2016-04-30-preview 2016-08-30 2017-03-30 2017-12-01 2018-04-01 2018-06-01
2018-10-01 2019-03-01 2019-07-01 2019-12-01 2020-06-01 2020-12-01 2021-03-01 2021-04-01 2021-07-01
2021-11-01 2022-03-01 2022-08-01 2022-11-01 2023-03-01 2023-07-01 2023-09-01 2024-03-01 2024-07-01
2024-11-01 2025-04-01 2025-11-01 2026-03-01 2026-04-01
"""
_DISKS = """
2016-04-30-preview 2017-03-30 2018-04-01 2018-06-01 2018-09-30 2019-03-01 2019-07-01 2019-11-01
2020-05-01 2020-06-30 2020-09-30 2020-12-01 2021-04-01 2021-08-01 2021-12-01 2022-03-02 2022-07-02
2023-01-02 2023-04-02 2023-10-02 2024-03-02 2025-01-02
"""
_NETWORK = """
2015-05-01-preview 2015-06-15 2016-03-30 2016-06-01 2016-09-01 2016-12-01 2017-03-01 2017-06-01
2017-08-01 2017-09-01 2017-10-01 2017-11-01 2018-01-01 2018-02-01 2018-04-01 2018-06-01 2018-07-01
2018-08-01 2018-10-01 2018-11-01 2018-12-01 2019-02-01 2019-04-01 2019-06-01 2019-07-01 2019-08-01
2019-09-01 2019-11-01 2019-12-01 2020-03-01 2020-04-01 2020-05-01 2020-06-01 2020-07-01 2020-08-01
2020-11-01 2021-02-01 2021-03-01 2021-05-01 2021-08-01 2022-01-01 2022-05-01 2022-07-01 2022-09-01
2022-11-01 2023-02-01 2023-04-01 2023-05-01 2023-06-01 2023-09-01 2023-11-01 2024-01-01 2024-03-01
2024-05-01 2024-07-01 2024-10-01 2025-01-01 2025-03-01 2025-05-01
"""
_RESOURCES = """
2015-01-01 2015-11-01 2016-02-01 2016-06-01 2016-07-01 2016-09-01 2017-05-10 2018-01-01 2018-02-01
2018-05-01 2019-03-01 2019-05-01 2019-05-10 2019-07-01 2019-08-01 2019-10-01 2020-01-01 2020-06-01
2020-08-01 2020-10-01 2021-01-01 2021-04-01 2022-01-01 2022-06-01 2022-09-01 2022-12-01 2024-03-01
2024-07-01 2024-11-01 2025-03-01 2025-04-01
"""

API_VERSIONS = {
    "microsoft.compute": _COMPUTE.split(),
    "microsoft.compute/disks": _DISKS.split(),
    "microsoft.compute/skus": ["2017-03-30", "2017-09-01", "2019-04-01", "2021-07-01"],
    "microsoft.network": _NETWORK.split(),
    "microsoft.resources": _RESOURCES.split(),
    "microsoft.computeschedule": ["2024-08-15-preview", "2024-10-01", "2025-05-01"],
    "microsoft.marketplaceordering": ["2021-01-01"],
    "microsoft.managedidentity": ["2018-11-30", "2023-01-31", "2024-11-30"],
    "microsoft.devtestlab": ["2015-05-21-preview", "2016-05-15", "2018-09-15"],
    "microsoft.resourcegraph": ["2021-03-01", "2022-10-01", "2024-04-01"],
    "microsoft.authorization": [
        "2015-07-01",
        "2018-01-01-preview",
        "2018-07-01",
        "2020-04-01-preview",
        "2022-04-01",
    ],
}
"""By namespace, or by type where it has its own. The libraries' own defaults are added to these."""

_ADDRESS = "properties.ipConfigurations[].properties.publicIPAddress"
SINCE = {
    "microsoft.compute/virtualmachines": {
        "zones": "2017-03-30",
        "properties.priority": "2019-03-01",
        "properties.evictionPolicy": "2019-03-01",
        "properties.billingProfile": "2019-03-01",
        "properties.userData": "2021-03-01",
        "properties.storageProfile.osDisk.deleteOption": "2021-03-01",
        "properties.networkProfile.networkInterfaces[].properties.deleteOption": "2021-03-01",
        "properties.networkProfile.networkInterfaceConfigurations": "2020-12-01",
        "properties.securityProfile.securityType": "2020-12-01",
    },
    "microsoft.network/publicipaddresses": {
        "sku": "2017-08-01",
        "zones": "2017-06-01",
        "properties.deleteOption": "2021-03-01",
    },
    "microsoft.network/networkinterfaces": {
        f"{_ADDRESS}.properties.deleteOption": "2021-03-01",
        "properties.enableAcceleratedNetworking": "2016-09-01",
    },
}
"""The first API version that takes a property."""
