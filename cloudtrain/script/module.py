"""Reads one module: the names it uses, its URIs, the roles it compares with, its arguments."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from cloudtrain.core.store_kinds import KINDS
from cloudtrain.script import roles, saving
from cloudtrain.script.arguments import OptionReader
from cloudtrain.script.facts import Use
from cloudtrain.script.names import absolute, aliases, last_name
from cloudtrain.script.releases import METHODS
from cloudtrain.training.strategies import STRATEGIES

LARGEST = 1_000_000
"""Bytes of a file that is read; a larger one is hardly written by hand."""

_ROOTS = {"tensorflow_core", "tensorflow_estimator", "keras", "tf_keras"} | {
    pattern.partition(".")[0] for strategy in STRATEGIES.values() for pattern in strategy.uses
}
_SCHEMES = ("s3n", *(scheme for kind in KINDS for scheme in kind.bucket_schemes))
_BUCKET = rf"(?:{'|'.join(_SCHEMES)})://"
_URI = re.compile(rf"{_BUCKET}[A-Za-z0-9{{<%]\S*")
_MESSAGES = frozenset(
    {
        *("print", "info", "warning", "warn", "error", "debug", "exception", "critical", "log"),
        *("startswith", "endswith", "replace", "removeprefix", "lstrip", "strip", "split"),
        *("match", "search", "compile", "partition", "find", "sub", "fullmatch", "add_parser"),
    }
)
"""Calls whose texts name no file."""
_TEXTS = frozenset({"help", "description", "epilog", "usage", "metavar", "short_help"})

_COLLECTIVE = {
    "tensorflow.distribute.MultiWorkerMirroredStrategy",
    "tensorflow.distribute.experimental.MultiWorkerMirroredStrategy",
}


class Unreadable(Exception):
    """A file that this Python cannot parse."""

    def __init__(self, text: str, line: int) -> None:
        super().__init__(text)
        self.text, self.line = text, line


@dataclass(kw_only=True)
class ModuleFacts:
    """Facts on one module; places are in `file`."""

    file: str
    names: list[Use] = field(default_factory=list)
    imports: list[str] = field(default_factory=list)
    """Modules, and the names imported from them, which may be modules: `a.b`, `a.b.c`."""
    uris: list[Use] = field(default_factory=list)
    roles: roles.Roles = field(default_factory=roles.Roles)
    tf_config: list[Use] = field(default_factory=list)
    own_addresses: list[Use] = field(default_factory=list)
    written: list[Use] = field(default_factory=list)
    saves: list[Use] = field(default_factory=list)
    reads_back: bool = False
    default_collectives: list[Use] = field(default_factory=list)
    options: OptionReader


def parse(source: bytes) -> ast.Module:
    """Parse a file. Raises Unreadable: it may be Python 2, a newer Python, or too deeply nested."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes are the script's own
            return ast.parse(source)
    except SyntaxError as error:
        raise Unreadable(error.msg or "invalid syntax", error.lineno or 1) from None
    except (ValueError, RecursionError, MemoryError, LookupError) as error:
        raise Unreadable(str(error) or type(error).__name__, 1) from None


def read_module(source: bytes, file: str, *, package: str, is_main: bool) -> ModuleFacts:
    """Read one module. Raises Unreadable. `package` is the module's own package, for relative
    imports; what is below `if __name__ == "__main__"` counts only with `is_main`."""
    tree = parse(source)
    reader = _Reader(tree, file, package, is_main)
    try:
        reader.visit(tree)
    except RecursionError:
        raise Unreadable("too deeply nested", 1) from None
    reader.facts.names = list(reader.seen.values())
    reader.facts.tf_config = reader.tf_config.required
    return reader.facts


class _Reader(ast.NodeVisitor):
    def __init__(self, tree: ast.Module, file: str, package: str, is_main: bool) -> None:
        self.aliases = aliases(tree, package)
        self.package, self.is_main = package, is_main
        self.facts = ModuleFacts(file=file, options=OptionReader(file, self.aliases))
        self.unsure = 0
        """Depth of `try:` and of `if` on what is there."""
        self.quiet = 0
        """Depth of texts for people."""
        self.tf_config = roles.TfConfigReader(file)
        self.seen: dict[str, Use] = {}
        self.without_effect: set[ast.AST] = set()
        """Comparisons of an `if` or `… if … else …` of which nothing of consequence follows."""
        self.tests: set[ast.AST] = set()
        """Comparisons of an `if` of which something follows."""
        self.decides = 0
        """Depth of what gives a name such as `is_chief` its value."""
        self.literals: dict[str, ast.expr] = {}

    @contextmanager
    def _in(
        self, *, unsure: bool = False, quiet: bool = False, decides: bool = False
    ) -> Iterator[None]:
        before = self.unsure, self.quiet, self.decides
        self.unsure, self.quiet = self.unsure + unsure, self.quiet + quiet
        self.decides += decides
        try:
            yield
        finally:
            self.unsure, self.quiet, self.decides = before

    def _use(self, name: str, line: int, sure: bool = True) -> None:
        use = Use(name=name, file=self.facts.file, line=line, sure=sure and not self.unsure)
        old = self.seen.get(name)
        if old is None or (use.sure and not old.sure):
            self.seen[name] = use

    # ── statements ──

    def visit_Import(self, node: ast.Import) -> None:
        for each in node.names:
            self.facts.imports.append(each.name)
            self._imported(each.name, node.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = absolute(node, self.package)
        self.facts.imports.append(module)
        self.facts.imports += [f"{module}.{each.name}" for each in node.names]
        for each in node.names:
            self._imported(f"{module}.{each.name}", node.lineno)

    def _imported(self, name: str, line: int) -> None:
        if name.partition(".")[0] in _ROOTS:
            self._use(name, line)

    def visit_Try(self, node: ast.Try) -> None:
        with self._in(unsure=bool(node.handlers)):
            with self.tf_config.caught(node.handlers):
                self._all(node.body)
            for handler in node.handlers:
                self.visit(handler)
        self._all([*node.orelse, *node.finalbody])

    def visit_If(self, node: ast.If) -> None:
        if is_main_guard(node.test) and not self.is_main:
            self._all(node.orelse)
            return
        if not roles.acts(node.body):
            self.without_effect |= roles.comparisons(node.test)
        else:
            self.tests |= roles.comparisons(node.test)
        names = [last_name(each) for each in ast.walk(node.test)]  # `hasattr(…)`, `tf.__version__`
        unsure = any("version" in name.lower() or name == "hasattr" for name in names)
        with self._in(unsure=unsure):
            self.visit(node.test)
            with self.tf_config.guarded_by(node.test):
                self._all(node.body)
                self._all(node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        if not roles.calls_act(node.body):
            self.without_effect |= roles.comparisons(node.test)
        self.visit(node.test)
        with self.tf_config.guarded_by(node.test):
            self._all([node.body, node.orelse])

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        if isinstance(node.op, ast.Or) and any(map(roles.is_zero, node.values)):
            self.without_effect |= roles.comparisons(node)  # some task of index 0 there always is
        for number, value in enumerate(node.values):
            with self.tf_config.guarded_by(*node.values[:number]):
                self.visit(value)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self.visit(node.iter)
        self._all(node.ifs)

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
    ) -> None:
        self._all(node.generators)
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        with self.tf_config.guarded_by(*(test for each in node.generators for test in each.ifs)):
            self._all(results)

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        with self._in(quiet=True):
            self.generic_visit(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.facts.options.decorated(node)
        self._all(node.decorator_list)
        self._all([*node.args.defaults, *filter(None, node.args.kw_defaults)])
        decides = roles.names_decider(node.name)
        with self.facts.roles.function(), self._in(decides=decides):
            self._all(node.body)

    visit_FunctionDef = visit_AsyncFunctionDef = _function

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.facts.options.extended(node)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.tf_config.assigned([node.target], node.value)
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.tf_config.assigned(node.targets, node.value)
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            self.literals[node.targets[0].id] = node.value
        if any(roles.is_tf_config(target) for target in node.targets):
            self._own_addresses(node.value)
        with self._in(decides=any(map(roles.is_decider, node.targets))):
            self.generic_visit(node)

    def _own_addresses(self, value: ast.expr) -> None:
        """Addresses of this machine that the script gives to its tasks."""
        if not self.unsure and not self.tf_config.is_guarded:
            self.facts.own_addresses += [
                Use(name=text, file=self.facts.file, line=line)
                for text, line in roles.own_addresses(value, self.literals)
            ]

    def _all(self, nodes: Sequence[ast.AST]) -> None:
        """Visit them in order; what follows an `if` that leaves is guarded by its test."""
        with ExitStack() as passed:
            for node in nodes:
                self.visit(node)
                if isinstance(node, ast.If) and (_leaves(node.body) or _leaves(node.orelse)):
                    passed.enter_context(self.tf_config.guarded_by(node.test))

    def generic_visit(self, node: ast.AST) -> None:
        for _, value in ast.iter_fields(node):
            if isinstance(value, list):
                self._all([each for each in value if isinstance(each, ast.AST)])
            elif isinstance(value, ast.AST):
                self.visit(value)

    # ── expressions ──

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr in METHODS:
            self._use(f".{node.attr}", node.lineno)
        if not self._named(node):
            self.visit(node.value)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._named(node)

    def _named(self, node: ast.Attribute | ast.Name) -> bool:
        """Record a name of TensorFlow; False if it is none."""
        name, sure = self.aliases.resolve(node)
        if name.partition(".")[0] in _ROOTS:
            self._use(name, node.lineno, sure)
        return bool(name)

    def visit_Call(self, node: ast.Call) -> None:
        name = last_name(node.func)
        if name == "isinstance":
            return
        self.facts.options.call(node)
        self.tf_config.asks(node)
        self._collectives(node)
        self._saving(node, name)
        for path, line in saving.written(node, name, self.literals):
            self.facts.written.append(Use(name=path, file=self.facts.file, line=line))
        if name == "ClusterSpec":
            for value in node.args[:1]:
                self._own_addresses(value)
        self.visit(node.func)
        with self._in(quiet=name in _MESSAGES):
            self._all(node.args)
        for keyword in node.keywords:
            with self._in(quiet=name in _MESSAGES or keyword.arg in _TEXTS):
                self.visit(keyword.value)

    def _collectives(self, node: ast.Call) -> None:
        """Record a strategy that is made without a choice of collectives: the second argument, or
        the first of the experimental class."""
        name, sure = self.aliases.resolve(node.func)
        if name not in _COLLECTIVE or not sure or self.unsure:
            return
        given = {keyword.arg for keyword in node.keywords}
        first = 0 if ".experimental." in name else 1
        starred = any(isinstance(each, ast.Starred) for each in node.args)
        if (
            len(node.args) <= first
            and not starred
            and not given & {"communication_options", "communication", None}
        ):
            use = Use(name=name, file=self.facts.file, line=node.lineno)
            self.facts.default_collectives.append(use)

    def _saving(self, node: ast.Call, name: str) -> None:
        whole, _ = self.aliases.resolve(node.func)
        if name in ("save", "write") and isinstance(node.func, ast.Attribute):
            made = node.func.value
            made = self.literals.get(made.id, made) if isinstance(made, ast.Name) else made
            whole = self.aliases.resolve(made.func)[0] if isinstance(made, ast.Call) else ""
            saves = whole.endswith(saving.CHECKPOINT)
            saves = saves and not any(each.arg in ("options", None) for each in node.keywords)
        else:
            saves = saving.way(whole, node) is not None
        if saves and not self.unsure:
            self.facts.saves.append(Use(name=whole, file=self.facts.file, line=node.lineno))
        self.facts.reads_back = self.facts.reads_back or name in saving.READS_BACK

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.tf_config.subscript(node)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        self.tf_config.asks(node)
        sides = (node.left, *node.comparators)
        of_index = any(self.tf_config.is_index(side) for side in sides)
        # One of the index is a test, or gives a name such as `is_chief` a value; elsewhere it may
        # be for a log.
        decides = not of_index or self.decides > 0 or node in self.tests
        decides = decides and node not in self.without_effect
        self.facts.roles.compare(node, self.facts.file, decides=decides, of_index=of_index)
        with self._in(quiet=True):
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self._text(node.value, node.lineno)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        first = node.values[0] if node.values else None
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            self._text(first.value + ("{…}" if len(node.values) > 1 else ""), node.lineno)
        with self._in(quiet=True):
            self.generic_visit(node)

    def _text(self, text: str, line: int) -> None:
        if not self.quiet and _URI.fullmatch(text.strip()):
            self.facts.uris.append(Use(name=text.strip(), file=self.facts.file, line=line))


def _leaves(body: Sequence[ast.stmt]) -> bool:
    """True if nothing after these statements of a block is reached."""
    last = body[-1] if body else None
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return last_name(last.value.func) in ("exit", "_exit", "abort", "quit")
    return isinstance(last, ast.Return | ast.Raise | ast.Continue | ast.Break)


def is_main_guard(test: ast.expr) -> bool:
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and test.left.id == "__name__"
    )
