"""`cloudtrain cost`"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cloudtrain.cli import options
from cloudtrain.cli.printing import print_json, print_lines
from cloudtrain.cli.target import name_of
from cloudtrain.console.times import clock, duration
from cloudtrain.core import moments
from cloudtrain.core.codec import View, encode, pick

if TYPE_CHECKING:
    from cloudtrain.commands.cost import CostReport
    from cloudtrain.money.node_hours import CostSoFar

BASIS = (
    "computed from the prices agreed at `up` and the hours on record here, without traffic and "
    "stores: not the cloud's bill"
)


@options.command("cost", "cloudtrain cost mnist")
@options.name()
@options.as_json
def cost_command(name: str | None, as_json: bool) -> None:
    """Show what was spent, by cluster, run, role and month, over the history on record here.
    Computed from the prices agreed at `up` and the hours on record: not the cloud's bill. Offline.
    """
    chosen = None if name is None else name_of(name)
    from cloudtrain.commands.cost import cost

    report = cost(chosen)
    if as_json:
        print_json(as_document(report))
    else:
        print_lines(lines(report, moments.now()))


def lines(report: CostReport, now: float) -> Iterator[str]:
    if not report.clusters:
        yield "no known clusters"
        return
    for cluster in report.clusters:
        hours = f"{cluster.node_hours:.1f} node hours"
        yield f"{cluster.name}  {cluster.provider or 'unknown'}  {cluster.cost}  {hours}"
        if any(spent.least for name, spent in cluster.parts.items() if name != "machines"):
            yield "  " + ", ".join(f"{name} {spent}" for name, spent in cluster.parts.items())
        for name, spent in (*cluster.months.items(), *cluster.roles.items()):
            yield f"  {name}  {spent}"
        for run in cluster.runs:
            took = duration((run.end or now) - run.begin)
            yield f"  run {run.run}  {run.state}  {clock(run.begin)}, {took}  {run.cost}"
    if len(report.clusters) > 1:
        yield f"all  {report.cost}"
        for month, spent in report.months.items():
            yield f"  {month}  {spent}"
    yield BASIS


def as_document(report: CostReport) -> dict[str, Any]:
    clusters = [
        {
            **pick(cluster, "name provider"),
            **_amount(cluster.cost),
            **pick(cluster, "parts", VIEWS),
            "node_hours": round(cluster.node_hours, 4),
            **pick(cluster, "months roles", VIEWS),
            "runs": [
                {**pick(run, "run state begin end"), **_amount(run.cost)} for run in cluster.runs
            ],
        }
        for cluster in report.clusters
    ]
    months = encode(report.months, VIEWS)
    return {**_amount(report.cost), "months": months, "clusters": clusters, "basis": BASIS}


def _amount(spent: CostSoFar) -> dict[str, float | None]:
    """In $; `cost` is null if a price is not known."""
    return {
        name: None if amount is None else round(amount, 6)
        for name, amount in (
            ("cost", spent.exact),
            ("cost_at_least", spent.least),
            ("cost_at_most", spent.most),
        )
    }


VIEWS: dict[str, View] = {"CostSoFar": _amount}
