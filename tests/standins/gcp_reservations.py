"""Reservations, which a test puts there: read, and what of them VMs take."""

from __future__ import annotations

import re
from typing import Any

from tests.standins import gcp_errors as errors
from tests.standins.gcp_world import Body, Call, World, acts

KEY = "compute.googleapis.com/reservation-name"
BOUND = re.compile(r"a4x?-.+|a3-ultragpu-.+")
"""Machine types whose reservations have VMs of the reservation-bound model alone:
https://docs.cloud.google.com/ai-hypercomputer/docs/consumption-models, updated 2026-04-06"""


@acts("reservations.get")
def reservation(call: Call) -> Body:
    path = f"projects/{call.given['project']}/{call.scope}/reservations/{call.given['reservation']}"
    if path not in call.world.reservations:
        raise errors.real("resource-absent", path=path)
    return told(call.world, path)


def told(world: World, path: str) -> Body:
    """As the API has it, with what is in use now."""
    given = world.reservations[path]
    count, in_use = given["count"], len(users(world, path))
    properties: Body = {"machineType": given["machine"]}
    if given.get("accelerator"):
        kind, number = given["accelerator"]
        properties["guestAccelerators"] = [{"acceleratorType": kind, "acceleratorCount": number}]
    body: Body = {
        "kind": "compute#reservation",
        "id": "77",
        "name": path.rpartition("/")[2],
        "zone": world.link(path.partition("/reservations/")[0]),
        "selfLink": world.link(path),
        "creationTimestamp": world.stamp(),
        "status": given.get("status", "READY"),
        "specificReservationRequired": given.get("specific", True),
        "specificReservation": {
            "count": str(count),
            "assuredCount": str(given.get("assured", count)),
            "inUseCount": str(in_use),
            "instanceProperties": properties,
        },
    }
    if given.get("ends"):
        body["deleteAtTime"] = world.stamp(given["ends"])
    if given.get("dense"):
        body["deploymentType"] = "DENSE"
    return body


def users(world: World, path: str) -> list[str]:
    found = []
    for thing in world.under("instances"):
        name = _named(thing.body)
        stopped = thing.body["status"] == "TERMINATED"
        if name and not stopped and _path(world, thing.scope.partition("/")[2], name) == path:
            found.append(thing.name)
    return found


def reserved(
    world: World, zone: str, body: Body, machine: str, accelerators: list[Body]
) -> Body | None:
    """The reservation that a request names, refused in the words that Google's autoscaler knows
    (kubernetes/autoscaler, cloudprovider/gce): CONDITION_NOT_MET among other codes."""
    model = body.get("scheduling", {}).get("provisioningModel", "STANDARD")
    affinity = body.get("reservationAffinity", {})
    name = _named(body)
    if model == "FLEX_START" and affinity.get("consumeReservationType") != "NO_RESERVATION":
        at = "resource.reservationAffinity"
        raise errors.real("flex-start-with-reservation", field=at, value=affinity)
    if model == "RESERVATION_BOUND" and not name:
        at = "resource.reservationAffinity"
        raise errors.real("reservation-bound-without-name", field=at, value=affinity)
    if not name:
        return None
    if affinity.get("key") != KEY or len(affinity["values"]) != 1:
        raise errors.real(
            "reservation-name-missing", field="resource.reservationAffinity", value=affinity
        )
    path = _path(world, zone, name)
    if path not in world.reservations:
        raise errors.real("reservation-absent", name=name)
    there: dict[str, Any] = world.reservations[path]
    if there.get("status", "READY") != "READY":
        raise errors.real("reservation-not-ready")
    has = [
        (each["acceleratorType"].rpartition("/")[2], each["acceleratorCount"])
        for each in accelerators
    ]
    wanted = [tuple(there["accelerator"])] if there.get("accelerator") else []
    built_in = not wanted and not machine.startswith("n1-")
    bound = bool(there.get("dense") or BOUND.fullmatch(there["machine"]))
    if there["machine"] != machine or (has != wanted and not built_in):
        raise errors.real("reservation-without-resources")
    if bound != (model == "RESERVATION_BOUND"):
        raise errors.real("reservation-without-resources")
    if len(users(world, path)) >= there.get("assured", there["count"]):
        raise errors.real("reservation-full", name=name)
    return there


def _named(body: Body) -> str:
    affinity = body.get("reservationAffinity", {})
    named = affinity.get("consumeReservationType") == "SPECIFIC_RESERVATION"
    return str((affinity.get("values") or [""])[0]) if named else ""


def _path(world: World, zone: str, name: str) -> str:
    owner, _, short = name.rpartition("/reservations/")
    return f"{owner or f'projects/{world.project}'}/zones/{zone}/reservations/{short}"
