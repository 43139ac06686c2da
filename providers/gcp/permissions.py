"""Permissions that the driver's calls need; finds those that the credentials lack.

permissions.csv has their sources; this exact role has not been tried on a real project.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from cloudtrain.core.errors import CloudError
from cloudtrain.core.model import ClusterConfig, Market, Network
from cloudtrain.providers.base import fact_tables
from cloudtrain.providers.base.words import NOT_REPORTED
from cloudtrain.providers.gcp import ssh_service
from cloudtrain.providers.gcp.client import GcpClient
from cloudtrain.providers.gcp.facts import FOLDER
from cloudtrain.training.strategies import STRATEGIES

OVERRIDE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDRESOURCEMANAGER"
GOOGLE = "https://cloudresourcemanager.googleapis.com"

CALLS: Mapping[str, tuple[str, ...]] = {
    row["method"]: tuple(row["permissions"].split())
    for row in fact_tables.rows(FOLDER, "permissions")
}
"""API method → permissions that it needs."""


def _only_for(use: str) -> tuple[str, ...]:
    table = fact_tables.rows(FOLDER, "permissions")
    return tuple(
        sorted({each for row in table if row["only_for"] == use for each in CALLS[row["method"]]})
    )


BY_MARKET: Mapping[Market, tuple[str, ...]] = {
    "flex-start": _only_for("flex-start"),
    "reservation": _only_for("reservation"),
}
"""Permissions that the driver needs only for machines of that market."""
EVIDENCE = _only_for("evidence")
"""Permissions without which zones are not ordered by where spot VMs are likely to be had."""
TPU_MORE = _only_for("TPU")
"""Permissions that the role needs as well for `strategy: tpu`. roles/tpu.admin has those of `tpu`;
the hosts run as the project's default service account, on which roles/iam.serviceAccountUser has
the other.
"""
NEEDED = _only_for("")
"""All permissions that the driver always needs; roles/compute.admin includes them:
https://cloud.google.com/iam/docs/roles-permissions/compute
"""
ROLE = tuple(sorted({*NEEDED, *EVIDENCE, *(p for each in BY_MARKET.values() for p in each)}))
"""Permissions of the custom role."""

ON_SUBNET: tuple[str, ...] = ("compute.subnetworks.use",)
ON_SUBNET_PUBLIC = "compute.subnetworks.useExternalIp"
"""Permissions that are needed on the subnetwork of a Shared VPC, the second for nodes with public
addresses; roles/compute.networkUser has both:
https://cloud.google.com/vpc/docs/provisioning-shared-vpc#networkuseratsubnet
"""
NETWORKS = (
    *("networks.create", "networks.delete", "networks.get"),
    *("subnetworks.create", "subnetworks.delete"),
    *("subnetworks.use", "subnetworks.useExternalIp"),
)
"""Permissions on the project that an existing network makes superfluous; the last two are needed on
its subnetwork."""
FIREWALLS = (
    *("firewalls.create", "firewalls.delete", "firewalls.get", "firewalls.update"),
    "networks.updatePolicy",
)
"""Permissions that an existing firewall makes superfluous."""


def unneeded(network: Network) -> frozenset[str]:
    """Permissions of NEEDED that an existing network, or firewall, makes superfluous."""
    if not (network.subnet or network.vpc):
        return frozenset()
    more = FIREWALLS if network.firewall is not None else ()
    return frozenset(f"compute.{each}" for each in (*NETWORKS, *more))


WITH_IDENTITY = ("compute.instances.setServiceAccount",)
"""Permissions that the role needs as well to create VMs with `identity`:
https://cloud.google.com/compute/docs/access/create-enable-service-accounts-for-instances
"""
ON_IDENTITY = ("iam.serviceAccounts.actAs", "iam.serviceAccounts.get")
"""Permissions that are needed on the service account; roles/iam.serviceAccountUser has them."""


def least(config: ClusterConfig) -> tuple[str, ...]:
    """The permissions in the project that this file needs."""
    groups = [group.provisioning for group in config.nodes.values()]
    found = set(NEEDED) - unneeded(config.network)
    found |= {each for bought in groups for each in BY_MARKET.get(bought.market, ())}
    found |= {*EVIDENCE} if any(bought.spot for bought in groups) else set()
    found |= {*WITH_IDENTITY} if config.identity else set()
    found |= {*TPU_MORE} if STRATEGIES[config.strategy].tpus else set()
    proxy = config.network.ssh_proxy
    return tuple(sorted(found | ({*ssh_service.PERMISSIONS} if proxy and proxy.iap else set())))


def commands(config: ClusterConfig) -> str:
    """The commands that give all that this file needs, and no more, to paste."""
    project = config.project or os.environ.get("GOOGLE_CLOUD_PROJECT") or "PROJECT"
    member = "--member=user:YOU@example.com"
    bind = "add-iam-policy-binding"
    lines = [
        f"gcloud iam roles create cloudtrain --project={project} --title=cloudtrain \\",
        f"  --permissions={','.join(least(config))}",
        f"gcloud projects {bind} {project} {member} --role=projects/{project}/roles/cloudtrain",
    ]
    if config.identity:
        account = f"gcloud iam service-accounts {bind} {config.identity}"
        lines.append(f"{account} {member} --role=roles/iam.serviceAccountUser")
    if config.network.subnet and "/" in config.network.subnet:
        subnet = f"gcloud compute networks subnets {bind} {config.network.subnet}"
        lines.append(f"{subnet} {member} --role=roles/compute.networkUser")
    stores = [(config.artifacts.store, "storage.objectUser")]
    stores += [(each.source, "storage.objectViewer") for each in config.data.values()]
    for uri, role in stores:
        if (uri or "").startswith("gs://"):
            bucket = "/".join(str(uri).split("/")[:3])
            lines.append(f"gcloud storage buckets {bind} {bucket} {member} --role=roles/{role}")
    return "\n".join(dict.fromkeys(lines)) + "\n"


RESOURCE_MANAGER = (
    "not checked: the Resource Manager API, which `up` does not need, is disabled; to check, run "
    "`gcloud services enable cloudresourcemanager.googleapis.com --project {}`"
)


STOPPING = ("BILLING_DISABLED", "CONSUMER_SUSPENDED", "USER_PROJECT_DENIED")
"""Reasons for which every other service refuses, too."""


def missing(api: GcpClient, wanted: Sequence[str]) -> tuple[str, ...] | str:
    """The permissions that the credentials lack, or the reason why they cannot be queried.

    A custom endpoint has no Resource Manager, and that API may be disabled for the project.
    """
    url = os.environ.get(OVERRIDE) or (None if api.endpoint else GOOGLE)
    if url is None:
        return NOT_REPORTED
    try:
        url = f"{url.rstrip('/').removesuffix('/v1')}/v1"
        answer = api.at(url, service="cloudresourcemanager.googleapis.com").call(
            "permissions",
            "POST",
            f"projects/{api.project}:testIamPermissions",
            body={"permissions": list(wanted)},
        )
    except CloudError as error:
        if error.code in ("SERVICE_DISABLED", "accessNotConfigured"):
            return RESOURCE_MANAGER.format(api.project)
        if error.code in STOPPING:
            raise
        return f"{NOT_REPORTED}: {error.message}{f'; {error.hint}' if error.hint else ''}"
    given = set(answer.get("permissions") or ())
    return tuple(permission for permission in wanted if permission not in given)
