"""Reservations that nodes are bought in: where they are, what they hold, what of that is free.

https://cloud.google.com/compute/docs/instances/reservations-consume; the fields are those of
`Reservation` in the discovery document of compute v1, revision 20261106."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence

from cloudtrain.core import errors
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.model import NodePlan, Plan
from cloudtrain.core.parallel import fan_out
from cloudtrain.providers.base.answers import unix_time
from cloudtrain.providers.base.driver import Location
from cloudtrain.providers.gcp import faults
from cloudtrain.providers.gcp.client import GcpClient, Json
from cloudtrain.providers.gcp.listing import last
from cloudtrain.providers.gcp.machine_types import shape

BOUND = re.compile(r"a4x?-.+|a3-ultragpu-.+")
"""Machine types of which Google sells reservations with reservation-bound VMs alone; of A3 Mega and
A3 High with 8 GPUs it sells both, and those deployed densely are bound ("Reservation block
deployment types").
https://docs.cloud.google.com/ai-hypercomputer/docs/consumption-models, updated 2026-04-06"""


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A reservation in one zone. What could not be read is not compared."""

    name: str
    zone: str
    body: Json
    """Empty if this account may not read it, as one that another project shares."""

    @property
    def machine(self) -> str:
        return str(self._properties.get("machineType") or "")

    @property
    def accelerators(self) -> dict[str, int]:
        """Attached ones, by type."""
        given = self._properties.get("guestAccelerators") or ()
        return {
            last(each.get("acceleratorType")) or str(each.get("acceleratorType")): int(
                each.get("acceleratorCount") or 0
            )
            for each in given
        }

    @property
    def count(self) -> int:
        """VMs that can be used now."""
        specific = self.body.get("specificReservation") or {}
        return int(specific.get("assuredCount") or specific.get("count") or 0)

    @property
    def free(self) -> int:
        in_use = (self.body.get("specificReservation") or {}).get("inUseCount") or 0
        return max(0, self.count - int(in_use))

    @property
    def ends(self) -> float | None:
        return unix_time(self.body.get("deleteAtTime"))

    @property
    def bound(self) -> bool:
        return self.body.get("deploymentType") == "DENSE" or bool(BOUND.fullmatch(self.machine))

    @property
    def _properties(self) -> Json:
        specific = self.body.get("specificReservation") or {}
        properties = specific.get("instanceProperties") or {}
        assert isinstance(properties, dict)
        return properties


def wanted(nodes: Sequence[NodePlan]) -> dict[str, list[NodePlan]]:
    """Nodes by the reservation that they are bought in."""
    found: dict[str, list[NodePlan]] = {}
    for node in nodes:
        if node.provisioning.market == "reservation":
            found.setdefault(node.provisioning.name, []).append(node)
    return found


def find(
    api: GcpClient, zones: Collection[Location], plan: Plan
) -> Mapping[tuple[str, str], Reservation | None]:
    """The plan's reservations by name and zone; None where there is none of that name."""
    questions = [(name, place.zone) for name in wanted(plan.nodes) for place in zones]
    answers = fan_out(questions, lambda q: _find(api, *q), name=lambda q: f"{q[0]} in {q[1]}")
    return dict(zip(questions, answers, strict=True))


def _find(api: GcpClient, name: str, zone: str) -> Reservation | None:
    project, short = api.project, name
    shared = re.fullmatch(r"projects/([^/]+)/reservations/([^/]+)(/.*)?", name)
    if shared is not None:
        project, short = shared[1], shared[2]
        if project == api.project:
            raise errors.CloudConfigError(
                f"reservation {name} is in this project", hint=f"write its name alone: {short}"
            )
    what, path = f"reservation {name} in {zone}", f"projects/{project}/zones/{zone}/reservations/"
    try:
        return Reservation(name=name, zone=zone, body=api.get(what, f"{path}{short}"))
    except errors.NotFoundError as error:
        unknown = faults.is_unknown_question(error)
        return Reservation(name=name, zone=zone, body={}) if unknown else None
    except errors.PermissionsError:
        if shared is None:
            raise
        return Reservation(name=name, zone=zone, body={})


def lacking(
    api: GcpClient, zones: Collection[Location], plan: Plan
) -> Mapping[Location, tuple[str, ...]]:
    """The reservations of the plan that each zone lacks."""
    found = find(api, zones, plan)
    return {
        place: tuple(
            f"reservation {name}" for name in wanted(plan.nodes) if found[name, place.zone] is None
        )
        for place in zones
    }


def bound(api: GcpClient, place: Location, plan: Plan) -> frozenset[str]:
    """The reservations whose VMs end with them, by the nodes' machines if unreadable."""
    found = find(api, [place], plan)
    names = set()
    for name, nodes in wanted(plan.nodes).items():
        reservation = found[name, place.zone]
        by_machine = any(BOUND.fullmatch(node.machine or "") for node in nodes)
        if by_machine or (reservation is not None and reservation.bound):
            names.add(name)
    return frozenset(names)


def check(
    api: GcpClient, zones: Collection[Location], plan: Plan, nodes: Sequence[NodePlan], now: float
) -> str:
    """Text on what is free of each reservation for these nodes, which are to be created.

    Raises the reason why no zone's reservation can have them."""
    found, texts = find(api, zones, plan), []
    for name, its_nodes in wanted(plan.nodes).items():
        new = [node for node in its_nodes if node in nodes]
        there = [r for place in zones if (r := found[name, place.zone]) is not None]
        problems = {r.zone: problem for r in there if (problem := _problem(r, its_nodes, len(new)))}
        good = [r for r in there if r.zone not in problems]
        if not good:
            worst = next(iter(problems.values()), None)
            raise worst or errors.CloudConfigError(
                f"no reservation {name}", hint=faults.RESERVATION
            )
        texts += [_words(r, len(new), plan, now) for r in good]
        texts += [error.message for error in problems.values()]
    return "; ".join(texts)


def _problem(
    reservation: Reservation, nodes: Sequence[NodePlan], new: int
) -> errors.CloudError | None:
    if not reservation.body:
        return None
    at = f"reservation {reservation.name} in {reservation.zone}"
    status = reservation.body.get("status", "READY")
    if status != "READY":
        return errors.CapacityError(f"{at} is {status}, not READY", scope="zone")
    for text in _mismatches(reservation, nodes):
        return errors.CloudConfigError(f"{at} {text}", hint=faults.RESERVATION)
    if reservation.free < new:
        return errors.CapacityError(
            f"{at}: {new} needed, {reservation.free} of {reservation.count} free", scope="zone"
        )
    return None


def _mismatches(reservation: Reservation, nodes: Sequence[NodePlan]) -> Iterator[str]:
    for node in nodes:
        kind = shape(node)
        if reservation.machine and kind.machine != reservation.machine:
            yield f"is of {reservation.machine}, but nodes.{node.role} has {kind.machine}"
        attached = {kind.attached: kind.gpus.count} if kind.attached and kind.gpus else {}
        if not kind.bundled and attached != reservation.accelerators:
            has, needs = _accelerators(reservation.accelerators), _accelerators(attached)
            yield f"has {has}, but nodes.{node.role} {needs}"


def _accelerators(found: Mapping[str, int]) -> str:
    return ", ".join(f"{kind}:{count}" for kind, count in found.items()) or "no accelerators"


def _words(reservation: Reservation, new: int, plan: Plan, now: float) -> str:
    at = f"{reservation.name} in {reservation.zone}"
    if not reservation.body:
        return f"{at}: not readable with these credentials"
    text = f"{at}: {reservation.free} of {reservation.count} free, {new} needed"
    if not reservation.body.get("specificReservationRequired", True):
        text += "; any VM of the project may take it (specificReservationRequired is false)"
    ends, lifetime = reservation.ends, plan.config.limits.max_lifetime
    if ends is None:
        return text
    text += f"; it ends {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(ends))}"
    if lifetime is None or now + lifetime > ends:
        then = "its nodes end then" if reservation.bound else "its nodes then cost what they do"
        text += f", before limits.max_lifetime: {then}{'' if reservation.bound else ' on demand'}"
    return text
