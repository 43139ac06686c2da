"""Finds addresses of this machine in what a script gives to its tasks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

_OWN = re.compile(r"(?:\w+://)?(?:localhost|127\.0\.0\.1):\d+")


def own(value: ast.expr, literals: Mapping[str, ast.expr]) -> Iterator[tuple[str, int]]:
    """Each `localhost:PORT` in a value, with its line; `literals`: what names were assigned."""
    for node in ast.walk(value):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if _OWN.fullmatch(node.value):
                yield node.value, node.lineno
        elif isinstance(node, ast.Name) and isinstance(literals.get(node.id), ast.Dict | ast.List):
            yield from own(literals[node.id], {})


def is_tf_config(target: ast.expr) -> bool:
    """True for `os.environ["TF_CONFIG"]`."""
    return (
        isinstance(target, ast.Subscript)
        and isinstance(target.slice, ast.Constant)
        and target.slice.value == "TF_CONFIG"
    )
