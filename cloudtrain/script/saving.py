"""Tells the calls by which TensorFlow writes checkpoints from where the variables are."""

from __future__ import annotations

import ast
from typing import Literal

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
