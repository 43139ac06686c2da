"""`cloudtrain status`"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from cloudtrain.cli import options
from cloudtrain.cli.flag_variables import typed
from cloudtrain.cli.nodes import alarmed
from cloudtrain.cli.printing import print_json, print_lines
from cloudtrain.cli.status_rows import DOWN, LATEST, cluster_json, cluster_state, drawn
from cloudtrain.cli.target import landed_target, name_of
from cloudtrain.commands.status import ClusterStatus, StatusReport, status
from cloudtrain.core import moments
from cloudtrain.core.errors import UsageError

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

    latest = 0 if as_json else LATEST
    look = partial(status, chosen, config=config, store=store, offline=offline, latest=latest)
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


def report_json(report: StatusReport, now: float) -> dict[str, Any]:
    return {"clusters": [cluster_json(cluster, now) for cluster in report.clusters]}


def report_text(report: StatusReport, now: float) -> str:
    if not report.clusters:
        if report.store is not None:
            return f"no run has landed in {report.store}"
        return "no known clusters: `cloudtrain up FILE` creates one"
    return "\n\n".join("\n".join(drawn("text", one, now)) for one in open_first(report))


def open_first(report: StatusReport) -> list[ClusterStatus]:
    """The clusters in their order, those that are down at the end."""
    return sorted(report.clusters, key=lambda cluster: cluster_state(cluster) == DOWN)
