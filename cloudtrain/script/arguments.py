"""Compares a command line with the arguments that a script defines."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterator
from typing import NoReturn

from cloudtrain.script.facts import Arguments, Option, ScriptFacts

_ABSL_OWN = frozenset(
    {
        *("help", "helpfull", "helpshort", "helpxml", "flagfile", "undefok", "v", "verbosity"),
        *("logtostderr", "alsologtostderr", "log_dir", "stderrthreshold", "showprefixforinfo"),
        *("only_check_args", "pdb", "pdb_post_mortem", "run_with_pdb", "run_with_profiling"),
        *("profile_file", "use_cprofile_for_profiling", "logger_levels"),
    }
)
"""Defined by absl.flags, absl.app and absl.logging themselves (abseil-py 2.1)."""

_DEFINE_NONE = frozenset(
    {
        *("tensorflow", "keras", "tf_keras", "numpy", "absl", "sklearn", "scipy", "pandas"),
        *("matplotlib", "PIL", "six", "h5py", "tqdm", "yaml", "requests", "click"),
    }
)
"""Libraries that define no absl flags, besides the standard library's."""


class _Refused(Exception):
    pass


def argument_problems(
    facts: ScriptFacts, words: tuple[str, ...], *, exact: bool, standard: frozenset[str]
) -> tuple[str, ...]:
    """Messages on arguments that the script would refuse or ignore; none if that is not certain.

    `exact`: whether the script gets these words as they are. `standard`: names of Python's own
    modules.
    """
    given = facts.arguments
    if not given.all_known or not given.options or "--help" in words or "-h" in words:
        return ()
    library = given.options[0].library
    if library == "argparse":
        return tuple(_argparse(given, words, exact=exact))
    if library == "absl" and facts.libraries - standard - _DEFINE_NONE:
        return ()
    return tuple(_others(given, words, exact=exact))


class _Parser(argparse.ArgumentParser):
    """The script's own, without types and defaults; raises instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise _Refused(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise _Refused("")


def _argparse(given: Arguments, words: tuple[str, ...], *, exact: bool) -> Iterator[str]:
    parser = _Parser(prog="script", allow_abbrev=given.abbreviations)
    try:
        for option in given.options:
            _add(parser, option)
    except (ValueError, TypeError, argparse.ArgumentError):
        return  # two parsers, or settings that this Python does not take
    try:
        _, unknown = parser.parse_known_args(list(words))
    except _Refused as error:
        if str(error) and exact:
            yield str(error)
        return
    known = [name for option in given.options for name in option.names if name.startswith("-")]
    yield from _unknown([word for word in unknown if word.startswith("-")], known, words, given)
    if unknown and exact and not given.tolerant and not unknown[0].startswith("-"):
        yield f"unrecognized arguments: {' '.join(unknown)}"


def _add(parser: argparse.ArgumentParser, option: Option) -> None:
    settings = dict(option.settings)
    action = settings.pop("action", None)
    if action == "boolean":
        parser.add_argument(*option.names, action=argparse.BooleanOptionalAction)
        return
    if action is not None:
        settings["action"] = action
    if action in ("store_const", "append_const"):
        settings["const"] = None
    parser.add_argument(*option.names, **settings)  # type: ignore[arg-type]


def _unknown(
    unknown: list[str], known: list[str], words: tuple[str, ...], given: Arguments
) -> Iterator[str]:
    """Text for each unknown option; if the script ignores them, only for a likely typo."""
    used = {word.partition("=")[0] for word in words}
    for word in unknown:
        name = word.partition("=")[0]
        free = [each for each in known if each not in used]
        near = difflib.get_close_matches(name, free, n=1, cutoff=0.75)
        meant = f": did you mean {near[0]}?" if near else ""
        if not given.tolerant:
            yield f"unknown argument {name}{meant}"
        elif near:
            yield f"unknown argument {name} is ignored{meant}"


def _others(given: Arguments, words: tuple[str, ...], *, exact: bool) -> Iterator[str]:
    """absl, tf.app.flags and click: by the names alone."""
    absl = given.options[0].library == "absl"
    known = {name for option in given.options for name in option.names}
    accepted = known | ({f"--{name}" for name in _ABSL_OWN} if absl else {"--version"})
    for option in given.options:
        if option.flag:
            accepted |= {f"--no{name[2:]}" for name in option.names}
    used = [name for name in map(_option_name, _before_the_rest(words)) if name]
    written = [f"--{name.lstrip('-')}" if absl else name for name in used]
    unknown = [name for name in written if name not in accepted]
    if not absl:
        unknown = [name for name in unknown if name.startswith("--")]
    yield from _unknown(unknown, sorted(known), tuple(written), given)
    required = {name for option in given.options if option.required for name in option.names[:1]}
    missing = sorted(
        name for name in required if exact and not _synonyms(given, name) & set(written)
    )
    if missing:
        yield f"the following arguments are required: {', '.join(missing)}"


def _synonyms(given: Arguments, name: str) -> set[str]:
    return {each for option in given.options if name in option.names for each in option.names}


def _before_the_rest(words: tuple[str, ...]) -> tuple[str, ...]:
    return words[: words.index("--")] if "--" in words else words


def _option_name(word: str) -> str:
    """`--name` of `--name=value`; "" for a value."""
    found = re.match(r"(--?[A-Za-z][\w.-]*)(=|$)", word)
    return found[1] if found else ""
