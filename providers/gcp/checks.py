"""Checks before `up` that change nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from cloudtrain.errors import (
    CloudConfigError,
    CloudError,
    NotFoundError,
    PermissionsError,
    QuotaError,
)
from cloudtrain.model import Plan
from cloudtrain.protocols import Finding
from cloudtrain.providers.base.driver import Location
from cloudtrain.providers.gcp import faults, node_identity, quota, resources, zones
from cloudtrain.providers.gcp.client import GcpClient, Json
from cloudtrain.providers.gcp.images import GcpImage, Images
from cloudtrain.providers.gcp.machine_shapes import shape
from cloudtrain.providers.gcp.network import subnet_path
from cloudtrain.providers.gcp.permissions import NOT_REPORTED, TPU_MORE, WITH_IDENTITY, missing


def check(api: GcpClient, plan: Plan) -> tuple[Finding, ...]:
    """Return one finding per subject; only one in all if the credentials fail or the project cannot
    be reached.
    """
    details: Json = {}
    found: dict[str, tuple[Location, ...]] = {}
    images: dict[str, GcpImage] = {}

    def project() -> str:
        details.update(api.get(f"project {api.project}", f"projects/{api.project}"))
        return f"{api.project}, credentials accepted"

    first = finding("project", project)
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
    findings += node_identity.check(api, plan)
    findings += [finding("machines", machines), finding("image", image)]
    if plan.config.network.subnet is not None and found:
        findings.append(finding("subnet", lambda: subnet_found(api, plan, list(found))))
    if found and images:
        findings.append(finding("quota", lambda: _quota(api, plan, found, images, details)))
    return tuple(
        replace(each, told=each.told and NOT_REPORTED not in each.text) for each in findings
    )


def finding(what: str, ask: Callable[[], str]) -> Finding:
    try:
        return Finding(what=what, ok=True, text=ask())
    except NotFoundError as error:
        if faults.is_unknown_question(error):
            return Finding(what=what, ok=True, text=NOT_REPORTED)
        return Finding(
            what=what, ok=False, text=str(error), hint=error.hint, error=CloudConfigError
        )
    except CloudError as error:
        return Finding(what=what, ok=False, text=str(error), hint=error.hint, error=type(error))


def permissions(api: GcpClient, plan: Plan, *, tpus: bool = False) -> str:
    more = (*(WITH_IDENTITY if plan.config.identity else ()), *(TPU_MORE if tpus else ()))
    lacking = missing(api, more)
    if isinstance(lacking, str):
        return lacking
    if lacking:
        hint = faults.TPU_ROLE if tpus else faults.ROLE
        raise PermissionsError(f"missing: {', '.join(lacking)}", hint=hint)
    return "all that up and down need"


def subnet_found(api: GcpClient, plan: Plan, regions: list[str]) -> str:
    subnet = plan.config.network.subnet or ""
    for region in regions:
        api.get(f"network.subnet {subnet}", subnet_path(subnet, api.project, region))
    return f"{subnet} in {', '.join(regions)}"


def _quota(
    api: GcpClient,
    plan: Plan,
    found: Mapping[str, tuple[Location, ...]],
    images: Mapping[str, GcpImage],
    project: Json,
) -> str:
    """Check the quota. Fails only if no placement has enough, as `up` tries the next one. Existing
    nodes need no further quota.
    """
    there = {m.node.name for m in resources.vms(api, plan.config.name, None, ())}
    nodes = [node for node in plan.nodes if node.name not in there]
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
        raise QuotaError("\n".join(lines), hint=faults.MORE)
    text = f"enough in {', '.join(good)}"
    text += f", not in {'; '.join(lines)}" if lines else ""
    return f"{text}; perhaps not enough (inferred): {'; '.join(inferred)}" if inferred else text


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
        words[text] += 1
    return ", ".join(f"{count} × {text}" for text, count in words.items())
