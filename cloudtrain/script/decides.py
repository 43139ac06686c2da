"""Tells what of consequence follows a comparison with a role: who saves, not who is logged."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

_NAME = re.compile(r"chief|master|main|primary|leader|lead|first|should|save", re.IGNORECASE)
_CALL = re.compile(
    r"save|write|export|dump|checkpoint|ckpt|mkdir|makedirs|open|copy|upload|summary|train|fit|run"
    r"|evaluate|eval|session|restore|load|callback|manager|append|join|serve|start",
    re.IGNORECASE,
)


def branch(body: Sequence[ast.stmt]) -> bool:
    """True unless the statements only set values: device filters, names for a log."""
    for node in (each for statement in body for each in ast.walk(statement)):
        if isinstance(node, ast.Call) and _CALL.search(_called(node)):
            return True
        if isinstance(node, ast.Assign) and any(name(shown(each)) for each in node.targets):
            return True
        if isinstance(node, ast.Return) and not _is_setting(node.value):
            return True
        if isinstance(node, ast.Yield | ast.Raise):
            return True
    return False


def _is_setting(value: ast.expr | None) -> bool:
    """True for a list, and for `ConfigProto(device_filters=[…])` of the AI Platform samples."""
    if isinstance(value, ast.Call):
        return any(keyword.arg == "device_filters" for keyword in value.keywords)
    return isinstance(value, ast.List | ast.Tuple)


def is_zero(node: ast.expr) -> bool:
    """True for `index == 0`."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.Eq):
        return False
    sides = [
        each.value for each in (node.left, *node.comparators) if isinstance(each, ast.Constant)
    ]
    return any(value == 0 and value is not False for value in sides)


def value(node: ast.expr) -> bool:
    """True unless it is made of constants and names alone: `[...] if … else [...]`."""
    calls = (each for each in ast.walk(node) if isinstance(each, ast.Call))
    return any(_CALL.search(_called(each)) for each in calls)


def name(text: str) -> bool:
    """True for a name such as `is_chief` or `should_save`."""
    return _NAME.search(text) is not None


def comparisons(test: ast.expr) -> set[ast.AST]:
    return {node for node in ast.walk(test) if isinstance(node, ast.Compare)}


def shown(node: ast.expr) -> str:
    """`is_chief` of `self.is_chief`."""
    return getattr(node, "attr", getattr(node, "id", ""))


def _called(node: ast.Call) -> str:
    return shown(node.func)
