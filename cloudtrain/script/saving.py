"""Finds what a script writes: checkpoints from where the variables are, and absolute paths."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Literal

from cloudtrain.script.names import last_name

Way = Literal["object", "graph"]
"""`object`: parts of chief and ps are merged on one of them, which fails. `graph`: TensorFlow 1,
whose data and index stay on the ps (docs/artifacts.md has what was run)."""

_OBJECT = (
    *(".callbacks.ModelCheckpoint", ".train.CheckpointManager"),
    *(".callbacks.BackupAndRestore", ".callbacks.experimental.BackupAndRestore"),
)
_GRAPH = (".train.MonitoredTrainingSession", ".train.Saver")
_WHOLE = (".h5", ".hdf5", ".keras")
"""Files that Python writes, on the chief."""

CHECKPOINT = (".train.Checkpoint", ".train.experimental.Checkpoint")
"""Often made only to restore: what counts is `save` or `write` of it."""

READS_BACK = frozenset(
    {"export_saved_model", "export_savedmodel", "experimental_export_all_saved_models"}
)


def way(name: str, node: ast.Call) -> Way | None:
    """Way in which a call of that full name saves; None if it does not, or not from the ps."""
    keywords = {each.arg: each.value for each in node.keywords}
    if None in keywords:  # **options
        return None
    kind = way_of(name)
    if name.endswith(CHECKPOINT):
        return None
    if kind == "object":
        texts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
        whole = any(isinstance(text, str) and text.endswith(_WHOLE) for text in texts)
        return None if whole or "options" in keywords else kind
    if name.endswith(".train.Saver"):
        sharded = keywords.get("sharded")
        return kind if isinstance(sharded, ast.Constant) and sharded.value is True else None
    if name.endswith(".MonitoredTrainingSession"):
        return kind if "checkpoint_dir" in keywords else None
    if ".estimator." in name and not name.endswith(".train_and_evaluate"):
        return kind if "model_dir" in keywords else None
    return kind


def way_of(name: str) -> Way | None:
    """Way in which that class or function saves, whatever its arguments; None if it does not."""
    if name.endswith((*_OBJECT, *CHECKPOINT)):
        return "object"
    return "graph" if name.endswith(_GRAPH) or ".estimator." in name else None


# ── absolute paths that a script writes to ───────────────────────────────────


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
        name = last_name(function)
        if name == "format" and isinstance(function, ast.Attribute):
            return beginning(function.value, literals, depth - 1)
        if name in _JOINS and value.args:
            return beginning(value.args[0], literals, depth - 1)
    return None
