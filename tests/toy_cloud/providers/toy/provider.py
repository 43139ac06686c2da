"""`provider: toy`: machines of a cloud that speaks JSON over HTTP at `endpoints.compute`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from cloudtrain.providers.toy.facts import FACTS

from cloudtrain.core.events import ResourceRequested
from cloudtrain.core.model import ClusterConfig, Node, Plan
from cloudtrain.core.partial_list import NotAsked, PartialList
from cloudtrain.core.protocols import Finding, Journal, Principal
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.answers import answers_by_shape
from cloudtrain.providers.base.driver import (
    CloudDriver,
    LaunchRequest,
    Location,
    Resource,
    Vm,
)
from cloudtrain.providers.base.faults import Table, full, plain
from cloudtrain.providers.base.http import HttpClient
from cloudtrain.providers.base.provider import CloudProvider
from cloudtrain.providers.base.timing import TIMING

TABLE = Table(full("play elsewhere", "http507"))


def provider(config: ClusterConfig) -> CloudProvider[str]:
    return CloudProvider(ToyAccount(config), caller=lambda: "127.0.0.1/32")


@answers_by_shape
class ToyAccount(CloudDriver[str]):
    """One room."""

    name = FACTS.name
    ends_by_shutdown = True
    at_once = 16
    soonest_end = 60.0

    def __init__(self, config: ClusterConfig) -> None:
        self._http = HttpClient(FACTS.name, FACTS.title, TABLE)
        self._room = config.project
        self._url = f"{config.endpoints.compute or os.environ['TOY_ENDPOINT']}/{self._room}"

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send one request, retried while it is throttled or unanswered. Raises CloudError."""
        return TIMING.call(lambda: self._once(f"{method} {path}", method, path, body))

    def _once(self, asked: str, method: str, path: str, body: Any) -> Any:
        answer = self._http.ask(asked, self._url, method, path, headers={}, body=body)
        if answer.ok:
            return answer.body
        raise TABLE.error(asked, words=plain(answer.text), status=answer.status)

    def principal(self) -> Principal | None:
        return Principal(id="child@toy.example", name="child")

    def check(self, plan: Plan) -> tuple[Finding, ...]:
        self._ask("GET", "vms")
        return (Finding(what="credentials", ok=True, text=f"the room {self._room}"),)

    def places(self, plan: Plan) -> tuple[Location, ...]:
        return tuple(_place(place) for place in plan.config.placement)

    def machines(
        self, cluster: str | None = None, place: Location | None = None, places: Sequence[str] = ()
    ) -> PartialList[Vm]:
        found = PartialList.of_read(_machine(vm, cluster) for vm in self._ask("GET", "vms"))
        return PartialList((m for m in found if place in (None, m.place)), found.not_asked)

    def resources(
        self, cluster: str | None = None, places: Sequence[str] = ()
    ) -> PartialList[Resource]:
        return PartialList(
            Resource(cluster=name, kind="fence", name=name, id=name)
            for name in self._ask("GET", "fences")
            if cluster in (None, name)
        )

    def create_network(self, plan: Plan, place: Location, caller: str, journal: Journal) -> str:
        name = plan.config.name
        if name not in self._ask("GET", "fences"):
            journal(ResourceRequested(what="fence", name=name))
            self._ask("POST", "fences", {"name": name, "from": caller})
        return name

    def launch(self, order: LaunchRequest[str]) -> Vm:
        wish = {
            "token": order.token,
            "name": order.node.name,
            "machine": order.node.machine,
            "zone": str(order.place),
            "labels": order.labels,
            "user_data": order.user_data,
        }
        machine = _machine(self._ask("POST", "vms", wish))
        assert isinstance(machine, Vm)
        return machine

    def start(self, machine: Vm, expires: float | None) -> None:
        self._ask("POST", f"vms/{machine.id}", {})

    def delete(self, machines: Sequence[Vm], resources: Sequence[Resource]) -> None:
        for machine in machines:
            self._ask("DELETE", f"vms/{machine.id}")
        for resource in resources:
            self._ask("DELETE", f"fences/{resource.id}")

    def delete_from_inside(self, machines: Sequence[Vm], resources: Sequence[Resource]) -> None:
        self.delete(machines, resources)


def _place(text: str) -> Location:
    region = FACTS.region_of(text)
    return Location(region=region, zone=text if text != region else "")


def _machine(vm: dict[str, Any], of: str | None = None) -> Vm | NotAsked | None:
    told = labels.read(vm["labels"], of=of, named=vm["name"])
    if isinstance(told, labels.NotOurs):
        return told.on(f"machine {vm['name']}")
    if told is None:
        return None
    node = Node(
        name=vm["name"],
        state=vm["state"],
        address=vm["address"],
        internal=vm["address"],
        placement=vm["zone"],
        machine=vm["machine"],
        created=vm["created"],
        expires=told.expires,
        **told.node_fields,
    )
    return Vm(cluster=told.cluster, node=node, place=_place(vm["zone"]), id=vm["id"])
