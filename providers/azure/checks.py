"""Checks before `up` that change nothing and cost nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from cloudtrain.core.errors import (
    CapacityError,
    CloudConfigError,
    CloudError,
    PermissionsError,
    QuotaError,
)
from cloudtrain.core.model import NodePlan, Plan
from cloudtrain.core.protocols import Finding
from cloudtrain.money import node_parts
from cloudtrain.providers.azure import (
    blobs,
    images,
    network,
    node_identity,
    paths,
    permissions,
    quota,
    requests,
    reservations,
)
from cloudtrain.providers.azure.client import ArmClient, ask_or_none, side_by_side
from cloudtrain.providers.azure.dry_run import policies
from cloudtrain.providers.azure.expiry import LONGEST, refuse_lifetime
from cloudtrain.providers.azure.listing import plain
from cloudtrain.providers.azure.machine_types import Skus
from cloudtrain.providers.azure.resource_providers import DEADLINES, ResourceProviders, needed
from cloudtrain.providers.azure.zones import parse_location, places, unserved
from cloudtrain.providers.base.driver import Location, Vm
from cloudtrain.providers.base.findings import finding, in_each
from cloudtrain.providers.base.quota import unless_short
from cloudtrain.providers.base.words import NOT_REPORTED, lasting
from cloudtrain.training import interconnect

ALIVE = frozenset({"enabled", "active", "", "none"})


def check(
    arm: ArmClient,
    skus: Skus,
    services: ResourceProviders,
    plan: Plan,
    machines: Callable[[str], Sequence[Vm]],
) -> tuple[Finding, ...]:
    """All findings. `machines` lists a cluster's VMs: existing nodes need no further quota."""
    try:
        arm.timing.call(arm.token)
        subscription = _subscription(arm)
    except CloudError as error:
        return (Finding.of("credentials", error),)
    found = [Finding(what="credentials", ok=True, text=subscription)]
    found += [finding("permissions", lambda: _permissions(arm, plan))]
    if arm.given:
        found.append(finding("resource group", lambda: _group(arm)))
    found += node_identity.check(arm, plan)
    found += [finding("services", lambda: _registered(arm, services, plan))]
    found += [finding("lifetime", lambda: _lifetime(arm, services, plan))]
    try:
        there = places(arm, skus, services, plan)
    except CloudError as error:
        return (*found, Finding.of("placement", error))
    regions = list(dict.fromkeys(place.region for place in there))
    known = {machine.node.name for machine in machines(plan.config.name)}
    missing = [node for node in plan.nodes if node.name not in known]
    found.append(finding("placement", lambda: _placement(services, plan, there)))
    found += in_each("machines", regions, lambda r: _machines(skus, r, plan, there))
    found += in_each("image", regions, lambda region: _image(arm, skus, region, plan))
    if reservations.of_plan(plan):
        found.append(finding("reservation", lambda: _reserved(arm, plan, there)))
    ask_quota = partial(_quota, arm, skus, plan, missing)
    found += in_each("quota", regions, lambda region: unless_short(partial(ask_quota, region)))
    found += policies(arm, skus, plan, there)
    return (*found, *_of_resources(arm, plan, regions))


def _of_resources(arm: ArmClient, plan: Plan, regions: Sequence[str]) -> Iterator[Finding]:
    """Yield the findings on the network, and on resources of the user's that the config names."""
    yield from _network(plan)
    yield from blobs.retention(arm, plan.config.artifacts.store)
    wanted = plan.config.network
    if wanted.ssh_proxy is not None and wanted.ssh_proxy.bastion:
        yield finding("bastion", lambda: network.describe_bastion(arm, wanted))
    if wanted.subnet is not None:
        yield finding("subnet", partial(_subnet, arm, wanted.subnet))
    if plan.config.disk_key is not None:
        yield from in_each("disk key", regions, lambda region: _disk_key(arm, region, plan))
    if wanted.firewall is not None:
        yield finding("firewall", lambda: _firewall(arm, plan))


def _placement(services: ResourceProviders, plan: Plan, there: Sequence[Location]) -> str:
    regions = {parse_location(text).region for text in plan.config.placement}
    left_out = unserved(services, plan, sorted(regions))
    words = [", ".join(map(str, there)), *(f"not {r}: {why}" for r, why in left_out.items())]
    return "; ".join(words)


def _subscription(arm: ArmClient) -> str:
    answer = ask_or_none(lambda: arm.get(arm.path))
    state = str((answer or {}).get("state", "")).lower()
    name = (answer or {}).get("displayName")
    words = f"subscription {arm.subscription}" + (f" ({name})" if name else "")
    if state not in ALIVE:
        raise PermissionsError(
            f"{words} is {state}: no resources can be created in it",
            hint="see the Azure portal for the reason",
            code="ReadOnlyDisabledSubscription",
        )
    return words


def _group(arm: ArmClient) -> str:
    name = str(arm.given)
    if arm.find(arm.group(name).itself) is None:
        raise network.no_group(name)
    return f"{name} has everything that is created; it is never deleted"


def _subnet(arm: ArmClient, subnet: str) -> str:
    ranges = network.ranges(arm, subnet)
    if permissions.lacking(arm.rights(subnet), permissions.JOIN):
        raise PermissionsError(
            f"not allowed on {subnet}: {permissions.JOIN}", hint="see docs/companies.md"
        )
    return ", ".join(ranges)


def _disk_key(arm: ArmClient, region: str, plan: Plan) -> str:
    """Check that the disk encryption set is in the region, and that it may be used: reading it is
    the right that Azure asks for (kubernetes-sigs/azuredisk-csi-driver#2609, read 2026-11-24).
    """
    id = str(paths.disk_key(arm.subscription, plan.config.disk_key_in(region)))
    found = arm.find(id)
    if found is None:
        raise CloudConfigError(f"disk encryption set {id} does not exist", hint="check `disk_key`")
    there = plain(str(found.get("location", "")))
    if there != region:
        raise CloudConfigError(
            f"{paths.last(id)} is in {there}",
            hint="a disk needs one of its region: write {region} in `disk_key`",
            scope="region",
        )
    return paths.last(id)


def _firewall(arm: ArmClient, plan: Plan) -> str:
    """Report the user's firewall, and what it must allow."""
    given = next(iter(plan.config.network.firewall or ()), None)
    if given is not None and arm.find(given) is None:
        raise CloudConfigError(f"no network security group {given}", hint="check network.firewall")
    which = paths.last(given) if given else "that of the subnet"
    return (
        f"{which}, used as it is; it must allow SSH (TCP port 22) from where you connect, and all "
        "traffic between the nodes of the subnet"
    )


def _permissions(arm: ArmClient, plan: Plan) -> str:
    scope = arm.group(arm.given).path if arm.given else arm.path
    rights = arm.rights(scope)
    if not rights:
        return NOT_REPORTED
    ends = plan.config.limits.max_lifetime is not None
    wanted = permissions.needed(ends=ends, in_group=bool(arm.given))
    if lacking := permissions.lacking(rights, *wanted):
        raise PermissionsError(
            f"not allowed: {', '.join(lacking)}", hint="assign the role in docs/azure.md"
        )
    return "all that up and down need"


def _registered(arm: ArmClient, services: ResourceProviders, plan: Plan) -> str:
    wanted = needed(plan.config.limits.max_lifetime)
    side_by_side(*(partial(services.of, namespace) for namespace in wanted))
    lacking = services.missing(*wanted)
    actions = [f"{name}/register/action" for name in lacking]
    # If the endpoint reports no rights, `up` tries.
    if lacking and permissions.lacking(arm.rights(), *actions):
        raise PermissionsError(
            f"not registered in this subscription: {', '.join(lacking)}",
            hint="; ".join(f"run `az provider register --namespace {name}`" for name in lacking),
            code="MissingSubscriptionRegistration",
        )
    if lacking:
        names = ", ".join(lacking)
        return f"not registered in this subscription: {names}: `up` registers it, for free"
    known = [services.of(namespace) for namespace in wanted]
    return (", ".join(wanted)) if all(one and one.state for one in known) else NOT_REPORTED


def _lifetime(arm: ArmClient, services: ResourceProviders, plan: Plan) -> str:
    seconds = plan.config.limits.max_lifetime
    if seconds is None:
        return "no limit: only `down` ends the VMs"
    lacking = _no_deadline(arm, services)
    refuse_lifetime(seconds, far=not lacking)
    words = f"each VM is deallocated after {lasting(seconds)}"
    stays = node_parts.after_the_end(plan)
    if lacking:
        return f"{words}, by a daily schedule only: {lacking}; {stays}"
    behind = ", with a daily schedule as a fallback" if seconds <= LONGEST else ""
    return f"{words}, at a date and time held by Azure{behind}; {stays}"


def _no_deadline(arm: ArmClient, services: ResourceProviders) -> str:
    """Reason why Microsoft.ComputeSchedule cannot end a VM; "" if none is reported."""
    service = services.of(DEADLINES)
    if service is None:
        return f"this endpoint has no {DEADLINES}"
    rights = arm.rights()
    if lacking := permissions.lacking(rights, *permissions.DEADLINES):
        return f"not allowed: {', '.join(lacking)}"
    if service.missing and permissions.lacking(rights, f"{DEADLINES}/register/action"):
        return f"{DEADLINES} is not registered (az provider register --namespace {DEADLINES})"
    return ""


def _reserved(arm: ArmClient, plan: Plan, there: Sequence[Location]) -> str:
    """Report what is left in the plan's reservations. It is enough if one place has room."""
    reservations.refuse_close(plan)
    groups, refusal, texts = reservations.find(arm, plan), None, []
    for group in groups.values():
        if permissions.lacking(arm.rights(group.id), permissions.DEPLOY):
            raise PermissionsError(
                f"{group.shown}: not allowed: {permissions.DEPLOY}",
                hint="assign it on the group (docs/azure.md)",
            )
    for place in there:
        within = arm.group_for(plan.config.name, place.region)
        texts.append(reservations.described(groups, plan, place))
        try:
            reservations.refuse_full(groups, plan, place, within)
            return "; ".join(texts)
        except CapacityError as error:
            refusal = refusal or error
    if refusal is not None:
        raise refusal
    return "; ".join(texts)


def _network(plan: Plan) -> Iterator[Finding]:
    for machine in interconnect.unconnected(plan):
        text = (
            f"{machine}: Azure connects InfiniBand only within a scale set, and these are single "
            "VMs: nodes communicate over Ethernet (tasks get NCCL_IB_DISABLE=1)"
        )
        yield Finding(what="network", ok=True, text=text)


def _machines(skus: Skus, region: str, plan: Plan, there: Sequence[Location]) -> str:
    known = skus.of(region)
    if known is None:
        return NOT_REPORTED
    for name in dict.fromkeys(node.machine or "" for node in plan.nodes):
        sku = known.get(name.lower())
        if sku is None:
            raise CloudConfigError(f"no machine {name}", hint="run `az vm list-sizes --location …`")
        if sku.refused:
            raise CapacityError(
                f"{name}: {sku.refused}",
                hint="request access at https://aka.ms/ProdportalCRP, or choose other regions",
                scope="region",
                code=sku.refused,
            )
        if not sku.spot and any(n.spot and n.machine == name for n in plan.nodes):
            raise CloudConfigError(
                f"{name} is not sold as spot", hint="set provisioning: on-demand", scope="region"
            )
        wrong = [sku.mismatch(n) for n in plan.nodes if (n.machine or "").lower() == name.lower()]
        if any(wrong):
            text = next(filter(None, wrong))
            raise CloudConfigError(text, hint="check nodes.….machine and accelerator")
        for place in there:
            if place.region == region and place.zone and _zone(place) not in sku.zones:
                raise CapacityError(f"no {name} in zone {place.zone}", scope="zone")
    zones = [place.zone for place in there if place.region == region and place.zone]
    return f"{_words(plan.nodes)}{' in ' + ', '.join(zones) if zones else ''}"


def _zone(place: Location) -> str:
    return place.zone.rpartition("-")[2]


def _words(nodes: Sequence[NodePlan]) -> str:
    counted = Counter(f"{'spot ' if n.spot else ''}{n.machine}" for n in nodes)
    return ", ".join(f"{count} × {name}" for name, count in counted.items())


def _image(arm: ArmClient, skus: Skus, region: str, plan: Plan) -> str:
    found = list(images.check(arm, skus, region, plan))
    words = ", ".join(name if reported else f"{name} ({NOT_REPORTED})" for name, reported in found)
    if any(requests.has_gpu(node) for node in plan.nodes) and images.secure_boot(arm):
        words += "; without Secure Boot, which this subscription has by default"
    return words


def _quota(arm: ArmClient, skus: Skus, plan: Plan, nodes: Sequence[NodePlan], region: str) -> str:
    needs, unknown = quota.need(
        nodes, skus.of(region) or {}, public=not plan.config.network.private
    )
    left = quota.left(arm, region)
    short, unreported = [], [f"the cores of {machine}" for machine in unknown]
    for name, wanted in needs.items():
        found = next((left[key] for key in quota.keys(name) if key in left), None)
        if found is None:
            unreported.append(name)
        elif found.limit >= 0 and found.used + wanted > found.limit:
            free = max(0, found.limit - found.used)
            short.append(f"{found.name}: {wanted} needed, {free} of {found.limit} left")
    if short:
        raise QuotaError(
            "; ".join(short),
            hint=f"request more for {region} at https://aka.ms/ProdportalCRP, or add other regions",
            scope="region",
            code="QuotaExceeded",
        )
    if not left:
        return NOT_REPORTED
    if unreported:
        enough = [f"{wanted} {name}" for name, wanted in needs.items() if name not in unreported]
        words = f"; enough for {', '.join(enough)}" if enough else ""
        return f"{NOT_REPORTED}: {', '.join(unreported)}{words}"
    words = ", ".join(f"{wanted} {name}" for name, wanted in needs.items())
    return words or "nothing more needed"
