"""`cloudtrain up`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cloudtrain.cli.app import COMMANDS
from cloudtrain.cli.confirm import confirm
from cloudtrain.cli.nodes import node_json
from cloudtrain.cli.options import (
    adopt_option,
    debug_option,
    events_option,
    file_argument,
    ignore_option,
    json_option,
    print_json,
    shown,
    yes_option,
)
from cloudtrain.cli.target import plan_of
from cloudtrain.cloud import facts_of

if TYPE_CHECKING:
    from cloudtrain.model import Plan


@click.command(short_help=COMMANDS["up"], epilog="\b\nExample:\n  cloudtrain up gcp.yaml --yes")
@file_argument()
@click.option(
    "--shrink",
    is_flag=True,
    help="Delete nodes that FILE no longer has, after landing what they hold.",
)
@click.option(
    "--replace",
    is_flag=True,
    help="Recreate nodes that differ from FILE, after landing what they hold.",
)
@click.option(
    "--give-back",
    is_flag=True,
    help="On failure, delete the nodes that this call created, and no others.",
)
@yes_option
@adopt_option
@ignore_option
@events_option
@json_option
@debug_option
def command(
    file: str,
    shrink: bool,
    replace: bool,
    give_back: bool,
    yes: bool,
    adopt: bool,
    as_json: bool,
    ignore: tuple[str, ...],
) -> None:
    """Create the cluster and set it up; run again to repair it or to continue. Asks for
    confirmation if it costs money.
    """
    plan = plan_of(file)
    if not facts_of(plan.config.provider).free:
        confirm(f"Create {nodes(plan)} on {plan.config.provider}, {estimate(plan)}?", yes=yes)
    from cloudtrain.commands.replace_nodes import AllowedChanges
    from cloudtrain.commands.up import up

    with shown(as_json=as_json) as screen:
        allowed = AllowedChanges(shrink=shrink, replace=replace)
        cluster = up(
            plan,
            allowed=allowed,
            adopt=adopt,
            ignore=ignore,
            give_back=give_back,
            console=screen,
        )
    if as_json:
        nodes_json = [node_json(node) for node in cluster.nodes]
        print_json({"name": cluster.name, "nodes": nodes_json})
    else:
        click.echo(f"{cluster.name} is up, nodes: {len(cluster.nodes)}; next: cloudtrain train")


def nodes(plan: Plan) -> str:
    """Summary of the nodes: `1 chief (n1-standard-8, T4:1), 2 worker (n1-standard-8, T4:1,
    spot)`.
    """
    texts = []
    for role, group in plan.config.nodes.items():
        node = next(node for node in plan.nodes if node.role == role)
        accelerator = str(node.accelerator) if node.accelerator else None
        kind = ", ".join(filter(None, [node.machine, accelerator, "spot" if node.spot else None]))
        texts.append(f"{group.count} {role}" + (f" ({kind})" if kind else ""))
    return ", ".join(texts)


def estimate(plan: Plan) -> str:
    """Price to confirm: `1.60 $/hour`, `at most 3.20 $/hour` or `price not known`."""
    from cloudtrain.catalog.estimate import estimate
    from cloudtrain.console.prices import dollars

    found = estimate(plan)
    if found is None or found.most is None:
        return "price not known"
    text = f"{dollars(found.most)}/hour"
    return text if found.per_hour is not None else f"at most {text}"
