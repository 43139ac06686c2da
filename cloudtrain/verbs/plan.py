"""`cloudtrain plan`: every node, TF_CONFIG and command as they would be; offline."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from cloudtrain.catalogue.bill import bill
from cloudtrain.catalogue.kept import after_the_end
from cloudtrain.cluster.plan import (
    CHOOSES,
    OTHER_GPUS,
    deciding,
    misfits,
    remarks,
    tasks,
    without_code,
)
from cloudtrain.config import line_of
from cloudtrain.errors import ConfigError, UsageError
from cloudtrain.model import ClusterConfig, Plan
from cloudtrain.recorded_drift import lifetime_note, recorded_drift
from cloudtrain.verbs.before import launched, notes, setup_problems, too_long, unknown_places
from cloudtrain.verbs.price import price_json, rounded, words


def plan_json(plan: Plan, *, ignore: Collection[str] = ()) -> dict[str, Any]:
    """The plan as one JSON document. Addresses that only `up` brings stand as `<node name>`.

    Raises UsageError for machines that no cloud makes so, and for GPUs that TensorFlow has no code
    for; ConfigError for a setup that cannot be had, places that cannot be, lines that are too long.
    """
    config = plan.config
    refuse_machines(plan, ignore)
    started = launched(plan)
    places = () if "placement" in ignore else unknown_places(config)
    problems = (*setup_problems(config), *places, *too_long(config, started))
    if problems:
        raise ConfigError(problems)
    cost = bill(plan)
    nodes = []
    for node, values in zip(plan.nodes, started, strict=True):
        nodes.append(
            {
                "name": node.name,
                "role": node.role,
                "index": node.index,
                "machine": node.machine,
                "accelerator": str(node.accelerator) if node.accelerator else None,
                "disk_gb": node.disk_gb,
                "spot": node.spot,
                "price_per_hour": rounded(cost.nodes[node.name]) if cost else 0.0,
                "port": node.port,
                "command": values.command,
                "tf_config": values.environment.get("TF_CONFIG"),
            }
        )
    return {
        "name": config.name,
        "provider": config.provider,
        "strategy": config.strategy,
        "placement": list(config.placement),
        "nodes": nodes,
        "deciding": sorted(deciding(tasks(plan), config)),
        "differs": changed_since(plan),
        "notes": [*remarks(plan), *notes(config), *filter(None, (after_the_end(plan),))],
        "store": config.artifacts.store,
        "price": words(cost, plan) if cost else "none: nothing is rented",
        **price_json(plan),
    }


def refuse_machines(plan: Plan, ignore: Collection[str]) -> None:
    """Raises UsageError with everything that is wrong with them, each with its line."""
    told = {
        hint: wrong
        for what, wrong, hint in (
            ("machines", misfits(plan), CHOOSES),
            ("gpus", without_code(plan), OTHER_GPUS),
        )
        if wrong and what not in ignore
    }
    if told:
        lines = [_at_its_line(plan.config, text) for wrong in told.values() for text in wrong]
        raise UsageError("\n".join(lines), hint="; ".join(told))


def changed_since(plan: Plan) -> list[str]:
    """Where the nodes on record here are not as this plan: what `up` would refuse, or move,
    each on a line. Nobody is asked."""
    return [*recorded_drift(plan).lines(plan.config), *lifetime_note(plan)]


def _at_its_line(config: ClusterConfig, text: str) -> str:
    """`gcp.yaml:14: nodes.worker: …`, where the file can still be read."""
    role = text.partition(":")[0].removeprefix("nodes.")
    place = line_of(config, ("nodes", role, "machine"))
    return f"{place}: {text}" if place else text


def refresh_prices() -> dict[str, str]:
    """Fetch today's prices into this user's cache; cloud → the file that they are in now."""
    from datetime import date

    from cloudtrain.catalogue.refresh import refresh

    return {cloud: str(path) for cloud, path in refresh(date.today()).items()}
