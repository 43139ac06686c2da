"""Values of one training run: its tasks, its attempts, and why one failed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Literal

from cloudtrain.core.codec import ANY_TEXT, UNIX_TIME
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.task_id import TaskId

ATTEMPT_NUMBER = {"ge": 0, "le": 10_000}
"""Metadata of an attempt's number. Bounded: the logs of all attempts up to it are looked for."""


@dataclass(frozen=True, kw_only=True)
class Task(TaskId):
    """One process of a run, on its node."""

    node: str
    port: int
    attempt: int = field(default=0, metadata=ATTEMPT_NUMBER)
    """Number of its current attempt, from 1; 0 before the first. Each task counts its own."""

    @property
    def name(self) -> str:
        return self.task


RunState = Literal["starting", "running", "landing", "succeeded", "failed", "stopped"]


Collectives = Literal["grpc"]
"""How the GPUs of several nodes exchange gradients."""


CauseKind = Literal[
    "lost",
    "frozen",
    "signal",
    "oom",
    "exit",
    "not_started",
    "stalled",
    "deadline",
    "expired",
    "budget",
    "not_clustered",
    "require",
]


@dataclass(frozen=True, kw_only=True)
class CauseFacts:
    """Facts that hold for every cause of one kind."""

    words: str = ""
    """Usual text, with the case's own facts in braces."""
    of_task: bool = True
    """False if no single task is the cause."""
    log: str | None = None
    """Pattern in the log's last exception by which an exit is of this kind, or a crash: one of
    root_cause.CRASHES (`words`: `{code}`); never of a task that was killed (SIGKILL, SIGTERM): what
    a node's kernel or host says is reported as `oom` is, by node/watcher.py to root_cause."""
    again: Literal["yes", "by_exit", "if_listed", "never"] = "if_listed"
    """Whether another attempt is likely to succeed. `by_exit`: by exit code and log;
    `if_listed`: only with an exit code of `train.retry_exit_codes`; `never`: not even then."""
    hangs: bool = False
    """True if no log shows it: stacks are dumped before the processes are stopped."""
    formed: bool = True
    """False if the cluster cannot have formed."""
    logged: bool = True
    """True if the task's log may say why."""
    hint: str | None = None
    """Advice if no message in the log has its own."""


CAUSES: Mapping[CauseKind, CauseFacts] = {
    "lost": CauseFacts(words="its node {node} {how}", again="yes", logged=False),
    "frozen": CauseFacts(
        words="its process is stopped (SIGSTOP) and makes no progress", again="yes", logged=False
    ),
    "signal": CauseFacts(words="killed by {signal}", again="yes"),
    "oom": CauseFacts(
        words="the kernel killed it: out of memory",
        logged=False,
        hint="use a smaller batch, or a machine with more memory (`nodes.….machine`)",
    ),
    "exit": CauseFacts(words="exit code {code}", again="by_exit"),
    "not_started": CauseFacts(
        words="its port {port} never opened", again="by_exit", hangs=True, formed=False
    ),
    "stalled": CauseFacts(
        words="no task wrote a log line for {quiet:.0f} s (train.stall_timeout)",
        again="yes",
        hangs=True,
    ),
    "deadline": CauseFacts(
        words="the run took longer than {limit:g} s (train.deadline)", hangs=True
    ),
    "expired": CauseFacts(
        words="the lifetime of its node {node} ends",
        again="never",  # and with its node the whole cluster
        logged=False,
        hint="set a longer limits.max_lifetime, then run `cloudtrain down`, `cloudtrain up` and "
        "`cloudtrain train --resume RUN`",
    ),
    "budget": CauseFacts(
        words="limits.budget of {limit:g} $ is spent",
        again="never",
        logged=False,
        of_task=False,
        hint="`cloudtrain up` begins a new budget, and `cloudtrain train --resume RUN` continues "
        "from the last landed checkpoint",
    ),
    "not_clustered": CauseFacts(
        words="the tasks never formed a cluster: {count} separate trainings",
        formed=False,
        logged=False,
        of_task=False,
        hint="create the strategy from TF_CONFIG before anything else; set `strategy: custom` for "
        "independent tasks, `train.tf_config: false` for a cluster formed by other means",
    ),
    "require": CauseFacts(
        words="the scripts succeeded, but no task created what artifacts.require lists: {files}",
        logged=False,
        of_task=False,
    ),
}
"""In the order of docs/failures.md: of two limits reached at once, the first is the cause."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Cause of a failed attempt: one task, what happened to it, and its last lines."""

    task: str
    """Empty, like `node`, if no single task is the cause."""
    node: str
    kind: CauseKind = field(metadata=ANY_TEXT)
    text: str
    exit_code: int | None = None
    """Exit code of the task; negative for a signal."""
    last_lines: tuple[str, ...] = ()
    hint: str | None = None
    collateral: tuple[str, ...] = ()
    """Tasks that failed because of this one."""
    lost_peer: bool = False
    """It only reports that it lost its peers, none of which failed: its network was cut."""
    finished_before: tuple[str, ...] = ()
    """Tasks that had ended with 0 while this one still needed them."""

    @property
    def facts(self) -> CauseFacts:
        """The facts of its kind; a kind of a later version is not tried again."""
        return CAUSES.get(self.kind, CauseFacts())


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """Reason for which a run that succeeded may not have done its work. It fails no run."""

    task: str
    kind: Literal["error", "checkpoint", "nothing"] = field(metadata=ANY_TEXT)
    """Its log ends in an error; a checkpoint is incomplete; it did nothing that can be seen."""
    text: str
    hint: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunAttempt:
    """One start of all tasks of a run together, up to its end and cause. It puts each task into the
    task's next attempt (`Task.attempt`). The numbers are the same unless a task was restarted
    alone."""

    number: int = field(metadata=ATTEMPT_NUMBER)
    """From 1."""
    started: float = field(metadata=UNIX_TIME)
    ended: float | None = field(default=None, metadata=UNIX_TIME)
    exits: Mapping[str, int] = field(default_factory=dict)
    """Task → exit code, negative for a signal."""
    cause: Cause | None = None
    clustered: bool | None = None
    """Whether all serving tasks have opened their ports; None if not known."""
    formed_after: float | None = None
    """Seconds from the start of the tasks until the last port was open."""
    collectives: Collectives | None = None
    """`grpc` if TensorFlow's log says that GPUs reduce gradients over gRPC; None if not known."""
    tolerated: tuple[Cause, ...] = ()
    """Failures that the run went on without: of its evaluator, of workers that may be lost."""
    restarted: tuple[Cause, ...] = ()
    """Failures after which that task alone was restarted, in order; recorded before it is."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Node → its internal address in the tasks' TF_CONFIG. Empty in records of earlier versions."""


@dataclass(frozen=True, kw_only=True)
class NodeProof:
    """Rates of a node, measured before training, in the run's last proof (runs/proof.py)."""

    node: str
    tflops: tuple[float, ...] = ()
    """TFLOP/s of a product of matrices, of each GPU (float16) or of the CPU (float32)."""
    tflops_listed: float | None = None
    """What NVIDIA lists for such a GPU."""
    gpus_gbytes: float | None = None
    """GB/s of an all-reduce between its GPUs; as `busbw` of nccl-tests, like all below."""
    gpus_gbytes_listed: float | None = None
    grpc_gbytes: float | None = None
    """GB/s of an all-reduce with the other nodes over gRPC, TensorFlow's default."""
    nccl_gbytes: float | None = None
    """The same with NCCL."""
    network_gbytes_listed: float | None = None
    """What the cloud lists for its network."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """All that tasks may import: the lock of a run, for later ones (config/project_files.py)."""

    roles: tuple[str, ...]
    python: str
    packages: tuple[str, ...]
    """`numpy==1.26.4`, or `name @ URL`; without those of folders, as the delivered code is."""


@dataclass(frozen=True, kw_only=True)
class ResumedFrom:
    """The landed checkpoint of another run, from which a run begins."""

    run: str
    store: str
    """URI of the store; that run's artifacts are below `<store>/<run>`."""
    step: str
    """The checkpoint as TensorFlow or Keras names it: `ckpt/ckpt-120`."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run over all its attempts. `id` sorts by time: `20261121-062404-k3f9`."""

    id: str
    cluster: str
    command: str
    """The line of each role that `commands` does not name."""
    state: RunState
    created: float = field(metadata=UNIX_TIME)
    ended: float | None = field(default=None, metadata=UNIX_TIME)
    exit_code: int | None = None
    """Exit code of `train`; set once the run has ended."""
    code: str = "none"
    """The code that ran: a commit, or the digest of a folder."""
    image: str = ""
    """The image of `setup.image` with its digest, of all nodes and attempts; "" without."""
    store: str | None = None
    """URI prefix under which this run's artifacts land."""
    resumed_from: ResumedFrom | None = None
    """Where an attempt begins as long as no checkpoint of this run has landed (`--resume`)."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """Role → its own line. An earlier version reads `command` alone."""
    tasks: tuple[Task, ...]
    """Each in its current attempt."""
    attempts: tuple[RunAttempt, ...] = ()
    proof: tuple[NodeProof, ...] = ()
    """What its nodes computed before training; empty without `setup.tensorflow`."""
    doubts: tuple[Doubt, ...] = ()
    """Only of a run that succeeded."""
    environments: tuple[Environment, ...] = ()
    """As its last attempt began; empty if `setup:` needs none."""
    written: Mapping[str, str] = field(default_factory=dict)
    """Role → its line with `${VAR}` for values, "" for all roles; only in this machine's record."""

    def __post_init__(self) -> None:
        """In a record of an earlier version each task is in the run's last attempt."""
        if self.attempts and not any(task.attempt for task in self.tasks):
            last = self.attempts[-1].number
            tasks = tuple(replace(task, attempt=last) for task in self.tasks)
            object.__setattr__(self, "tasks", tasks)

    def line(self, role: str) -> str:
        """The shell line of the role's tasks, with its placeholders."""
        return self.commands.get(role, self.command)

    def restarts_of(self, task: str) -> int:
        """Number of times that the task was restarted alone, over all attempts of the run."""
        return sum(cause.task == task for one in self.attempts for cause in one.restarted)

    @property
    def task_attempts(self) -> tuple[Task, ...]:
        """Each task in each of its attempts, by attempt."""
        last = max((task.attempt for task in self.tasks), default=0)
        return tuple(
            replace(task, attempt=number)
            for number in range(1, last + 1)
            for task in self.tasks
            if number <= task.attempt
        )

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        from html import escape  # slow to import, for its table of entities

        end = "" if self.exit_code is None else f", exit code {self.exit_code}"
        rows = {
            "run": f"{self.id} of {self.cluster}",
            "state": f"{self.state}{end}",
            "command": published(self).command,  # a notebook is passed on with its outputs
            "tasks": ", ".join(task.task for task in self.tasks),
            "attempts": str(len(self.attempts)),
            "started": utc(self.created),
            "ended": utc(self.ended),
            "artifacts": self.store or "none",
        }
        if self.resumed_from is not None:
            rows["resumed from"] = resumed(self.resumed_from)
        cells = (f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in rows.items())
        return f"<table>{''.join(cells)}</table>"


def resumed(source: ResumedFrom) -> str:
    """`ckpt/ckpt-120 of run 20261121-062404-k3f9`."""
    return f"{source.step} of run {source.run}"


def figure(number: float) -> str:
    """A rate, in three digits: `0.204`, `58.1`, `1250`."""
    return f"{number:.3g}" if number < 1000 else f"{number:.0f}"


def published(run: Run) -> Run:
    """The run as others may read it: `${VAR}` as written, and no key in a command."""
    from cloudtrain.node.key_shapes import without_keys  # slow: many patterns

    lines = {role: without_keys(run.written.get(role, line)) for role, line in run.commands.items()}
    line = without_keys(run.written.get("", run.command))
    return replace(run, command=line, commands=lines, written={})


def run_to_json(run: Run) -> dict[str, Any]:
    """The record as it is stored and printed; codec.decode reads it."""
    tasks = [{"name": task.name, **asdict(task)} for task in run.tasks]
    clustered = run.attempts[-1].clustered if run.attempts else None
    return {**asdict(run), "clustered": clustered, "tasks": tasks}


def utc(moment: float | None) -> str:
    """A Unix time as `2026-11-21 06:24:04 UTC`."""
    return "" if moment is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(moment))
