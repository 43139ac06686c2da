"""`cloudtrain ls`"""

from __future__ import annotations

import click

from cloudtrain.cli import options
from cloudtrain.cli.accounts import accounts_of, holdings_document, holdings_text, provider_options
from cloudtrain.cli.nodes import alarmed
from cloudtrain.cli.printing import print_json, print_lines
from cloudtrain.console.lines import printable
from cloudtrain.core import moments
from cloudtrain.core.errors import UsageError


@options.command("ls", "cloudtrain ls --cloud")
@options.name()
@click.option("--cloud", is_flag=True, help="Query the accounts instead of the local records.")
@provider_options
@options.as_json
@options.record
def ls_command(
    name: str | None, cloud: bool, provider: str | None, project: str | None, as_json: bool
) -> int:
    """List the clusters known on this machine; with --cloud, everything in the accounts that has
    cloudtrain's labels, in all regions, with or without a local record. The accounts are those of
    NAME or FILE, of --provider, or all with credentials here."""
    if not cloud:
        if name or provider or project:
            raise UsageError("NAME, --provider and --project require --cloud", hint="add --cloud")
        return listed(as_json)
    from cloudtrain.commands.accounts import list_accounts

    answers = list_accounts(accounts_of(name, provider, project))
    if as_json:
        print_json(holdings_document(answers))
    else:
        print_lines([holdings_text(answers)], painted=alarmed)
    return max((answer.exit_code for answer in answers), default=0)


def listed(as_json: bool) -> int:
    """Clusters on record here, one line each."""
    from cloudtrain.cli.status import report_json
    from cloudtrain.commands.status import status

    report = status(None, offline=True)
    if as_json:
        print_json(report_json(report, moments.now()))
        return 0
    for cluster in sorted(report.clusters, key=lambda each: not each.open):
        is_open = "away" if cluster.is_away else "up"
        state = f"{is_open} (by the local record)" if cluster.open else "down"
        click.echo(printable(f"{cluster.name}  {cluster.provider or 'unknown'}  {state}"))
    if not report.clusters:
        click.echo("no known clusters; `cloudtrain ls --cloud` queries the accounts")
    return 0
