"""Checks before `up` that change nothing and cost nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from cloudtrain.core import errors
from cloudtrain.core.model import NodePlan, Plan
from cloudtrain.core.protocols import Finding
from cloudtrain.core.store_kinds import own_uris
from cloudtrain.money import node_parts
from cloudtrain.providers.azure import (
    faults,
    images,
    network,
    paths,
    permissions,
    quota,
    requests,
    reservations,
)
from cloudtrain.providers.azure.client import ArmClient, ask_or_none, side_by_side
from cloudtrain.providers.azure.dry_run import policies
from cloudtrain.providers.azure.expiry import LONGEST, refuse_lifetime
from cloudtrain.providers.azure.facts import FACTS
from cloudtrain.providers.azure.listing import plain
from cloudtrain.providers.azure.machine_types import Skus
from cloudtrain.providers.azure.resource_providers import DEADLINES, ResourceProviders, needed
from cloudtrain.providers.azure.zones import parse_location, places, unserved
from cloudtrain.providers.base.checks import NotChecked, finding, in_each
from cloudtrain.providers.base.driver import Location, Vm
from cloudtrain.providers.base.http import Tree
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
    except errors.CloudError as error:
        return (Finding.of("credentials", error),)
    found = [Finding(what="credentials", ok=True, text=subscription)]
    found += [finding("permissions", lambda: _permissions(arm, plan))]
    if arm.given:
        found.append(finding("resource group", lambda: _group(arm)))
    found += check_identity(arm, plan)
    found += [finding("services", lambda: _registered(arm, services, plan))]
    found += [finding("lifetime", lambda: _lifetime(arm, services, plan))]
    try:
        there = places(arm, skus, services, plan)
    except errors.CloudError as error:
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
    for machine in interconnect.unconnected(plan):
        text = (
            f"{machine}: Azure connects InfiniBand only within a scale set, and these are single "
            "VMs: nodes communicate over Ethernet (tasks get NCCL_IB_DISABLE=1)"
        )
        yield Finding(what="network", ok=True, text=text)
    yield from retention(arm, plan.config.artifacts.store)
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
        raise errors.PermissionsError(
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
        raise errors.PermissionsError(
            f"not allowed on {subnet}: {permissions.JOIN}", hint="see docs/companies.md"
        )
    return ", ".join(ranges)


def _disk_key(arm: ArmClient, region: str, plan: Plan) -> str:
    """Check that the disk encryption set is in the region, and that it may be used: reading it is
    the right that Azure asks for (kubernetes-sigs/azuredisk-csi-driver#2609, read 2026-11-24)."""
    id = str(paths.disk_key(arm.subscription, plan.config.disk_key_in(region)))
    found = arm.find(id)
    if found is None:
        raise errors.CloudConfigError(
            f"disk encryption set {id} does not exist", hint="check `disk_key`"
        )
    there = plain(str(found.get("location", "")))
    if there != region:
        raise errors.CloudConfigError(
            f"{paths.last(id)} is in {there}",
            hint="a disk needs one of its region: write {region} in `disk_key`",
            scope="region",
        )
    return paths.last(id)


def _firewall(arm: ArmClient, plan: Plan) -> str:
    """Report the user's firewall, and what it must allow."""
    given = next(iter(plan.config.network.firewall or ()), None)
    if given is not None and arm.find(given) is None:
        raise errors.CloudConfigError(
            f"no network security group {given}", hint="check network.firewall"
        )
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
        raise errors.PermissionsError(
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
        raise errors.PermissionsError(
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
            raise errors.PermissionsError(
                f"{group.shown}: not allowed: {permissions.DEPLOY}",
                hint="assign it on the group (docs/azure.md)",
            )
    for place in there:
        within = arm.group_for(plan.config.name, place.region)
        texts.append(reservations.described(groups, plan, place))
        try:
            reservations.refuse_full(groups, plan, place, within)
            return "; ".join(texts)
        except errors.CapacityError as error:
            refusal = refusal or error
    if refusal is not None:
        raise refusal
    return "; ".join(texts)


def _machines(skus: Skus, region: str, plan: Plan, there: Sequence[Location]) -> str:
    known = skus.of(region)
    if known is None:
        return NOT_REPORTED
    zones = [place.zone for place in there if place.region == region and place.zone]
    for name in dict.fromkeys(node.machine or "" for node in plan.nodes):
        sku = known.get(name.lower())
        if sku is None:
            raise errors.CloudConfigError(
                f"no machine {name}", hint="run `az vm list-sizes --location …`"
            )
        if sku.refused:
            raise errors.CapacityError(
                f"{name}: {sku.refused}",
                hint="request access at https://aka.ms/ProdportalCRP, or choose other regions",
                scope="region",
                code=sku.refused,
            )
        if not sku.spot and any(n.spot and n.machine == name for n in plan.nodes):
            raise errors.CloudConfigError(
                f"{name} is not sold as spot", hint="set provisioning: on-demand", scope="region"
            )
        for node in plan.nodes:
            if (node.machine or "").lower() == name.lower() and (wrong := sku.mismatch(node)):
                raise errors.CloudConfigError(wrong, hint="check nodes.….machine and accelerator")
        for zone in zones:
            if paths.zone_of(zone) not in sku.zones:
                raise errors.CapacityError(f"no {name} in zone {zone}", scope="zone")
    counted = Counter(f"{'spot ' if n.spot else ''}{n.machine}" for n in plan.nodes)
    words = ", ".join(f"{count} × {name}" for name, count in counted.items())
    return f"{words}{' in ' + ', '.join(zones) if zones else ''}"


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
        raise errors.QuotaError(
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


# ── Checks whether Blob Storage keeps, and bills for, files that were deleted or overwritten ──


def retention(arm: ArmClient, store: str | None) -> Iterator[Finding]:
    """Report soft delete and versioning; the finding never fails. Yields nothing if these
    credentials cannot see the account."""
    if store is None or not store.startswith("az://"):
        return
    account = store.removeprefix("az://").partition("/")[0]
    id = account_id(arm, account)
    service = errors.if_told(lambda: arm.get(f"{id}/blobServices/default"), None) if id else None
    if service is None:
        return
    properties = service.get("properties") or {}
    kept = properties.get("deleteRetentionPolicy") or {}
    reasons = [f"soft delete ({kept.get('days') or 0} days)"] if kept.get("enabled") else []
    reasons += ["versioning"] if properties.get("isVersioningEnabled") else []
    if not reasons:
        yield Finding(what="blobs", ok=True, text=f"{account} does not keep deleted files")
        return
    yield Finding(
        what="blobs",
        ok=True,
        text=f"{account} has {' and '.join(reasons)} enabled: each replaced checkpoint is still "
        "stored and billed for that time",
        hint="run `az storage account blob-service-properties update --enable-delete-retention "
        f"false --account-name {account}`, or use a separate account for training",
    )


def account_id(arm: ArmClient, account: str) -> str | None:
    """The ID of a storage account; None if these credentials cannot see it."""
    path = f"{arm.path}/providers/Microsoft.Storage/storageAccounts"
    listed = errors.if_told(lambda: arm.pages(path), [])
    ids = (str(one["id"]) for one in listed if str(one.get("name", "")).lower() == account.lower())
    return next(ids, None)


# ── Checks the managed identity of `identity` ─────────────────────────────────────────────────
#
# https://learn.microsoft.com/rest/api/managedidentity/user-assigned-identities/get and
# https://learn.microsoft.com/rest/api/authorization/role-assignments/list-for-scope, read
# 2026-11-22; not tried on a real subscription.


READS, ASSIGNS = permissions.ON_IDENTITY
ROLES = {
    # https://learn.microsoft.com/azure/role-based-access-control/built-in-roles/storage, 2026-11-22
    "b7e6dc6d-f1e8-4753-8033-0f276bb0955b": "Storage Blob Data Owner",
    "ba92f5b4-2d11-453d-a403-e96b0029c9fe": "Storage Blob Data Contributor",
    "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1": "Storage Blob Data Reader",
}


def check_identity(arm: ArmClient, plan: Plan) -> Iterator[Finding]:
    """Yield whether the identity exists, may be attached, and may use the buckets; nothing without
    `identity`. What cannot be asked fails nothing."""
    if plan.config.identity is None:
        return
    id, principals = paths.identity(arm.subscription, plan.config.identity), []

    def attachable() -> str:
        found = _identity(arm, id)
        principals.append(str((found.get("properties") or {}).get("principalId") or ""))
        rights, name = arm.rights(id), paths.last(id)
        if not rights:
            raise NotChecked(f"{name} exists; whether it may be attached could not be checked")
        if permissions.lacking(rights, ASSIGNS):
            raise errors.PermissionsError(f"{name}: not allowed: {ASSIGNS}", hint=faults.ATTACH)
        return f"{name} may be attached"

    first = finding("identity", attachable)
    yield first
    for principal in principals if first.ok else ():
        for uri in own_uris(plan.config, FACTS.bucket_schemes):
            yield finding("identity", partial(_roles_on, arm, principal, uri.bucket))


def _identity(arm: ArmClient, id: str) -> Tree:
    """The identity. Raises PermissionsError if there is none, NotChecked if it cannot be read."""
    try:
        return arm.get(id)
    except errors.CloudError as error:
        if error.code in _ABSENT:
            text = f"no managed identity {id}: {error.message}"
            raise errors.PermissionsError(text, hint=faults.NO_IDENTITY, code=error.code) from error
        if isinstance(error, errors.NotFoundError) or faults.is_unknown_question(error):
            raise NotChecked(f"{paths.last(id)}: {NOT_REPORTED}") from error
        if isinstance(error, errors.PermissionsError):
            raise NotChecked(f"{paths.last(id)}: could not be checked: {error.message}") from error
        raise


_ABSENT = frozenset(
    {"ResourceNotFound", "ResourceGroupNotFound", "SubscriptionNotFound", "InvalidSubscriptionId"}
)


def _roles_on(arm: ArmClient, principal: str, account: str) -> str:
    """Report the identity's roles on a storage account, also inherited ones; those of its groups
    are not listed, so that their absence proves nothing."""
    id = account_id(arm, account)
    if id is None:
        raise NotChecked(
            f"{account}: could not be checked: not a visible account of this subscription"
        )
    path = f"{id}/providers/Microsoft.Authorization/roleAssignments"
    wanted = {"$filter": f"principalId eq '{principal}'"}
    found = errors.if_told(lambda: arm.pages(path, **wanted), None)
    if found is None:
        raise NotChecked(f"{account}: could not be checked: its role assignments are not readable")
    ids = [str((one.get("properties") or {}).get("roleDefinitionId")) for one in found]
    roles = sorted({ROLES[each] for each in map(paths.last, ids) if each in ROLES})
    if roles:
        return f"{account}: has {', '.join(roles)}"
    raise NotChecked(
        f"{account}: has none of the roles {', '.join(sorted(ROLES.values()))}; one of a group, or "
        "a custom role, could not be checked"
    )
