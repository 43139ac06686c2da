"""What these credentials may do in the project, and what up and down need."""

from __future__ import annotations

import os

from cloudtrain.errors import CloudError
from cloudtrain.providers._gcp.api import Api

OVERRIDE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDRESOURCEMANAGER"
GOOGLE = "https://cloudresourcemanager.googleapis.com"

NEEDED = (
    # roles/compute.admin has them all: https://cloud.google.com/iam/docs/roles-permissions/compute
    "compute.disks.create",
    "compute.disks.delete",
    "compute.disks.list",
    "compute.disks.setLabels",
    "compute.firewalls.create",
    "compute.firewalls.delete",
    "compute.firewalls.get",
    "compute.firewalls.list",
    "compute.firewalls.update",
    "compute.instances.create",
    "compute.instances.delete",
    "compute.instances.get",
    "compute.instances.list",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.instances.setTags",
    "compute.instances.start",
    "compute.networks.create",
    "compute.networks.delete",
    "compute.networks.get",
    "compute.networks.list",
    "compute.networks.updatePolicy",
    "compute.projects.get",
    "compute.regions.get",
    "compute.resourcePolicies.create",
    "compute.resourcePolicies.delete",
    "compute.resourcePolicies.list",
    "compute.resourcePolicies.use",
    "compute.subnetworks.create",
    "compute.subnetworks.delete",
    "compute.subnetworks.get",
    "compute.subnetworks.list",
    "compute.subnetworks.use",
    "compute.subnetworks.useExternalIp",
    "compute.zones.list",
)


def missing(api: Api) -> tuple[str, ...] | None:
    """None where it cannot be asked: an endpoint of one's own has no resource manager beside it,
    and Google's may not be enabled for the project, which `up` does not need."""
    url = os.environ.get(OVERRIDE) or (None if api.endpoint else GOOGLE)
    if url is None:
        return None
    try:
        told = api.at(f"{url.rstrip('/').removesuffix('/v1')}/v1").call(
            "permissions",
            "POST",
            f"projects/{api.project}:testIamPermissions",
            body={"permissions": list(NEEDED)},
        )
    except CloudError:
        return None
    given = set(told.get("permissions") or ())
    return tuple(permission for permission in NEEDED if permission not in given)
