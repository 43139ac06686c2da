"""Reads the arguments that a script defines, and compares a command line with them."""

from __future__ import annotations

import argparse
import ast
import difflib
import re
from collections.abc import Iterator
from typing import NoReturn

from cloudtrain.script.facts import Arguments, Library, Option, ScriptFacts
from cloudtrain.script.names import Aliases, last_name

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
    modules."""
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
            settings = dict(option.settings)
            if settings.get("action") == "boolean":
                settings = {"action": argparse.BooleanOptionalAction}
            elif settings.get("action") in ("store_const", "append_const"):
                settings["const"] = None
            parser.add_argument(*option.names, **settings)  # type: ignore[arg-type]
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
    before = words[: words.index("--")] if "--" in words else words
    options = (re.match(r"(--?[A-Za-z][\w.-]*)(=|$)", word) for word in before)
    used = [found[1] for found in options if found]
    written = [f"--{name.lstrip('-')}" if absl else name for name in used]
    unknown = [name for name in written if name not in accepted]
    if not absl:
        unknown = [name for name in unknown if name.startswith("--")]
    yield from _unknown(unknown, sorted(known), tuple(written), given)
    missing = {name for option in given.options if option.required for name in option.names[:1]}
    for option in given.options:  # any of its names will do, here or where it was defined again
        if set(option.names) & set(written):
            missing -= set(option.names)
    if missing and exact:
        yield f"the following arguments are required: {', '.join(sorted(missing))}"


# ── what a script defines with argparse, absl, tf.app.flags or click ─────────


_ARGPARSE = frozenset({"nargs", "action", "required", "dest", "const", "default"})
_ACTIONS = frozenset(
    {
        *("store", "store_true", "store_false", "store_const", "append", "append_const"),
        *("count", "extend", "help", "version"),
    }
)
_BOOLEANS = frozenset({"DEFINE_bool", "DEFINE_boolean"})
_DEFINES = re.compile(r"DEFINE_[a-z_]+")
_UNUSUAL = ("parents", "fromfile_prefix_chars", "prefix_chars", "conflict_handler", None)
_CLICK = frozenset({"click.option", "click.argument"})


class OptionReader:
    """Collects them from a module's calls, in any order."""

    def __init__(self, file: str, aliases: Aliases) -> None:
        self.file, self.aliases = file, aliases
        self.options: list[Option] = []
        self.computed = False
        self.tolerant = False
        self.parsed = False
        """Whether something reads the command line."""
        self.abbreviations = True

    def call(self, node: ast.Call) -> None:
        function = node.func
        name = last_name(function)
        whole, _ = self.aliases.resolve(function)
        if whole and any("parser" in getattr(each, "id", "").lower() for each in node.args):
            self.computed = True  # code elsewhere may add arguments to it
        if name == "add_argument":
            self._argparse(node)
        elif name in ("parse_args", "parse_known_args", "parse_intermixed_args"):
            self.parsed = True
            self.tolerant = self.tolerant or name == "parse_known_args"
            words = [ast.unparse(each) for each in node.args[:1]]  # of the command line, or others
            usual = not words or words[0] in ("sys.argv[1:]", "None", "argv[1:]")
            self.computed = self.computed or bool(node.keywords) or not usual
        elif name == "ArgumentParser":
            own = whole != "argparse.ArgumentParser"
            self.computed = self.computed or own or _has(node, *_UNUSUAL)
            for keyword in node.keywords:
                if keyword.arg == "allow_abbrev":
                    self.abbreviations = _constant(keyword.value) is not False
        elif name == "add_subparsers":
            self.computed = True
        elif _DEFINES.fullmatch(name):
            self._absl(node, name)
        elif name in ("mark_flag_as_required", "mark_flags_as_required"):
            argument = node.args[0] if node.args else None
            nodes = argument.elts if isinstance(argument, ast.List | ast.Tuple) else [argument]
            for flag in sorted({f"--{_constant(each)}" for each in nodes if each is not None}):
                self._add_option("absl", (flag,), node, True)
        elif whole in ("absl.app.run", "tensorflow.app.run", "tensorflow.compat.v1.app.run"):
            self.parsed = True
            self.tolerant = self.tolerant or whole.startswith("tensorflow")

    def extended(self, node: ast.ClassDef) -> None:
        """A parser class of the script's own may define arguments by itself."""
        bases = (self.aliases.resolve(base)[0] for base in node.bases)
        self.computed = self.computed or "argparse.ArgumentParser" in bases

    def decorated(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Read `@click.option(…)` above a function."""
        for each in node.decorator_list:
            if not isinstance(each, ast.Call):
                continue
            whole, _ = self.aliases.resolve(each.func)
            if whole in _CLICK:
                self._click(each, whole)
            elif whole == "click.command":
                self.parsed = True
                self.computed = self.computed or _has(each, "context_settings", "cls")
            elif whole == "click.group" or whole.startswith("typer."):
                self.computed = True

    # ── libraries ──

    def _argparse(self, node: ast.Call) -> None:
        names = _texts(node.args)
        settings: dict[str, object] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                self.computed = True
            elif keyword.arg in _ARGPARSE - {"default", "const"}:
                value = self._setting(keyword.arg, keyword.value)
                self.computed = self.computed or value is None
                settings[keyword.arg] = value
        if names is None or not names:
            self.computed = True
            return
        default = next((k.value for k in node.keywords if k.arg == "default"), None)
        self._add_option("argparse", names, node, settings=settings, default=default)

    def _setting(self, name: str, node: ast.expr) -> object:
        """A keyword's constant; None if it is computed or unusual."""
        if name == "action" and isinstance(node, ast.Attribute):
            return "boolean" if node.attr == "BooleanOptionalAction" else None
        if name == "nargs" and isinstance(node, ast.Attribute):
            return {"REMAINDER": "...", "OPTIONAL": "?", "ZERO_OR_MORE": "*"}.get(node.attr)
        value = _constant(node)
        return None if name == "action" and value not in _ACTIONS else value

    def _absl(self, node: ast.Call, name: str) -> None:
        names = _texts(node.args[:1])
        if not names or name in ("DEFINE_alias", "DEFINE_flag"):
            self.computed = True
            return
        default = node.args[1] if len(node.args) > 1 else None
        default = next((k.value for k in node.keywords if k.arg == "default"), default)
        required = any(k.arg == "required" and _constant(k.value) is True for k in node.keywords)
        short = [_constant(k.value) for k in node.keywords if k.arg == "short_name"]
        every = (*names, *(each for each in short if isinstance(each, str)))
        dashed = tuple(f"--{each}" for each in every)
        self.parsed = True
        self._add_option("absl", dashed, node, required, flag=name in _BOOLEANS, default=default)

    def _click(self, node: ast.Call, whole: str) -> None:
        names = _texts(node.args)
        if not names or _has(node, "cls"):
            self.computed = True
            return
        dashed = [each for name in names for each in name.split("/") if each.startswith("-")]
        if whole == "click.argument":
            return
        required = any(k.arg == "required" and _constant(k.value) is True for k in node.keywords)
        required = required and not _has(node, "prompt", "envvar")
        self._add_option("click", tuple(dashed), node, required)

    def _add_option(
        self,
        library: Library,
        names: tuple[str, ...],
        node: ast.Call,
        required: bool = False,
        *,
        flag: bool = False,
        settings: dict[str, object] | None = None,
        default: ast.expr | None = None,
    ) -> None:
        value = _constant(default) if default is not None else None
        self.options.append(
            Option(
                library=library,
                names=names,
                file=self.file,
                line=node.lineno,
                required=required,
                flag=flag,
                settings=settings or {},
                default_uri=value if isinstance(value, str) and "://" in value else None,
                default_path=value if isinstance(value, str) and value.startswith("/") else None,
            )
        )


def _texts(nodes: list[ast.expr]) -> tuple[str, ...] | None:
    """The constant texts; None if one is computed."""
    values = [_constant(node) for node in nodes]
    texts = tuple(value for value in values if isinstance(value, str))
    return texts if len(texts) == len(values) else None


def _constant(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _has(node: ast.Call, *names: str | None) -> bool:
    return any(keyword.arg in names for keyword in node.keywords)
