"""Scheduling of a VM: how it is bought, and when it ends. Pure functions.

https://cloud.google.com/compute/docs/instances/provisioning-models and …/limit-vm-runtime"""

from __future__ import annotations

import math
from datetime import datetime, timezone

from cloudtrain.core.model import NodePlan
from cloudtrain.providers.gcp.client import Json
from cloudtrain.providers.gcp.facts import FACTS

RUN_TIMES = (30.0, 120 * 24 * 3600.0)
"""Limits of `maxRunDuration`, in seconds."""

NOTICE = "120"
"""Seconds from the preemption notice to the signal that ends the VM; without it there is no notice.
`Scheduling.preemptionNoticeDuration` of the API's discovery document: 0 or 120 s."""

QUEUE = (90, 7200)
"""Seconds for which a request for a flex-start VM may wait, or else 0: "specify a duration between
90 seconds (90) and two hours (7200)", or "zero seconds (0). This action specifies that Compute
Engine only allocates resources if they are immediately available". AI Hypercomputer's page on
creating an instance of 2026, read 2026-11-24. It shows the field in `scheduling`; the discovery
document of compute v1, revision 20261106, has it in `params` alone."""

KEY = "compute.googleapis.com/reservation-name"
"""https://cloud.google.com/compute/docs/instances/reservations-consume (documented)"""


def bought(
    node: NodePlan, *, bound: bool, queue: float, left: float | None, migrates: bool
) -> Json:
    """The fields of a request that say how the VM is bought. `bound`: its reservation is one whose
    VMs end with it. `queue`: seconds that a flex-start request may wait. `left`: seconds until the
    VM's end. `migrates`: it can migrate live."""
    market = node.provisioning.market
    body: Json = {"provisioningModel": _model(node, bound=bound)}
    if market == "spot":
        body["preemptionNoticeDuration"] = {"seconds": NOTICE}
    if left is not None:
        body["maxRunDuration"] = _run_time(left, flex=market == "flex-start")
    if market in ("spot", "flex-start") or bound or left is not None:
        body["instanceTerminationAction"] = "DELETE"
        body["automaticRestart"] = False
    if market in ("spot", "flex-start") or bound or not migrates:
        body["onHostMaintenance"] = "TERMINATE"
    found: Json = {"scheduling": body}
    if market == "flex-start":
        found["reservationAffinity"] = {"consumeReservationType": "NO_RESERVATION"}
        found["params"] = {"requestValidForDuration": {"seconds": str(queue_seconds(queue))}}
    if market == "reservation":
        found["reservationAffinity"] = {
            "consumeReservationType": "SPECIFIC_RESERVATION",
            "key": KEY,
            "values": [node.provisioning.name],
        }
    return found


def queue_seconds(queue: float) -> int:
    """Seconds for which a flex-start request waits, within what Google allows."""
    shortest, longest = QUEUE
    return min(longest, int(queue)) if queue >= shortest else 0


def with_end(scheduling: Json, expires: float | None, *, now: float) -> Json:
    """The scheduling for a stopped VM that is about to be started, with its end at `expires`. A
    flex-start VM needs `maxRunDuration`, which counts from its start (documented at its creation;
    that it is so at a later start is suspected)."""
    body = {
        key: value
        for key, value in scheduling.items()
        if key not in ("maxRunDuration", "terminationTime")
    }
    model = body.get("provisioningModel")
    if expires is None:
        if model not in ("SPOT", "FLEX_START", "RESERVATION_BOUND"):
            body.pop("instanceTerminationAction", None)
        return body
    if model == "FLEX_START":
        body["maxRunDuration"] = _run_time(expires - now, flex=True)
    else:
        moment = datetime.fromtimestamp(int(expires), timezone.utc)
        body["terminationTime"] = f"{moment:%Y-%m-%dT%H:%M:%SZ}"
    return {**body, "automaticRestart": False, "instanceTerminationAction": "DELETE"}


def _model(node: NodePlan, *, bound: bool) -> str:
    if bound:
        return "RESERVATION_BOUND"
    models = {"spot": "SPOT", "flex-start": "FLEX_START"}
    return models.get(node.provisioning.market, "STANDARD")


def _run_time(left: float, *, flex: bool) -> Json:
    """A flex-start VM runs 10 minutes at least: one that joins a cluster with less time left ends
    up to 10 minutes after it."""
    shortest, longest = FACTS.run_times["flex-start"] if flex else RUN_TIMES
    return {"seconds": str(math.ceil(min(longest, max(shortest, left))))}
