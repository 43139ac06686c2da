"""Deletes our resources in the order that Google requires."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

from cloudtrain.core import errors, fence
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.driver import Resource, Vm
from cloudtrain.providers.base.teardown import gather
from cloudtrain.providers.gcp import tpu_hosts
from cloudtrain.providers.gcp.client import GcpClient
from cloudtrain.providers.gcp.faults import is_unknown_question
from cloudtrain.providers.gcp.requests import read_description
from cloudtrain.providers.gcp.tpus import Tpus

PATHS = {
    "disk": "zones/{0.region}/disks/{0.name}",
    "firewall": "global/firewalls/{0.name}",
    "placement policy": "regions/{0.region}/resourcePolicies/{0.name}",
    "subnetwork": "regions/{0.region}/subnetworks/{0.name}",
    "network": "global/networks/{0.name}",
}
ORDER = (("disk", "firewall", "placement policy"), ("subnetwork",), ("network",))
"""Deletion order after the VMs: each group can be deleted once those before it are gone."""

AT_ONCE = 512
RELEASE = 10.0
"""Seconds to retry deleting a resource in use before its users are listed again."""


def delete_all(
    api: GcpClient, tpus: Tpus, machines: Sequence[Vm], resources: Sequence[Resource]
) -> None:
    """Delete everything, then raise the failure if there was one, or a NodesError with all
    failures. A TPU is deleted as a whole, whichever of its hosts is named."""
    failures: dict[str, BaseException] = {}
    hosts = [m for m in machines if tpu_hosts.is_host(m)]
    vms = [m for m in machines if not tpu_hosts.is_host(m)]
    works: dict[str, Callable[[], None]] = {}
    for host in {(tpu_hosts.tpu_of(m), m.place.zone): m for m in hosts}.values():
        name, zone = tpu_hosts.tpu_of(host), host.place.zone
        works[f"TPU {name} in {zone}"] = partial(_delete_tpu, api, tpus, host)
    for m in vms:
        works[_words(m)] = partial(delete_vm, api, m)
    gather(works, failures, AT_ONCE)
    for kinds in () if failures else ORDER:  # keep what a remaining VM uses
        ours = [r for r in resources if r.kind in kinds]
        paths = {str(r): PATHS[r.kind].format(r) for r in ours}
        works = {what: partial(delete, api, what, path) for what, path in paths.items()}
        gather(works, failures, AT_ONCE)
    for what, error in failures.items():
        failures[what] = _blocked(api, error)
    errors.raise_all(failures)


def _blocked(api: GcpClient, error: BaseException) -> BaseException:
    """The error with what blocks a deletion, if that is not ours: no wait ends it."""
    used = _USER.search(str(error)) if isinstance(error, errors.BusyError) else None
    there = errors.if_told(lambda: api.find("its user", used[1]), None) if used else None
    if used is None or there is None or labels.read(there.get("labels") or {}):
        return error
    if read_description(str(there.get("description") or "")):
        return error
    kind, name = used[1].split("/")[-2:]
    command = _COMMANDS.get(kind, f"gcloud compute {kind}")
    where = re.search(r"(zone|region)s/([^/]+)/", used[1])
    place = f" --{where[1]} {where[2]}" if where else ""
    hint = (
        f"{kind.rstrip('s')} {name} is in the way, and not of cloudtrain: ask who made it "
        f"({str(there.get('creationTimestamp', ''))[:10]}), or run `{command} delete {name} "
        f"--project {api.project}{place}`, then `cloudtrain down` again"
    )
    blocked = error.copy_with(hint=hint) if isinstance(error, errors.BusyError) else error
    vars(blocked)["lasting"] = True
    return blocked


_USER = re.compile(r"already being used by '(projects/[^']+)'")
"""https://cloud.google.com/vpc/docs/create-modify-vpc-networks#deleting_a_network"""
_COMMANDS = {
    "firewalls": "gcloud compute firewall-rules",
    "forwardingRules": "gcloud compute forwarding-rules",
    "subnetworks": "gcloud compute networks subnets",
}


def delete_from_inside(
    api: GcpClient, machines: Sequence[Vm], resources: Sequence[Resource]
) -> None:
    """Delete the firewall rules, then the VM that runs this program. Its subnetwork and network,
    without a price, stay. The disk goes with it (`autoDelete`)."""
    rules = [r for r in resources if r.kind == "firewall"]
    failures: dict[str, BaseException] = {}  # what stays has no price, the VM has
    gather(
        {str(r): partial(delete, api, str(r), PATHS[r.kind].format(r)) for r in rules},
        failures,
        AT_ONCE,
    )
    for machine in machines:
        delete_vm(api, machine)


def delete_vm(api: GcpClient, machine: Vm) -> None:
    """Delete a VM by its id: another one may have its name by now. Paths take an id for a name: of
    `instances.delete` by general knowledge; networks have a `selfLinkWithId`. For an endpoint that
    takes names alone, or rights by name, it is looked up."""
    what, path = _words(machine), instance_path(machine)
    if not machine.id.isdecimal():
        delete(api, what, path)
        return

    def attempt() -> bool:
        fence.refuse_stale()
        try:
            api.run(f"deleting {what}", "DELETE", f"{path.rpartition('/')[0]}/{machine.id}")
        except (errors.NotFoundError, errors.CloudConfigError, errors.PermissionsError):
            return False
        return True

    if api.persist(attempt, within=RELEASE):
        return
    found = api.find(what, path)
    if found is not None and str(found.get("id")) == machine.id:
        delete(api, what, path)


def _words(machine: Vm) -> str:
    return f"instance {machine.node.name} in {machine.place}"


def delete(api: GcpClient, what: str, path: str) -> None:
    """Delete a resource and wait until it is gone. Retries for a while if it is still in use."""

    def attempt() -> None:
        fence.refuse_stale()
        try:
            api.run(f"deleting {what}", "DELETE", path)
        except errors.NotFoundError as error:
            if is_unknown_question(error):  # the path is unknown: the resource may exist
                raise

    api.persist(attempt, within=RELEASE)


def instance_path(machine: Vm) -> str:
    return f"zones/{machine.place.zone}/instances/{machine.node.name}"


def _delete_tpu(api: GcpClient, tpus: Tpus, host: Vm) -> None:
    """Delete the TPU of a host; one that is being created or deleted refuses it for a while."""
    zone, name = host.place.zone, tpu_hosts.tpu_of(host)

    def attempt() -> None:
        fence.refuse_stale()
        try:
            tpus.delete(zone, name)
        except errors.CloudConfigError as error:
            if error.code != "FAILED_PRECONDITION":
                raise
            raise errors.BusyError(error.message, hint=error.hint, code=error.code) from error

    api.persist(attempt, within=RELEASE)
