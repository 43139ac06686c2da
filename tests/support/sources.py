"""The product's source, parsed once for all rules that are held against it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def walked(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parsed(path)))
