"""Reads how a script learns its role: comparisons with `chief`, and the keys of TF_CONFIG."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from cloudtrain.script.facts import Use
from cloudtrain.script.names import last_name


@dataclass(kw_only=True)
class Roles:
    """Comparisons with the names of roles, by function."""

    only: dict[str, list[Use]] = field(default_factory=dict)
    """`chief`, `master` → comparisons with it alone."""
    spoken: set[str] = field(default_factory=set)
    """Roles that are compared with in any way."""
    by_index: list[Use] = field(default_factory=list)
    """What is decided by the task's index alone: that it is 0."""
    first_worker: bool = False
    """True if some function compares with 'worker' and with the index 0, or asks if there is a
    chief: worker 0 may take its place."""
    _workers: bool = False
    _zeros: bool = False

    @contextmanager
    def function(self) -> Iterator[None]:
        outer = self._workers, self._zeros
        self._workers = self._zeros = False
        try:
            yield
        finally:
            self._workers, self._zeros = outer

    def compare(self, node: ast.Compare, file: str, *, decides: bool, of_index: bool) -> None:
        """`decides`: something of consequence follows; `of_index`: a side is the task's index."""
        values: set[object] = set()
        for side in (node.left, *node.comparators):
            elements = side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side]
            values |= {each.value for each in elements if isinstance(each, ast.Constant)}
        named = {value for value in values if value in ("chief", "master", "worker")}
        self.spoken |= named
        operator = node.ops[0]
        if isinstance(node.left, ast.Constant) and isinstance(operator, ast.In | ast.NotIn):
            self.first_worker = self.first_worker or "chief" in named
            return
        self._workers = self._workers or "worker" in named
        zero = _has_zero(values)
        self._zeros = self._zeros or zero
        self.first_worker = self.first_worker or (self._workers and self._zeros)
        if isinstance(operator, ast.Eq) and of_index and zero and decides:
            self.by_index.append(Use(name="index", file=file, line=node.lineno))
        if isinstance(operator, ast.Eq) and len(named) == 1 and decides:
            (role,) = named
            use = Use(name=role, file=file, line=node.lineno)
            self.only.setdefault(role, []).append(use)


def of_program(modules: Sequence[Roles]) -> Roles:
    """The comparisons of all modules of a program; none if one of them treats worker 0 as the
    chief."""
    first_worker = any(each.first_worker for each in modules)
    only = {
        role: [] if first_worker else [use for each in modules for use in each.only.get(role, ())]
        for role in ("chief", "master")
    }
    return Roles(
        only=only,
        spoken={role for each in modules for role in each.spoken},
        by_index=[use for each in modules for use in each.by_index],
        first_worker=first_worker,
    )


Path = tuple[str, ...]


class TfConfigReader:
    """Follows TF_CONFIG through `json.loads` and plain assignments."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.found: dict[str, Use] = {}
        self._texts: set[str] = set()
        """Names that hold its JSON."""
        self._values: dict[str, Path] = {}
        """Name → the part of it that it holds; () is all of it."""
        self._guards: list[set[object]] = []
        self._asked: set[str] = set()
        """Keys that the module asks for in any way."""
        self._caught = 0

    @property
    def required(self) -> list[Use]:
        """Keys that are read although the module never asks whether they are set."""
        last = {key: key.rpartition(".")[2] or "TF_CONFIG" for key in self.found}
        return [use for key, use in self.found.items() if last[key] not in self._asked]

    @contextmanager
    def guarded_by(self, *tests: ast.expr) -> Iterator[None]:
        """Keys that a test asks for are not required where it has been passed."""
        constants = (n for test in tests for n in ast.walk(test) if isinstance(n, ast.Constant))
        self._guards.append({each.value for each in constants})
        try:
            yield
        finally:
            self._guards.pop()

    @contextmanager
    def caught(self, handlers: Sequence[ast.ExceptHandler]) -> Iterator[None]:
        """Nothing is required in a `try:` that catches a missing key."""
        catches = False
        for kind in (each.type for each in handlers):
            named = kind.elts if isinstance(kind, ast.Tuple) else [kind]
            names = {"" if one is None else _shown(one).rpartition(".")[2] for one in named}
            catches = catches or bool(names & _MISSING_KEY)
        self._caught += catches
        try:
            yield
        finally:
            self._caught -= catches

    def asks(self, node: ast.Compare | ast.Call) -> None:
        """Note `"ps" in …` and `.get("ps")`."""
        if isinstance(node, ast.Compare):
            if isinstance(node.ops[0], ast.In | ast.NotIn) and (key := _key(node.left)):
                self._asked.add(key)
        elif getattr(node.func, "attr", "") in ("get", "pop", "setdefault", "getenv"):
            self._asked |= {key for key in map(_key, node.args[:1]) if key}

    @property
    def is_guarded(self) -> bool:
        """True where the module has asked whether there is a TF_CONFIG."""
        return any("TF_CONFIG" in guard for guard in self._guards)

    def is_index(self, node: ast.expr) -> bool:
        """True for the index of this task, of TF_CONFIG or of a cluster resolver."""
        return self._path(node) == ("task", "index")

    def assigned(self, targets: Sequence[ast.expr], value: ast.expr) -> None:
        if len(targets) != 1:
            return
        target = targets[0]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            if len(target.elts) == len(value.elts):
                for one, its in zip(target.elts, value.elts, strict=True):
                    self.assigned([one], its)
            return
        name = _shown(target)
        path = self._path(value)
        self._values.pop(name, None)
        self._texts.discard(name)
        if path is not None:
            self._values[name] = path
        elif _names_it(value) and not isinstance(value, ast.Constant):
            self._texts.add(name)

    def subscript(self, node: ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load):
            return
        if _shown(node.value).endswith("environ") and _key(node.slice) == "TF_CONFIG":
            self._read((), node.lineno)
            return
        path = self._path(node)
        if path is not None:
            self._read(path, node.lineno)

    def _read(self, path: Path, line: int) -> None:
        asked = set().union(*self._guards) if self._guards else set()
        if self._caught or asked & {path[-1] if path else "TF_CONFIG", "TF_CONFIG"}:
            return
        key = ".".join(path)
        self.found.setdefault(key, Use(name=key, file=self.file, line=line))

    def _path(self, node: ast.expr) -> Path | None:
        """The part of TF_CONFIG that an expression is; None if it is none, or not known."""
        if isinstance(node, ast.BoolOp):
            return self._path(node.values[0])
        name = _shown(node)
        if name.endswith(".task_id") and "resolver" in name.rpartition(".")[0].rpartition(".")[2]:
            return ("task", "index")  # `cluster_resolver.task_id`
        if isinstance(node, ast.Name | ast.Attribute):
            return self._values.get(name)
        if isinstance(node, ast.Subscript):
            return _below(self._path(node.value), _key(node.slice))
        if not isinstance(node, ast.Call) or not node.args:
            return None
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            return _below(self._path(node.func.value), _key(node.args[0]))
        if last_name(node.func) == "loads":
            text = node.args[0]
            return () if _names_it(text) or _shown(text) in self._texts else None
        return None


_MISSING_KEY = frozenset({"", "KeyError", "LookupError", "Exception", "BaseException"})
"""What an `except` catches; "" for everything."""


def _below(path: Path | None, key: str | None) -> Path | None:
    return None if path is None or key is None else (*path, key)


def _key(node: ast.expr) -> str | None:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) else None


def _shown(node: ast.expr) -> str:
    """`self.config` of an attribute of a name; "" of anything else."""
    if isinstance(node, ast.Attribute):
        return f"{_shown(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _names_it(node: ast.expr) -> bool:
    return any(isinstance(n, ast.Constant) and n.value == "TF_CONFIG" for n in ast.walk(node))


# ── what of consequence follows a comparison: who saves, not who is logged ───


_NAME = re.compile(r"chief|master|main|primary|leader|lead|first|should|save", re.IGNORECASE)
_CALL = re.compile(
    r"save|write|export|dump|checkpoint|ckpt|mkdir|makedirs|open|copy|upload|summary|train|fit|run"
    r"|evaluate|eval|session|restore|load|callback|manager|append|join|serve|start",
    re.IGNORECASE,
)


def acts(body: Sequence[ast.stmt]) -> bool:
    """True unless the statements only set values: device filters, names for a log."""
    for node in (each for statement in body for each in ast.walk(statement)):
        if isinstance(node, ast.Call) and _CALL.search(last_name(node.func)):
            return True
        if isinstance(node, ast.Assign) and any(map(is_decider, node.targets)):
            return True
        if isinstance(node, ast.Return):
            # A list, and `ConfigProto(device_filters=[…])` of the AI Platform samples, only set.
            made = node.value.keywords if isinstance(node.value, ast.Call) else ()
            sets = isinstance(node.value, ast.List | ast.Tuple)
            if not sets and all(keyword.arg != "device_filters" for keyword in made):
                return True
        if isinstance(node, ast.Yield | ast.Raise):
            return True
    return False


def is_zero(node: ast.expr) -> bool:
    """True for `index == 0`."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.Eq):
        return False
    sides = (node.left, *node.comparators)
    return _has_zero(each.value for each in sides if isinstance(each, ast.Constant))


def _has_zero(values: Iterable[object]) -> bool:
    return any(value == 0 and value is not False for value in values)


def calls_act(node: ast.expr) -> bool:
    """True unless it is made of constants and names alone: `[...] if … else [...]`."""
    calls = (each for each in ast.walk(node) if isinstance(each, ast.Call))
    return any(_CALL.search(last_name(each.func)) for each in calls)


def names_decider(text: str) -> bool:
    """True for a name such as `is_chief` or `should_save`."""
    return _NAME.search(text) is not None


def comparisons(test: ast.expr) -> set[ast.AST]:
    return {node for node in ast.walk(test) if isinstance(node, ast.Compare)}


def is_decider(node: ast.expr) -> bool:
    return names_decider(last_name(node))


# ── addresses of this machine in what a script gives to its tasks ────────────


_OWN = re.compile(r"(?:\w+://)?(?:localhost|127\.0\.0\.1):\d+")


def own_addresses(value: ast.expr, literals: Mapping[str, ast.expr]) -> Iterator[tuple[str, int]]:
    """Each `localhost:PORT` in a value, with its line; `literals`: what names were assigned."""
    for node in ast.walk(value):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if _OWN.fullmatch(node.value):
                yield node.value, node.lineno
        elif isinstance(node, ast.Name) and isinstance(literals.get(node.id), ast.Dict | ast.List):
            yield from own_addresses(literals[node.id], {})


def is_tf_config(target: ast.expr) -> bool:
    """True for `os.environ["TF_CONFIG"]`."""
    return (
        isinstance(target, ast.Subscript)
        and isinstance(target.slice, ast.Constant)
        and target.slice.value == "TF_CONFIG"
    )
