"""MultiWorkerMirroredStrategy: all tasks train in step, each on its part of every batch."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from cloudtrain.training.strategy import Counts, Strategy


def _missing(counts: Counts, named: Collection[str]) -> Iterator[tuple[str, str]]:
    if "chief" not in named:
        yield (
            "chief",
            "one node must be the chief, which saves the model (`chief: false`: worker 0 does)",
        )
    elif not counts.get("chief") and not counts.get("worker"):
        yield "worker", "without a chief, at least one worker is needed"


MULTI_WORKER_MIRRORED = Strategy(
    name="multi_worker_mirrored",
    example={"chief": 1, "worker": 2},
    roles=("chief", "worker", "evaluator"),
    missing=_missing,
    misplaced={"ps": "with a ps, the chief would wait forever (ps is for parameter_server)"},
    tf_config=True,
    serves=("chief", "worker"),
    all_reduces=True,
    # Only the chief has BackupAndRestore's file: the others would start at another epoch and fail.
    restart="all_anew",
    uses=("tensorflow.*.MultiWorkerMirroredStrategy", "tensorflow.*.CollectiveAllReduceStrategy"),
    keras_3="fit_fails",
)
