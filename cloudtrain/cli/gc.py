"""`cloudtrain gc`"""

from __future__ import annotations

import click

from cloudtrain.cli.account import accounts_of, provider_options
from cloudtrain.cli.app import COMMANDS
from cloudtrain.cli.ask import confirm
from cloudtrain.cli.options import (
    debug_option,
    json_option,
    name_argument,
    print_json,
    shown,
    yes_option,
)
from cloudtrain.console.lines import printable
from cloudtrain.errors import NodesError


@click.command(short_help=COMMANDS["gc"], epilog="\b\nExample:\n  cloudtrain gc --provider gcp")
@name_argument()
@provider_options
@click.option("--owner", metavar="USER", help="Whose orphans; by default yours.")
@yes_option
@json_option
@debug_option
def command(
    name: str | None,
    provider: str | None,
    project: str | None,
    owner: str | None,
    yes: bool,
    as_json: bool,
) -> int:
    """Delete orphans: what accounts hold under our labels of clusters that no record here knows.

    Whatever only their nodes hold is lost, so it asks first. What other users made is left alone,
    as is every cluster that is known here: `cloudtrain down` lands and ends those.
    """
    from cloudtrain.verbs.holdings import ask, collect, document, orphans, text, this_user

    user = owner or this_user()
    answers = ask(accounts_of(name, provider, project))
    failed = {str(a.account): a.error for a in answers if a.error is not None and a.exit_code}
    found = [orphan for answer in answers for orphan in orphans(answer, user)]
    if not as_json:
        click.echo(printable(text(answers)), err=True)
    collected: tuple[str, ...] = ()
    if found:
        names = ", ".join(orphan.cluster for orphan in found)
        confirm(f"Destroy {names} and lose what only their nodes hold?", yes=yes)
        with shown(as_json=as_json) as screen:
            collected = collect(answers, user, screen)
            answers = ask([answer.account for answer in answers])
            for one in collected:
                screen.say(f"{one}: its account lists nothing of it any more")
    elif not as_json and not failed and not any(answer.exit_code for answer in answers):
        click.echo("nothing to collect")
    if as_json:
        print_json({"collected": list(collected), **document(answers)})
    if failed and not as_json:
        raise NodesError(failed)
    return max((answer.exit_code for answer in answers), default=0)
