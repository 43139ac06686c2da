"""Chooses accounts: a file's, a known cluster's, those that --provider names, or all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cloudtrain.cli.target import config_of
from cloudtrain.core.cloud import clouds, providers
from cloudtrain.core.errors import UsageError

if TYPE_CHECKING:
    from cloudtrain.commands.accounts import AccountRef

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

PROVIDERS = tuple(facts.name for facts in providers() if not facts.takes_hosts)
CLOUDS = tuple(cloud.name for cloud in clouds())
PROJECTS = "; ".join(f"{cloud.name}: {cloud.project_word}" for cloud in clouds())

project_option = click.option("--project", metavar="P", help=f"{PROJECTS}.")


def provider_options(command: Decorated) -> Decorated:
    """Options --provider and --project, for accounts that no local file names."""
    provider = click.option(
        "--provider",
        type=click.Choice(PROVIDERS),
        help="Query this provider instead of the local records.",
    )
    return provider(project_option(command))


def accounts_of(
    name: str | None, provider: str | None, project: str | None
) -> tuple[AccountRef, ...]:
    from cloudtrain.commands.accounts import AccountRef, account_of, accounts

    if name is not None and provider is not None:
        raise UsageError("use either --provider or a FILE/NAME, not both")
    if project is not None and provider is None:
        names = ", ".join(cloud.name for cloud in clouds())
        raise UsageError("--project requires --provider", hint=f"add --provider: one of {names}")
    if provider is not None:
        return (AccountRef(config=account_of("any", provider, project), named=True),)
    if name is not None:
        return (AccountRef(config=config_of(name), named=True),)
    return accounts()
