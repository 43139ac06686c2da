"""Asks once about a config file that would use rights of the user's."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from cloudtrain.cli.confirm import on_terminal
from cloudtrain.cli.options import given_settings

if TYPE_CHECKING:
    from cloudtrain.core.model import ClusterConfig


def consent_to(config: ClusterConfig) -> None:
    """Return if the user agrees, or agreed, to all that the file does.

    Raises UntrustedError without a terminal.
    """
    from cloudtrain.trust.consent import open_facts, untrusted

    given = given_settings()
    found = () if given.trust else open_facts(config, given.trusted_hosts)
    if not found:
        return
    refusal = untrusted(config, found)
    if not on_terminal():
        raise refusal
    from cloudtrain.console.lines import printable

    sys.stderr.write(printable(f"{refusal.message}\n"))
    click.confirm("Is that what you want?", abort=True, err=True)
    from cloudtrain.trust.record import remember

    remember(config.source, found)
