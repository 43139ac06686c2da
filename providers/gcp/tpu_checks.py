"""Checks before `up` of a TPU: the API, the zones that have the type, its software version."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from cloudtrain.core.errors import CloudConfigError, NodesError
from cloudtrain.core.model import Plan
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.protocols import Finding
from cloudtrain.providers.base.driver import Location
from cloudtrain.providers.base.words import NOT_REPORTED
from cloudtrain.providers.gcp import checks, node_identity, zones
from cloudtrain.providers.gcp.client import GcpClient
from cloudtrain.providers.gcp.tpus import Tpus, runtime_of

ZONES = "https://docs.cloud.google.com/tpu/docs/regions-zones"


def places(api: GcpClient, tpus: Tpus, plan: Plan) -> tuple[Location, ...]:
    """The places of the placement, in its order. A region is replaced by its zones that have the
    TPU type.

    Raises CloudConfigError for a place that does not exist or has no such TPU.
    """
    machine = str(plan.nodes[0].machine)
    entries = zones.zones(api, plan)
    every = tuple(dict.fromkeys(place for found in entries.values() for place in found))
    try:
        lacks = fan_out(every, lambda p: tpus.lacks(p.zone, "acceleratorTypes", machine), name=str)
    except NodesError as failed:  # the zones' answers are alike
        raise next(iter(failed.failures.values())) from failed
    lacking = {place for place, lack in zip(every, lacks, strict=True) if lack}
    wanted: dict[Location, None] = {}
    for entry, found in entries.items():
        good = [place for place in found if place not in lacking]
        if not good:
            raise CloudConfigError(
                f"placement {entry} has no TPU {machine}", hint=f"see {ZONES} for zones that do"
            )
        wanted.update(dict.fromkeys(good))
    return tuple(wanted)


def check(api: GcpClient, tpus: Tpus, plan: Plan) -> tuple[Finding, ...]:
    """One finding per subject; only one in all if the project cannot be reached."""
    found: list[Location] = []

    def listed() -> str:
        return f"enabled; {len(tpus.listed())} TPUs in the project"

    def machines() -> str:
        found.extend(places(api, tpus, plan))
        hosts = len(plan.nodes)
        what = f"1 × {plan.nodes[0].machine} with {hosts} host{'s' if hosts > 1 else ''}"
        return f"{what} in {', '.join(map(str, found))}"

    first = checks.of_project(api, {})
    if not first.ok:
        return (first,)
    service = checks.finding("Cloud TPU API", listed)
    identity = node_identity.check(api, plan)
    findings = [first, checks.finding("permissions", partial(checks.permissions, api, plan))]
    if not service.ok:
        return (*findings, service)
    findings += [*identity, service, checks.finding("machines", machines)]
    if found:
        findings.append(checks.finding("image", partial(_runtime, tpus, plan, found)))
    regions = list(dict.fromkeys(place.region for place in found))
    findings += checks.of_network(api, plan, regions)
    findings += checks.of_disk_key(plan, regions)
    quota = f"TPU quota is {NOT_REPORTED}: see https://console.cloud.google.com/iam-admin/quotas"
    findings.append(Finding(what="quota", ok=True, text=quota, told=False))
    return tuple(findings)


def _runtime(tpus: Tpus, plan: Plan, found: Sequence[Location]) -> str:
    runtime = runtime_of(plan)
    lacking = [str(p) for p in found if tpus.lacks(p.zone, "runtimeVersions", runtime)]
    if lacking:
        raise CloudConfigError(
            f"no TPU software version {runtime} in {', '.join(lacking)}",
            hint="see https://docs.cloud.google.com/tpu/docs/runtimes",
        )
    return f"TPU software version {runtime}"
