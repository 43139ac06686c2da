"""Creates or adopts what the VMs of a region share: resource group, network and firewall; and reads
the Bastion of `network.ssh_proxy`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from cloudtrain.core import errors
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.events import ResourceRequested
from cloudtrain.core.model import Network, Plan
from cloudtrain.core.protocols import Journal
from cloudtrain.providers.azure import faults, images, paths, requests, reservations
from cloudtrain.providers.azure.client import ArmClient, side_by_side, state_of
from cloudtrain.providers.azure.expiry import LONGEST
from cloudtrain.providers.azure.machine_types import Skus
from cloudtrain.providers.azure.resource_providers import DEADLINES, ResourceProviders, needed
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.answers import typed
from cloudtrain.providers.base.driver import Location
from cloudtrain.providers.base.http import Tree

T = TypeVar("T")

FAST = re.compile(r"(?i)standard_(nd|h[bcx])\d")
"""Machine types of ≥ 100 Gbit/s: https://learn.microsoft.com/azure/virtual-machines/sizes/overview"""
BEING_DELETED = 900.0
"""Seconds to wait until a group with many VMs is deleted."""


def until_deleted(arm: ArmClient, group: str, ask: Callable[[], T | None]) -> T:
    """Wait for the answer of `ask`, delayed by a group that is being deleted. Raises BusyError."""
    if (answer := arm.timing.until(ask, within=BEING_DELETED)) is not None:
        return answer
    text = f"resource group {group} is still being deleted"
    raise errors.BusyError(text, hint="run the command again in a few minutes", scope="region")


@dataclass(frozen=True, kw_only=True)
class ClusterNetwork:
    group: paths.Group
    subnet: str
    """Id."""
    firewall: str | None
    """ID of the firewall, which is attached to each NIC so that the user's subnet is not
    changed; None: the subnet's own holds."""
    proximity: str | None
    fast: frozenset[str]
    """Machine types that support accelerated networking, in lower case."""
    nvme: frozenset[str] = frozenset()
    """Those that boot from NVMe alone."""
    reserved: Mapping[str, str] = field(default_factory=dict)
    """IDs of capacity reservation groups, by the name in `provisioning:`."""
    plans: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Purchase plans by image; none for most."""
    images: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Images by node name: `publisher:offer:sku:version` or an ID; the first that exists."""


def make(
    arm: ArmClient,
    skus: Skus,
    services: ResourceProviders,
    plan: Plan,
    place: Location,
    callers: Sequence[str],
    journal: Journal,
    repair: Callable[[paths.Group, str], None],
) -> ClusterNetwork:
    """Create the group, then the firewall, network and placement group in parallel. The firewall is
    updated if a caller's address has changed. `repair` completes what an interrupted creation has
    left in the group."""
    network, group = plan.config.network, arm.group_for(plan.config.name, place.region)
    reserved = reservations.find(arm, plan)
    reservations.refuse_close(plan)
    reservations.refuse_full(reserved, plan, place, group)
    register(services, plan.config.limits.max_lifetime, journal)
    site = _Site(arm, group, place, journal, plan)
    fresh = site.group()
    steps: dict[str, Callable[[], Any]] = {
        "images": lambda: images.versions_of_nodes(arm, plan, place.region, journal),
        "network": lambda: site.subnet(fresh=fresh),
        "machine types": lambda: skus.of(place.region),
    }
    if not fresh:
        steps["repair"] = lambda: repair(group, plan.config.name)
    if uses_placement_group(plan):
        steps["placement group"] = lambda: site.proximity(fresh=fresh)
    if network.firewall is None:
        inside = () if network.subnet is None else ranges(arm, network.subnet)
        steps["firewall"] = lambda: site.firewall(callers, inside, fresh=fresh)
    made = dict(zip(steps, side_by_side(*steps.values()), strict=True))
    known = made["machine types"] or {}
    return ClusterNetwork(
        group=group,
        subnet=made["network"],
        firewall=made.get("firewall") or next(iter(network.firewall or ()), None),
        proximity=made.get("placement group"),
        fast=frozenset(name for name, sku in known.items() if sku.fast),
        nvme=frozenset(name for name, sku in known.items() if sku.nvme_only),
        reserved={bought.name: found.id for bought, found in reserved.items()},
        images=made["images"],
        plans=images.plans_of(arm, place.region, list(made["images"].values())),
    )


def register(services: ResourceProviders, lifetime: float | None, journal: Journal) -> None:
    """Register the resource providers that the subscription lacks. Raises PermissionsError if an
    essential one cannot be registered."""
    for namespace in services.missing(*needed(lifetime)):
        services.register(namespace, journal)
    if lifetime is not None and services.missing(DEADLINES):
        try:
            services.register(DEADLINES, journal)
        except errors.PermissionsError:
            if lifetime > LONGEST:
                raise


def uses_placement_group(plan: Plan) -> bool:
    """True if the nodes are placed in a proximity placement group, depending on `network.close`.
    With `auto`, that is so if all machines have a fast network and none is spot, whose capacity is
    scarce anyway. Never with a capacity reservation: `reservations.refuse_close`."""
    nodes, close = plan.nodes, plan.config.network.close
    if len(nodes) < 2 or close == "off" or reservations.of_plan(plan):
        return False
    return close == "on" or all(not n.spot and FAST.match(n.machine or "") for n in nodes)


def ranges(arm: ArmClient, subnet: str) -> tuple[str, ...]:
    """The address ranges of a subnet. Raises CloudConfigError if it does not exist."""
    shape = "/subscriptions/…/virtualNetworks/NAME/subnets/NAME"
    if not subnet.startswith("/subscriptions/") or "/subnets/" not in subnet:
        raise errors.CloudConfigError(
            f"network.subnet {subnet!r} is not the id of a subnet", hint=f"use {shape}"
        )
    found = arm.find(subnet)
    if found is None:
        raise errors.CloudConfigError(f"no subnet {subnet}", hint="check network.subnet")
    properties = found.get("properties") or {}
    prefixes = properties.get("addressPrefixes") or [properties.get("addressPrefix")]
    return tuple(str(each) for each in prefixes if each)


@dataclass(frozen=True)
class _Site:
    arm: ArmClient
    within: paths.Group
    place: Location
    journal: Journal
    plan: Plan

    @property
    def _tags(self) -> dict[str, str]:
        return labels.on_resources(self.plan)

    @property
    def _name(self) -> str:
        return shared_name(self.arm, self.plan.config.name, self.place.region)

    def group(self) -> bool:
        """Create the group if it does not exist, once an old one is deleted. Returns True if it was
        created. Raises CloudConfigError if the user's does not exist."""
        found = self._alive()
        if self.arm.given:
            if found is None:
                raise no_group(self.within.name)
            return False
        if found is not None:
            parsed = labels.read(typed(found, "tags", dict, null=True))
            labels.refuse_foreign(f"resource group {self.within.name}", parsed, self.plan)
            return False
        self.journal(ResourceRequested(what="resource group", name=self.within.name))
        self.arm.put(self.within.itself, requests.group(self.place.region, self._tags))
        return True

    def _alive(self) -> Tree | None:
        def ask() -> tuple[Tree | None] | None:
            found = self.arm.find(self.within.itself)
            return None if state_of(found) == "deleting" else (found,)

        return until_deleted(self.arm, self.within.name, ask)[0]

    def firewall(self, callers: Sequence[str], inside: Sequence[str], *, fresh: bool) -> str:
        name = self._name
        path = self.within.firewall(name)
        body = requests.firewall(self.place.region, self._tags, callers, inside)
        found = None if fresh else ours(self.arm, path, self.plan.config.name)
        if found is None:
            self.journal(ResourceRequested(what="network security group", name=name))
        if found is None or not has_exactly(found, body):
            self.arm.put(path, body)
        return path

    def subnet(self, *, fresh: bool) -> str:
        """The ID of the config's subnet, or of our own network's, which is created if missing."""
        wanted, name = self.plan.config.network, self._name
        if wanted.subnet is not None:
            return wanted.subnet
        path = self.within.network(name)
        if fresh or ours(self.arm, path, self.plan.config.name) is None:
            self.journal(ResourceRequested(what="virtual network", name=name))
            body = requests.network(self.place.region, self._tags, name, outbound=wanted.private)
            self.arm.put(path, body)
        return f"{path}/subnets/{name}"

    def proximity(self, *, fresh: bool) -> str | None:
        """Create a placement group for this place alone, as its first VM binds it to a data centre.
        Returns None if this endpoint does not support placement groups: training works without
        one."""
        name = f"{labels.group_name(self.plan.config.name)}-{self.place}"
        path = self.within.proximity(name)
        if fresh or ours(self.arm, path, self.plan.config.name) is None:
            self.journal(ResourceRequested(what="proximity placement group", name=name))
            try:
                self.arm.put(path, requests.proximity(self.place.region, self._tags))
            except errors.CloudError as error:
                if not faults.is_unknown_question(error):
                    raise
                return None
        return path


def shared_name(arm: ArmClient, cluster: str, region: str) -> str:
    """The name of the network and the firewall. A group of the user's may have several regions."""
    name = labels.group_name(cluster)
    return f"{name}-{region}" if arm.given else name


def no_group(name: str) -> errors.CloudConfigError:
    return errors.CloudConfigError(
        f"no resource group {name}",
        hint="check `resource_group` and `project`, or leave it out: cloudtrain then creates its "
        "own",
    )


def ours(arm: ArmClient, path: str, cluster: str) -> Tree | None:
    """A resource of the cluster; None if it does not exist. Raises NameTakenError if the user's
    group has another resource of that name, which a PUT would change. In a group of our own,
    everything is ours."""
    found = arm.find(path)
    if found is not None and arm.given:
        known = labels.ours(typed(found, "tags", dict, null=True))
        if known is None or known.cluster != cluster:
            raise errors.NameTakenError(
                f"{path.rpartition('/providers/')[2]} exists in resource group {arm.given}, and "
                "cloudtrain did not create it",
                hint="choose another `name:` for the cluster",
            )
    return found


def has_exactly(found: Tree, body: Tree) -> bool:
    """True if a firewall has exactly the rules of `body`."""
    properties = found.get("properties") or {}
    return _rules(properties) == _rules(body["properties"]) and str(
        properties.get("provisioningState", "")
    ).lower() in ("", "succeeded")


def _rules(properties: Tree) -> dict[str, tuple[str, ...]]:
    rules = {}
    for rule in properties.get("securityRules") or ():
        fields = rule.get("properties") or {}
        sources = fields.get("sourceAddressPrefixes") or [fields.get("sourceAddressPrefix")]
        words = [fields.get(key) for key in ("priority", "direction", "access", "protocol")]
        words += [fields.get("destinationPortRange"), *sorted(map(str, sources))]
        rules[str(rule.get("name"))] = tuple(str(word).lower() for word in words)
    return rules


# Properties of a Bastion: `BastionHost` of azure-mgmt-network; what a tunnel needs:
# https://learn.microsoft.com/azure/bastion/native-client, read 2026-11-24, not tried.
FIT = ("standard", "premium")
"""SKUs with native client support."""


def bastion_ranges(arm: ArmClient, network: Network) -> tuple[str, ...]:
    """The address ranges from which the Bastion connects: those of its AzureBastionSubnet. Raises
    CloudConfigError for a Bastion that cannot open tunnels."""
    bastion = _fit_bastion(arm, network)
    found = (bastion.get("properties") or {}).get("ipConfigurations") or ()
    subnets = [(each.get("properties") or {}).get("subnet") or {} for each in found]
    return tuple(p for subnet in subnets for p in ranges(arm, str(subnet.get("id"))))


def ssh_sources(arm: ArmClient, network: Network, caller: str) -> tuple[str, ...]:
    """The sources that the firewall lets in: `caller`, or the Bastion's ranges."""
    if network.ssh_proxy is not None and network.ssh_proxy.bastion:
        return bastion_ranges(arm, network)
    return (caller,) if caller else ()


def describe_bastion(arm: ArmClient, network: Network) -> str:
    """Text on the Bastion. Raises CloudConfigError as `ranges` does."""
    bastion, sources = _fit_bastion(arm, network), bastion_ranges(arm, network)
    sku = str((bastion.get("sku") or {}).get("name"))
    return f"{bastion.get('name')} ({sku}) opens tunnels from {', '.join(sources)}"


def _fit_bastion(arm: ArmClient, network: Network) -> Tree:
    proxy = network.ssh_proxy
    id = paths.bastion(arm.subscription, (proxy and proxy.bastion) or "")
    found = arm.find(id)
    if found is None:
        raise errors.CloudConfigError(f"no Bastion {id}", hint="check network.ssh_proxy.bastion")
    sku = str((found.get("sku") or {}).get("name"))
    tunnels = (found.get("properties") or {}).get("enableTunneling") is True
    if sku.lower() not in FIT or not tunnels:
        raise errors.CloudConfigError(
            f"the Bastion {paths.last(id)} ({sku}) has no native client support",
            hint="it needs the Standard or Premium SKU, and `az network bastion update "
            "--enable-tunneling true`",
        )
    return found
