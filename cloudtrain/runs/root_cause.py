"""Finds the root cause of a failed attempt: one task; the others failed because of it."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from cloudtrain.run_record import Cause, Task
from cloudtrain.runs.gpu_hints import GPU_HINTS

LINES_SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Known facts about one task. 64 KiB of `log` are plenty.

    `started`: its port is open, or it has none to wait for. `joined`: False if it has ended and
    certainly never opened its port. `stopped`: this program stopped it, so its exit code means
    nothing. `ended` is Unix time; `oom`: the kernel's log has a line about it.
    """

    task: Task
    lost: bool = False
    preempted: bool = False
    frozen: bool = False
    started: bool = True
    joined: bool = True
    stopped: bool = False
    oom: bool = False
    exit_code: int | None = None
    """Negative for a signal; a shell's 128 + n means the same."""
    ended: float | None = None
    log: bytes = b""


def find_root_cause(observations: Sequence[Observation]) -> Cause | None:
    """Root cause of the attempt's failure, by kind and then by time; None if nothing failed."""
    failed = [seen for seen in observations if _rank(seen) < NOTHING]
    if not failed:
        return None
    first = min(failed, key=lambda seen: (_rank(seen), seen.ended or float("inf")))
    others = (seen for seen in failed if seen is not first and _rank(seen) != NOT_STARTED)
    return _cause(first, tuple(seen.task.name for seen in others))


def is_certain(observations: Sequence[Observation]) -> bool:
    """True if the cause is certain by now.

    If not, a worse one may still follow: exits that only report a lost peer come 4–20 s after the
    event, the peer's own may come later still.
    """
    return any(_rank(seen) < NOT_STARTED for seen in observations)


def is_retryable(cause: Cause, retry_exit_codes: Collection[int] = ()) -> bool:
    """True if another attempt is likely to succeed.

    Exit 42 is PreemptionCheckpointHandler's, 143 that of a process ended by SIGTERM. A task that
    only lost its peers, none of which failed, had its network cut. Other codes of 1–127 would fail
    again and only be billed again.
    """
    if cause.exit_code is not None and cause.exit_code in retry_exit_codes:
        return True
    if cause.kind in ("exit", "not_started"):
        return cause.exit_code in (42, 143) or _reports_lost_peer("\n".join(cause.last_lines))
    return cause.kind in {"lost", "frozen", "signal", "stalled"}


def sentence(cause: Cause) -> str:
    """Format `worker1 on mnist-worker1: killed by SIGKILL`; only the text if it is no single
    task's.
    """
    place = " on ".join(filter(None, (cause.task, cause.node)))
    return f"{place}: {cause.text}" if place else cause.text


def describe(cause: Cause) -> str:
    """The sentence, the task's last lines if they say more, and the tasks that failed after it."""
    lines = [sentence(cause)]
    lines += [f"  {line}" for line in cause.last_lines if line not in lines[0]]
    if cause.collateral:
        lines.append(f"failed after it: {', '.join(cause.collateral)}")
    return "\n".join(lines)


# ── Ranking ──────────────────────────────────────────────────────────────────

LOST, FROZEN, SIGNAL, EXIT, NOT_STARTED, COLLATERAL, NOTHING = range(7)


def _rank(seen: Observation) -> int:
    """Rank of a failure; smaller is nearer to the root."""
    if seen.lost or seen.preempted:
        return LOST
    if seen.frozen:
        return FROZEN
    if seen.exit_code is None:
        return NOTHING if seen.started else NOT_STARTED
    if seen.exit_code == 0 or seen.stopped:
        return NOTHING
    number = _signal_number(seen.exit_code)
    # TensorFlow may crash while it winds up after a peer's death.
    if number in (None, signal.SIGABRT, signal.SIGSEGV) and _reports_lost_peer(
        last_exception(seen.log)
    ):
        return COLLATERAL
    return EXIT if number is None else SIGNAL


def _signal_number(exit_code: int) -> int | None:
    number = -exit_code if exit_code < 0 else exit_code - 128
    return number if number in {known.value for known in signal.Signals} else None


_LOST_PEER = re.compile(
    r"Collective ops is aborted"
    r"|errors_impl\.(UnavailableError|AbortedError)"
    r"|stopped sending heartbeats"
    r"|Failed to send RPC to coordination service"
    r"|Horovod has been shut down|Horovod's rendezvous at \S+ does not answer"
    r"|gloo::|/gloo/\S+\.cc:\d+\]"
)


def _reports_lost_peer(text: str) -> bool:
    """True for messages of TensorFlow 2.21 and Horovod 0.28.1 after another task died, froze or
    was cut off: tests/data.
    """
    return _LOST_PEER.search(text) is not None


# ── Wording ──────────────────────────────────────────────────────────────────


def _cause(seen: Observation, collateral: tuple[str, ...]) -> Cause:
    code = seen.exit_code
    number = None if code is None else _signal_number(code)
    kind, text = _kind_and_text(seen, number)
    return Cause(
        task=seen.task.name,
        node=seen.task.node,
        kind=kind,
        text=text,
        exit_code=code if number is None else -number,
        last_lines=last_lines(seen.log),
        hint=hint_for(kind, seen.log, number, ended=code is not None),
        collateral=collateral,
    )


Kind = Literal["lost", "frozen", "oom", "signal", "not_started", "exit"]


def _kind_and_text(seen: Observation, number: int | None) -> tuple[Kind, str]:
    if seen.preempted:
        return "lost", f"its node {seen.task.node} was preempted"
    if seen.lost:
        return "lost", f"its node {seen.task.node} no longer answers"
    if seen.frozen:
        return "frozen", "its process is stopped (SIGSTOP) and makes no progress"
    if seen.exit_code is None:
        return "not_started", f"its port {seen.task.port} never opened"
    if number == signal.SIGKILL and seen.oom:
        return "oom", "the kernel killed it: out of memory"
    early = "" if seen.joined else " (before it joined the cluster)"
    if number is not None:
        return "signal", f"killed by {signal.Signals(number).name}{early}"
    reason = headline(seen.log)
    text = f"exit code {seen.exit_code}" + (f": {reason}" if reason else "")
    return "exit" if seen.joined else "not_started", text + early


_EXCEPTION = re.compile(r"(?:\w+\.)*(\w*(?:Error|Exception|Interrupt)\b.*)")
_FUNCTION_NODE = re.compile(r"\{\{function_node \S*\}\} ?")


def headline(log: bytes) -> str:
    """The line of a log that says why the program ended; empty if none does."""
    lines = last_exception(log).splitlines()
    for number, line in enumerate(lines):
        if found := _EXCEPTION.match(line):
            more = _graph_error(lines[number + 1 :]) if "Graph execution error" in line else ""
            return _FUNCTION_NODE.sub("", found[1] + more)[:200]
    last = lines[-1] if lines else ""
    return last[:200] if re.search(r"error|not found|can't open|denied", last, re.I) else ""


def _graph_error(lines: Sequence[str]) -> str:
    """Reorder TensorFlow's message, which has the operation's origin before the error."""
    about = re.compile(
        r"\s+File |Detected at |Node: |Stack trace|<stack traces|\d+ root error|\s*$"
    )
    return next((f" {line.strip()}" for line in lines if not about.match(line)), "")


def last_lines(log: bytes, count: int = LINES_SHOWN) -> tuple[str, ...]:
    """Last lines of the program's own output, without TensorFlow's."""
    lines = [line[:500] for line in last_exception(log).splitlines()]
    shown = lines[-count:]
    head = headline(log)
    if head and not any(head in line for line in shown):
        return (head, *shown[1:])
    return tuple(shown)


# ── Reading a log ────────────────────────────────────────────────────────────

_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_NATIVE = re.compile(
    r"[IWE]\d{4} \d\d:\d\d:|\d{4}-\d\d-\d\d [\d:.]+: [IWE] |WARNING: All log messages"
)
_NATIVE_MORE = re.compile(
    r"Additional GRPC error|:UNKNOWN:|This could happen if the remote|\t \[\[|To (enable|rebuild) "
)


def last_exception(log: bytes) -> str:
    """The last exception with those that it came from; without a traceback, the whole log.

    TensorFlow's native lines are skipped: they follow Python's traceback, and also report lost
    peers of a running program.
    """
    lines = _program_lines(log)
    starts = [number for number, line in enumerate(lines) if line == _TRACEBACK]
    if not starts:
        return "\n".join(lines)
    start = starts.pop()
    while starts and lines[start - 1] in _CHAINED:
        start = starts.pop()
    return "\n".join(lines[start:])


def _program_lines(log: bytes) -> list[str]:
    lines: list[str] = []
    native = ignored = False
    for raw in log.decode("utf-8", "replace").splitlines():
        # A progress bar rewrites its line: only its last state counts.
        line = re.split(r"[\r\b]+", raw.rstrip("\r\b"))[-1]
        native = bool(_NATIVE.match(line) or (native and _NATIVE_MORE.match(line)))
        if line.startswith("Exception ignored in"):
            ignored = True
        elif ignored and line != _TRACEBACK and not line.startswith(" "):
            ignored = False
        elif not (native or ignored or re.fullmatch(r"[\s^~]*", line)):
            lines.append(line)
    return lines


def _native_errors(log: bytes, count: int = LINES_SHOWN) -> list[str]:
    """Last error lines of TensorFlow itself: a crash leaves nothing else."""
    lines = log.decode("utf-8", "replace").splitlines()
    return [line for line in lines if _NATIVE_ERROR.match(line)][-count:]


_NATIVE_ERROR = re.compile(r"[EF]\d{4} \d\d:\d\d:|\d{4}-\d\d-\d\d [\d:.]+: [EF] ")


# ── What to do next ──────────────────────────────────────────────────────────

_LEGACY = "the script was written for Keras 2: set `setup.keras: legacy`"
_OLDER = 'TensorFlow no longer has this: set `setup.tensorflow: "2.15"`, or port the script'
_MEMORY = "use a smaller batch, or a machine with more memory (`nodes.….machine`)"

_HINTS: tuple[tuple[str, str], ...] = (
    (
        r"No module named '(?:tf_keras|tensorflow)'|do not have the tf_keras package"
        r"|Keras cannot be imported",
        "set `setup.tensorflow`, and `setup.keras: legacy` if the script uses Keras 2",
    ),
    (r"No module named 'tensorflow\.(contrib|examples|estimator)", _OLDER),
    (
        r"No module named 'tensorflow_core",
        'only TensorFlow 1.15 to 2.1 have it: set `setup.tensorflow: "2.1"`',
    ),
    (
        r"FILE based sharding|not enough for the required \d+ shards",
        "write more files than there are workers, or shard by element:"
        " `options.experimental_distribute.auto_shard_policy = AutoShardPolicy.DATA`",
    ),
    (
        r"No module named '([\w.]+)'",
        "add the package of `{0}` to `setup.packages`; if it is your own code, check `train.dir`",
    ),
    (r"TensorBoard is not installed", "add `tensorboard` to `setup.packages`"),
    (
        r"can't open file|can't cd to|(python\S*|sh): \S*.*not found",
        "check `train.command`, `train.dir` (inside the code) and what `code:` delivers",
    ),
    (
        r"site-packages/keras/[\s\S]*PerReplica",
        "Keras 3 cannot `fit` over several nodes: set `setup.keras: legacy`, and import"
        " `tensorflow.keras`, not `keras`",
    ),
    (
        r"type.*PerReplica'|create_per_worker_dataset",
        "Keras 3 cannot `fit` over several nodes: set `setup.keras: legacy`",
    ),
    (
        r"module 'keras[\w.]*' has no attribute|must end in `\.(?:weights\.h5|keras)`"
        r"|must end in \.keras|Cannot convert '.*' to a shape"
        r"|Invalid filepath extension for saving|`save_format` argument is deprecated"
        r"|Argument\(s\) not recognized: \{'lr'|keras/src/[\s\S]*unexpected keyword argument"
        r"|keras/src/[\s\S]*object has no attribute|object has no attribute '(reset_states|lr)'",
        _LEGACY,
    ),
    (
        r"module 'tensorflow' has no attribute '(estimator|contrib|Session|placeholder|app|flags"
        r"|logging|gfile|ConfigProto|layers|losses)'|experimental_run_v2|multi_gpu_model"
        r"|module 'tf_keras[\w.]*' has no attribute|make_one_shot_iterator|predict_classes",
        _OLDER,
    ),
    (r"decay is deprecated", 'use `tf.keras.optimizers.legacy`, or `setup.tensorflow: "2.10"`'),
    (
        r"(ckpt|model|variables|_temp)\S*; No such file or directory[\s\S]*SaveV2",
        "each ps writes its part of a checkpoint to its own disk: save with"
        " `experimental_io_device='/job:chief/task:0'`, or to storage that all nodes share",
    ),
    (
        r"Could not start gRPC server|Address already in use",
        "the port is in use on that node: choose another `train.port`, or remove the script's own"
        " TF_CONFIG",
    ),
    (
        r"ResourceExhausted|OOM when allocating|CUDA_ERROR_OUT_OF_MEMORY|MemoryError|bad_alloc",
        _MEMORY,
    ),
    (
        r"CUDA driver version is insufficient|CUDA_ERROR_NO_DEVICE|cuInit|libcuda",
        "the node's NVIDIA driver does not support this TensorFlow: choose another `image`",
    ),
    (r"No space left on device|Errno 28", "give the node more disk: raise `nodes.….disk_gb`"),
    (
        r"(?m)^\S*(?:sh|setsid|env|nohup): (?:.*: )?(\S+): Permission denied$",
        "the node's user may not execute `{0}`: make it executable, or use a program that every"
        " user can run",
    ),
    (
        r"Permission ?(denied|Error)|Errno 13",
        "write to `{{output}}` or to the task's own folder",
    ),
    (r"Read-only file system|Errno 30", "write to `{{output}}` or to the task's own folder"),
    (
        r"KeyError: '?TF_CONFIG",
        "this run has no TF_CONFIG: set `train.tf_config: true`, or add a worker",
    ),
    (
        r"KeyError: '(worker|chief|ps|master)'",
        "the script expects a `{0}` in TF_CONFIG: give that role nodes",
    ),
    (
        r"URL fetch failure|URLError|Name or service not known|CERTIFICATE_VERIFY_FAILED",
        "the node cannot download this: deliver it with the code, or fetch it in `setup.run`",
    ),
    (
        r"incompatible Protobuf|Descriptors cannot be created directly",
        'two packages need different protobuf versions: pin it in `setup.packages` ("protobuf<7")',
    ),
    (
        r"compiled using NumPy 1\.x|numpy\.dtype size changed|module 'numpy' has no attribute",
        'the code needs an older NumPy: add "numpy<2" (or "numpy<1.24") to `setup.packages`',
    ),
    (
        r"unrecognized arguments: (.*)",
        "the script does not accept `{0}`: check `train.command` and what follows `--`",
    ),
    (r"the following arguments are required: (.*)", "add `{0}` to `train.command`"),
    (
        r"Collective instance \d+ expected|Shape mismatch in the collective instance",
        "the tasks were at different steps, or had different models: set `train.checkpoints` to the"
        " folder of their checkpoints",
    ),
    (r"batch_size` .*divisible by", "choose a batch size divisible by the number of replicas"),
    (
        r"No such file or directory",
        "the path is missing on that node: deliver it with `code:`, or create it in `setup.run`",
    ),
)

_SIGNAL_HINTS = {
    signal.SIGKILL: "if the node ran out of memory, " + _MEMORY,
    signal.SIGILL: "this TensorFlow build needs AVX: choose another `machine`",
    signal.SIGSEGV: "a native crash: look for packages that are incompatible with this TensorFlow",
    signal.SIGABRT: "a native crash: its last lines are in the log",
}


def hint_for(
    kind: str, log: bytes, number: int | None = None, *, ended: bool = False
) -> str | None:
    """What to do next, for known messages; `number` is the signal that ended it."""
    if kind == "oom":
        return _MEMORY
    if kind in {"lost", "frozen"}:
        return None
    text = last_exception(log)
    # Without a traceback only the very end counts: a log of hours says "no such file" somewhere.
    text = text if _TRACEBACK in text else "\n".join(last_lines(log))
    for pattern, hint in (*GPU_HINTS, *_HINTS):
        if found := re.search(pattern, text):
            return hint.format(*found.groups())
    native = "\n".join(_native_errors(log))
    for pattern, hint in GPU_HINTS:
        if found := re.search(pattern, native):
            return hint.format(*found.groups())
    if kind in ("exit", "not_started") and _reports_lost_peer(text):
        return "no task failed by itself: check the network between the nodes"
    if kind == "not_started" and not ended:
        return "it may need more time to create its strategy: raise `train.start_timeout`"
    return _SIGNAL_HINTS.get(signal.Signals(number)) if number else None
