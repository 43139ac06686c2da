"""Lists our resources in the subscription, in all regions."""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.core.errors import CloudError, NotFoundError, PermissionsError
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.partial_list import NotAsked, PartialList
from cloudtrain.providers.azure import faults, listing, paths
from cloudtrain.providers.azure.client import ArmClient, ask_or_none, side_by_side, state_of
from cloudtrain.providers.azure.teardown import AT_ONCE, GROUP, KINDS
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.answers import typed
from cloudtrain.providers.base.driver import Location, Resource, Vm
from cloudtrain.providers.base.http import Tree

OPTIONAL = ("Microsoft.DevTestLab/schedules", "Microsoft.Compute/proximityPlacementGroups")
"""Kinds that exist only for whoever may create them: their permissions are not always needed."""
COMPUTE = "/providers/Microsoft.Compute/virtualMachines"
NETWORK = "/providers/Microsoft.Network"
KINDS_BY_NAME = {kind.lower(): kind for kind in KINDS}


class Resources:
    """Lists our resources in a subscription. Thread-safe."""

    def __init__(self, arm: ArmClient) -> None:
        self._arm = arm
        self._expands = True
        """False once the endpoint has refused `$expand` in the list of a group's VMs."""

    def machines(self, cluster: str | None, place: Location | None) -> PartialList[Vm]:
        """List the VMs of a cluster, or of all clusters. One cluster's VMs are listed from its own
        groups, so that thousands of other VMs in the subscription add no cost. The VMs of all
        clusters come from five lists of the whole subscription."""
        found = self._of_everything() if cluster is None else self._of_groups(cluster, place)
        listed = PartialList.of_read(found)
        return PartialList((m for m in listed if place in (None, m.place)), listed.not_asked)

    def _of_everything(self) -> list[Vm | NotAsked]:
        """List the subscription; where only the user's group may be listed, that."""
        try:
            vms, views, nics, addresses, groups = side_by_side(
                lambda: self._arm.pages(f"{self._arm.path}{COMPUTE}"),
                lambda: self._arm.pages_if_told(f"{self._arm.path}{COMPUTE}", statusOnly="true"),
                lambda: self._arm.pages(f"{self._arm.path}{NETWORK}/networkInterfaces"),
                lambda: self._arm.pages(f"{self._arm.path}{NETWORK}/publicIPAddresses"),
                self._groups,
            )
            return self._machines(vms, views, nics, addresses, groups, None)
        except PermissionsError:
            if not self._arm.given:
                raise
            return self._of_group(self._arm.given, [], None)

    def _of_groups(self, cluster: str, place: Location | None) -> list[Vm | NotAsked]:
        """List the VMs of the groups with our name or tag, or a VM with our tag."""
        groups: list[Tree] = []
        if self._arm.given:
            names = {self._arm.given}
        elif place is not None:
            # Once this group exists, it contains everything of its region.
            names = {paths.group_name(cluster, place.region)}
        else:
            groups, tagged = self._groups_and_tagged(cluster)
            names = {
                str(group.get("name", "")).lower()
                for group in groups
                if _cluster(group) == cluster
                or str(group.get("name", "")).lower().startswith(f"{labels.group_name(cluster)}-")
            }
            vms = [t for t in tagged if str(t.get("type", "")).lower().endswith("/virtualmachines")]
            names |= {paths.group_of(str(vm.get("id", ""))) for vm in vms}
        found = fan_out(sorted(names), lambda name: self._of_group(name, groups, cluster), name=str)
        return [machine for machines in found for machine in machines]

    def _of_group(self, name: str, groups: list[Tree], cluster: str | None) -> list[Vm | NotAsked]:
        group = self._arm.group(name)
        try:
            vms, nics, addresses, itself = side_by_side(
                lambda: self._vms(f"{group.path}{COMPUTE}"),
                lambda: self._arm.pages(f"{group.path}{NETWORK}/networkInterfaces"),
                lambda: self._arm.pages(f"{group.path}{NETWORK}/publicIPAddresses"),
                lambda: groups or [self._arm.get(group.itself)],
            )
        except NotFoundError:
            return []
        return self._machines(vms, vms, nics, addresses, itself, cluster)

    def _vms(self, path: str) -> list[Tree]:
        """List a group's VMs with their instance views, for which Azure limits a user to 12 reads a
        minute of each VM, but to 300 lists of a region:
        https://learn.microsoft.com/azure/virtual-machines/compute-throttling-limits

        The documentation of List allows `$expand` only with a `$filter` by scale set. Azure
        answers it without: kubernetes-sigs/cloud-provider-azure has a recording of an empty group
        (azclient/virtualmachineclient/testdata/AZURECLOUD.yaml), and AKS' autoscaler reads power
        states by it (pull request #6166 there). Where it is refused, the views are asked for one by
        one."""
        if self._expands:
            found = ask_or_none(lambda: self._arm.pages(path, **{"$expand": "instanceView"}))
            if found is not None:
                return found
        found = self._arm.pages(path)
        self._expands = False
        return found

    def _machines(
        self,
        vms: Sequence[Tree],
        views: Sequence[Tree],
        nics: Sequence[Tree],
        addresses: Sequence[Tree],
        groups: Sequence[Tree],
        cluster: str | None,
    ) -> list[Vm | NotAsked]:
        ours = [
            vm
            for vm in vms
            if labels.read(typed(vm, "tags", dict, null=True), of=cluster) is not None
        ]
        lists = listing.Lists(
            vms=listing.by_id(ours),
            views=self._views(ours, views),
            nics=listing.by_id(nics),
            addresses=listing.by_id(addresses),
            now=self._arm.timing.clock.now(),
            within=self._arm.timing.boot,
            dying=frozenset(
                str(g.get("name", "")).lower() for g in groups if state_of(g) == "deleting"
            ),
        )
        return list(listing.to_vms(lists, cluster))

    def _views(self, vms: Sequence[Tree], listed: Sequence[Tree]) -> dict[str, Tree]:
        """The instance view of each VM. One that the list does not have is queried by itself."""
        views = {
            id: (vm.get("properties") or {}).get("instanceView") or {}
            for id, vm in listing.by_id(listed).items()
        }
        missing = [
            vm
            for vm in vms
            if not views.get(str(vm["id"]).lower(), {}).get("statuses")
            and state_of(vm) not in ("creating", "deleting")  # it has no power state yet, or soon
        ]

        def ask(vm: Tree) -> Tree:
            return ask_or_none(lambda: self._arm.get(f"{vm['id']}/instanceView")) or {}

        asked = fan_out(missing, ask, name=lambda vm: str(vm["name"]), workers=AT_ONCE)
        return views | {
            str(vm["id"]).lower(): view for vm, view in zip(missing, asked, strict=True)
        }

    def resources(self, cluster: str | None) -> PartialList[Resource]:
        """List our groups, and resources with our label in other groups; with a group of the
        user's, what a cluster has in that."""
        if self._arm.given and cluster:
            return self._inside(self._arm.given, cluster)
        try:
            groups, others = self._groups_and_tagged(cluster)
            ours = [group for group in groups if _cluster(group) is not None]
            names = {str(group.get("name", "")).lower() for group in ours}
            found = [_resource(group, GROUP, cluster) for group in groups]
            for other in others:
                kind = KINDS_BY_NAME.get(str(other.get("type", "")).lower())
                if kind and paths.group_of(str(other.get("id", ""))) not in names:
                    # A list that is filtered by tags returns none.
                    full = other if other.get("tags") else self._arm.find(str(other["id"])) or {}
                    found.append(_resource({**other, **full}, kind, cluster))
            return PartialList.of_read(found)
        except PermissionsError:
            if not self._arm.given:
                raise
            return self._inside(self._arm.given, cluster)

    def _inside(self, name: str, cluster: str | None) -> PartialList[Resource]:
        """List what is ours in the user's group, by kind: ARM's own list of a group lags behind."""
        group = self._arm.group(name)

        def listed(kind: str) -> list[Tree]:
            try:
                return self._arm.pages(f"{group.path}/providers/{kind}")
            except PermissionsError:
                if kind in OPTIONAL:
                    return []
                raise
            except CloudError as error:
                if not faults.is_unknown_question(error):
                    raise
                return []

        found = fan_out(KINDS, listed, name=str)
        return PartialList.of_read(
            _resource(thing, kind, cluster)
            for kind, things in zip(KINDS, found, strict=True)
            for thing in things
        )

    def _groups_and_tagged(self, cluster: str | None) -> list[list[Tree]]:
        """List all groups, and what has our label of one cluster or of any."""
        query = f"tagName eq '{labels.CLUSTER}'"
        query += f" and tagValue eq '{cluster}'" if cluster else ""
        path = f"{self._arm.path}/resources"
        return side_by_side(
            self._groups, lambda: self._arm.pages_if_told(path, **{"$filter": query})
        )

    def _groups(self) -> list[Tree]:
        return self._arm.pages(f"{self._arm.path}/resourcegroups")


def _cluster(thing: Tree) -> str | None:
    known = labels.ours(typed(thing, "tags", dict, null=True))
    return known.cluster if known else None


def _resource(thing: Tree, kind: str, of: str | None) -> Resource | NotAsked | None:
    """Convert a resource, `of` one cluster alone; NotAsked if its labels cannot be ours."""
    known = labels.read(typed(thing, "tags", dict, null=True), of=of)
    name = str(thing.get("name", ""))
    if isinstance(known, labels.NotOurs):
        return known.on(f"{paths.last(kind)} {name}")
    if known is None:
        return None
    return Resource(
        cluster=known.cluster,
        kind=kind,
        name=name,
        id=name if kind == GROUP else str(thing.get("id", "")),
        region=listing.plain(str(thing.get("location", ""))),
        **known.resource_fields,
    )
