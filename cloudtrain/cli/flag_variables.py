"""Environment variables that stand for flags: `CLOUDTRAIN_LOGS_TAIL=20` for `logs --tail 20`."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

ONLY_TYPED = ("--yes", "--discard", "--owner", "--running", "--trust")
"""Flags that only a command line may give: what they allow cannot be undone."""
OWN = ("--help", "--debug")
"""Flags that are read before the command is known; CLOUDTRAIN_DEBUG is one for all commands."""


def with_variables(command: click.Command, name: str) -> click.Command:
    """The command, each of whose flags reads its variable, and before it what the flag shares with
    other commands (CLOUDTRAIN_JSON)."""
    for option in options(command):
        if flag_of(option) in ONLY_TYPED:
            option.envvar = None
        else:
            own = variable_of(name, option)
            shared = [each for each in names_of(option) if each.count("_") < own.count("_")]
            option.envvar = [own, *shared]
    return command


def options(command: click.Command) -> list[click.Option]:
    return [
        each
        for each in command.params
        if isinstance(each, click.Option) and flag_of(each) not in OWN
    ]


def flag_of(option: click.Option) -> str:
    """The flag's long form."""
    return max(option.opts, key=len)


def variable_of(command: str, option: click.Option) -> str:
    words = f"CLOUDTRAIN_{command}_{flag_of(option).lstrip('-')}"
    return words.replace("-", "_").upper()


def names_of(option: click.Option) -> Sequence[str]:
    return [option.envvar] if isinstance(option.envvar, str) else option.envvar or ()


def refuse_variables(command: click.Command, name: str) -> None:
    """Raise UsageError for a variable that would stand for a flag which must be typed."""
    for option in options(command):
        flag = flag_of(option)
        if flag not in ONLY_TYPED:
            continue
        for variable in (variable_of(name, option), f"CLOUDTRAIN_{flag.lstrip('-').upper()}"):
            if os.environ.get(variable):
                from cloudtrain.core.errors import UsageError  # which --help does not need

                raise UsageError(
                    f"{variable} is set, and no variable may stand for {flag}",
                    hint=f"unset it, and give {flag} on the command line",
                )


def wants_json(command: click.Command | None, name: str, flags: Sequence[str]) -> bool:
    """True if errors are to be printed as JSON too, also for a command line that is wrong."""
    if "--json" in flags:
        return True
    found = [each for each in options(command) if flag_of(each) == "--json"] if command else []
    values = [os.environ.get(variable, "") for each in found for variable in names_of(each)]
    return next(filter(None, values), "").lower() in ("1", "true", "t", "yes", "y", "on")


def typed(parameter: str) -> bool:
    """True if this parameter of the command is on its command line; a variable's value gives way to
    a flag that excludes it."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source is click.core.ParameterSource.COMMANDLINE


def variable_at_fault(error: click.BadParameter) -> str | None:
    """The variable whose value is wrong; None if it was a word of the command line."""
    context, option = error.ctx, error.param
    if context is None or not isinstance(option, click.Option) or option.name is None:
        return None
    if context.get_parameter_source(option.name) is not click.core.ParameterSource.ENVIRONMENT:
        return None
    return next((each for each in names_of(option) if os.environ.get(each)), None)
