"""`cloudtrain init`, `docs` and `completion`: the first steps."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path

import click

from cloudtrain.cli import candidates, options
from cloudtrain.cli.app import cli
from cloudtrain.cli.printing import print_json


def complete(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    from cloudtrain.commands.init import providers

    return [name for name in providers() if name.startswith(incomplete)]


@options.command("init", "cloudtrain init gcp --output mnist.yaml")
@click.argument("provider", default="local", metavar="[PROVIDER]", shell_complete=complete)
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File to write (default: PROVIDER.yaml in the current folder).",
)
@options.as_json
def init_command(provider: str, output: Path | None, as_json: bool) -> None:
    """Write a commented config to start from, for gcp, aws, azure, hosts or (the default) local.
    An empty folder also gets a train.py, so that the config runs as it is. An existing file is
    never overwritten."""
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


@options.command("docs", "cloudtrain docs config")
@click.argument("name", required=False, metavar="[PAGE]", shell_complete=candidates.doc_pages)
@click.option("--list", "lists", is_flag=True, help="List the pages.")
@options.as_json
def docs_command(name: str | None, lists: bool, as_json: bool) -> None:
    """Show a page of the documentation (default: the one that lists them), as this version has
    it. Offline."""
    from cloudtrain.commands.init import INDEX, page, pages

    if lists:
        found = pages()
        if as_json:
            print_json({"pages": [{"name": one.name, "title": one.title} for one in found]})
            return
        width = max(len(one.name) for one in found)
        click.echo("\n".join(f"{one.name:{width}}  {one.title}" for one in found))
        return
    one = page(name or INDEX)
    if as_json:
        print_json(asdict(one))
    elif sys.stdout.isatty():
        click.echo_via_pager(one.text)
    else:
        click.echo(one.text, nl=False)


INSTALL = {
    "bash": "cloudtrain completion bash > ~/.local/share/bash-completion/completions/cloudtrain",
    "zsh": "cloudtrain completion zsh > ~/.zfunc/_cloudtrain  (with ~/.zfunc in fpath)",
    "fish": "cloudtrain completion fish > ~/.config/fish/completions/cloudtrain.fish",
}


@options.command(
    "completion", epilog="\n".join(["\b", "Install:", *(f"  {line}" for line in INSTALL.values())])
)
@click.argument("shell", type=click.Choice(list(INSTALL)), required=False, metavar="[SHELL]")
def completion_command(shell: str | None) -> None:
    """Print the script that completes commands, flags, cluster names and files in your shell
    (default: the one in $SHELL)."""
    from click.shell_completion import get_completion_class

    shell = shell or os.path.basename(os.environ.get("SHELL", ""))  # noqa: PTH119
    kind = get_completion_class(shell) if shell in INSTALL else None
    if kind is None:
        raise click.UsageError(f"specify a shell: {', '.join(INSTALL)}")
    words = kind(cli, {}, "cloudtrain", "_CLOUDTRAIN_COMPLETE")
    click.echo(words.source_template % words.source_vars())
    click.echo(f"# To install: {INSTALL[shell]}")
