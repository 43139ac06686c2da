"""Virtual machines are started, stopped, deallocated, and taken back."""

from __future__ import annotations

from werkzeug.wrappers import Response

from tests.standins.azure_call import Call, route
from tests.standins.azure_errors import Refusal
from tests.standins.azure_machine_rules import VMS
from tests.standins.azure_machines import VM, allocate, halt_node, power, start_node, vm_of
from tests.standins.azure_resources import kind_of, open_group
from tests.standins.azure_room import check_room
from tests.standins.azure_world import Operation, Thing, World, same


def begin(world: World, thing: Thing, what: str) -> Operation:
    """start, restart, powerOff or deallocate."""
    if what == "start" and power(thing) == "running":
        return world.operate(thing, "Updating", lambda: None)
    if what == "start" or (what == "restart" and power(thing) != "running"):
        thing.made["_power"] = "starting"
        return world.operate(thing, "Updating", lambda: _started(world, thing))
    halt_node(world, thing)
    if what == "restart":
        start_node(world, thing)
        return world.operate(thing, "Updating", lambda: None)
    during, after = {
        "powerOff": ("stopping", "stopped"),
        "deallocate": ("deallocating", "deallocated"),
    }[what]
    if power(thing) == "deallocated":
        return world.operate(thing, "Updating", lambda: None)
    thing.made["_power"] = during
    return world.operate(thing, "Updating", lambda: thing.made.update(_power=after))


def _started(world: World, thing: Thing) -> Refusal | None:
    thing.made["_power"] = "deallocated"
    return allocate(world, thing)


def _power_call(what: str) -> None:
    @route("POST", f"{VM}/{what}", f"{VMS}/{what}/action")
    def handler(call: Call) -> Response:
        open_group(call)
        thing = vm_of(call)
        if thing.state in ("Creating", "Deleting"):
            raise kind_of(thing).busy(thing)
        if what in ("start", "restart") and power(thing) in ("deallocated", ""):
            check_room(call.world, thing.given)
        return call.started(call.nothing(202), begin(call.world, thing, what))


for _what in ("start", "restart", "powerOff", "deallocate"):
    _power_call(_what)


# ── What happens by itself ───────────────────────────────────────────────────


def shut_down(world: World, name: str) -> None:
    """From inside: it stays allocated, and billed. A node also says so when it is ended."""
    for thing in world.of_type(VMS):
        if same(thing.name, name) and power(thing) == "running" and thing.state != "Deleting":
            halt_node(world, thing)
            thing.made["_power"] = "stopped"


def deallocate(world: World, name: str) -> None:
    begin(world, next(one for one in world.of_type(VMS) if same(one.name, name)), "deallocate")


def evict(world: World, name: str) -> None:
    thing = next(one for one in world.of_type(VMS) if same(one.name, name))
    assert thing.properties.get("priority") == "Spot", f"{name} is no spot VM"
    if thing.properties["evictionPolicy"] == "Delete":
        kind_of(thing).delete(world, thing)
    else:
        begin(world, thing, "deallocate")
