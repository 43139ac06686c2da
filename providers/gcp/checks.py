"""Checks before `up` that change nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from cloudtrain.core import errors
from cloudtrain.core.model import NodePlan, Plan
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.protocols import Finding
from cloudtrain.providers.base import checks as base
from cloudtrain.providers.base.driver import Location
from cloudtrain.providers.base.quota import unless_short
from cloudtrain.providers.base.words import NOT_REPORTED
from cloudtrain.providers.gcp import faults, quota, reservations, resources, ssh_service, zones
from cloudtrain.providers.gcp.client import GcpClient, Json
from cloudtrain.providers.gcp.facts import FACTS
from cloudtrain.providers.gcp.images import GcpImage, Images
from cloudtrain.providers.gcp.machine_types import shape
from cloudtrain.providers.gcp.network import existing
from cloudtrain.providers.gcp.permissions import (
    EVIDENCE,
    ON_SUBNET,
    ON_SUBNET_PUBLIC,
    check_identity,
    least,
    missing,
)
from cloudtrain.providers.gcp.tpus import Tpus, runtime_of


def check(api: GcpClient, plan: Plan) -> tuple[Finding, ...]:
    """One finding per subject; only one in all if the project cannot be reached."""
    details: Json = {}
    found: dict[str, tuple[Location, ...]] = {}
    images: dict[str, GcpImage] = {}

    first = of_project(api, details)
    if not first.ok:
        return (first,)

    def machines() -> str:
        all_places = zones.places(api, plan)
        for place in all_places:
            found[place.region] = (*found.get(place.region, ()), place)
        return f"{_machines(plan)} in {', '.join(map(str, all_places))}"

    def image() -> str:
        known = Images(api)
        images.update({n.name: known.of(plan.config.image, shape(n)) for n in plan.nodes})
        return ", ".join(sorted({i.source.removeprefix("projects/") for i in images.values()}))

    findings = [first, finding("permissions", lambda: permissions(api, plan))]
    findings += check_identity(api, plan)
    findings += [finding("machines", machines), finding("image", image)]
    wanted = plan.config.network
    if wanted.private and not (wanted.subnet or wanted.vpc):
        findings.append(Finding(what="network", ok=True, text=NO_NAT))
    if wanted.os_login:
        findings.append(finding("OS Login", lambda: os_login(details)))
    findings += of_network(api, plan, list(found))
    if found and reservations.wanted(plan.nodes):
        findings.append(finding("reservation", lambda: _reservations(api, plan, found)))
    findings += of_disk_key(plan, list(found))
    if found and images:
        ask = partial(_quota, api, plan, found, images, details)
        findings.append(finding("quota", partial(unless_short, ask)))
    return tuple(findings)


def of_project(api: GcpClient, details: Json) -> Finding:
    """Finding on the project; puts what Google says of it in `details`."""

    def ask() -> str:
        details.update(api.get(f"project {api.project}", f"projects/{api.project}"))
        return f"{api.project}, credentials accepted"

    return finding("project", ask)


def finding(what: str, ask: Callable[[], str]) -> Finding:
    def told() -> str:
        try:
            return ask()
        except errors.NotFoundError as error:
            if faults.is_unknown_question(error):
                return NOT_REPORTED
            raise errors.CloudConfigError(error.message, hint=error.hint) from error

    return base.finding(what, told)


NO_NAT = (
    "the network that `up` creates has no Cloud NAT: private nodes reach Google's services alone, "
    "no package index; set network.subnet to a subnet with Cloud NAT"
)
IAP_ROLE = "roles/iap.tunnelResourceAccessor has it (docs/private-nodes.md)"
TWO_STEPS = (
    "the project's metadata has enable-oslogin-2fa: with OS Login on, sshd may ask every user for "
    "a second step, which our own user cannot answer"
)


def os_login(project: Json) -> str:
    """Report OS Login; raises nothing, as what its second step does depends on the image."""
    items = (project.get("commonInstanceMetadata") or {}).get("items") or ()
    given = {str(each.get("key")): str(each.get("value")).lower() for each in items}
    asked = given.get("enable-oslogin-2fa") in ("true", "y", "yes", "1")
    return TWO_STEPS if asked else "on; nodes keep our own user besides"


def permissions(api: GcpClient, plan: Plan) -> str:
    wanted = [each for each in least(plan.config) if each not in EVIDENCE]
    lacking = missing(api, wanted)
    if isinstance(lacking, str):
        return lacking
    if lacking:
        of_tpus = all(each.startswith("tpu.") for each in lacking)
        of_iap = set(lacking) <= set(ssh_service.PERMISSIONS)
        hint = IAP_ROLE if of_iap else faults.role(api.project, tpus=of_tpus)
        raise errors.PermissionsError(f"missing: {', '.join(lacking)}", hint=hint)
    return "all that up and down need"


def of_network(api: GcpClient, plan: Plan, regions: Sequence[str]) -> Iterator[Finding]:
    """Findings on an existing network and firewall, if the config names them."""
    wanted = plan.config.network
    if not regions or not (wanted.subnet or wanted.vpc):
        return
    yield finding("subnet", lambda: _subnets(api, plan, regions))
    if wanted.firewall is not None:
        tags = " or ".join(wanted.firewall)
        target = f"with target tag {tags}" if tags else "for all nodes of the network"
        source = f"from source tag {tags}" if tags else "between these"
        text = (  # cloudtrain creates no rules there
            f"existing rules are used as they are; needed {target}: TCP port 22 from where you "
            f"connect, and all protocols {source}"
        )
        yield Finding(what="firewall", ok=True, text=text)


def _subnets(api: GcpClient, plan: Plan, regions: Sequence[str]) -> str:
    """Check that the subnetworks exist, and that their project admits our VMs."""
    needed = ON_SUBNET
    if not plan.config.network.private:
        needed = (*needed, ON_SUBNET_PUBLIC)
    paths = [existing(api, plan, region)[1] for region in regions]
    for path in paths:
        lacking = errors.if_told(partial(_lacking, api, path, needed), set())
        if lacking:
            raise errors.PermissionsError(
                f"you lack permissions on {path}: {', '.join(sorted(lacking))}",
                hint="have roles/compute.networkUser granted to you on that subnetwork",
            )
    return ", ".join(paths)


def _lacking(api: GcpClient, path: str, needed: Sequence[str]) -> set[str]:
    body = {"permissions": list(needed)}
    answer = api.call(f"permissions on {path}", "POST", f"{path}/testIamPermissions", body=body)
    return set(needed) - set(answer.get("permissions") or ())


def _quota(
    api: GcpClient,
    plan: Plan,
    found: Mapping[str, tuple[Location, ...]],
    images: Mapping[str, GcpImage],
    project: Json,
) -> str:
    """Check the quota. Fails only if no placement has enough, as `up` tries the next one. Existing
    nodes need no further quota."""
    nodes = _missing(api, plan)
    lines: list[str] = []
    good: list[str] = []
    inferred: list[str] = []
    for region, its_zones in found.items():
        answer = api.get(f"region {region}", f"regions/{region}")
        lacks = quota.shortage(
            plan,
            nodes,
            _vcpus(api, plan, its_zones[0]),
            images,
            quota.quotas(answer.get("quotas") or ()),
            quota.quotas(project.get("quotas") or ()),
        )
        good += [] if lacks.lines else [region]
        lines += [f"{region}: {'; '.join(lacks.lines)}"] if lacks.lines else []
        inferred += [f"{region}: {'; '.join(lacks.inferred)}"] if lacks.inferred else []
    if not good:
        raise errors.QuotaError("\n".join(lines), hint=faults.MORE.format(project=api.project))
    text = f"enough in {', '.join(good)}"
    text += f", not in {'; '.join(lines)}" if lines else ""
    return f"{text}; perhaps not enough (inferred): {'; '.join(inferred)}" if inferred else text


def _missing(api: GcpClient, plan: Plan) -> list[NodePlan]:
    there = {m.node.name for m in resources.vms(api, plan.config.name, None, ())}
    return [node for node in plan.nodes if node.name not in there]


def _reservations(api: GcpClient, plan: Plan, found: Mapping[str, tuple[Location, ...]]) -> str:
    places = [place for its_zones in found.values() for place in its_zones]
    now = api.timing.clock.now()
    return reservations.check(api, places, plan, _missing(api, plan), now)


def _vcpus(api: GcpClient, plan: Plan, place: Location) -> dict[str, int]:
    machines = {shape(node).machine for node in plan.nodes}
    found = {}
    for machine in machines:
        answer = api.find(f"{machine} in {place}", f"zones/{place.zone}/machineTypes/{machine}")
        found[machine] = int((answer or {}).get("guestCpus") or 0)
    return found


def _machines(plan: Plan) -> str:
    words: Counter[str] = Counter()
    for node in plan.nodes:
        wanted = shape(node)
        text = f"{wanted.machine} with {wanted.gpus}" if wanted.gpus else wanted.machine
        bought = node.provisioning.shown
        words[f"{text}, {bought}" if bought else text] += 1
    return ", ".join(f"{count} × {text}" for text, count in words.items())


def of_disk_key(plan: Plan, regions: Sequence[str]) -> Iterator[Finding]:
    """Say whether the key is in the right place. Whether Google may use it shows at the first disk:
    the right is the service agent's, not the caller's.

    A regional key is for disks of its region, one of `global` for all:
    https://cloud.google.com/compute/docs/disks/customer-managed-encryption (documented)"""

    def ask() -> str:
        wrong = [each for each in regions if not _serves(plan.config.disk_key_in(each), each)]
        if wrong:
            raise errors.CloudConfigError(
                f"the key is not in {', '.join(wrong)}: {plan.config.disk_key}",
                hint="write {region} for its location, or choose other regions in `placement`",
            )
        raise base.NotChecked(
            f"{plan.config.disk_key}; whether Compute Engine's service agent may use it is known "
            "after `up`"
        )

    if plan.config.disk_key is not None:
        yield finding("disk key", ask)


def _serves(key: str | None, region: str) -> bool:
    """False if the key is of another region; locations of several are left to Google."""
    found = re.search(r"/locations/([^/]+)/", key or "")
    where = found[1] if found else ""
    return where == region or re.fullmatch(FACTS.region, where) is None


# ── Checks before `up` of a TPU: the API, the zones that have the type, its software version ──


ZONES = "https://docs.cloud.google.com/tpu/docs/regions-zones"


def tpu_places(api: GcpClient, tpus: Tpus, plan: Plan) -> tuple[Location, ...]:
    """The places of the placement, in its order. A region is replaced by its zones that have the
    TPU type.

    Raises CloudConfigError for a place that does not exist or has no such TPU."""
    machine = str(plan.nodes[0].machine)
    entries = zones.zones(api, plan)
    every = tuple(dict.fromkeys(place for found in entries.values() for place in found))
    try:
        lacks = fan_out(every, lambda p: tpus.lacks(p.zone, "acceleratorTypes", machine), name=str)
    except errors.NodesError as failed:  # the zones' answers are alike
        raise next(iter(failed.failures.values())) from failed
    lacking = {place for place, lack in zip(every, lacks, strict=True) if lack}
    wanted: dict[Location, None] = {}
    for entry, found in entries.items():
        good = [place for place in found if place not in lacking]
        if not good:
            raise errors.CloudConfigError(
                f"placement {entry} has no TPU {machine}", hint=f"see {ZONES} for zones that do"
            )
        wanted.update(dict.fromkeys(good))
    return tuple(wanted)


def check_tpu(api: GcpClient, tpus: Tpus, plan: Plan) -> tuple[Finding, ...]:
    """One finding per subject; only one in all if the project cannot be reached."""
    found: list[Location] = []

    def listed() -> str:
        return f"enabled; {len(tpus.listed())} TPUs in the project"

    def machines() -> str:
        found.extend(tpu_places(api, tpus, plan))
        hosts = len(plan.nodes)
        what = f"1 × {plan.nodes[0].machine} with {hosts} host{'s' if hosts > 1 else ''}"
        return f"{what} in {', '.join(map(str, found))}"

    first = of_project(api, {})
    if not first.ok:
        return (first,)
    service = finding("Cloud TPU API", listed)
    identity = check_identity(api, plan)
    findings = [first, finding("permissions", partial(permissions, api, plan))]
    if not service.ok:
        return (*findings, service)
    findings += [*identity, service, finding("machines", machines)]
    if found:
        findings.append(finding("image", partial(_runtime, tpus, plan, found)))
    regions = list(dict.fromkeys(place.region for place in found))
    findings += of_network(api, plan, regions)
    findings += of_disk_key(plan, regions)
    quota = f"TPU quota is {NOT_REPORTED}: see https://console.cloud.google.com/iam-admin/quotas"
    findings.append(Finding(what="quota", ok=True, text=quota, told=False))
    return tuple(findings)


def _runtime(tpus: Tpus, plan: Plan, found: Sequence[Location]) -> str:
    runtime = runtime_of(plan)
    lacking = [str(p) for p in found if tpus.lacks(p.zone, "runtimeVersions", runtime)]
    if lacking:
        raise errors.CloudConfigError(
            f"no TPU software version {runtime} in {', '.join(lacking)}",
            hint="see https://docs.cloud.google.com/tpu/docs/runtimes",
        )
    return f"TPU software version {runtime}"
