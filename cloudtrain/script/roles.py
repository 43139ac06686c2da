"""Reads how a script learns its role: comparisons with `chief`, and the keys of TF_CONFIG."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from cloudtrain.script.facts import Use


@dataclass(kw_only=True)
class Roles:
    """Comparisons with the names of roles, by function."""

    only: dict[str, list[Use]] = field(default_factory=dict)
    """`chief`, `master` → comparisons with it alone."""
    spoken: set[str] = field(default_factory=set)
    """Roles that are compared with in any way."""
    first_worker: bool = False
    """Whether some function compares with 'worker' and with the index 0, or asks if there is a
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

    def compare(self, node: ast.Compare, file: str) -> None:
        sides = [node.left, *node.comparators]
        values = {value for side in sides for value in _constants(side)}
        named = {value for value in values if isinstance(value, str)} & {
            *("chief", "master", "worker"),
        }
        self.spoken |= named
        operator = node.ops[0]
        if isinstance(node.left, ast.Constant) and isinstance(operator, ast.In | ast.NotIn):
            self.first_worker = self.first_worker or "chief" in named
            return
        self._workers = self._workers or "worker" in named
        self._zeros = self._zeros or any(value == 0 and value is not False for value in values)
        self.first_worker = self.first_worker or (self._workers and self._zeros)
        if isinstance(operator, ast.Eq) and len(named) == 1:
            (role,) = named
            use = Use(name=role, file=file, line=node.lineno)
            self.only.setdefault(role, []).append(use)


def _constants(node: ast.expr) -> list[object]:
    if isinstance(node, ast.Constant):
        return [node.value]
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return [each.value for each in node.elts if isinstance(each, ast.Constant)]
    return []


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

    @contextmanager
    def guarded_by(self, test: ast.expr) -> Iterator[None]:
        """Keys that an `if` asks for are not required below it."""
        self._guards.append({n.value for n in ast.walk(test) if isinstance(n, ast.Constant)})
        try:
            yield
        finally:
            self._guards.pop()

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
        if asked & {path[-1] if path else "TF_CONFIG", "TF_CONFIG"}:
            return
        key = ".".join(path)
        self.found.setdefault(key, Use(name=key, file=self.file, line=line))

    def _path(self, node: ast.expr) -> Path | None:
        """The part of TF_CONFIG that an expression is; None if it is none, or not known."""
        if isinstance(node, ast.BoolOp):
            return self._path(node.values[0])
        if isinstance(node, ast.Name | ast.Attribute):
            return self._values.get(_shown(node))
        if isinstance(node, ast.Subscript):
            return _below(self._path(node.value), _key(node.slice))
        if not isinstance(node, ast.Call) or not node.args:
            return None
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            return _below(self._path(node.func.value), _key(node.args[0]))
        if getattr(node.func, "attr", getattr(node.func, "id", "")) == "loads":
            text = node.args[0]
            return () if _names_it(text) or _shown(text) in self._texts else None
        return None


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
