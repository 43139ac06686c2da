"""Names the tasks that had finished while another one still needed them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cloudtrain.core.words import some
from cloudtrain.training.log_text import own_frame

_OUT_OF_STEP = re.compile(
    r"Collective instance \d+ expected|Shape mismatch in the collective instance"
    r"|Barrier timed out|Barrier .*DEADLINE_EXCEEDED"
)
"""Messages of TensorFlow, beside those of a lost peer, that follow when a task has gone: the ranks
called different collectives, or one of them none any more (seen on 2.21.0)."""


def is_out_of_step(text: str) -> bool:
    return _OUT_OF_STEP.search(text) is not None


def finished_first(task: str, text: str, finished: Sequence[tuple[str, float]], *, ps: bool) -> str:
    """What to do about a task whose peers ended with 0 before it failed. `text`: its last
    exception; `finished`: their names, each with the seconds that it had ended before; `ps`:
    whether the run has parameter servers.

    Keras' `evaluate` and `save` call collectives on every rank:
    https://github.com/tensorflow/tensorflow/issues/38635, #36153, #37112 (a batch more), #31252.
    """
    frame = own_frame(text)
    names = some([name for name, _ in finished])
    first, last = min(ago for _, ago in finished), max(ago for _, ago in finished)
    span = f"{first:.0f} to {last:.0f}" if round(first) != round(last) else f"{last:.0f}"
    ended = f"{names} had finished (exit 0, {span} s before)"
    where = f" at {frame.place}" if frame is not None else ""
    if ps:
        return (
            f"{ended} while {task} still needed it{where}: a worker and a ps serve"
            " until the chief ends (`server.join()`)"
        )
    return (
        f"{ended} while {task} was still in a collective{where}: evaluate and save on"
        " every rank, or give every rank as many batches"
    )
