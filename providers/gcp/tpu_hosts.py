"""Map TPUs to our types: each host of a TPU is a node, worker 0 … N-1."""

from __future__ import annotations

from cloudtrain.core.errors import CapacityError
from cloudtrain.core.model import ON_DEMAND, SPOT, Node, NodeState
from cloudtrain.core.partial_list import NotAsked
from cloudtrain.core.task_id import TaskId
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.answers import ip_address, typed, unix_time
from cloudtrain.providers.base.driver import LaunchRequest, Vm
from cloudtrain.providers.gcp.client import Json
from cloudtrain.providers.gcp.listing import place_of
from cloudtrain.providers.gcp.requests import ClusterNetwork, os_login, service_accounts
from cloudtrain.providers.gcp.startup import slice_script

SCOPE = "https://www.googleapis.com/auth/logging.write"
"""Only scope of the service account on the hosts, without `identity`. The API gives a TPU the
project's default account if none is named, and an empty list of scopes means all of them."""

STATES: dict[str, NodeState] = {
    "CREATING": "starting",
    "STARTING": "starting",
    "RESTARTING": "starting",
    "REIMAGING": "starting",
    "REPAIRING": "starting",
    "UNHIDING": "starting",
    "READY": "running",
    "STOPPING": "stopped",
    "STOPPED": "stopped",
    "DELETING": "stopped",
    "HIDING": "stopped",
    "HIDDEN": "stopped",
    "PREEMPTED": "stopped",
    "TERMINATED": "stopped",
}
LOST = frozenset({"PREEMPTED", "TERMINATED"})
"""States of a TPU that Google has taken back. It is not billed and cannot be started, but it keeps
its name until it is deleted."""


def is_host(machine: Vm) -> bool:
    """True for a host of a TPU, false for a VM."""
    return machine.id.startswith("tpu/")


def tpu_of(machine: Vm) -> str:
    """Name of the TPU that the host belongs to."""
    return machine.id.split("/")[1]


def to_hosts(tpu: Json) -> tuple[Vm, ...]:
    """Convert a TPU to a Vm for each of its hosts; none if it is not ours."""
    return tuple(host for host in listed_hosts(tpu) if isinstance(host, Vm))


def listed_hosts(tpu: Json, of: str | None = None) -> tuple[Vm | NotAsked, ...]:
    """The same, `of` one cluster alone; NotAsked if its labels cannot be ours."""
    _, _, _, zone, _, name = str(tpu["name"]).split("/")
    parsed = labels.read(typed(tpu, "labels", dict), of=of, named=name)
    if isinstance(parsed, labels.NotOurs):
        return (parsed.on(f"TPU {name} in {zone}"),)
    if parsed is None:
        return ()
    endpoints = tpu.get("networkEndpoints") or []
    count = parsed.hosts or len(endpoints)
    padded = [*endpoints, *[{}] * max(0, max(1, count) - len(endpoints))]
    return tuple(_host(tpu, parsed, index, each) for index, each in enumerate(padded))


def _host(tpu: Json, parsed: labels.Labels, index: int, endpoint: Json) -> Vm:
    _, _, _, zone, _, name = str(tpu["name"]).split("/")
    state, scheduling = str(tpu.get("state")), tpu.get("schedulingConfig") or {}
    internal = ip_address(endpoint.get("ipAddress"))
    outside = bool((tpu.get("networkConfig") or {}).get("enableExternalIps"))
    address = ip_address((endpoint.get("accessConfig") or {}).get("externalIp"))
    node = Node(
        name=TaskId(role=parsed.role, index=index).node_name(parsed.cluster),
        state=STATES.get(state, "starting"),
        address=address if outside else internal,
        internal=internal,
        placement=zone,
        machine=str(tpu.get("acceleratorType") or ""),
        provisioning=SPOT if scheduling.get("spot") or scheduling.get("preemptible") else ON_DEMAND,
        created=unix_time(tpu.get("createTime")),
        expires=parsed.expires,
        **{**parsed.node_fields, "index": index},
    )
    unique = tpu.get("id") or tpu.get("createTime") or ""
    words = str(tpu.get("healthDescription") or "")
    lost = CapacityError(f"TPU {name} is {state}{f': {words}' if words else ''}", scope="zone")
    return Vm(
        cluster=parsed.cluster,
        node=node,
        place=place_of(zone),
        id=f"tpu/{name}/{unique}/{index}",
        error=lost if state in LOST else None,
    )


def name_of(order: LaunchRequest[ClusterNetwork]) -> str:
    """Name of the TPU: that of its first node, whichever host is launched."""
    return TaskId(role=order.node.role, index=0).node_name(order.plan.config.name)


def body(order: LaunchRequest[ClusterNetwork], runtime: str) -> Json:
    """The request body for a TPU with all its hosts."""
    config, network = order.plan.config, order.network
    same = [node for node in order.plan.nodes if node.role == order.node.role]
    hosts = sorted(same, key=lambda node: node.index)
    key = config.disk_key_in(order.place.region)
    given_to_vms = service_accounts(config.identity)
    accounts = [{"email": each["email"], "scope": each["scopes"]} for each in given_to_vms]
    given = labels.on_node(order.plan, hosts[0], order.expires)
    return {
        "acceleratorType": order.node.machine,
        "runtimeVersion": runtime,
        "description": f"made by cloudtrain: cluster={config.name}",
        "labels": {**given, labels.HOSTS: str(len(hosts))},
        "tags": list(network.tags),
        "networkConfig": {
            "network": network.network,
            "subnetwork": network.subnetwork,
            "enableExternalIps": not config.network.private,
        },
        **({"bootDiskConfig": {"customerEncryptionKey": {"kmsKeyName": key}}} if key else {}),
        "serviceAccount": accounts[0] if accounts else {"scope": [SCOPE]},
        "schedulingConfig": {"spot": True} if order.node.spot else {},
        "metadata": {
            "startup-script": slice_script([order.user_data_of(host) for host in hosts]),
            "block-project-ssh-keys": "TRUE",
            "enable-oslogin": os_login(config.network),
            "serial-port-enable": "FALSE",
        },
    }
