"""Acts out VMs and their disks: made, stopped, started, interrupted, ended by a clock, deleted."""

from __future__ import annotations

import fnmatch
import ipaddress
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

from tests.standins import gcp_accounts
from tests.standins import gcp_errors as errors
from tests.standins.gcp_addresses import addresses_in_use, taken_address
from tests.standins.gcp_catalog import ZONES, region_of
from tests.standins.gcp_errors import Failure, real_failure
from tests.standins.gcp_lists import page, pages_of_all
from tests.standins.gcp_quotas import disk_need, exceeded, need
from tests.standins.gcp_rules import BootDisk, Wish, check_metadata, checked, checked_scheduling
from tests.standins.gcp_world import (
    Body,
    Call,
    Operation,
    Thing,
    World,
    acts,
    check_labels,
    deletion,
    fingerprint,
    name_given,
)

GONE = "RESOURCE_NOT_FOUND"
Step = Callable[[Thing], None]


@acts("instances.get")
def instance(call: Call) -> Body:
    return call.world.find(call.path(call.given["instance"])).body


def _listed(call: Call, collection: str) -> list[tuple[str, Body]]:
    world = call.world
    return [
        (thing.scope, thing.body)
        for thing in world.under(collection)
        if thing.listed_from <= world.now()
    ]


def _widely_listed(call: Call, collection: str) -> list[tuple[str, Body]]:
    world = call.world
    return [
        (thing.scope, thing.body)
        for thing in world.under(collection)
        if thing.listed_widely_from <= world.now()
    ]


@acts("instances.getSerialPortOutput")
def serial_port(call: Call) -> Body:
    """A negative start counts from the end."""
    world, name = call.world, call.given["instance"]
    path = world.find(call.path(name)).path
    log = world.serial_logs.get(name, "")
    if world.nodes is not None:
        log = world.nodes.boot_log(name)
    start = int(call.given.get("start", 0))
    begun = max(0, len(log) + start) if start < 0 else start
    return {
        "kind": "compute#serialPortOutput",
        "selfLink": f"{world.link(path)}/serialPort",
        "contents": log[begun:],
        "start": str(begun),
        "next": str(len(log)),
    }


@acts("instances.list")
def instances(call: Call) -> Body:
    found = [item for item in _listed(call, "instances") if item[0] == call.scope]
    return page(call, "Instance", found)


@acts("instances.aggregatedList")
def all_instances(call: Call) -> Body:
    return _all(call, "Instance", "instances")


def _all(call: Call, kind: str, collection: str) -> Body:
    down = [f"zones/{zone}" for zone in call.world.unreachable]
    found = [item for item in _widely_listed(call, collection) if item[0] not in down]
    return pages_of_all(call, kind, found, [f"zones/{zone}" for zone in ZONES], down)


@acts("disks.get")
def disk(call: Call) -> Body:
    return call.world.find(call.path(call.given["disk"])).body


@acts("disks.list")
def disks(call: Call) -> Body:
    found = [item for item in _listed(call, "disks") if item[0] == call.scope]
    return page(call, "Disk", found)


@acts("disks.aggregatedList")
def all_disks(call: Call) -> Body:
    return _all(call, "Disk", "disks")


@acts("disks.delete")
def delete_disk(call: Call) -> Body:
    def act() -> Operation:
        thing = call.world.free(call.path(call.given["disk"]))
        for user in thing.body.get("users", ()):
            raise errors.real(
                "resource-in-use",
                kind="disk",
                path=thing.path,
                user=user.partition("/compute/v1/")[2],
            )
        return deletion(call, thing)

    return call.once(act)


# ── Made ─────────────────────────────────────────────────────────────────────


@acts("instances.insert")
def make(call: Call) -> Body:
    def act() -> Operation:
        world, zone = call.world, call.given["zone"]
        if "sourceInstanceTemplate" in call.given or "sourceMachineImage" in call.given:
            raise errors.not_acted_out("templates")
        path = call.path(name_given(call))
        wish = checked(world, zone, call.body)
        disk_paths = [f"projects/{world.project}/zones/{zone}/disks/{d.name}" for d in wish.disks]
        for taken in (path, *disk_paths):
            if taken in world.things:
                raise errors.real("resource-exists", path=taken)
        body = _body(call, wish)
        more = need(world, region_of(zone), body)
        for one in wish.disks:
            more.update(disk_need({"type": one.type, "sizeGb": str(one.gb)}))
        failure = exceeded(world, region_of(zone), more)
        if failure and world.refused_at_once:
            raise errors.at_once(failure, 403, "quotaExceeded")
        failure = failure or gcp_accounts.refusal(world, call.body, call.user)
        failure = failure or taken_address(world, wish.interfaces)
        failure = failure or (None if wish.reservation else _no_room(world, zone, wish))
        if failure and failure.code == "insufficientCapacity":
            raise errors.at_once(failure, 503, failure.code)
        return _begin(call, path, body, wish, disk_paths, failure)

    return call.once(act)


def _begin(
    call: Call, path: str, body: Body, wish: Wish, disk_paths: list[str], failure: Failure | None
) -> Operation:
    world = call.world
    thing = world.add(path, "instance", body)
    thing.making, thing.listed_from = True, world.now() + world.lag
    thing.listed_widely_from = world.now() + max(world.lag, world.wide_lag)
    made = [
        _add_disk(world, disk_path, one, thing)
        for disk_path, one in zip(disk_paths, wish.disks, strict=True)
    ]

    def stage() -> None:
        if thing.making and not failure:
            body["status"] = "STAGING"

    def finish() -> Failure | None:
        thing.making = False
        ended = failure or world.wanted_failure(call.method, thing.name)
        ended = ended or (_no_capacity(world, thing) if waits > wish.queue else None)
        if ended or world.things.get(path) is not thing:
            for gone in (thing, *made):
                world.remove(gone)
        else:
            _run(world, thing)
        return ended

    waits = _capacity_after(world, thing.name) if _is_flex_start(body) and not failure else 0.0
    queued = min(waits, float(wish.queue))
    if queued:
        body["status"] = "PENDING"
    operation = world.operate("insert", thing, call.user, finish=finish, takes=world.delay + queued)
    world.at(world.now() + queued + world.delay / 2, stage)
    return operation


def _is_flex_start(body: Body) -> bool:
    return bool(body["scheduling"]["provisioningModel"] == "FLEX_START")


def _capacity_after(world: World, name: str) -> float:
    return world.flex_start.get(name, world.flex_start.get("", 0.0))


def _no_capacity(world: World, thing: Thing) -> Failure:
    zone = thing.scope.partition("/")[2]
    return replace(
        real_failure("zone-exhausted", project=world.project, zone=zone), code=world.capacity_code
    )


def _body(call: Call, wish: Wish) -> Body:
    """As Compute Engine shows it; what it fills in comes last."""
    given, world, zone = call.body, call.world, call.given["zone"]
    told = {name: value for name, value in given.items() if name != "zone"}
    told |= {
        "machineType": world.link(
            f"projects/{world.project}/zones/{zone}/machineTypes/{wish.machine.name}"
        ),
        "status": "PROVISIONING",
        "scheduling": wish.scheduling,
        "tags": {**given.get("tags", {}), "fingerprint": fingerprint()},
        "metadata": {
            **given.get("metadata", {}),
            "kind": "compute#metadata",
            "fingerprint": fingerprint(),
        },
        "labelFingerprint": fingerprint(),
        "fingerprint": fingerprint(),
        "canIpForward": given.get("canIpForward", False),
        "deletionProtection": given.get("deletionProtection", False),
        "startRestricted": False,
        "cpuPlatform": "Unknown CPU Platform",
        "networkInterfaces": [
            _told_interface(world, number, interface)
            for number, interface in enumerate(wish.interfaces)
        ],
        "disks": [],
        "shieldedInstanceConfig": {
            "enableSecureBoot": False,
            "enableVtpm": True,
            "enableIntegrityMonitoring": True,
            **given.get("shieldedInstanceConfig", {}),
        },
    }
    for name, value in (
        ("guestAccelerators", wish.accelerators),
        ("resourcePolicies", wish.policies),
    ):
        told.pop(name, None)
        if value:
            told[name] = value
    return told


def _told_interface(world: World, number: int, interface: Body) -> Body:
    told = {
        "stackType": "IPV4_ONLY",
        **interface,
        "kind": "compute#networkInterface",
        "name": f"nic{number}",
        "fingerprint": fingerprint(),
        "networkIP": _internal(world, interface),
    }
    if "accessConfigs" in interface:
        told["accessConfigs"] = [
            {
                "type": "ONE_TO_ONE_NAT",
                "name": "External NAT",
                "networkTier": "PREMIUM",
                **config,
                "kind": "compute#accessConfig",
            }
            for config in interface["accessConfigs"]
        ]
    return told


def _internal(world: World, interface: Body) -> str:
    """Where real nodes are behind the VMs, there is one address for outside and inside."""
    if "networkIP" in interface:
        return str(interface["networkIP"])
    if world.nodes is not None:
        return str(world.nodes.address())
    link = interface["subnetwork"]
    subnet = next(t for t in world.under("subnetworks") if t.body["selfLink"] == link)
    taken = addresses_in_use(world)
    hosts = ipaddress.ip_network(subnet.body["ipCidrRange"]).hosts()
    next(hosts)  # The gateway's.
    return next(str(host) for host in hosts if str(host) not in taken)


def _add_disk(world: World, path: str, one: BootDisk, owner: Thing) -> Thing:
    image = f"projects/{one.image.project}/global/images/{one.image.name}"
    key = one.given.get("diskEncryptionKey")
    encryption = {"diskEncryptionKey": key} if key else {}
    body = {
        "name": one.name,
        "sizeGb": str(one.gb),
        "type": world.link(one.type),
        "status": "READY",
        "sourceImage": world.link(image),
        "users": [owner.body["selfLink"]],
        "labels": one.labels,
        "labelFingerprint": fingerprint(),
        "physicalBlockSizeBytes": "4096",
        "architecture": "X86_64",
        **encryption,
    }
    thing = world.add(path, "disk", body)
    owner.body["disks"].append(
        {
            "kind": "compute#attachedDisk",
            "type": "PERSISTENT",
            "mode": "READ_WRITE",
            "source": body["selfLink"],
            "deviceName": one.given.get("deviceName", "persistent-disk-0"),
            "index": 0,
            "boot": True,
            "autoDelete": one.given.get("autoDelete", False),
            "interface": one.given.get("interface", "SCSI"),
            "diskSizeGb": str(one.gb),
            "architecture": "X86_64",
            **encryption,
        }
    )
    return thing


def _no_room(world: World, zone: str, wish: Wish) -> Failure | None:
    """`capacity`: how many VMs a zone (`us-east4-c`) has room for, or of one machine type or
    accelerator there (`us-*/nvidia-tesla-t4`)."""
    kinds = [wish.machine.name]
    kinds += [item["acceleratorType"].rpartition("/")[2] for item in wish.accelerators]
    close = {"*": 0} if wish.policies and zone in world.no_room_close else {}
    for pattern, room in {**world.capacity, **close}.items():
        if not any(fnmatch.fnmatchcase(told, pattern) for told in _told(zone, kinds)):
            continue
        have = sum(
            any(
                fnmatch.fnmatchcase(told, pattern)
                for told in _told(thing.scope.partition("/")[2], _kinds(thing))
            )
            for thing in world.under("instances")
            if thing.body["status"] != "TERMINATED"
        )
        if have >= room:
            names: dict[str, Any] = {"project": world.project, "zone": zone}
            names["machine"] = wish.machine.name
            if world.capacity_elsewhere:
                names["available"] = ",".join(world.capacity_elsewhere)
                return real_failure("zone-exhausted-with-details", **names)
            return replace(real_failure("zone-exhausted", **names), code=world.capacity_code)
    return None


def _kinds(thing: Thing) -> list[str]:
    links = [thing.body["machineType"]]
    links += [item["acceleratorType"] for item in thing.body.get("guestAccelerators", ())]
    return [link.rpartition("/")[2] for link in links]


def _told(zone: str, kinds: list[str]) -> list[str]:
    return [zone, *(f"{zone}/{kind}" for kind in kinds)]


# ── Running ──────────────────────────────────────────────────────────────────


def _run(world: World, thing: Thing) -> None:
    body = thing.body
    body |= {"status": "RUNNING", "cpuPlatform": "Intel Broadwell"}
    body["lastStartTimestamp"] = world.stamp()
    for interface in body["networkInterfaces"]:
        for config in interface.get("accessConfigs", ()):
            config["natIP"] = world.external(interface["networkIP"])
    _arm(world, thing)
    if world.nodes is not None:
        metadata = {
            item["key"]: item.get("value", "") for item in body["metadata"].get("items", ())
        }
        address = body["networkInterfaces"][0]["networkIP"]
        user_data = metadata.get("user-data", "")
        _in_order(world, thing, lambda: world.nodes.start(thing.name, user_data, address))


def _halt(world: World, thing: Thing, status: str = "STOPPING") -> None:
    """The machine itself ends; `_at_rest` tells when."""
    running = thing.body["status"] == "RUNNING"
    thing.body["status"] = status
    if running and world.nodes is not None:
        _in_order(world, thing, lambda: world.nodes.halt(thing.name))


def _at_rest(world: World, thing: Thing) -> bool:
    last = world.at_work.get(thing.path)
    return last is None or not last.is_alive()


def _in_order(world: World, thing: Thing, work: Callable[[], None]) -> None:
    """Starting and stopping of one node take long and happen outside the lock, in their order."""
    before = world.at_work.get(thing.path)

    def go() -> None:
        if before is not None:
            before.join()
        try:
            work()
        except Exception:  # noqa: BLE001 - a node that does not come up is seen as such over SSH
            traceback.print_exc()

    world.at_work[thing.path] = threading.Thread(target=go, daemon=True, name=thing.name)
    world.at_work[thing.path].start()


def _arm(world: World, thing: Thing) -> None:
    """`maxRunDuration` counts from each start."""
    scheduling = thing.body["scheduling"]
    if "maxRunDuration" in scheduling:
        ends = world.now() + int(scheduling["maxRunDuration"]["seconds"])
    elif "terminationTime" in scheduling:
        told = scheduling["terminationTime"].replace("Z", "+00:00")
        ends = datetime.fromisoformat(told).timestamp()
    else:
        return
    thing.body["resourceStatus"] = {"scheduling": {"terminationTimestamp": world.stamp(ends)}}
    started = thing.body["lastStartTimestamp"]

    def end() -> None:
        same = world.things.get(thing.path) is thing and thing.body["status"] == "RUNNING"
        if same and thing.body["lastStartTimestamp"] == started:
            end_by_google(world, thing, "compute.instances.terminateOnSchedule")

    world.at(ends, end)


def end_by_google(world: World, thing: Thing, kind: str) -> None:
    """Nobody asked for it: stopped or deleted, as its scheduling says."""
    action = thing.body["scheduling"].get("instanceTerminationAction", "STOP")
    _halt(world, thing)

    def finish() -> None:
        _stopped(world, thing)
        if action == "DELETE":
            _forget(world, thing)

    _system_operation(world, thing, kind, finish)


def end_by_itself(world: World, thing: Thing) -> None:
    """Whatever its scheduling says: that is for Google's own deeds."""
    _halt(world, thing)
    kind = "compute.instances.guestTerminate"
    _system_operation(world, thing, kind, lambda: _stopped(world, thing))


def _system_operation(world: World, thing: Thing, kind: str, work: Callable[[], None]) -> None:
    def finish() -> Failure | None:
        if world.things.get(thing.path) is thing and not thing.deleting:
            work()
        return None

    world.operate(kind, thing, "system", finish=finish, waits_for=lambda: _at_rest(world, thing))


def _stopped(world: World, thing: Thing) -> None:
    thing.body |= {"status": "TERMINATED", "lastStopTimestamp": world.stamp()}
    thing.body.pop("resourceStatus", None)
    for interface in thing.body["networkInterfaces"]:
        for config in interface.get("accessConfigs", ()):
            config.pop("natIP", None)


def _forget(world: World, thing: Thing) -> None:
    world.remove(thing)
    if world.nodes is not None:
        _in_order(world, thing, lambda: world.nodes.stop(thing.name))
    for attached in thing.body["disks"]:
        disk = world.things.get(attached["source"].partition("/compute/v1/")[2])
        if disk is None:
            continue
        disk.body["users"] = []
        if attached["autoDelete"]:
            world.remove(disk)


# ── What a user asks of one that exists ──────────────────────────────────────


@acts("instances.delete")
def delete(call: Call) -> Body:
    def act() -> Operation:
        world = call.world
        thing = world.find(call.path(call.given["instance"]))
        if thing.body["deletionProtection"]:
            raise errors.real(
                "deletion-protected", field="resource.deletionProtection", value="true"
            )

        def finish() -> Failure | None:
            if world.things.get(thing.path) is not thing:
                return real_failure("resource-gone", path=thing.path, status=404)
            failure = world.wanted_failure(call.method, thing.name)
            if failure:
                thing.deleting = False
                thing.body["status"] = "TERMINATED"
                return failure
            _forget(world, thing)
            return None

        if thing.body["status"] == "PENDING":
            # "You can optionally delete the Flex-start VM before the wait time ends":
            # https://cloud.google.com/compute/docs/instances/instance-lifecycle
            thing.making, thing.busy_until = False, world.now()
        elif thing.making:
            # Its making comes first, and then leaves nothing of it running.
            world.at(thing.busy_until, lambda: _halt(world, thing))
        else:
            _halt(world, thing)
        thing.deleting = True
        return world.operate(
            "delete",
            thing,
            call.user,
            finish=finish,
            waits_for=lambda: _at_rest(world, thing),
        )

    return call.once(act)


def _change(call: Call, kind: str, work: Step, *, begin: Step | None = None) -> Body:
    """An operation on a VM that nothing else is being done to."""

    def act() -> Operation:
        world = call.world
        thing = world.free(call.path(call.given["instance"]))
        if begin is not None:
            begin(thing)

        def finish() -> Failure | None:
            failure = world.wanted_failure(call.method, thing.name)
            if not failure and world.things.get(thing.path) is thing:
                work(thing)
            return failure

        return world.operate(
            kind, thing, call.user, finish=finish, waits_for=lambda: _at_rest(world, thing)
        )

    return call.once(act)


@acts("instances.stop")
def stop(call: Call) -> Body:
    return _change(
        call,
        "stop",
        lambda thing: _stopped(call.world, thing),
        begin=lambda thing: _halt(call.world, thing),
    )


@acts("instances.start")
def start(call: Call) -> Body:
    world = call.world

    def begin(thing: Thing) -> None:
        if thing.body["status"] == "RUNNING":
            return
        if thing.body["status"] != "TERMINATED":
            raise errors.real("resource-not-ready", path=thing.path)
        # A stopped VM draws on no quota but its disk's; now it does again.
        more = need(world, region_of(call.given["zone"]), thing.body)
        del more["INSTANCES"]
        failure = exceeded(world, region_of(call.given["zone"]), more)
        if failure:
            raise errors.at_once(failure, 403, "quotaExceeded")
        thing.body["status"] = "STAGING"

    def work(thing: Thing) -> None:
        if thing.body["status"] == "STAGING":
            _run(world, thing)

    return _change(call, "start", work, begin=begin)


@acts("instances.reset")
def reset(call: Call) -> Body:
    world = call.world

    def begin(thing: Thing) -> None:
        if thing.body["status"] != "RUNNING":
            raise errors.real("resource-not-ready", path=thing.path)
        _halt(world, thing, status="RUNNING")

    return _change(call, "reset", lambda thing: _run(world, thing), begin=begin)


@acts("instances.setLabels")
def set_labels(call: Call) -> Body:
    labels = call.body.get("labels", {})

    def begin(thing: Thing) -> None:
        check_labels("resource.labels", labels)
        if call.body.get("labelFingerprint") != thing.body["labelFingerprint"]:
            raise errors.real("labels-changed")

    def work(thing: Thing) -> None:
        thing.body |= {"labels": labels, "labelFingerprint": fingerprint()}

    return _change(call, "setLabels", work, begin=begin)


@acts("instances.setMetadata")
def set_metadata(call: Call) -> Body:
    def begin(thing: Thing) -> None:
        check_metadata(call.body)
        if call.body.get("fingerprint") != thing.body["metadata"]["fingerprint"]:
            raise errors.real("metadata-changed")

    def work(thing: Thing) -> None:
        told = {"kind": "compute#metadata", "fingerprint": fingerprint()}
        thing.body["metadata"] = {**call.body, **told}

    return _change(call, "setMetadata", work, begin=begin)


@acts("instances.setScheduling")
def set_scheduling(call: Call) -> Body:
    """While it runs only these two: the document wants it stopped for the others."""

    def begin(thing: Thing) -> None:
        checked_scheduling(call.body, bool(thing.body.get("guestAccelerators")))
        if thing.body["status"] != "TERMINATED":
            for name, value in call.body.items():
                kept = thing.body["scheduling"].get(name) == value
                if not kept and name not in ("automaticRestart", "onHostMaintenance"):
                    raise errors.real("instance-not-stopped", field=f"resource.{name}", value=value)

    def work(thing: Thing) -> None:
        thing.body["scheduling"] = checked_scheduling(
            call.body, bool(thing.body.get("guestAccelerators"))
        )

    return _change(call, "setScheduling", work, begin=begin)
