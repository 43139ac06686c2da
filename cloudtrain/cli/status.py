"""`cloudtrain status`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloudtrain.checks.node_notes import overdue
from cloudtrain.cli import options
from cloudtrain.cli.flag_variables import typed
from cloudtrain.cli.nodes import alarmed, error_json, node_json
from cloudtrain.cli.printing import print_json, print_lines
from cloudtrain.cli.status_lines import report_text
from cloudtrain.cli.target import landed_target, name_of
from cloudtrain.commands.status import ClusterStatus, StatusReport, status
from cloudtrain.core import moments
from cloudtrain.core.codec import encode, pick
from cloudtrain.core.errors import UsageError
from cloudtrain.core.run_record import Run, published, run_to_json

if TYPE_CHECKING:
    from cloudtrain.core.model import ClusterConfig


@options.command("status", "cloudtrain status mnist --watch")
@options.name()
@options.option("--watch", "Refresh every 2 seconds until Ctrl-C.")
@options.option("--offline", "Show local records only; query no provider.")
@options.store
@options.as_json
@options.record
def status_command(
    name: str | None, watch: bool, offline: bool, store: str | None, as_json: bool
) -> int:
    """Show clusters: their nodes as the provider lists them now, their runs, cost so far and
    expiry. Without NAME, all known clusters. With --store, or a FILE without a local record, shows
    the landed runs."""
    if offline and store is not None and not typed("store"):
        store = None
    if offline and store is not None:
        raise UsageError("--store and --offline exclude each other", hint="omit --offline")
    chosen: str | None = None
    config: ClusterConfig | None = None
    if name is not None:
        chosen, config = (name_of(name), None) if offline else landed_target(name, store)

    def look() -> StatusReport:
        return status(chosen, config=config, store=store, offline=offline)

    if watch:
        if as_json and typed("as_json"):
            raise UsageError("--watch and --json exclude each other", hint="omit --watch")
        from cloudtrain.cli.live_view import watch_status

        return watch_status(look)
    report = look()
    if as_json:
        print_json(report_json(report, moments.now()))
    else:
        print_lines([report_text(report, moments.now())], painted=alarmed)
    return report.exit_code(moments.now())


# ── as JSON ──────────────────────────────────────────────────────────────────


def report_json(report: StatusReport, now: float) -> dict[str, Any]:
    return {"clusters": [_cluster_json(cluster, now) for cluster in report.clusters]}


def _cluster_json(cluster: ClusterStatus, now: float) -> dict[str, Any]:
    nodes = [
        {**node_json(node, now), "price_per_hour": cluster.prices.get(node.name)}
        for node in cluster.nodes or ()
    ]
    cost = cluster.cost(now)
    away, still = cluster.away, cluster.still
    return {
        **pick(cluster, "name provider strategy open since at_work=holder"),
        "nodes": None if cluster.nodes is None else nodes,
        "planned": None if cluster.planned is None else len(cluster.planned),
        **pick(cluster, "missing foreign", {"NotAsked": str}),
        "lease": cluster.lease or None,
        "overdue": [node.name for node in overdue(cluster.nodes or (), now)],
        "cost": cost.exact if cost else None,
        "cost_at_least": cost.least if cost else None,
        "cost_at_most": cost.most if cost else None,
        **pick(cluster, "ends still_billed budget idle", {"BudgetState": BUDGET}),
        "away": None if away is None else {**encode(away), "silent": away.is_silent(now)},
        "runs": [_run_json(run, cluster) for run in cluster.runs],
        "progress": encode(cluster.progress),
        "still": None if still is None else pick(still, "since text"),
        **pick(cluster, "utilization store unreadable=faults"),
        "error": error_json(cluster.error, cluster.exit_code(now)),
    }


BUDGET = (
    "limit spent=spent.exact spent_at_least=spent.least spent_at_most=spent.most goes_down=stop end"
)
"""In $ and Unix time; `spent` is null if a price is not known."""


def _run_json(run: Run, cluster: ClusterStatus) -> dict[str, Any]:
    as_of = cluster.as_of.get(run.id)
    facts = run_to_json(published(run))
    return facts if as_of is None else {**facts, "as_of": as_of}
