"""Request bodies, built by pure functions.

The fields follow https://cloud.google.com/compute/docs/reference/rest/v1, where 64-bit numbers are
strings."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import CloudError
from cloudtrain.core.model import Network, NodePlan, Owner
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.driver import LaunchRequest
from cloudtrain.providers.gcp import scheduling
from cloudtrain.providers.gcp.client import Json
from cloudtrain.providers.gcp.facts import DISK_GB, GPU_DISK_GB
from cloudtrain.providers.gcp.images import GcpImage
from cloudtrain.providers.gcp.machine_types import COMPACT, shape
from cloudtrain.providers.gcp.startup import startup_script

SCOPE = "https://www.googleapis.com/auth/cloud-platform"


@dataclass(frozen=True, kw_only=True)
class ClusterNetwork:
    """Network resources of one cluster in one place."""

    network: str
    subnetwork: str
    tags: tuple[str, ...]
    """Network tags to which the firewall rules apply."""
    policy: str | None = None
    """Compact placement policy, if any."""
    bound: frozenset[str] = frozenset()
    """Reservations whose VMs end with them, as `provisioning` names them."""
    images: Mapping[str, GcpImage] = field(default_factory=dict)
    """Images by node name; none of a TPU, which has a software version instead."""
    shared: dict[str, Future[Json]] = field(default_factory=dict, compare=False, repr=False)
    lock: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)

    def once(self, name: str, create: Callable[[], Json]) -> Json:
        """Create a resource with several nodes in the first of their threads; the others wait for
        its result, or raise a copy of its error."""
        with self.lock:
            first = name not in self.shared
            result = self.shared.setdefault(name, Future())
        if first:
            try:
                result.set_result(create())
            except BaseException as error:  # noqa: BLE001 - raised again below, in every thread
                result.set_exception(error)
        try:
            return result.result()
        except CloudError as error:
            raise error.copy_with() from error.__cause__


RULES = ("-ssh", "-inside")
"""Suffixes of the names of the two firewall rules."""


def network(cluster: str) -> Json:
    return {
        "name": labels.group_name(cluster),
        "autoCreateSubnetworks": False,
        "mtu": 8896,  # the maximum, for gradients between nodes
        "routingConfig": {"routingMode": "REGIONAL"},
    }


def subnetwork(cluster: str, region: str, network: str) -> Json:
    return {
        "name": labels.group_name(cluster),
        "network": network,
        "ipCidrRange": cidr(region),
        "privateIpGoogleAccess": True,  # to reach buckets without a public address
    }


def cidr(region: str) -> str:
    """A /20 in 10.0.0.0/8 derived from the region alone: a cluster that tries several regions keeps
    one network, whose subnetworks must not overlap."""
    slot = zlib.crc32(region.encode()) % 4096
    return f"10.{slot // 16}.{slot % 16 * 16}.0/20"


def ssh_rule(cluster: str, network: str, caller: str) -> Json:
    return {
        **_rule(cluster, RULES[0], network),
        "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}],
        "sourceRanges": [caller],
    }


def inside_rule(cluster: str, network: str) -> Json:
    return {
        **_rule(cluster, RULES[1], network),
        "allowed": [{"IPProtocol": "all"}],
        "sourceTags": [labels.group_name(cluster)],
    }


def _rule(cluster: str, ending: str, network: str) -> Json:
    return {
        "name": f"{labels.group_name(cluster)}{ending}",
        "network": network,
        "direction": "INGRESS",
        "targetTags": [labels.group_name(cluster)],
    }


def policy(cluster: str) -> Json:
    return {
        "name": labels.group_name(cluster),
        "groupPlacementPolicy": {"collocation": "COLLOCATED"},
    }


def description(
    cluster: str,
    owner: Owner | None = None,
    tags: Mapping[str, str] | None = None,
    creation: Mapping[str, str] | None = None,
) -> str:
    """The description that replaces labels on resources that cannot have labels; `read_description`
    parses it. The user's own `tags` come after it, as far as there is room. `creation`:
    `labels.of_creation`."""
    values = {**labels.of_cluster(cluster, owner), **(creation or {})}
    facts = [f"{word}={values[key]}" for key, word in _FACTS.items() if key in values]
    own = " ".join(f"{name}={value}" for name, value in (tags or {}).items())
    text = f"made by cloudtrain: {' '.join(facts)}"
    return f"{text}{_OWN}{own}"[:LONGEST_DESCRIPTION] if own else text


_OWN = "; tags: "
LONGEST_DESCRIPTION = 2048
"""Characters of a description:
https://cloud.google.com/compute/docs/reference/rest/v1/networks (by general knowledge)"""


_FACTS = {
    labels.CLUSTER: "cluster",
    labels.OWNER: "owner",
    labels.OWNER_NAME: "owner-name",
    labels.MACHINE: "machine",
    labels.GENERATION: "generation",
    labels.CREATING: "creating",
    labels.DESK: "desk",
}


def read_description(text: str, *, of: str | None = None) -> labels.Labels | labels.NotOurs | None:
    """Parse a description; None if the resource is not ours."""
    head, _, facts = text.partition(": ")
    if head != "made by cloudtrain":
        return None
    ours = facts.partition(_OWN)[0]
    values = dict(fact.split("=", 1) for fact in ours.split() if "=" in fact)
    given = {key: values[word] for key, word in _FACTS.items() if word in values}
    return labels.read(given, of=of)


def instance(order: LaunchRequest[ClusterNetwork], project: str, *, now: float) -> Json:
    """The request body for a VM. `now`: Unix time; the API takes the VM's lifetime in seconds."""
    node, network = order.node, order.network
    wanted, zone = shape(node), f"projects/{project}/zones/{order.place.zone}"
    image = network.images[node.name]
    body: Json = {
        "name": node.name,
        "machineType": f"{zone}/machineTypes/{wanted.machine}",
        "labels": order.labels,
        **({"tags": {"items": list(network.tags)}} if network.tags else {}),
        "disks": [_boot_disk(order, image, f"{zone}/diskTypes/{wanted.disk_type}")],
        "networkInterfaces": [_interface(order, image)],
        **scheduling.bought(
            node,
            bound=node.provisioning.name in network.bound,
            queue=order.queue,
            left=None if order.expires is None else order.expires - now,
            migrates=not (wanted.has_gpus or _policy(order)),
        ),
        "metadata": {"items": _metadata(order, image)},
        "serviceAccounts": service_accounts(order.plan.config.identity),
    }
    if wanted.attached and wanted.gpus:
        body["guestAccelerators"] = [
            {
                "acceleratorType": f"{zone}/acceleratorTypes/{wanted.attached}",
                "acceleratorCount": wanted.gpus.count,
            }
        ]
    if image.uefi:
        body["shieldedInstanceConfig"] = {
            # Secure Boot refuses kernel modules that the image's vendor has not signed: NVIDIA's.
            "enableSecureBoot": not wanted.has_gpus,
            "enableVtpm": True,
            "enableIntegrityMonitoring": True,
        }
    if _policy(order) is not None:
        body["resourcePolicies"] = [_policy(order)]
    return body


def _boot_disk(order: LaunchRequest[ClusterNetwork], image: GcpImage, kind: str) -> Json:
    """The disk, with its key if that is the user's: AttachedDisk.diskEncryptionKey."""
    key = order.plan.config.disk_key_in(order.place.region)
    return {
        "boot": True,
        "autoDelete": True,
        "initializeParams": {
            "diskName": order.node.name,
            "sourceImage": image.source,
            "diskSizeGb": str(least_disk(order.node, image)),
            "diskType": kind,
            "labels": order.labels,
        },
        **({"diskEncryptionKey": {"kmsKeyName": key}} if key else {}),
    }


def service_accounts(identity: str | None) -> list[Json]:
    """The service account of a VM; none without `identity`: an intruder has no access then. Its IAM
    roles decide what it may do; the scope only admits all of them, as Google recommends:
    https://cloud.google.com/compute/docs/access/service-accounts#scopes_best_practice"""
    return [{"email": identity, "scopes": [SCOPE]}] if identity else []


def least_disk(node: NodePlan, image: GcpImage) -> int:
    """The minimum disk size in GB: the image's, as Google refuses less; with GPUs, 50 GB more.
    CUDA's libraries for TensorFlow take 7 GB, and their downloads another 3 GB during
    installation."""
    default = max(GPU_DISK_GB, image.disk_gb + 50) if shape(node).has_gpus else DISK_GB
    return max(node.disk_gb or default, image.disk_gb, 10)


def _interface(order: LaunchRequest[ClusterNetwork], image: GcpImage) -> Json:
    """The network interface: a Google Virtual NIC if the image has its driver.

    Google recommends it from 50 Gbit/s on; without `nicType` n1, a2 and g2 get VirtIO.
    https://cloud.google.com/compute/docs/gpus/gpu-network-bandwidth (documented)

    An internal address belongs to a VM until that is deleted, also while it is stopped; a new VM
    may request it again with `networkIP`: https://cloud.google.com/compute/docs/ip-addresses
    (documented)."""
    interface: Json = {"network": order.network.network, "subnetwork": order.network.subnetwork}
    if order.node.internal:
        interface["networkIP"] = order.node.internal
    if image.gvnic:
        interface["nicType"] = "GVNIC"
    if not order.plan.config.network.private:
        interface["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
    return interface


def _policy(order: LaunchRequest[ClusterNetwork]) -> str | None:
    return order.network.policy if shape(order.node).family in COMPACT else None


def os_login(network: Network) -> str:
    """The value of `enable-oslogin`. Off, nobody but our own user can log in.

    An organization's policy `constraints/compute.requireOsLogin` refuses FALSE for a VM. With TRUE,
    whoever has roles/compute.osLogin can log in, too; our user stays: "You can configure an
    authorized_keys file to provision access for a local user account even when OS Login is
    enabled", and AuthorizedKeysCommand comes before that file (sshd_config(5)).
    https://cloud.google.com/compute/docs/oslogin and …/oslogin/manage-oslogin-in-an-org, read
    2026-11-24, not tried on a real project"""
    return "TRUE" if network.os_login else "FALSE"


def _metadata(order: LaunchRequest[ClusterNetwork], image: GcpImage) -> list[Json]:
    items = {
        "user-data": order.user_data,
        "startup-script": startup_script(order.user_data),
        # Block the keys of the project and of its users.
        "block-project-ssh-keys": "TRUE",
        "enable-oslogin": os_login(order.plan.config.network),
        "serial-port-enable": "FALSE",
    }
    if image.installs_driver and shape(order.node).has_gpus:
        items["install-nvidia-driver"] = "True"
    return [{"key": key, "value": value} for key, value in items.items()]
