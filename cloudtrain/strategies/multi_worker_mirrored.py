"""MultiWorkerMirroredStrategy: every task trains in step, each on its part of every batch."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from cloudtrain.strategies.strategy import Counts, Strategy


def _missing(counts: Counts, named: Collection[str]) -> Iterator[tuple[str, str]]:
    if "chief" not in named:
        yield (
            "chief",
            "one node is the chief, which saves the model (`chief: false` makes worker 0 do it)",
        )
    elif not counts.get("chief") and not counts.get("worker"):
        yield "worker", "without a chief there must be a worker"


MULTI_WORKER_MIRRORED = Strategy(
    name="multi_worker_mirrored",
    example={"chief": 1, "worker": 2},
    roles=("chief", "worker", "evaluator"),
    missing=_missing,
    misplaced={"ps": "a ps makes the chief wait for ever (it is for parameter_server)"},
    tf_config=True,
    serves=("chief", "worker"),
    # Only the chief has BackupAndRestore's file: the others would begin at another epoch, and die.
    restart="all_anew",
    keras_3="fit_fails",
)
