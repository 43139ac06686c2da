"""Reads the arguments that a script defines with argparse, absl, tf.app.flags or click."""

from __future__ import annotations

import ast
import re

from cloudtrain.script.facts import Option
from cloudtrain.script.names import Aliases

_ARGPARSE = frozenset({"nargs", "action", "required", "dest", "const", "default"})
_ACTIONS = frozenset(
    {
        *("store", "store_true", "store_false", "store_const", "append", "append_const"),
        *("count", "extend", "help", "version"),
    }
)
_BOOLEANS = frozenset({"DEFINE_bool", "DEFINE_boolean"})
_DEFINES = re.compile(r"DEFINE_[a-z_]+")
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
        name = getattr(function, "attr", getattr(function, "id", ""))
        whole, _ = self.aliases.resolve(function)
        if whole and any(_is_parser(argument) for argument in node.args):
            self.computed = True  # code elsewhere may add arguments to it
        if name == "add_argument":
            self._argparse(node)
        elif name in ("parse_args", "parse_known_args", "parse_intermixed_args"):
            self.parsed = True
            self.tolerant = self.tolerant or name == "parse_known_args"
            self.computed = self.computed or not _reads_the_command_line(node)
        elif name == "ArgumentParser":
            self._parser(node)
        elif name == "add_subparsers":
            self.computed = True
        elif _DEFINES.fullmatch(name):
            self._absl(node, name)
        elif name in ("mark_flag_as_required", "mark_flags_as_required"):
            self._required(node)
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

    def _parser(self, node: ast.Call) -> None:
        self.computed = self.computed or _has(
            node, "parents", "fromfile_prefix_chars", "prefix_chars", "conflict_handler"
        )
        whole, _ = self.aliases.resolve(node.func)
        self.computed = self.computed or whole != "argparse.ArgumentParser"
        for keyword in node.keywords:
            if keyword.arg == "allow_abbrev":
                self.abbreviations = _constant(keyword.value) is not False
            self.computed = self.computed or keyword.arg is None

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
        self._add("argparse", names, node, settings=settings, default=default)

    def _setting(self, name: str, node: ast.expr) -> object:
        """A keyword's constant; None if it is computed or unusual."""
        if name == "action" and isinstance(node, ast.Attribute):
            return "boolean" if node.attr == "BooleanOptionalAction" else None
        if name == "nargs" and isinstance(node, ast.Attribute):
            return {"REMAINDER": "...", "OPTIONAL": "?", "ZERO_OR_MORE": "*"}.get(node.attr)
        value = _constant(node)
        if name == "action" and value not in _ACTIONS:
            return None
        return value

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
        self._add("absl", dashed, node, required, flag=name in _BOOLEANS, default=default)

    def _required(self, node: ast.Call) -> None:
        argument = node.args[0] if node.args else None
        nodes = argument.elts if isinstance(argument, ast.List | ast.Tuple) else [argument]
        names = {f"--{_constant(each)}" for each in nodes if each is not None}
        self.options += [
            Option(library="absl", names=(name,), file=self.file, line=node.lineno, required=True)
            for name in sorted(names)
        ]

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
        self._add("click", tuple(dashed), node, required)

    def _add(
        self,
        library: object,
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
                library=library,  # type: ignore[arg-type]
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


def _is_parser(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and "parser" in node.id.lower()


def _reads_the_command_line(node: ast.Call) -> bool:
    """True for `parse_args()` and `parse_args(sys.argv[1:])`."""
    if node.keywords:
        return False
    return not node.args or ast.unparse(node.args[0]) in ("sys.argv[1:]", "None", "argv[1:]")


def _texts(nodes: list[ast.expr]) -> tuple[str, ...] | None:
    """The constant texts; None if one is computed."""
    values = [_constant(node) for node in nodes]
    texts = tuple(value for value in values if isinstance(value, str))
    return texts if len(texts) == len(values) else None


def _constant(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _has(node: ast.Call, *names: str) -> bool:
    return any(keyword.arg in names for keyword in node.keywords)
