"""The product's source, parsed once for all rules that are held against it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache
from pathlib import Path

LEAVES = {str, int, type(None), ast.Load, ast.Store, ast.Del}


def parsed(path: Path) -> ast.Module:
    return _parsed(path.resolve())


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def walked(path: Path) -> Sequence[ast.AST]:
    """As `ast.walk` has them, in half its time; without contexts such as `ast.Load`."""
    return _walked(path.resolve())


@cache
def _walked(path: Path) -> Sequence[ast.AST]:
    nodes: list[ast.AST] = [_parsed(path)]
    for node in nodes:  # which grows
        nodes.extend(children(node))
    return nodes


def children(node: ast.AST) -> list[ast.AST]:
    found: list[ast.AST] = []
    for value in vars(node).values():
        kind = type(value)
        if kind is list:
            found += [each for each in value if isinstance(each, ast.AST)]
        elif kind not in LEAVES and isinstance(value, ast.AST):
            found.append(value)
    return found
