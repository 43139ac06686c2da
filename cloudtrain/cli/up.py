"""`cloudtrain up`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cloudtrain.checks.node_notes import without_end
from cloudtrain.cli import options
from cloudtrain.cli.nodes import node_json
from cloudtrain.cli.printing import confirm, print_json, shown
from cloudtrain.cli.target import plan_of
from cloudtrain.core import moments
from cloudtrain.core.cloud import facts_of
from cloudtrain.core.errors import LeftoverError

if TYPE_CHECKING:
    from cloudtrain.core.model import Plan


@options.command("up", "cloudtrain up gcp.yaml --yes")
@options.file()
@options.option("--shrink", "Delete nodes that FILE no longer has, after landing what they hold.")
@options.option("--replace", "Recreate nodes that differ from FILE, after landing what they hold.")
@options.option(
    "--give-back", "On failure, delete the nodes that this call created, and no others."
)
@options.wait
@options.yes
@options.adopt
@options.ignore
@options.events
@options.shows("progress")
@options.as_json
@options.record
def up_command(
    file: str,
    shrink: bool,
    replace: bool,
    give_back: bool,
    wait: float | None,
    yes: bool,
    adopt: bool,
    as_json: bool,
    ignore: tuple[str, ...],
) -> int:
    """Create the cluster and set it up; run again to repair it or to continue. Asks for
    confirmation if it costs money."""
    plan = plan_of(file)
    if not facts_of(plan.config.provider).free:
        confirm(f"Create {nodes(plan)} on {where(plan)}?", yes=yes)
    from cloudtrain.commands.up import up
    from cloudtrain.runs.landing_steps import AllowedChanges

    with shown() as screen:
        allowed = AllowedChanges(shrink=shrink, replace=replace)
        cluster = up(
            plan,
            allowed=allowed,
            adopt=adopt,
            ignore=ignore,
            give_back=give_back,
            wait=wait,
            console=screen,
        )
    if as_json:
        nodes_json = [node_json(node) for node in cluster.nodes]
        print_json({"name": cluster.name, "nodes": nodes_json})
    else:
        click.echo(f"{cluster.name} is up, nodes: {len(cluster.nodes)}; next: cloudtrain train")
    return LeftoverError.exit_code if without_end(cluster.nodes, moments.now()) else 0


def nodes(plan: Plan) -> str:
    """Summary of the nodes: `1 chief (n1-standard-8, T4:1), 2 worker (n1-standard-8, T4:1,
    spot)`."""
    texts = []
    for role, group in plan.config.nodes.items():
        node = next(node for node in plan.nodes if node.role == role)
        accelerator = str(node.accelerator) if node.accelerator else None
        kind = ", ".join(filter(None, [node.machine, accelerator, node.provisioning.shown]))
        texts.append(f"{group.count} {role}" + (f" ({kind})" if kind else ""))
    return ", ".join(texts)


def where(plan: Plan) -> str:
    """Place and price to confirm: `gcp, 1.60 $/hour`; of several offers, the first one and the
    highest price."""
    from cloudtrain.cluster.place_choice import cluster_offers, each_candidate
    from cloudtrain.cluster.plan import fallback_price
    from cloudtrain.money.estimate import estimate
    from cloudtrain.money.prices import dollars, per_hour

    config, price = plan.config, per_hour(estimate(plan))
    if each_candidate(config) == (config,):
        return "; ".join(filter(None, [f"{config.provider}, {price}", fallback_price(plan)]))
    found = cluster_offers(config)
    prices = [offer.price.most if offer.price else None for offer in found]
    known = [each for each in prices if each is not None]
    most = f"at most {dollars(max(known))}/hour" if len(known) == len(prices) else "price not known"
    first = f"{config.provider} {', '.join(config.placement)}, {price}"
    return f"{first}, or on the next of {len(found)} offers that has room, {most}"
