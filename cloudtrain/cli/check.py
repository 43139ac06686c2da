"""`cloudtrain check`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cloudtrain.cli.app import COMMANDS
from cloudtrain.cli.options import debug_option, file_argument, json_option, print_json
from cloudtrain.cli.target import config_of

if TYPE_CHECKING:
    from cloudtrain.protocols import Finding


@click.command(short_help=COMMANDS["check"], epilog="\b\nExample:\n  cloudtrain check gcp.yaml")
@file_argument(required=False)
@json_option
@debug_option
def command(file: str | None, as_json: bool) -> int:
    """Find what would stop `up` or `train` before anything is made: the config, credentials,
    quota, code, secrets, the store. Changes nothing.

    The exit code is that of the most serious finding.
    """
    config = config_of(file)
    from cloudtrain.console.lines import printable
    from cloudtrain.verbs.check import check

    findings = check(config)
    codes = [0 if finding.ok else exit_code(finding) for finding in findings]
    if as_json:
        print_json({"ok": not any(codes), "findings": [as_document(f) for f in findings]})
    else:
        for finding in findings:
            click.echo(
                printable(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.what}: {finding.text}")
            )
            if finding.hint and not finding.ok:
                click.echo(printable(f"      hint: {finding.hint}"))
    return max(codes, default=0)


def exit_code(finding: Finding) -> int:
    code = getattr(finding.error, "exit_code", 1)
    assert isinstance(code, int)
    return code


def as_document(finding: Finding) -> dict[str, Any]:
    return {
        "what": finding.what,
        "ok": finding.ok,
        "text": finding.text,
        "hint": finding.hint,
        "exit_code": 0 if finding.ok else exit_code(finding),
    }
