"""Advice on a failed task, for known messages in its log."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from functools import cache, partial
from pathlib import Path

from cloudtrain.core.run_record import CAUSES, CauseKind
from cloudtrain.core.yaml_table import pattern_of, read_table
from cloudtrain.training import log_text

_table = cache(partial(read_table, Path(__file__).with_name("hints.yaml")))

_MEMORY = CAUSES["oom"].hint or ""

_LOADING = re.compile(rb"'cuModuleLoadData\S* data\)' failed with '(CUDA_ERROR_\w+)'")
"""Why TensorFlow's kernels could not be loaded: it warns of that (kernel_gen's
tf_gpu_runtime_wrappers.cc), and its exception says only CUDA_ERROR_INVALID_HANDLE."""

# Also looked for among TensorFlow's own error lines, which a native crash alone leaves.
_NATIVE = (
    "cloud storage",
    "GPUs, CUDA and collectives",
    "system libraries and Python's version",
    "data and open files",
)

_SIGNAL_HINTS = {
    signal.SIGKILL: "if the node ran out of memory, " + _MEMORY,
    signal.SIGILL: "this TensorFlow build needs AVX: choose another `machine`",
    signal.SIGSEGV: "a native crash: look for packages that are incompatible with this TensorFlow",
    signal.SIGABRT: "a native crash: its last lines are in the log",
}


def hint_for(
    kind: CauseKind, log: bytes, number: int | None = None, *, ended: bool = False
) -> str | None:
    """Advice on a failed task, for known messages; `number` is the signal that ended the task."""
    if not CAUSES[kind].logged:
        return CAUSES[kind].hint
    text = log_text.last_exception(log)
    # Without a traceback only the very end counts: a log of hours says "no such file" somewhere.
    text = text if log_text.TRACEBACK in text else "\n".join(log_text.last_lines(log))
    native = "\n".join(log_text.native_errors(log))
    if "CUDA_ERROR_INVALID_HANDLE" in text and (loaded := _LOADING.findall(log)):
        text = f"{loaded[-1].decode()}\n{text}"
    if hint := _known(text, rows()) or _known(native, _NATIVE):
        return hint
    if kind in ("exit", "not_started") and log_text.reports_lost_peer(text):
        return "no task failed by itself: check the network between the nodes"
    if kind == "not_started" and not ended:
        return "it may need more time to create its strategy: raise `train.start_timeout`"
    known = _SIGNAL_HINTS.get(signal.Signals(number)) if number else None
    told = CAUSES[kind].log is not None
    return CAUSES[kind].hint if told else known or CAUSES[kind].hint


def _known(text: str, subjects: Iterable[str]) -> str | None:
    for pattern, hint in (row for subject in subjects for row in rows()[subject]):
        if found := re.search(pattern, text):
            return hint.format(*found.groups(), **texts())
    return None


@cache
def rows() -> Mapping[str, tuple[tuple[str, str], ...]]:
    """Pattern and hint of each row of hints.yaml, by subject."""
    return {
        name: tuple((pattern_of(row["if"]), row["hint"]) for row in listed)
        for name, listed in _table().items()
        if name != "texts"
    }


@cache
def texts() -> Mapping[str, str]:
    """Texts that hints name in braces."""
    from cloudtrain.catalog import cuda, gpus

    newest = "{}.{}".format(*gpus.NEWEST)
    return {
        **_table()["texts"],
        "memory": _MEMORY,
        "newest": newest,
        "driver": str(cuda.oldest_driver(newest, "H100")),
        "release": next(iter(cuda.needed("H100"))),
    }
