"""`cloudtrain docs`"""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from cloudtrain.cli.app import COMMANDS
from cloudtrain.cli.candidates import doc_pages
from cloudtrain.cli.options import debug_option, json_option, print_json


@click.command(short_help=COMMANDS["docs"], epilog="\b\nExample:\n  cloudtrain docs config")
@click.argument("name", required=False, metavar="[PAGE]", shell_complete=doc_pages)
@click.option("--list", "lists", is_flag=True, help="List the pages.")
@json_option
@debug_option
def command(name: str | None, lists: bool, as_json: bool) -> None:
    """Show a page of the documentation (default: the one that lists them), as this version has
    it. Offline.
    """
    from cloudtrain.commands.docs import INDEX, page, pages

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
