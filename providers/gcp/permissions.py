"""Permissions that the driver's calls need; finds those that the credentials lack.

permissions.csv has their sources; this exact role has not been tried on a real project."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from urllib.parse import quote

from cloudtrain.core.errors import CloudError, NotFoundError, PermissionsError, if_told
from cloudtrain.core.model import ClusterConfig, Market, Network, Plan
from cloudtrain.core.protocols import Finding
from cloudtrain.core.store_kinds import own_uris
from cloudtrain.providers.base import fact_tables
from cloudtrain.providers.base.checks import NotChecked, finding, not_checked
from cloudtrain.providers.base.words import NOT_REPORTED
from cloudtrain.providers.gcp import faults, ssh_service
from cloudtrain.providers.gcp.client import GcpClient, Json
from cloudtrain.providers.gcp.facts import FACTS, FOLDER
from cloudtrain.training.strategies import STRATEGIES

OVERRIDE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDRESOURCEMANAGER"
MANAGER = (OVERRIDE, "https://cloudresourcemanager.googleapis.com", "v1")

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
the other."""
NEEDED = _only_for("")
"""All permissions that the driver always needs; roles/compute.admin includes them:
https://cloud.google.com/iam/docs/roles-permissions/compute"""
ROLE = tuple(sorted({*NEEDED, *EVIDENCE, *(p for each in BY_MARKET.values() for p in each)}))
"""Permissions of the custom role."""

ON_SUBNET: tuple[str, ...] = ("compute.subnetworks.use",)
ON_SUBNET_PUBLIC = "compute.subnetworks.useExternalIp"
"""Permissions that are needed on the subnetwork of a Shared VPC, the second for nodes with public
addresses; roles/compute.networkUser has both:
https://cloud.google.com/vpc/docs/provisioning-shared-vpc#networkuseratsubnet"""
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
https://cloud.google.com/compute/docs/access/create-enable-service-accounts-for-instances"""
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

    A custom endpoint has no Resource Manager, and that API may be disabled for the project."""
    manager = api.other(*MANAGER)
    if manager is None:
        return NOT_REPORTED
    try:
        path, body = f"projects/{api.project}:testIamPermissions", {"permissions": list(wanted)}
        answer = manager.call("permissions", "POST", path, body=body)
    except CloudError as error:
        if error.code in DISABLED:
            return RESOURCE_MANAGER.format(api.project)
        if error.code in STOPPING:
            raise
        return f"{NOT_REPORTED}: {error.message}{f'; {error.hint}' if error.hint else ''}"
    given = set(answer.get("permissions") or ())
    return tuple(permission for permission in wanted if permission not in given)


# Check the service account of `identity`: it exists, may be attached, and may use the buckets
# https://iam.googleapis.com/$discovery/rest?version=v1 and
# https://storage.googleapis.com/$discovery/rest?version=v1, read 2026-11-22; not tried on a real
# project.


IAM = ("CLOUDSDK_API_ENDPOINT_OVERRIDES_IAM", "https://iam.googleapis.com", "v1")
STORAGE = (
    "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE",
    "https://storage.googleapis.com/storage/v1",
    "",
)

ACT_AS = "iam.serviceAccounts.actAs"
EVERYBODY = ("allUsers", "allAuthenticatedUsers")
DISABLED = ("SERVICE_DISABLED", "accessNotConfigured")


def check_identity(api: GcpClient, plan: Plan) -> Iterator[Finding]:
    """Yield the findings; none without `identity`. What cannot be asked fails nothing."""
    email = plan.config.identity
    if email is None:
        return
    iam, storage = api.other(*IAM), api.other(*STORAGE)
    first = finding("identity", lambda: _account(iam, api, email))
    yield first
    for uri in own_uris(plan.config, FACTS.bucket_schemes) if iam and first.ok else ():
        if storage is not None:
            yield finding("identity", partial(_bucket_use, storage, email, uri.bucket))


def _account(iam: GcpClient | None, api: GcpClient, email: str) -> str:
    """Text on the account. Raises PermissionsError if it cannot be attached."""
    if iam is None:
        raise NotChecked(f"{email}: {NOT_REPORTED}")
    path = f"projects/-/serviceAccounts/{quote(email)}"
    try:
        found: Json | None = iam.get(f"service account {email}", path)
    except NotFoundError as error:
        if error.code == faults.UNKNOWN_METHOD:
            raise NotChecked(f"{email}: {NOT_REPORTED}") from error
        raise PermissionsError(f"no service account {email}", hint=faults.NO_ACCOUNT) from error
    except PermissionsError as error:
        if error.code in DISABLED:
            raise NotChecked(
                f"{email}: not checked: the IAM API is disabled; to check, run `gcloud services "
                f"enable iam.googleapis.com --project {api.project}`"
            ) from error
        found = None  # it may exist, and actAs alone is needed
    if found is not None and found.get("disabled"):
        raise PermissionsError(
            f"the service account {email} is disabled",
            hint=f"run `gcloud iam service-accounts enable {email}`",
        )
    what = f"permissions on {email}"
    answer = iam.call(what, "POST", f"{path}:testIamPermissions", body={"permissions": [ACT_AS]})
    if ACT_AS not in (answer.get("permissions") or ()):
        exists = "" if found else ", or it does not exist"
        raise PermissionsError(f"{email}: {ACT_AS} is not granted{exists}", hint=faults.ATTACH)
    text = f"{email} may be attached"
    if found is not None and found.get("projectId") not in (None, api.project):
        text += (
            f"; it is of project {found['projectId']}: the organization policy "
            "iam.disableCrossProjectServiceAccountUsage must allow it"
        )
    return text


def _bucket_use(storage: GcpClient, email: str, bucket: str) -> str:
    """Report the account's roles in the bucket's own policy.

    Roles on the project or a folder, and those of groups, are not in it, so that their absence
    proves nothing."""
    policy = if_told(
        lambda: storage.get(f"policy of gs://{bucket}", f"b/{quote(bucket)}/iam"),
        not_checked(f"gs://{bucket}: could not be checked"),
    )
    members = (f"serviceAccount:{email}".lower(), *(each.lower() for each in EVERYBODY))
    roles = sorted(
        str(binding.get("role"))
        for binding in policy.get("bindings") or ()
        if any(str(member).lower() in members for member in binding.get("members") or ())
    )
    if roles:
        return f"gs://{bucket}: has {', '.join(roles)}"
    raise NotChecked(
        f"gs://{bucket}: has no role in the bucket's own policy; one on the project, or of a "
        "group, could not be checked"
    )
