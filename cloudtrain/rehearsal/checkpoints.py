"""Tells whether a script saves checkpoints while it trains, by its source; pure."""

from __future__ import annotations

from dataclasses import dataclass

from cloudtrain.script.facts import ScriptFacts

SAVING = frozenset(
    (
        *("ModelCheckpoint", "BackupAndRestore", "CheckpointManager", "Checkpoint", "Saver"),
        *("PreemptionCheckpointHandler", "CheckpointSaverHook", "MonitoredTrainingSession"),
    )
)
"""Last parts of TensorFlow's and Keras's names with which a training saves as it goes."""


@dataclass(frozen=True, kw_only=True)
class Saving:
    """Means by which a script saves checkpoints."""

    use: str | None
    """`train.py:64: ModelCheckpoint`; None: with nothing of TensorFlow or Keras."""


def saving_in(facts: ScriptFacts | None) -> Saving | None:
    """None if the source is not known, or not all of it can be read."""
    if facts is None or facts.unreadable:
        return None
    for use in facts.names:
        last = use.name.rpartition(".")[2]
        if last in SAVING or ".estimator." in use.name:
            return Saving(use=f"{use}: {last}")
    return Saving(use=None)
