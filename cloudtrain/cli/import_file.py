"""`cloudtrain import`"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtrain.cli import options
from cloudtrain.cli.printing import print_json, print_lines
from cloudtrain.core.codec import pick

if TYPE_CHECKING:
    from cloudtrain.importers import Imported


@options.command(
    "import",
    "cloudtrain import config.yaml --output mnist.yaml \\",
    '  --submit "$(cat submit.sh)"',
)
@click.argument("file", required=False, type=click.Path(path_type=Path), metavar="[FILE]")
@click.option(
    "--submit",
    metavar="LINE",
    help='The line that submits it: "gcloud ai-platform jobs submit training …" or '
    '"gcloud ai custom-jobs create …".',
)
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write (default: stdout).",
)
@click.option("--force", is_flag=True, help="Replace an existing --output.")
@click.option(
    "--provider", metavar="PROVIDER", help="Where it will run (default: as the source says)."
)
@click.option(
    "--strategy", metavar="STRATEGY", help="TensorFlow's strategy (default: by the code or roles)."
)
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
    """Read another tool's description of a training into a commented config: an AI Platform
    config.yaml, a Vertex AI CustomJob, a compose file with TF_CONFIG, a TFJob, or an INI file
    with [cluster]. With --submit, FILE may be left out.

    What could not be mapped is named on stderr, each at its line, and in comments of the config."""
    from cloudtrain.commands.import_file import import_file

    found = import_file(
        file, submit=submit, output=output, provider=provider, strategy=strategy, force=force
    )
    if as_json:
        print_json(as_document(found, output))
        return
    if output is None:
        sys.stdout.write(found.text)
    for problem in found.unmapped:
        print_lines([f"not mapped: {problem}"], err=True)
    if found.fill_in:
        print_lines([f"fill in: {', '.join(found.fill_in)}"], err=True)
    if output is not None:
        print_lines([f"wrote {output}; next: cloudtrain plan {output}"])


def as_document(found: Imported, output: Path | None) -> dict[str, Any]:
    from cloudtrain.config import to_json

    config = to_json(found.config)
    return {
        "kind": found.kind,
        "output": str(output) if output else None,
        "yaml": found.text,
        "config": {name: value for name, value in config.items() if name != "source"},
        **pick(found, "unmapped fill_in", {"Problem": "file line field text"}),
    }
