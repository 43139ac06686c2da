"""Virtual machines: made, started, stopped, deallocated, evicted, deleted."""

from __future__ import annotations

import copy
import uuid

from azure.mgmt.compute import models
from werkzeug.wrappers import Response

from tests.standins import azure_identities
from tests.standins import azure_machine_rules as rules
from tests.standins.azure_auth import TENANT
from tests.standins.azure_call import Call, described, route
from tests.standins.azure_disks import DISKS
from tests.standins.azure_errors import Body, Refusal, not_acted_out, real
from tests.standins.azure_machine_rules import VMS
from tests.standins.azure_resources import (
    KINDS,
    Kind,
    existing,
    group_of,
    kind,
)
from tests.standins.azure_room import check_room, no_room
from tests.standins.azure_world import Thing, World, resource_id

POWER = {
    "starting": "VM starting",
    "running": "VM running",
    "stopping": "VM stopping",
    "stopped": "VM stopped",
    "deallocating": "VM deallocating",
    "deallocated": "VM deallocated",
}
SECRET = ("adminPassword", "customData")


@kind
class Machines(Kind):
    type = VMS
    word = "instance"
    model = models.VirtualMachine
    update = models.VirtualMachineUpdate
    name_rule = r"[^\W_](?:[\w.-]{0,62}\w)?\Z"
    new_state = "Creating"

    def keep(self, given: Body, old: Body) -> None:
        rules.keep(given.setdefault("properties", {}), old["properties"])

    def check(self, world: World, id: str, given: Body, old: Thing | None) -> None:
        rules.check(world, id, given, old)
        if old is None or power(old) == "":
            check_room(world, given)

    def make(self, world: World, thing: Thing, old_given: Body | None) -> None:
        nic = interface_of(world, thing)
        nic.made["virtualMachine"] = {"id": thing.id}
        if old_given is None:
            thing.made |= {"vmId": str(uuid.uuid4()), "timeCreated": world.stamp(), "_power": ""}
            _make_disk(world, thing)
            if rules.is_trusted_by_default(world, thing.given):
                thing.made["_trusted"] = True
        if (thing.given.get("identity") or {}).get("type", "").startswith("SystemAssigned"):
            thing.made.setdefault("_principal", str(uuid.uuid4()))

    def finish(self, world: World, thing: Thing) -> Refusal | None:
        if power(thing) != "":
            return None  # It was there before, and was only changed.
        return allocate(world, thing)

    def properties(self, world: World, thing: Thing) -> Body:
        found = copy.deepcopy(thing.properties)
        for name in SECRET:
            found["osProfile"].pop(name, None)
        found.pop("userData", None)
        found["osProfile"] |= {"secrets": [], "allowExtensionOperations": True}
        storage = found["storageProfile"]
        disk = world.find(thing.made["_disk"])
        storage["osDisk"]["osType"] = "Linux"
        if disk is not None:
            storage["osDisk"]["managedDisk"] = {
                "storageAccountType": disk.given["sku"]["name"],
                "id": disk.id,
            }
        if thing.made.get("_trusted"):
            found["securityProfile"] = copy.deepcopy(rules.TRUSTED)
        return {**found, "vmId": thing.made["vmId"], "timeCreated": thing.made["timeCreated"]}

    def view(self, call: Call, thing: Thing) -> Body:
        body = described(call, thing, self.properties(call.world, thing))
        if "_principal" in thing.made:
            principal = {"principalId": thing.made["_principal"], "tenantId": TENANT}
            body["identity"] = {**thing.given["identity"], **principal}
        if azure_identities.named(thing.given.get("identity") or {}):
            body["identity"] = azure_identities.view(thing.given["identity"])
        if call.query.get("$expand", "").lower() == "instanceview":
            body["properties"]["instanceView"] = instance_view(call.world, thing)
        return body

    def going(self, world: World, thing: Thing) -> None:
        if world.nodes is not None:
            nodes = world.nodes
            world.elsewhere(thing.name, lambda: nodes.stop(thing.name))

    def gone(self, world: World, thing: Thing) -> None:
        """https://learn.microsoft.com/azure/virtual-machines/delete"""
        nic, disk = interface_of(world, thing), world.find(thing.made["_disk"])
        (wanted,) = thing.properties["networkProfile"]["networkInterfaces"]
        nic.made.pop("virtualMachine", None)
        address = public_address(world, nic)
        if (wanted.get("properties") or {}).get("deleteOption") == "Delete":
            world.remove(nic)
            if address is not None and _goes_with(nic, address):
                world.remove(address)
        elif world.nic_reserved:
            nic.made["_reserved"] = (thing.id, world.now() + world.nic_reserved)
        if disk is not None:
            disk.made.pop("managedBy", None)
            if (thing.properties["storageProfile"].get("osDisk") or {}).get(
                "deleteOption"
            ) == "Delete":
                world.remove(disk)

    def words(self, thing: Thing) -> str:
        return (
            f"{self.word} {thing.name} {place(thing.given)} {power(thing) or thing.state.lower()}"
        )

    def busy(self, thing: Thing) -> Refusal:
        if thing.state == "Deleting":
            return real("machine-being-deleted", operation="create", machine=thing.name)
        return real("machine-busy", machine=thing.name)


def power(thing: Thing) -> str:
    """A key of POWER; empty until it was allocated once."""
    return str(thing.made["_power"])


def place(given: Body) -> str:
    """`eastus`, or `eastus-1`."""
    return "-".join([given["location"], *(given.get("zones") or [])])


def interface_of(world: World, thing: Thing) -> Thing:
    return world.things[thing.properties["networkProfile"]["networkInterfaces"][0]["id"].lower()]


def public_address(world: World, nic: Thing) -> Thing | None:
    given = nic.properties["ipConfigurations"][0]["properties"].get("publicIPAddress")
    return world.find(given["id"]) if given else None


def _goes_with(nic: Thing, address: Thing) -> bool:
    given = nic.properties["ipConfigurations"][0]["properties"]["publicIPAddress"]
    option = (given.get("properties") or {}).get("deleteOption")
    return "Delete" in (option, address.properties.get("deleteOption"))


def _make_disk(world: World, thing: Thing) -> None:
    given = thing.properties["storageProfile"].setdefault("osDisk", {"createOption": "FromImage"})
    name = given.setdefault("name", f"{thing.name}_OsDisk_1_{uuid.uuid4().hex}")
    id = resource_id(thing.group, DISKS, name)
    if world.find(id) is not None:
        world.remove(thing)
        raise real("disk-exists", name=name, group=thing.group)
    kind = (given.get("managedDisk") or {}).get("storageAccountType", "Premium_LRS")
    body: Body = {"location": thing.region, "sku": {"name": kind}}
    # A disk's tags begin as those of its VM: hashicorp/terraform-provider-azurerm#8162 and
    # Azure/azure-sdk-for-js#17787 say so, read 2026-11-24; no field of the VM sets others.
    body["tags"] = thing.tags
    body["properties"] = {
        "creationData": {"createOption": "FromImage"},
        "diskSizeGB": given.get("diskSizeGB", 30),
    }
    if thing.given.get("zones"):
        body["zones"] = thing.given["zones"]
    disk = world.add(Thing(id, DISKS, body, world.now(), {"managedBy": thing.id}, "Succeeded"))
    thing.made["_disk"] = disk.id


def allocate(world: World, thing: Thing) -> Refusal | None:
    refusal = no_room(world, thing)
    if refusal is not None:
        return refusal
    thing.made["_power"] = "running"
    start_node(world, thing)
    return None


def start_node(world: World, thing: Thing) -> None:
    if world.nodes is not None:
        nodes, address = world.nodes, interface_of(world, thing).made["address"]
        data = thing.properties["osProfile"].get("customData", "")
        text = rules.decoded(data, "customData").decode()
        world.elsewhere(thing.name, lambda: nodes.start(thing.name, text, address))


def halt_node(world: World, thing: Thing) -> None:
    """Its disk is kept."""
    if world.nodes is not None and power(thing) == "running":
        nodes = world.nodes
        world.elsewhere(thing.name, lambda: nodes.halt(thing.name))


def instance_view(world: World, thing: Thing) -> Body:
    error = _last_error(world, thing)
    state = f"ProvisioningState/{thing.state.lower()}"
    first: Body = {
        "code": f"{state}/{error.code}" if error else state,
        "level": "Error" if error else "Info",
        "displayStatus": "Provisioning failed" if error else f"Provisioning {thing.state.lower()}",
        "time": world.stamp(),
    }
    if error:
        first["message"] = error.message
    found = [first]
    if power(thing):
        code = f"PowerState/{power(thing)}"
        found.append({"code": code, "level": "Info", "displayStatus": POWER[power(thing)]})
    return {"computerName": thing.properties["osProfile"]["computerName"], "statuses": found}


def _last_error(world: World, thing: Thing) -> Refusal | None:
    if thing.state != "Failed":
        return None
    own = [one for one in world.operations.values() if one.thing is thing and one.error]
    return max(own, key=lambda one: one.ended or 0.0).error


# ── Calls of their own ───────────────────────────────────────────────────────

_ALL = "/subscriptions/{subscription}/providers/Microsoft.Compute/virtualMachines"
_VMS = (
    "/subscriptions/{subscription}/resourceGroups/{group}"
    "/providers/Microsoft.Compute/virtualMachines"
)
VM = _VMS + "/{name}"


@route("GET", f"{VM}/instanceView", f"{VMS}/instanceView/read")
def _instance_view(call: Call) -> Response:
    return call.answer(instance_view(call.world, vm_of(call)))


@route("GET", _ALL, f"{VMS}/read")
def _list(call: Call) -> Response:
    things = listed(call, None)
    if call.query.get("statusOnly", "").lower() != "true":
        return call.page([_shouting(KINDS[VMS.lower()].view(call, one)) for one in things])
    return call.page([_status(call, one) for one in things])


@route("GET", _VMS, f"{VMS}/read")
def _list_of_group(call: Call) -> Response:
    group = group_of(call).name.lower()
    return call.page([KINDS[VMS.lower()].view(call, one) for one in listed(call, group)])


def listed(call: Call, group: str | None) -> list[Thing]:
    """A group's list is expanded without a $filter, too, though its documentation says otherwise:
    recorded in kubernetes-sigs/cloud-provider-azure, `pkg/azclient/virtualmachineclient/testdata`.
    """
    expands = group is not None and not call.world.expand_needs_filter
    if "$expand" in call.query and "$filter" not in call.query and not expands:
        raise real("expand-with-instance-view")
    if "$filter" in call.query:
        raise not_acted_out("virtual machine scale sets")
    world = call.world
    since = world.now() - (world.lag if group else max(world.lag, world.wide_lag))
    return [one for one in world.of_type(VMS, group) if one.born <= since]


def _status(call: Call, thing: Thing) -> Body:
    view = instance_view(call.world, thing)
    body = {key: value for key, value in described(call, thing, {}).items() if key != "tags"}
    inner = {"vmId": thing.made["vmId"], "provisioningState": thing.state, "instanceView": view}
    return _shouting({**body, "properties": inner})


def _shouting(body: Body) -> Body:
    """The list of a whole subscription has the groups' names in capitals."""
    parts = body["id"].split("/")
    parts[4] = parts[4].upper()
    return {**body, "id": "/".join(parts)}


def vm_of(call: Call) -> Thing:
    call.given.update(namespace="Microsoft.Compute", kind="virtualMachines")
    return existing(call)


@route(
    "POST",
    f"{VM}/retrieveBootDiagnosticsData",
    f"{VMS}/retrieveBootDiagnosticsData/action",
)
def _boot_diagnostics(call: Call) -> Response:
    """https://learn.microsoft.com/rest/api/compute/virtual-machines/retrieve-boot-diagnostics-data"""
    thing = vm_of(call)
    profile = thing.properties.get("diagnosticsProfile") or {}
    if not (profile.get("bootDiagnostics") or {}).get("enabled"):
        raise real("no-boot-diagnostics")
    base = f"{call.url}{SERIAL}{thing.name}"
    return call.answer(
        {
            "consoleScreenshotBlobUri": f"{base}.screenshot.bmp?sig=secret",
            "serialConsoleLogBlobUri": f"{base}.serialconsole.log?sig=secret",
        }
    )


SERIAL = "/bootdiagnostics/"


def serial_log(world: World, path: str, signature: str) -> Response:
    """As Blob Storage serves it: by its signature, and to a token of ours never."""
    name = path.removeprefix(SERIAL).removesuffix(".serialconsole.log")
    if signature != "secret":
        return Response("", 403)
    text = world.nodes.boot_log(name) if world.nodes is not None else world.serial_logs.get(name)
    return Response(text or "", 200)
