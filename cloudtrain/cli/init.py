"""`cloudtrain init`"""

from __future__ import annotations

from pathlib import Path

import click

from cloudtrain.cli.app import COMMANDS
from cloudtrain.cli.options import debug_option, json_option, print_json


def complete(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    from cloudtrain.commands.init import providers

    return [name for name in providers() if name.startswith(incomplete)]


@click.command(
    short_help=COMMANDS["init"], epilog="\b\nExample:\n  cloudtrain init gcp --output mnist.yaml"
)
@click.argument("provider", default="local", metavar="[PROVIDER]", shell_complete=complete)
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File to write (default: PROVIDER.yaml in the current folder).",
)
@json_option
@debug_option
def command(provider: str, output: Path | None, as_json: bool) -> None:
    """Write a commented config to start from, for gcp, aws, azure, hosts or (the default) local.
    An empty folder also gets a train.py, so that the config runs as it is. An existing file is
    never overwritten.
    """
    from cloudtrain.commands.init import init

    place = output or Path()
    script = (place if place.is_dir() else place.parent) / "train.py"
    was_there = script.exists()
    path = init(provider, place)
    wrote_script = script.exists() and not was_there
    if as_json:
        print_json({"file": str(path), "script": str(script) if wrote_script else None})
        return
    also = " and an example train.py" if wrote_script else ""
    click.echo(f"wrote {path}{also}; next: cloudtrain plan {path}")
