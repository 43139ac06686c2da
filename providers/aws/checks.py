"""Checks before `up` that change nothing and cost nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from cloudtrain.core import errors
from cloudtrain.core.model import Plan
from cloudtrain.core.protocols import Finding
from cloudtrain.providers.aws import (
    identity,
    images,
    listing,
    network,
    permissions,
    quota,
    requests,
    reservations,
    spot,
    vms,
    xml,
)
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.aws.expiry import LATER, ROLE, Schedules
from cloudtrain.providers.aws.facts import FACTS
from cloudtrain.providers.aws.machine_types import Ec2MachineType, machine_types
from cloudtrain.providers.aws.ssh_service import NODE_ACTIONS
from cloudtrain.providers.aws.zones import Regions
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.checks import NotChecked, finding, in_each
from cloudtrain.providers.base.driver import Location
from cloudtrain.providers.base.quota import unless_short
from cloudtrain.providers.base.words import NOT_REPORTED


def check(
    ec2: Ec2Client, regions: Regions, schedules: Schedules, plan: Plan
) -> tuple[Finding, ...]:
    try:
        regions.names()  # the first call that needs credentials
    except errors.CloudError as error:
        return (Finding.of("credentials", error),)
    caller = finding("credentials", lambda: _identity(ec2, plan))
    try:
        places = regions.places(plan)
    except errors.CloudError as error:
        return caller, Finding.of("placement", error)
    where = list(dict.fromkeys(place.region for place in places))
    first = {region: next(p for p in places if p.region == region) for region in where}
    types: dict[str, Mapping[str, Ec2MachineType]] = {}
    found = [caller, Finding(what="placement", ok=True, text=", ".join(map(str, places)))]
    of_identity = list(permissions.check_identity(ec2, where[0], plan))
    found += of_identity
    found += session_manager(ec2, where[0], plan)
    found += free_plan(ec2, where[0], plan)
    found += in_each("machines", where, lambda region: _machines(ec2, region, plan, types))
    found += in_each("image", where, lambda region: _image(ec2, region, plan))
    found += in_each("network", where, lambda region: _network(ec2, first[region], plan))
    if reservations.of_plan(plan):
        found += in_each("reservation", where, lambda region: _reserved(ec2, region, plan))
    ask_quota = partial(_quota, ec2, plan, types)
    found += in_each("quota", where, lambda region: unless_short(partial(ask_quota, region)))
    found += disk_keys(ec2, where, plan)
    wanted = sorted({node.machine for node in plan.nodes if node.spot and node.machine})
    for region in sorted(where) if wanted else ():
        zones = {place.zone for place in places if place.region == region}
        found.append(finding("spot price", partial(_spot_prices, ec2, region, wanted, zones)))
    # Else the finding on the reservation says why.
    latest = errors.if_told(lambda: reservations.latest_end(ec2, where, plan), None)
    if plan.config.limits.max_lifetime is not None or latest is not None:
        found.append(finding("lifetime", lambda: _lifetime(schedules, where[0], latest)))
    may = partial(vms.dry_run, ec2, [*first.values()], plan)
    has_profile = any(each.ok and each.told for each in of_identity)
    return (*found, finding("permissions", partial(may, has_profile=has_profile)))


def _spot_prices(ec2: Ec2Client, region: str, machines: Sequence[str], zones: set[str]) -> str:
    """The spot prices in these zones; missing prices do not fail the check."""

    def ask() -> str:
        prices = spot.prices(ec2, region, machines)
        return "; ".join(str(price) for price in prices if price.zone in zones)

    unknown = f"{region}: {NOT_REPORTED}"
    return errors.if_told(ask, lambda error: f"{unknown}: {error.message}") or unknown


def _lifetime(schedules: Schedules, region: str, latest: float | None) -> str:
    """Say what ends the nodes if the user does not. `latest`: when their block ends them."""
    held = "each node's own timer"
    if schedules.role(region) is not None:
        held += f", and AWS itself {LATER / 60:.0f} minutes later (role {ROLE})"
    else:
        held += f" only; with a role {ROLE} (docs/aws.md) AWS also ends a node that hangs"
    text = f"nodes are ended by {held}"
    if latest is None:
        return text
    return f"{text}; at {reservations.moment(latest)} at the latest, before their block ends"


def _identity(ec2: Ec2Client, plan: Plan) -> str:
    unknown = f"accepted; the identity is {NOT_REPORTED}"
    return errors.if_told(
        lambda: identity.arn(ec2, plan.config) or unknown,
        lambda error: f"{unknown}: {error.message}",
    )


def _machines(
    ec2: Ec2Client, region: str, plan: Plan, types: dict[str, Mapping[str, Ec2MachineType]]
) -> str:
    names = sorted({node.machine for node in plan.nodes if node.machine})
    types[region] = {}
    types[region] = machine_types(ec2, region, names)
    missing = [name for name in names if name not in types[region]]
    if missing:
        raise errors.CloudConfigError(
            f"{', '.join(missing)} is not available in {region}",
            hint="change nodes.….machine or choose another region",
        )
    kinds = [types[region][node.machine].mismatch(node) for node in plan.nodes if node.machine]
    wrong = sorted({kind for kind in kinds if kind})
    if wrong:
        raise errors.CloudConfigError(
            "; ".join(wrong), hint="check nodes.….machine and accelerator"
        )
    return ", ".join(f"{name} ({types[region][name].vcpus} vCPUs)" for name in names)


def _image(ec2: Ec2Client, region: str, plan: Plan) -> str:
    wanted = {images.choices(plan.config.image, node) for node in plan.nodes}
    found = {images.find(ec2, region, names) for names in sorted(wanted)}
    return ", ".join(sorted(f"{image.id} ({image.name})" for image in found))


def _network(ec2: Ec2Client, place: Location, plan: Plan) -> str:
    nodes = len(plan.nodes)
    subnet = network.subnet(ec2, place, plan.config.network, nodes=nodes)
    text = f"{subnet.id} in {subnet.vpc}, {place}"
    if subnet.room < nodes:
        needed = nodes - len(_existing(ec2, place.region, plan) & {n.name for n in plan.nodes})
        if subnet.room < needed:
            text = f"{text}: {subnet.room} free addresses, {needed} needed"
            raise errors.CapacityError(text, hint="choose another zone, or a larger subnet")
    given = plan.config.network.firewall
    if given is not None:
        groups = network.existing_groups(ec2, place.region, subnet.vpc, given)
        text += f"; {network.describe_groups(groups, given)}"
    if plan.config.network.private and not network.Routes(ec2, place.region, subnet.vpc).out(
        subnet.id
    ):
        text += "; no route to the internet: packages must come from inside the network"
    return text


def _existing(ec2: Ec2Client, region: str, plan: Plan) -> set[str]:
    """The names of the cluster's VMs, which need no further place in a reservation."""
    there = listing.find(ec2, region, **{f"tag:{labels.CLUSTER}": plan.config.name})
    found = [listing.to_vm(it, region, private=plan.config.network.private) for it in there]
    return {m.node.name for m in found if m is not None and m.node.state != "gone"}


def _reserved(ec2: Ec2Client, region: str, plan: Plan) -> str:
    """Report what is left in the plan's reservations."""
    texts, names = [], _existing(ec2, region, plan)
    lifetime = plan.config.limits.max_lifetime
    end = None if lifetime is None else ec2.timing.clock.now() + lifetime
    for bought in reservations.of_plan(plan):
        if reservations.is_group(bought.name):
            texts.append(f"{bought.name}: EC2 chooses in it; what is left is {NOT_REPORTED}")
            continue
        found = reservations.find(ec2, region, bought.name)
        if found is None:
            raise errors.CloudConfigError(f"{bought} is not in {region}", hint="check `placement`")
        place = Location(region=region, zone=found.zone)
        reservations.refuse_unusable(ec2, place, plan, names)
        mine = [n for n in plan.nodes if n.provisioning == bought and n.name not in names]
        if found.available < len(mine):
            raise errors.CapacityError(
                f"{reservations.described(found)}, {len(mine)} needed",
                hint="enlarge the reservation, or ask for fewer nodes",
                scope="zone",
            )
        texts.append(reservations.described(found))
        if not found.block and found.ends is not None and (end is None or end > found.ends):
            texts[-1] += ", before its nodes end: they run on then, on demand"
    return "; ".join(texts)


def _quota(
    ec2: Ec2Client, plan: Plan, types: Mapping[str, Mapping[str, Ec2MachineType]], region: str
) -> str:
    needs, unknown = quota.needs(ec2, region, plan, types[region])
    lines = [f"{', '.join(unknown)}: {NOT_REPORTED}"] if unknown else []
    short = []
    for need in needs:
        allowed = NOT_REPORTED if need.allowed is None else f"{need.allowed} allowed"
        lines.append(
            f"{need.quota.name}: {need.wanted} vCPUs needed, {need.running} in use, {allowed}"
        )
        if need.allowed is not None and need.wanted + need.running > need.allowed:
            short.append((need, need.wanted + need.running))
    if not short:
        return "; ".join(lines) or "nothing more needed: all of it is reserved"
    hint = "; ".join(
        f"aws service-quotas request-service-quota-increase --region {region} --service-code ec2 "
        f"--quota-code {need.quota.code} --desired-value {total}"
        for need, total in short
    )
    raise errors.QuotaError("; ".join(lines), hint=hint, scope="region")


# Checks of what belongs to the account: its plan, the key of its disks, and Session Manager
#
# On the Free plan, EC2 launches a few machine types only. Accounts made since 2025-07-15 begin on
# it unless the paid plan was chosen:
# https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/free-tier-plans.html


HOME = "us-east-1"
"""The only region of the service `freetier` (botocore's endpoints)."""
UPGRADE = (
    "choose nodes.….machine among them, or upgrade the account to the paid plan: "
    "https://console.aws.amazon.com/billing/home#/freetier/upgrade"
)


def free_plan(ec2: Ec2Client, region: str, plan: Plan) -> Iterator[Finding]:
    """Yield a finding for an account on the Free plan; none for any other, or if nobody may ask."""
    eligible = errors.if_told(
        lambda: _eligible(ec2, region), None
    )  # EC2's own refusal says the same
    if eligible is not None:
        yield finding("account", lambda: _launchable(plan, eligible))


def _launchable(plan: Plan, eligible: Sequence[str]) -> str:
    machines = {node.machine for node in plan.nodes if node.machine}
    if plan.config.away.identity:  # `run --away` adds its desk
        machines.add(plan.config.away.machine or FACTS.desk_machine)
    refused = sorted(machines - set(eligible))
    text = "this account is on the Free plan"
    if not refused:
        return f"{text}, which may launch these machines"
    none = "; none of them has a GPU" if any(node.accelerator for node in plan.nodes) else ""
    raise errors.PermissionsError(
        f"{text}, which cannot launch {', '.join(refused)}, only {', '.join(eligible)}{none}",
        hint=UPGRADE,
    )


def _eligible(ec2: Ec2Client, region: str) -> list[str] | None:
    """The types of x86-64 that the Free plan may launch; None if the account is on no Free plan."""
    client = ec2.service("freetier", HOME)
    if client is None:
        return None
    with ec2.mapped("GetAccountPlanState"):
        if client.get_account_plan_state()["accountPlanType"] != "FREE":
            return None
    wanted = {"free-tier-eligible": "true", "processor-info.supported-architecture": "x86_64"}
    asked = requests.filters(**wanted)
    found = ec2.pages(region, "DescribeInstanceTypes", "instanceTypeSet", asked)
    return sorted(xml.text(each, "instanceType") for each in found)


def disk_keys(ec2: Ec2Client, regions: Sequence[str], plan: Plan) -> Iterator[Finding]:
    """Yield one finding per region. EC2 itself accepts an instance whose key it may not use, and
    ends it with Client.InternalError: only `up` shows what the key's policy grants."""
    for region in regions if plan.config.disk_key else ():
        key = str(plan.config.disk_key_in(region))
        yield finding("disk key", partial(_disk_key, ec2, region, key))


def _disk_key(ec2: Ec2Client, region: str, key: str) -> str:
    """Text on a key: disks need a symmetric one that is enabled.

    https://docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption-requirements.html"""
    client = ec2.service("kms", region)
    if client is None:
        return f"{region}: {NOT_REPORTED}"
    try:
        with ec2.mapped(f"DescribeKey {key} in {region}"):
            facts = client.describe_key(KeyId=key)["KeyMetadata"]
    except errors.NotFoundError as error:
        hint = f"`aws kms describe-key --region {region} --key-id {key}` must find it"
        raise errors.CloudConfigError(error.message, hint=hint) from error
    except errors.CloudError as error:  # a right that `up` does not need
        raise NotChecked(f"{region}: {key}: {error.message}") from error
    state, spec = str(facts.get("KeyState")), str(facts.get("KeySpec"))
    if state != "Enabled" or spec != "SYMMETRIC_DEFAULT":
        raise errors.CloudConfigError(
            f"{region}: {key} is {state}, {spec}: disks need an enabled symmetric key"
        )
    return f"{region}: {key}, enabled"


SETTING = "/ssm/managed-instance/default-ec2-instance-management-role"
"""Default Host Management Configuration: the role of instances without one of their own."""
UNSET = ("", "$None")
HINT = (
    "attach AmazonSSMManagedInstanceCore to the role of `identity:`, or turn on Default Host "
    "Management Configuration in the region (docs/private-nodes.md)"
)


def session_manager(ec2: Ec2Client, region: str, plan: Plan) -> Iterator[Finding]:
    """Yield whether anything lets the nodes register at Session Manager; nothing without `ssm`.
    What cannot be asked fails nothing.

    API: GetServiceSetting and SimulatePrincipalPolicy of botocore's models; the setting:
    https://docs.aws.amazon.com/systems-manager/latest/userguide/
    fleet-manager-default-host-management-configuration.html, read 2026-11-24, not tried on a real
    account. The user's own right to ssm:StartSession shows only at the first session."""
    proxy = plan.config.network.ssh_proxy
    if proxy is not None and proxy.ssm:
        yield finding("ssm", lambda: _may_register(ec2, region, plan.config.identity))


def _may_register(ec2: Ec2Client, region: str, identity: str | None) -> str:
    answers = [_by_identity(ec2, region, identity), _by_default(ec2, region)]
    texts = "; ".join(text for _, text in answers if text)
    if any(allowed for allowed, _ in answers):
        return texts
    if any(allowed is None for allowed, _ in answers):
        raise NotChecked(texts)
    raise errors.PermissionsError(texts, hint=HINT)


def _by_identity(ec2: Ec2Client, region: str, identity: str | None) -> tuple[bool | None, str]:
    """True if the identity's role may register a node (None: not known), and a text on that."""
    if identity is None:
        return False, "no `identity:`"
    client = ec2.service("iam", region)
    if client is None:
        return None, f"{identity}: {NOT_REPORTED}"

    def ask() -> tuple[bool | None, str]:
        role = str(permissions.role_of(ec2, client, identity)["Arn"])
        decided = permissions.simulated(ec2, client, role, NODE_ACTIONS)
        lacks = ", ".join(action for action, each in decided.items() if each != "allowed")
        return not lacks, f"{identity} lacks {lacks}" if lacks else f"{identity} has rights"

    def refused(error: errors.CloudtrainError) -> tuple[None, str]:
        known = isinstance(error, NotChecked)
        return None, error.message if known else f"{identity}: {NOT_REPORTED}: {error.message}"

    return errors.if_told(ask, refused)


def _by_default(ec2: Ec2Client, region: str) -> tuple[bool | None, str]:
    """The same for the region's default role."""
    client = ec2.service("ssm", region)
    what = f"default host management in {region}"
    if client is None:
        return None, f"{what}: {NOT_REPORTED}"

    def ask() -> tuple[bool | None, str]:
        with ec2.mapped("GetServiceSetting"):
            setting = client.get_service_setting(SettingId=SETTING)["ServiceSetting"]
        value = str(setting.get("SettingValue") or "")
        if value in UNSET:
            return False, f"{region} has no default host management"
        return True, f"{what} by {value}"

    return errors.if_told(ask, lambda error: (None, f"{what}: {NOT_REPORTED}: {error.message}"))
