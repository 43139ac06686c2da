"""`cloudtrain status`"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from cloudtrain.checks.node_notes import overdue
from cloudtrain.cli import options
from cloudtrain.cli.flag_variables import typed
from cloudtrain.cli.nodes import alarmed, node_json
from cloudtrain.cli.printing import print_json, print_lines
from cloudtrain.cli.status_lines import report_text
from cloudtrain.cli.target import landed_target, name_of
from cloudtrain.commands.status import ClusterStatus, StatusReport, status
from cloudtrain.core import moments
from cloudtrain.core.errors import UsageError
from cloudtrain.core.run_record import Run, published, run_to_json

if TYPE_CHECKING:
    from cloudtrain.core.model import ClusterConfig
    from cloudtrain.money.budget import BudgetState


@options.command("status", "cloudtrain status mnist --watch")
@options.name()
@click.option("--watch", is_flag=True, help="Refresh every 2 seconds until Ctrl-C.")
@click.option("--offline", is_flag=True, help="Show local records only; query no provider.")
@options.store
@options.as_json
@options.record
def status_command(
    name: str | None, watch: bool, offline: bool, store: str | None, as_json: bool
) -> int:
    """Show clusters: their nodes as the provider lists them now, their runs, cost so far and
    expiry. Without NAME, all known clusters. With --store, or a FILE without a local record, shows
    the landed runs.
    """
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
    nodes, holder, error = cluster.nodes, cluster.holder, cluster.error
    cost = cluster.cost(now)
    return {
        "name": cluster.name,
        "provider": cluster.provider,
        "strategy": cluster.strategy,
        "open": cluster.open,
        "since": cluster.since,
        "at_work": None if holder is None else vars(holder),
        "nodes": None
        if nodes is None
        else [{**node_json(n, now), "price_per_hour": cluster.prices.get(n.name)} for n in nodes],
        "planned": None if cluster.planned is None else len(cluster.planned),
        "missing": list(cluster.missing),
        "foreign": [str(each) for each in cluster.foreign],
        "lease": cluster.lease or None,
        "overdue": [node.name for node in overdue(nodes or (), now)],
        "cost": cost.exact if cost else None,
        "cost_at_least": cost.least if cost else None,
        "cost_at_most": cost.most if cost else None,
        "ends": cluster.ends,
        "still_billed": cluster.still_billed,
        "budget": None if cluster.budget is None else budget_json(cluster.budget),
        "idle": None if cluster.idle is None else vars(cluster.idle),
        "away": None
        if cluster.away is None
        else {**asdict(cluster.away), "silent": cluster.away.is_silent(now)},
        "runs": [_run_json(run, cluster) for run in cluster.runs],
        "progress": None if cluster.progress is None else vars(cluster.progress),
        "still": None
        if cluster.still is None
        else {"since": cluster.still.since, "text": cluster.still.text},
        "utilization": None if cluster.utilization is None else asdict(cluster.utilization),
        "store": cluster.store,
        "unreadable": list(cluster.faults),
        "error": None
        if error is None
        else {"message": error.message, "hint": error.hint, "exit_code": cluster.exit_code(now)},
    }


def budget_json(budget: BudgetState) -> dict[str, float | None]:
    """In $ and Unix time; `spent` is null if a price is not known."""
    return {
        "limit": budget.limit,
        "spent": budget.spent.exact,
        "spent_at_least": budget.spent.least,
        "spent_at_most": budget.spent.most,
        "goes_down": budget.stop,
        "end": budget.end,
    }


def _run_json(run: Run, cluster: ClusterStatus) -> dict[str, Any]:
    as_of = cluster.as_of.get(run.id)
    facts = run_to_json(published(run))
    return facts if as_of is None else {**facts, "as_of": as_of}
