"""The product's source, parsed once for all rules that are held against it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

Node = TypeVar("Node", bound=ast.AST)

LEAVES = {str, int, type(None), ast.Load, ast.Store, ast.Del}


def parsed(path: Path) -> ast.Module:
    return _parsed(_real(path))


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


@cache
def _real(path: Path) -> Path:
    return path.resolve()


@cache
def text_of(path: Path) -> str:
    return path.read_text()


def walked(path: Path) -> Sequence[ast.AST]:
    """As `ast.walk` has them, in half its time; without contexts such as `ast.Load`."""
    return _walked(_real(path))


@cache
def _walked(path: Path) -> Sequence[ast.AST]:
    nodes: list[ast.AST] = [_parsed(path)]
    for node in nodes:  # which grows
        nodes.extend(children(node))
    return nodes


def nodes(path: Path, kind: type[Node]) -> Iterator[Node]:
    """Those of one kind, in the order of `walked`. Most rules look at a tenth of what there is."""
    yield from _by_kind(_real(path)).get(kind, ())  # type: ignore[misc]


@cache
def _by_kind(path: Path) -> dict[type[ast.AST], list[ast.AST]]:
    found: dict[type[ast.AST], list[ast.AST]] = {}
    for node in _walked(path):
        found.setdefault(type(node), []).append(node)
    return found


def children(node: ast.AST) -> list[ast.AST]:
    found: list[ast.AST] = []
    for value in vars(node).values():
        kind = type(value)
        if kind is list:
            found += [each for each in value if isinstance(each, ast.AST)]
        elif kind not in LEAVES and isinstance(value, ast.AST):
            found.append(value)
    return found
