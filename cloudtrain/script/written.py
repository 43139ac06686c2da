"""Finds absolute paths that a script writes to."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

WRITES = frozenset(
    {
        *("save", "save_weights", "save_model", "export", "export_saved_model", "savefig"),
        *("ModelCheckpoint", "BackupAndRestore", "CheckpointManager", "TensorBoard", "CSVLogger"),
        *("create_file_writer", "FileWriter", "Estimator", "RunConfig", "savetxt", "savez"),
        *("to_csv", "to_pickle", "to_parquet"),
    }
)
"""Calls of TensorFlow, Keras, NumPy, Matplotlib and pandas that write where an argument says. What
`open` writes is as often a scratch file."""

_JOINS = frozenset({"join", "Path", "PosixPath", "str", "abspath", "expanduser"})


def written(
    node: ast.Call, name: str, literals: Mapping[str, ast.expr]
) -> Iterator[tuple[str, int]]:
    """Each path that a call writes to, with its line. `literals`: what names were assigned."""
    if name not in WRITES:
        return
    places = [*node.args, *(each.value for each in node.keywords)]
    for place in places:
        path = beginning(place, literals)
        if path is not None and path.startswith("/") and path.strip("/"):
            yield path, node.lineno


def beginning(value: ast.expr, literals: Mapping[str, ast.expr], depth: int = 8) -> str | None:
    """The text with which a value begins, as far as it is constant; None if that is computed."""
    if depth == 0:
        return None
    if isinstance(value, ast.Constant):
        return value.value if isinstance(value.value, str) else None
    if isinstance(value, ast.Name) and value.id in literals:
        return beginning(literals[value.id], literals, depth - 1)
    if isinstance(value, ast.JoinedStr) and value.values:
        return beginning(value.values[0], literals, depth - 1)
    if isinstance(value, ast.BinOp):
        return beginning(value.left, literals, depth - 1)
    if isinstance(value, ast.Call):
        function = value.func
        name = getattr(function, "attr", getattr(function, "id", ""))
        if name == "format" and isinstance(function, ast.Attribute):
            return beginning(function.value, literals, depth - 1)
        if name in _JOINS and value.args:
            return beginning(value.args[0], literals, depth - 1)
    return None
