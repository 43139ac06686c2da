"""Deletes our resources in the order that Google requires."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cloudtrain.errors import CloudError, NodesError, NotFoundError
from cloudtrain.parallel import fan_out
from cloudtrain.providers.base.driver import Resource, Vm
from cloudtrain.providers.gcp.client import GcpClient
from cloudtrain.providers.gcp.faults import is_unknown_question

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

AT_ONCE = 128
RELEASE = 10.0
"""Seconds to retry deleting a resource in use before its users are listed again."""


def delete_all(api: GcpClient, machines: Sequence[Vm], resources: Sequence[Resource]) -> None:
    """Delete everything, then raise the failure if there was one, or a NodesError with all
    failures.
    """
    failures: dict[str, BaseException] = {}
    _side_by_side(
        {f"instance {m.node.name} in {m.place}": instance_path(m) for m in machines}, api, failures
    )
    for kinds in () if failures else ORDER:  # keep what a remaining VM uses
        paths = {str(r): PATHS[r.kind].format(r) for r in resources if r.kind in kinds}
        _side_by_side(paths, api, failures)
    if len(failures) == 1:
        raise next(iter(failures.values()))
    if failures:
        raise NodesError(failures)


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


def _side_by_side(
    paths: dict[str, str], api: GcpClient, failures: dict[str, BaseException]
) -> None:
    def attempt(what: str) -> None:
        try:
            delete(api, what, paths[what])
        except CloudError as error:
            failures[what] = error

    name: Callable[[str], str] = str
    fan_out(list(paths), attempt, name=name, workers=AT_ONCE)
