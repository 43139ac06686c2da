"""Arguments and flags that mean the same in every command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import click

from cloudtrain.cli import candidates
from cloudtrain.cli.app import COMMANDS
from cloudtrain.console import Style
from cloudtrain.core.errors import UsageError
from cloudtrain.core.finding_kinds import IGNORABLE

EVENTS = f"{__name__}.events"
"""Key of the PATH of --events in the context's `meta`."""
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def option(
    flag: str, help: str, *, name: str = "", **more: Any
) -> Callable[[Decorated], Decorated]:
    """An option `--store URI` with a value, or a flag `--yes`; `name`: that of the parameter."""
    flag, _, metavar = flag.partition(" ")
    kind = {"metavar": metavar} if metavar else {"is_flag": "type" not in more}
    return click.option(*filter(None, (flag, name)), help=help, **kind, **more)


def is_yaml(path: str) -> bool:
    return path.endswith((".yaml", ".yml"))


def name(
    *, required: bool = False, known: candidates.Known = "all"
) -> Callable[[Decorated], Decorated]:
    """A cluster's name or its config file; optional if only one cluster is known. `known`: the
    clusters that the shell offers."""
    metavar = "NAME" if required else "[NAME]"
    return _file_or_name("name", required, metavar, known)


def file(*, required: bool = True, trusts: bool = True) -> Callable[[Decorated], Decorated]:
    """A config file; or a known cluster's name, for the config of its last `up`. `trusts`: with
    --trust."""
    metavar = "FILE" if required else "[FILE]"
    return _file_or_name("file", required, metavar, "all", trusts=trusts)


def _file_or_name(
    name: str, required: bool, metavar: str, known: candidates.Known, *, trusts: bool = True
) -> Callable[[Decorated], Decorated]:
    """The argument, with the options that complete a FILE: `given_settings` has their values."""
    argument = click.argument(
        name,
        required=required,
        metavar=metavar,
        shell_complete=candidates.clusters(known),
        is_eager=True,
    )

    def with_options(function: Decorated) -> Decorated:
        own = trust_option(function) if trusts else function
        return argument(set_option(env_file_option(trust_endpoint_option(own))))

    return with_options


class _Assignment(click.types.StringParamType):
    """FIELD=VALUE; several in one variable are on a line each, as a VALUE may have spaces."""

    name = "assignment"
    envvar_list_splitter = "\n"


def _given(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if not value or parameter.name is None:
        return
    from cloudtrain.cli.target import is_file, refuse_settings_without_file

    argument = context.params.get("file", context.params.get("name"))
    if context.get_parameter_source(parameter.name) is click.core.ParameterSource.COMMANDLINE:
        refuse_settings_without_file(argument, parameter.opts[0])
    if argument is not None and is_file(argument):  # a variable is for the commands with a FILE
        context.meta.setdefault(f"{__name__}.settings", {})[parameter.name] = value


set_option = option(
    "--set FIELD=VALUE",
    "Set a field of FILE: nodes.worker.count=4. Repeatable.",
    name="overrides",
    multiple=True,
    type=_Assignment(),
    expose_value=False,
    callback=_given,
)
env_file_option = option(
    "--env-file PATH",
    "Read variables for ${VAR} of FILE from here, in dotenv form.",
    envvar="CLOUDTRAIN_ENV_FILE",
    type=click.Path(path_type=Path),
    expose_value=False,
    callback=_given,
)
trust_option = option(
    "--trust",
    "Allow FILE what `cloudtrain trust FILE` lists, this time.",
    expose_value=False,
    callback=_given,
)


def _hosts(
    context: click.Context, parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    for each in value:
        from cloudtrain.core.network import named_host

        try:
            named_host(each)
        except ValueError as error:
            raise click.BadParameter(f"{each!r}: {error}") from None
    _given(context, parameter, value)
    return value


trust_endpoint_option = option(
    "--trust-endpoint HOST[:PORT]",
    "A host that may get your credentials if FILE names it in `endpoints`. Repeatable.",
    name="trusted_hosts",
    envvar="CLOUDTRAIN_TRUST_ENDPOINT",
    multiple=True,
    expose_value=False,
    callback=_hosts,
)


class GivenSettings(NamedTuple):
    """Options of this command line that complete a FILE."""

    overrides: tuple[str, ...] = ()
    env_file: Path | None = None
    trust: bool = False
    trusted_hosts: tuple[str, ...] = ()


def given_settings() -> GivenSettings:
    context = click.get_current_context(silent=True)
    return GivenSettings(**context.meta.get(f"{__name__}.settings", {}) if context else {})


def _displayed(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
    """Keep a display flag for `given_style`."""
    name = parameter.opts[0].lstrip("-").replace("-", "_")
    context.meta.setdefault(f"{__name__}.style", {})[name] = value
    return value


def given_style() -> Style:
    """Display flags of this command line; a command without a flag has `Style`'s default."""
    context = click.get_current_context(silent=True)
    return Style(**context.meta.get(f"{__name__}.style", {}) if context else {})


def json(meaning: str) -> Callable[[Decorated], Decorated]:
    return option("--json", meaning, name="as_json", envvar="CLOUDTRAIN_JSON", callback=_displayed)


as_json = json("Print one JSON document on stdout, nothing else.")
yes = option("--yes", "Skip the confirmation.")
events = option(
    "--events PATH",
    "Append every message and step to PATH as JSON lines; - is stdout.",
    expose_value=False,
    callback=lambda context, parameter, value: context.meta.update({EVENTS: value}),
)


def _recorded(context: click.Context, _parameter: click.Parameter, value: Path | None) -> None:
    if value is not None and not context.resilient_parsing:
        from cloudtrain.cli.app import on_stderr
        from cloudtrain.state.recording import recorded_to

        context.with_resource(recorded_to(value, on_stderr))


record = option(
    "--record PATH",
    "Append what the cloud answers to PATH, keys and names replaced, for a bug report.",
    envvar="CLOUDTRAIN_RECORD",
    type=click.Path(path_type=Path),
    expose_value=False,
    callback=_recorded,
)
adopt = option("--adopt", "Take over a cluster created from a FILE in another folder.")
role = option(
    "--role ROLE",
    "Only this role or task: worker, or worker0. Repeatable.",
    name="roles",
    multiple=True,
    shell_complete=candidates.roles,
)
resume = option(
    "--resume RUN",
    "Begin with the last landed checkpoint of another run: its id, `last`, or a store URI.",
    shell_complete=candidates.resumable,
)


def run(meaning: str) -> Callable[[Decorated], Decorated]:
    """--run, of a command that reads a run."""
    return option(
        "--run ID",
        f"{meaning} (default: the latest).",
        name="run_id",
        shell_complete=candidates.runs,
    )


order_key = option(
    "--order-key PATH",
    "Key with which a run that is away is ended from another machine.",
    envvar="CLOUDTRAIN_ORDER_KEY",
    type=click.Path(path_type=Path),
)
refresh_prices = option(
    "--refresh-prices",
    "Fetch the clouds' current prices first (needs the extra `prices` and a network).",
)
store = option(
    "--store URI",
    "Read landed runs from this store; needs no local record or FILE.",
    envvar="CLOUDTRAIN_STORE",
)


def shows(what: Literal["progress", "log"]) -> Callable[[Decorated], Decorated]:
    """The display flags of a command that shows progress, or a run's log too: fields of `Style`."""
    shown = {"progress", what}

    def with_flags(function: Decorated) -> Decorated:
        for each in fields(Style):
            if each.metadata.get("on") in shown:
                flag, meaning = f"--{each.name.replace('_', '-')}", each.metadata["help"]
                decorate = option(flag, meaning, expose_value=False, callback=_displayed)
                function = decorate(function)
        return function

    return with_flags


def command(
    name: str, *example: str, epilog: str = "", passes_on: bool = False, help: str | None = None
) -> Callable[[Callable[..., Any]], click.Command]:
    """A command of `app.COMMANDS`, with the lines of its example, and with --debug. `passes_on`:
    what follows `--` is the user's program's own. `help`: instead of the docstring."""

    def decorated(function: Callable[..., Any]) -> click.Command:
        made = click.command(
            cls=_PassesOn if passes_on else click.Command,
            help=help or function.__doc__,
            short_help=COMMANDS[name],
            epilog=epilog or "\n".join(["\b", "Example:", *(f"  {line}" for line in example)]),
        )(function)
        text = "Show the traceback of an error."
        made.params.append(click.Option(["--debug"], is_flag=True, expose_value=False, help=text))
        return made

    return decorated


def passed_on() -> tuple[str, ...]:
    words: tuple[str, ...] = click.get_current_context().meta["passed_on"]
    return words


class _PassesOn(click.Command):
    """Command that passes on everything after `--` unchanged, in `ctx.meta["passed_on"]`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta["passed_on"] = tuple(args[at + 1 :])
        try:
            return super().parse_args(ctx, args[:at])
        except click.NoSuchOption as error:
            from difflib import get_close_matches

            known = [name for each in self.params for name in each.opts]
            if get_close_matches(error.option_name, known, cutoff=0.8):
                raise
            raise self._passed_on(ctx, args, error.option_name) from None

    def _passed_on(self, ctx: click.Context, args: list[str], option: str) -> UsageError:
        """The error for an option of the program, which stands before the `--`."""
        first = next((n for n, word in enumerate(args) if word.startswith(option)), len(args))
        own = {
            name for each in self.params if getattr(each, "is_flag", False) for name in each.opts
        }
        before = [*args[:first], *(word for word in args[first:] if word in own)]
        after = [word for word in args[first:] if word not in own and word != "--"]
        line = shlex.join([*ctx.command_path.split(), *before, "--", *after])
        return UsageError(
            f"No such option {option!r}", hint=f"the program's own words follow `--`: `{line}`"
        )

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*filter(None, super().collect_usage_pieces(ctx)), "[-- WORD...]"]


def _findings(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    for name in names:
        if name not in IGNORABLE:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(IGNORABLE)}")
    return names


ignore = option(
    "--ignore WHAT,…",
    f"Findings of `check` to ignore: {', '.join(IGNORABLE)}.",
    default="",
    callback=_findings,
)


def _seconds(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> float | None:
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", value)
    seconds = float(found[1]) * {"m": 60, "h": 3600, "d": 86400}.get(found[2], 1) if found else 0
    if not 0 < seconds <= 365 * 86400:
        raise click.BadParameter(f"{value!r} is not a duration such as 30m or 6h, at most 365d")
    return seconds


wait = option(
    "--wait DURATION",
    "While nothing has capacity or quota for all nodes, try again for this long, such as 6h. "
    "Nothing is billed for a cluster that does not exist yet.",
    callback=_seconds,
)
