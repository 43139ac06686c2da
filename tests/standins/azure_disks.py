"""Managed disks and proximity placement groups."""

from __future__ import annotations

from azure.mgmt.compute import models

from tests.standins.azure_call import Call
from tests.standins.azure_errors import Body, real
from tests.standins.azure_references import check_zones
from tests.standins.azure_resources import Kind, kind
from tests.standins.azure_world import Thing, World, ids_in

DISKS = "Microsoft.Compute/disks"


@kind
class Disks(Kind):
    type = DISKS
    word = "disk"
    model = models.Disk
    update = models.DiskUpdate

    def check(self, world: World, id: str, given: Body, old: Thing | None) -> None:
        check_zones(self.type, given)
        if (
            old is not None
            and given["properties"].get("diskSizeGB", 0) < old.properties["diskSizeGB"]
        ):
            raise real("disk-cannot-be-made-smaller", id=id)
        given.setdefault("sku", {"name": "Standard_LRS"})

    def properties(self, world: World, thing: Thing) -> Body:
        state = "Attached" if "managedBy" in thing.made else "Unattached"
        return {**thing.properties, "diskState": state, "timeCreated": world.stamp(thing.born)}

    def view(self, call: Call, thing: Thing) -> Body:
        body = super().view(call, thing)
        return {**body, **thing.made}

    def check_delete(self, world: World, thing: Thing) -> None:
        if "managedBy" in thing.made:
            raise real("disk-attached", thing=thing.name, machine=thing.made["managedBy"])


@kind
class PlacementGroups(Kind):
    type = "Microsoft.Compute/proximityPlacementGroups"
    word = "proximity placement group"
    model = models.ProximityPlacementGroup
    update = models.ProximityPlacementGroupUpdate

    def properties(self, world: World, thing: Thing) -> Body:
        users = [{"id": one.id} for one in self._users(world, thing)]
        return {
            "proximityPlacementGroupType": "Standard",
            **thing.properties,
            "virtualMachines": users,
        }

    def view(self, call: Call, thing: Thing) -> Body:
        body = super().view(call, thing)
        del body["properties"]["provisioningState"]
        return body

    def check_delete(self, world: World, thing: Thing) -> None:
        if users := self._users(world, thing):
            raise real(
                "proximity-group-in-use",
                thing=thing.name,
                listed=", ".join(one.id for one in users),
            )

    def _users(self, world: World, thing: Thing) -> list[Thing]:
        vms = world.of_type("Microsoft.Compute/virtualMachines")
        return [one for one in vms if thing.id.lower() in ids_in(one.properties)]
