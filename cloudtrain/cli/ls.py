"""`cloudtrain ls`"""

from __future__ import annotations

import time

import click

from cloudtrain.cli.accounts import accounts_of, provider_options
from cloudtrain.cli.app import COMMANDS
from cloudtrain.cli.options import debug_option, json_option, name_argument, print_json
from cloudtrain.console.lines import printable
from cloudtrain.errors import UsageError


@click.command(short_help=COMMANDS["ls"], epilog="\b\nExample:\n  cloudtrain ls --cloud")
@name_argument()
@click.option("--cloud", is_flag=True, help="Ask the accounts, whatever is on record here.")
@provider_options
@json_option
@debug_option
def command(
    name: str | None, cloud: bool, provider: str | None, project: str | None, as_json: bool
) -> int:
    """List the clusters that are known here; with --cloud everything that accounts hold under
    cloudtrain's labels, in all regions, including what no file here knows. Accounts are those of
    NAME or FILE, of --provider, or all with credentials here.
    """
    if not cloud:
        if name or provider or project:
            raise UsageError("this is asked of the accounts", hint="`cloudtrain ls --cloud`")
        return listed(as_json)
    from cloudtrain.cli.holdings import document, text
    from cloudtrain.commands.inventory import list_accounts

    answers = list_accounts(accounts_of(name, provider, project))
    if as_json:
        print_json(document(answers))
    else:
        click.echo(printable(text(answers)))
    return max((answer.exit_code for answer in answers), default=0)


def listed(as_json: bool) -> int:
    """Clusters on record here, one line each."""
    from cloudtrain.cli.status import report_json
    from cloudtrain.commands.status import status

    report = status(None, offline=True)
    if as_json:
        print_json(report_json(report, time.time()))
        return 0
    for cluster in report.clusters:
        state = "up, by the record here" if cluster.open else "down"
        click.echo(printable(f"{cluster.name}  {cluster.provider or 'unknown'}  {state}"))
    if not report.clusters:
        click.echo("no cluster is known here; `cloudtrain ls --cloud` asks the accounts")
    return 0
