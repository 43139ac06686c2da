"""Resolves a script's names by its imports: `tf.keras` is `tensorflow.keras`."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Aliases:
    """Meanings of the names of one module."""

    targets: dict[str, str] = field(default_factory=dict)
    unsure: set[str] = field(default_factory=set)
    """Names with more than one meaning in the module."""

    def add(self, name: str, target: str) -> None:
        if self.targets.setdefault(name, target) != target:
            self.unsure.add(name)

    def resolve(self, node: ast.expr) -> tuple[str, bool]:
        """Full name of `a.b.c` and whether it is the only possible one; "" if `a` is no import."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.targets:
            return "", False
        whole = ".".join([self.targets[node.id], *reversed(parts)])
        return canonical(whole), node.id not in self.unsure


def canonical(name: str) -> str:
    """The public name: TensorFlow 1.15 to 2.1 also has its modules as `tensorflow_core`, and every
    release as `tensorflow.compat.v2`."""
    for old in ("tensorflow_core.", "tensorflow.compat.v2."):
        if name.startswith(old):
            return f"tensorflow.{name[len(old) :]}"
    return name


def aliases(tree: ast.Module, package: str) -> Aliases:
    """All imports of the module, at any depth, and assignments such as `tf = tf.compat.v1`."""
    found = Aliases()
    assigned: list[tuple[str, ast.expr]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                root = each.name.partition(".")[0]
                found.add(each.asname or root, each.name if each.asname else root)
        elif isinstance(node, ast.ImportFrom):
            module = absolute(node, package)
            for each in node.names:
                found.add(each.asname or each.name, f"{module}.{each.name}")
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name) and isinstance(node.value, ast.Attribute):
                assigned.append((target.id, node.value))
    for name, value in assigned:
        whole, _ = found.resolve(value)
        if whole:
            found.add(name, whole)
    return found


def last_name(node: ast.AST) -> str:
    """`fit` of `model.fit` or `fit`; "" of what is no name."""
    return getattr(node, "attr", getattr(node, "id", ""))


def absolute(node: ast.ImportFrom, package: str) -> str:
    """Module of a `from … import`; `package` is the one that a relative import starts in."""
    if not node.level:
        return node.module or ""
    parts = package.split(".") if package else []
    above = parts[: len(parts) - (node.level - 1)] if node.level > 1 else parts
    return ".".join([*above, *([node.module] if node.module else [])])
