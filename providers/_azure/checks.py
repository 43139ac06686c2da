"""What would stop `up`, asked beforehand: changes nothing, costs nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from cloudtrain.errors import (
    CapacityError,
    CloudConfigError,
    CloudError,
    PermissionsError,
    QuotaError,
)
from cloudtrain.model import NodePlan, Plan
from cloudtrain.protocols import Finding
from cloudtrain.providers._azure import bodies, ground
from cloudtrain.providers._azure.client import Tree
from cloudtrain.providers._azure.connection import Arm, optional
from cloudtrain.providers._azure.faults import not_told
from cloudtrain.providers._azure.places import places
from cloudtrain.providers._azure.skus import Sku, Skus
from cloudtrain.providers._azure.vms import refuse_long_life
from cloudtrain.providers._cloud.account import Machine, Place

NOT_TOLD = "not told by this endpoint"
NAMESPACES = ("Microsoft.Compute", "Microsoft.Network", "Microsoft.DevTestLab")
NEEDED = (
    *(f"Microsoft.Resources/subscriptions/resourceGroups/{v}" for v in ("read", "write", "delete")),
    *(f"Microsoft.Compute/virtualMachines/{v}" for v in ("read", "write", "delete")),
    *("Microsoft.Compute/virtualMachines/start/action", "Microsoft.Compute/disks/write"),
    "Microsoft.Compute/disks/delete",
    *(f"Microsoft.Compute/proximityPlacementGroups/{v}" for v in ("read", "write")),
    *(f"Microsoft.Network/networkInterfaces/{v}" for v in ("read", "write", "delete")),
    "Microsoft.Network/networkInterfaces/join/action",
    *(f"Microsoft.Network/publicIPAddresses/{v}" for v in ("read", "write", "delete")),
    "Microsoft.Network/publicIPAddresses/join/action",
    *(f"Microsoft.Network/networkSecurityGroups/{v}" for v in ("read", "write", "join/action")),
    *(f"Microsoft.Network/virtualNetworks/{v}" for v in ("read", "write", "subnets/join/action")),
    *(f"Microsoft.DevTestLab/schedules/{v}" for v in ("read", "write", "delete")),
)
"""The actions that up and down take; docs/azure.md has them as a role."""
ALIVE = frozenset({"enabled", "active", "", "none"})


def check(
    arm: Arm, skus: Skus, plan: Plan, machines: Callable[[str], Sequence[Machine]]
) -> tuple[Finding, ...]:
    """`machines` tells those of a cluster: nodes that exist take no more quota."""
    try:
        arm.token()
        subscription = _subscription(arm)
    except CloudError as error:
        return (_failed("credentials", error),)
    found = [Finding(what="credentials", ok=True, text=subscription)]
    found += [_finding("permissions", lambda: _permissions(arm))]
    found += [_finding("services", lambda: _registered(arm))]
    found += [_finding("lifetime", lambda: _lifetime(plan))]
    try:
        there = places(arm, skus, plan)
    except CloudError as error:
        return (*found, _failed("placement", error))
    regions = list(dict.fromkeys(place.region for place in there))
    known = {machine.node.name for machine in machines(plan.config.name)}
    missing = [node for node in plan.nodes if node.name not in known]
    found.append(Finding(what="placement", ok=True, text=", ".join(map(str, there))))
    found += _in_each("machines", regions, lambda r: _machines(skus, r, plan, there))
    found += _in_each("image", regions, lambda region: _image(arm, region, plan))
    found += _in_each("quota", regions, lambda region: _quota(arm, skus, region, plan, missing))
    subnet = plan.config.network.subnet
    if subnet is not None:
        found.append(_finding("subnet", lambda: ", ".join(ground.ranges(arm, subnet))))
    return tuple(found)


def _finding(what: str, ask: Callable[[], str]) -> Finding:
    try:
        return Finding(what=what, ok=True, text=ask())
    except CloudError as error:
        return _failed(what, error)


def _failed(what: str, error: CloudError) -> Finding:
    return Finding(what=what, ok=False, text=error.message, hint=error.hint, error=type(error))


def _in_each(what: str, regions: Sequence[str], ask: Callable[[str], str]) -> Iterator[Finding]:
    """A finding for each region. One that serves is enough: the placement goes on to it."""
    told = {region: _finding(what, lambda r=region: ask(r)) for region in regions}  # type: ignore[misc]
    served = any(finding.ok for finding in told.values())
    for region, finding in told.items():
        yield Finding(
            what=what,
            ok=served,
            text=f"{region}: {finding.text}",
            hint=finding.hint,
            error=None if served else finding.error,
        )


def _subscription(arm: Arm) -> str:
    told = optional(lambda: arm.get(arm.path))
    state = str((told or {}).get("state", "")).lower()
    name = (told or {}).get("displayName")
    words = f"subscription {arm.subscription}" + (f" ({name})" if name else "")
    if state not in ALIVE:
        raise PermissionsError(
            f"{words} is {state}: nothing can be made in it",
            hint="the Azure portal shows what it lacks",
            code="ReadOnlyDisabledSubscription",
        )
    return words


def _permissions(arm: Arm) -> str:
    path = f"{arm.path}/providers/Microsoft.Authorization/permissions"
    told = optional(lambda: arm.pages(path))
    if not told:
        return NOT_TOLD
    lacking = [action for action in NEEDED if not allowed(action, told)]
    if lacking:
        raise PermissionsError(
            f"not allowed: {', '.join(lacking)}", hint="docs/azure.md has the role that is needed"
        )
    return "all that up and down need"


def allowed(action: str, told: Sequence[Tree]) -> bool:
    """https://learn.microsoft.com/azure/role-based-access-control/role-definitions"""

    def matches(patterns: Sequence[str]) -> bool:
        return any(
            re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), action, re.IGNORECASE)
            for pattern in patterns
        )

    return any(
        matches(each.get("actions") or ()) and not matches(each.get("notActions") or ())
        for each in told
    )


def _registered(arm: Arm) -> str:
    told = {n: optional(lambda n=n: arm.get(f"{arm.path}/providers/{n}")) for n in NAMESPACES}  # type: ignore[misc]
    states = {name: str((each or {}).get("registrationState", "")) for name, each in told.items()}
    lacking = [name for name, state in states.items() if state.lower() in _NOT_REGISTERED]
    if lacking:
        raise PermissionsError(
            f"not registered in this subscription: {', '.join(lacking)}",
            hint="; ".join(f"az provider register --namespace {name}" for name in lacking),
            code="MissingSubscriptionRegistration",
        )
    return ", ".join(NAMESPACES) if all(states.values()) else NOT_TOLD


_NOT_REGISTERED = frozenset({"notregistered", "unregistered", "unregistering"})


def _lifetime(plan: Plan) -> str:
    seconds = plan.config.limits.max_lifetime
    refuse_long_life(seconds)
    if seconds is None:
        return "no limit: nothing but `down` ends the VMs"
    return f"each VM is deallocated after {seconds / 3600:g} h by a schedule of its own"


def _machines(skus: Skus, region: str, plan: Plan, there: Sequence[Place]) -> str:
    known = skus.of(region)
    if known is None:
        return NOT_TOLD
    for name in dict.fromkeys(node.machine or "" for node in plan.nodes):
        sku = known.get(name.lower())
        if sku is None:
            raise CloudConfigError(f"no machine {name}", hint="az vm list-sizes --location …")
        if sku.refused:
            raise CapacityError(
                f"{name}: {sku.refused}",
                hint="ask for access at https://aka.ms/ProdportalCRP, or name other regions",
                scope="region",
                code=sku.refused,
            )
        for place in there:
            if place.region == region and place.zone and _zone(place) not in sku.zones:
                raise CapacityError(f"no {name} in zone {place.zone}", scope="zone")
    zones = [place.zone for place in there if place.region == region and place.zone]
    return f"{_words(plan.nodes)}{' in ' + ', '.join(zones) if zones else ''}"


def _zone(place: Place) -> str:
    return place.zone.rpartition("-")[2]


def _words(nodes: Sequence[NodePlan]) -> str:
    counted = Counter(f"{'spot ' if n.spot else ''}{n.machine}" for n in nodes)
    return ", ".join(f"{count} × {name}" for name, count in counted.items())


def _image(arm: Arm, region: str, plan: Plan) -> str:
    told = []
    for image in dict.fromkeys(bodies.image_of(plan.config.image, n) for n in plan.nodes):
        reference = bodies.image_reference(image)
        if "publisher" not in reference:
            told.append(f"{image} ({NOT_TOLD})")
            continue
        path = (
            f"{arm.path}/providers/Microsoft.Compute/locations/{region}/publishers/"
            f"{reference['publisher']}/artifacttypes/vmimage/offers/{reference['offer']}"
            f"/skus/{reference['sku']}/versions"
        )
        versions = _versions(arm, path)
        if versions == []:
            raise CloudConfigError(f"there is no image {image}", hint="az vm image list --all")
        if versions and reference["version"] not in ("latest", *versions):
            raise CloudConfigError(f"image {image} has the versions {', '.join(versions[-5:])}")
        told.append(image if versions else f"{image} ({NOT_TOLD})")
    return ", ".join(told)


def _versions(arm: Arm, path: str) -> list[str] | None:
    """None where this endpoint does not tell; a list without names where there is no such image."""
    try:
        answer = arm.call("GET", path).body
    except CloudError as error:
        if "VMImage" in error.message:  # "Artifact: VMImage was not found."
            return []
        if not_told(error) or isinstance(error, PermissionsError):
            return None
        raise
    return [str(version.get("name")) for version in answer or ()]


def _quota(arm: Arm, skus: Skus, region: str, plan: Plan, nodes: Sequence[NodePlan]) -> str:
    compute = f"{arm.path}/providers/Microsoft.Compute/locations/{region}/usages"
    network = f"{arm.path}/providers/Microsoft.Network/locations/{region}/usages"
    told = [
        *(optional(lambda: arm.pages(compute)) or []),
        *(optional(lambda: arm.pages(network)) or []),
    ]
    left = {
        str((u.get("name") or {}).get("value", "")).lower(): (u.get("limit"), u.get("currentValue"))
        for u in told
    }
    needs, unknown = need(nodes, skus.of(region) or {}, public=not plan.config.network.private)
    short = []
    for name, wanted in needs.items():
        limit, used = left.get(name.lower(), (None, None))
        if (
            isinstance(limit, int)
            and isinstance(used, int)
            and limit >= 0
            and used + wanted > limit
        ):
            short.append(f"{name}: {wanted} needed, {max(0, limit - used)} of {limit} left")
    if short:
        raise QuotaError(
            "; ".join(short),
            hint=f"ask for more: https://aka.ms/ProdportalCRP, region {region}; or other regions",
            scope="region",
            code="QuotaExceeded",
        )
    if not left or unknown:
        return NOT_TOLD
    return ", ".join(f"{wanted} {name}" for name, wanted in needs.items()) or "nothing more needed"


def need(
    nodes: Sequence[NodePlan], known: Mapping[str, Sku], *, public: bool
) -> tuple[dict[str, int], bool]:
    """Quota name → how much, over all roles; and whether some machine's cores are not known.

    Spot draws on `lowPriorityCores` only.
    https://learn.microsoft.com/azure/virtual-machines/spot-vms#pricing
    """
    needs: Counter[str] = Counter()
    unknown = False
    for node in nodes:
        sku = known.get((node.machine or "").lower())
        if sku is None or sku.cores is None:
            unknown = True
        elif node.spot:
            needs["lowPriorityCores"] += sku.cores
        else:
            needs["cores"] += sku.cores
            if sku.family:
                needs[sku.family] += sku.cores
        if public:
            needs["StandardSkuPublicIpAddresses"] += 1
    return dict(needs), unknown
