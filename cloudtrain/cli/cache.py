"""`cloudtrain cache` and `forget`: what this machine keeps for later."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from cloudtrain.cli import options
from cloudtrain.cli.printing import confirm, print_json, shown
from cloudtrain.core.codec import pick
from cloudtrain.core.paths import size_text
from cloudtrain.state import resolve

if TYPE_CHECKING:
    from cloudtrain.commands.cache import Kept


@options.command("cache", "cloudtrain cache", "cloudtrain cache prune")
@click.argument("action", type=click.Choice(["ls", "prune"]), default="ls", metavar="[ls|prune]")
@options.yes
@options.shows("progress")
@options.as_json
def cache_command(action: str, yes: bool, as_json: bool) -> int:
    """List what this machine keeps for later runs: environments, Pythons, input data, images,
    folders of local nodes; with their sizes, their last use, and what uses them now.

    `prune` deletes what nothing uses. The next run that needs it makes it again."""
    from cloudtrain.commands.cache import kept_here, prune
    from cloudtrain.console.lines import printable

    found = kept_here()
    stayed: dict[str, str] = {}
    unused = [kept for kept in found if not kept.used_by]
    if not as_json:
        click.echo(printable(text(found)), err=action == "prune")
    if action == "prune" and unused:
        total = size_text(sum(kept.size for kept in unused))
        confirm(f"Delete {len(unused)} of {len(found)}, {total}?", yes=yes)
        with shown() as screen:
            stayed = prune(unused, screen)
    elif action == "prune" and found and not as_json:
        click.echo("all of it is in use")
    if as_json:
        left = found if action == "ls" else kept_here()
        rows = [
            {
                **pick(kept, "kind name"),
                "path": str(kept.path),
                "bytes": kept.size,
                "last_use": kept.last_use or None,
                "used_by": kept.used_by or None,
            }
            for kept in left
        ]
        print_json({"kept": rows, "stayed": stayed})
    return 1 if stayed else 0


def text(found: tuple[Kept, ...]) -> str:
    if not found:
        return "nothing is kept here"
    rows: list[tuple[str, ...]] = [
        (
            kept.kind,
            kept.name,
            size_text(kept.size),
            time.strftime("%Y-%m-%d", time.localtime(kept.last_use)) if kept.last_use else "-",
            f"used by {kept.used_by}" if kept.used_by else "",
        )
        for kept in found
    ]
    rows.insert(0, ("kind", "name", "size", "last use", ""))
    widths = [max(len(row[at]) for row in rows) for at in range(4)]
    lines = [
        f"{kind:{widths[0]}}  {name:{widths[1]}}  {of:>{widths[2]}}  {last:{widths[3]}}  {used}"
        for kind, name, of, last, used in rows
    ]
    total = f"{size_text(sum(kept.size for kept in found))} in all"
    return "\n".join((*map(str.rstrip, lines), total))


@options.command("forget", "cloudtrain forget mnist")
@options.name(required=True, known="down")
@options.option("--discard", "Also delete artifacts that only this machine holds.")
@options.shows("progress")
@options.as_json
def forget_command(name: str, discard: bool, as_json: bool) -> None:
    """Remove the record of a cluster that is down: its runs, their logs, its events. Refused
    while the cluster is up. Artifacts in a store stay there."""
    cluster = resolve(name)
    from cloudtrain.commands.cache import forget

    with shown() as screen:
        forget(cluster, discard=discard, console=screen)
    if as_json:
        print_json({"name": cluster})
