"""`cloudtrain trust`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cloudtrain.cli import options
from cloudtrain.cli.options import given_settings
from cloudtrain.cli.printing import confirm, print_json, print_lines
from cloudtrain.cli.target import read_target
from cloudtrain.core.errors import UsageError

if TYPE_CHECKING:
    from cloudtrain.commands.trust import TrustReport


@options.command("trust", "cloudtrain trust gcp.yaml")
@options.file(trusts=False)
@click.option("--forget", is_flag=True, help="Ask about FILE again, whatever was agreed to.")
@options.yes
@options.as_json
def trust_command(file: str, forget: bool, yes: bool, as_json: bool) -> None:
    """List what FILE would do with your rights, and ask once whether it may: send credentials to
    hosts that are none of the clouds' own, run programs on this machine, hand identities and
    credentials of your account to its nodes, use files outside of its project. A FILE that does
    none of it, as most, needs no trust. Only a change of these facts is asked about again.
    """
    config = read_target(file).config
    if config is None:
        raise UsageError(
            f"{file} is a cluster's name", hint="pass the FILE that it is created from"
        )
    from cloudtrain.commands.trust import forget as forget_facts
    from cloudtrain.commands.trust import remember, trust_report

    if forget:
        forget_facts(config.source)
    report = trust_report(config, given_settings().trusted_hosts)
    trusted = not report.open
    if not as_json:
        print_lines(text(report))
    if report.open and not forget and (yes or not as_json):
        confirm("Is that what you want?", yes=yes)
        remember(config.source, report.facts)
        trusted = True
    if as_json:
        print_json(as_document(report, trusted))


def text(report: TrustReport) -> list[str]:
    source = report.config.source
    if not report.facts:
        return [f"{source} uses none of your rights: there is nothing to trust"]
    known = "you trust" if not report.open else "you have not trusted"
    return [f"{known} {source} with this:", *(f"  {line}" for line in report.lines)]


def as_document(report: TrustReport, trusted: bool) -> dict[str, Any]:
    facts = [
        {
            "kind": fact.kind,
            "field": fact.field,
            "what": fact.what,
            "text": line,
            "trusted": trusted or fact not in report.open,
        }
        for fact, line in zip(report.facts, report.lines, strict=True)
    ]
    return {"file": report.config.source, "trusted": trusted, "facts": facts}
