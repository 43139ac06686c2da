"""`cloudtrain init`, `import`, `docs` and `completion`: the first steps."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path

import click

from cloudtrain.cli import candidates, options
from cloudtrain.cli.app import cli
from cloudtrain.cli.printing import print_json, print_lines
from cloudtrain.config.other_tools import IMPORTED
from cloudtrain.core.codec import pick


def complete(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    from cloudtrain.commands.init import providers

    return [name for name in providers() if name.startswith(incomplete)]


@options.command("init", "cloudtrain init gcp --output mnist.yaml")
@click.argument("provider", default="local", metavar="[PROVIDER]", shell_complete=complete)
@options.option(
    "--output FILE",
    "File to write (default: PROVIDER.yaml in the current folder).",
    type=click.Path(path_type=Path),
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
@options.option("--list", "List the pages.", name="lists")
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


_READS = ", ".join(row.form.partition(" (")[0] for row in IMPORTED)
_SUBMITS = " or ".join(f'"{row.submit} …"' for row in IMPORTED if row.submit)


@options.command(
    "import",
    "cloudtrain import config.yaml --output mnist.yaml \\",
    '  --submit "$(cat submit.sh)"',
    help=f"""Read another tool's description of a training into a commented config: {_READS}. With
    --submit, FILE may be left out.

    What could not be mapped is named on stderr, each at its line, and in the config's comments.""",
)
@click.argument("file", required=False, type=click.Path(path_type=Path), metavar="[FILE]")
@options.option("--submit LINE", f"The line that submits it: {_SUBMITS}.")
@options.option(
    "--output FILE",
    "File to write (default: stdout).",
    type=click.Path(path_type=Path, dir_okay=False),
)
@options.option("--force", "Replace an existing --output.")
@options.option("--provider PROVIDER", "Where it will run (default: as the source says).")
@options.option("--strategy STRATEGY", "TensorFlow's strategy (default: by the code or roles).")
@options.as_json
def import_command(
    file: Path | None,
    submit: str | None,
    output: Path | None,
    force: bool,
    provider: str | None,
    strategy: str | None,
    as_json: bool,
) -> None:
    from cloudtrain.commands.import_file import import_file

    found = import_file(
        file, submit=submit, output=output, provider=provider, strategy=strategy, force=force
    )
    if as_json:
        from cloudtrain.config import to_json

        config = to_json(found.config)
        document = {
            "kind": found.kind,
            "output": str(output) if output else None,
            "yaml": found.text,
            "config": {name: value for name, value in config.items() if name != "source"},
            **pick(found, "unmapped fill_in", {"Problem": "file line field text"}),
        }
        print_json(document)
        return
    if output is None:
        sys.stdout.write(found.text)
    for problem in found.unmapped:
        print_lines([f"not mapped: {problem}"], err=True)
    if found.fill_in:
        print_lines([f"fill in: {', '.join(found.fill_in)}"], err=True)
    if output is not None:
        print_lines([f"wrote {output}; next: cloudtrain plan {output}"])
