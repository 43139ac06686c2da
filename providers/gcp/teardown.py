"""Deletes our resources in the order that Google requires."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from cloudtrain.errors import (
    BusyError,
    CloudConfigError,
    CloudError,
    NodesError,
    NotFoundError,
)
from cloudtrain.parallel import fan_out
from cloudtrain.providers.base.driver import Resource, Vm
from cloudtrain.providers.gcp import tpu_hosts
from cloudtrain.providers.gcp.client import GcpClient
from cloudtrain.providers.gcp.faults import is_unknown_question
from cloudtrain.providers.gcp.tpus import Tpus

PATHS = {
    "disk": "zones/{0.region}/disks/{0.name}",
    "firewall": "global/firewalls/{0.name}",
    "placement policy": "regions/{0.region}/resourcePolicies/{0.name}",
    "subnetwork": "regions/{0.region}/subnetworks/{0.name}",
    "network": "global/networks/{0.name}",
}
ORDER = (("disk", "firewall", "placement policy"), ("subnetwork",), ("network",))
"""Deletion order after the VMs: each group can be deleted only when all groups before it
are gone.
"""

AT_ONCE = 512
RELEASE = 10.0
"""Seconds to retry deleting a resource in use before its users are listed again."""


def delete_all(
    api: GcpClient, tpus: Tpus, machines: Sequence[Vm], resources: Sequence[Resource]
) -> None:
    """Delete everything, then raise the failure if there was one, or a NodesError with all
    failures. A TPU is deleted as a whole, whichever of its hosts is named.
    """
    failures: dict[str, BaseException] = {}
    hosts = [m for m in machines if tpu_hosts.is_host(m)]
    vms = [m for m in machines if not tpu_hosts.is_host(m)]
    works: dict[str, Callable[[], None]] = {}
    for name, zone in dict.fromkeys((tpu_hosts.tpu_of(m), m.place.zone) for m in hosts):
        works[f"TPU {name} in {zone}"] = partial(_delete_tpu, api, tpus, zone, name)
    for m in vms:
        what = f"instance {m.node.name} in {m.place}"
        works[what] = partial(delete, api, what, instance_path(m))
    _side_by_side(works, failures)
    for kinds in () if failures else ORDER:  # keep what a remaining VM uses
        ours = [r for r in resources if r.kind in kinds]
        _side_by_side(
            {str(r): partial(delete, api, str(r), PATHS[r.kind].format(r)) for r in ours}, failures
        )
    if len(failures) == 1:
        raise next(iter(failures.values()))
    if failures:
        raise NodesError(failures)


def delete_from_inside(
    api: GcpClient, machines: Sequence[Vm], resources: Sequence[Resource]
) -> None:
    """Delete the firewall rules, then the VM that runs this program.

    Its subnetwork and network, which have no price, cannot be deleted before it. The disk goes with
    it (`autoDelete`).
    """
    rules = [r for r in resources if r.kind == "firewall"]
    failures: dict[str, BaseException] = {}  # what stays has no price, the VM has
    _side_by_side(
        {str(r): partial(delete, api, str(r), PATHS[r.kind].format(r)) for r in rules}, failures
    )
    for machine in machines:
        delete(api, f"instance {machine.node.name} in {machine.place}", instance_path(machine))


def delete(api: GcpClient, what: str, path: str) -> None:
    """Delete a resource and wait until it is gone. Retries for a while if it is still in use."""

    def attempt() -> None:
        try:
            api.run(f"deleting {what}", "DELETE", path)
        except NotFoundError as error:
            if is_unknown_question(error):  # the path is unknown: the resource may exist
                raise

    api.persist(attempt, within=RELEASE)


def instance_path(machine: Vm) -> str:
    return f"zones/{machine.place.zone}/instances/{machine.node.name}"


def _delete_tpu(api: GcpClient, tpus: Tpus, zone: str, name: str) -> None:
    """Delete a TPU; one that is being created or deleted refuses it for a while."""

    def attempt() -> None:
        try:
            tpus.delete(zone, name)
        except CloudConfigError as error:
            if error.code != "FAILED_PRECONDITION":
                raise
            raise BusyError(error.message, hint=error.hint, code=error.code) from error

    api.persist(attempt, within=RELEASE)


def _side_by_side(
    works: Mapping[str, Callable[[], None]], failures: dict[str, BaseException]
) -> None:
    def attempt(what: str) -> None:
        try:
            works[what]()
        except CloudError as error:
            failures[what] = error

    name: Callable[[str], str] = str
    fan_out(list(works), attempt, name=name, workers=AT_ONCE)
