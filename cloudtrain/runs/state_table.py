"""The one state table of run, task and node: what was seen and recorded → the next step. Pure.

A command sees one `Seen` per node, takes the step that `next_step` names, and looks again. A step
is taken once by each command, so that every command ends after at most `len(STEPS)` steps; the next
command begins anew with what it sees. docs/internals/states.md is generated from this module."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.model import NodeState
from cloudtrain.core.run_record import Run

NodeSeen = Literal["running", "starting", "stopped", "away", "untrusted", "gone"]
"""`away`: it does not answer. `untrusted`: it answers with another host key."""

TaskSeen = Literal["unasked", "absent", "running", "frozen", "exited", "lost"]
"""Any process of any task of the cluster on this node. `unasked`: not known by this command;
`running` and `frozen` beside a run that has ended are orphans."""

RunRecorded = Literal["none", "starting", "running", "landing", "ended"]
"""State of the cluster's active run, else `ended` if it had one."""

Record = Literal["there", "lost", "without_keys"]
"""`lost`: runs without a readable record. `without_keys`: the SSH keys are on another machine."""

Files = Literal["unasked", "landed", "unlanded"]
"""Files of the node. `unlanded`: this command tried, and some are still only there."""

Command = Literal["down", "down --discard", "stop-run", "attend", "start", "finish"]
"""`start`: before the tasks of an attempt start. `finish`: the landing at a run's end."""

Step = Literal[
    "start_node",
    "await_node",
    "supervise",
    "stop_run",
    "finish_run",
    "end_orphans",
    "land",
    "keep",
    "start_tasks",
    "nothing",
    "destroy",
]

STEPS: dict[Step, str] = {
    "start_node": "start the stopped node, whose disk is unchanged",
    "await_node": "wait until the node that is starting runs, or the one that is away answers",
    "supervise": "start or follow the attempt, to its end",
    "stop_run": "ask the run to stop and supervise it to its end",
    "finish_run": "land what the run created and record its outcome",
    "end_orphans": "end every task that still runs on a node that answers",
    "land": "compare the nodes with the store and land what is missing",
    "keep": "keep the nodes and name what is only there",
    "start_tasks": "start the attempt's tasks",
    "nothing": "nothing left to do",
    "destroy": "delete everything and list what is left",
}
"""In the order in which a command takes them if its nodes call for different ones: nothing is
destroyed as long as one node calls for anything else."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Facts that a command has seen of one node and found on record."""

    node: NodeSeen
    task: TaskSeen = "unasked"
    run: RunRecorded
    record: Record = "there"
    files: Files = "unasked"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A step for all combinations that have one of the named values; empty: any value."""

    step: Step
    why: str
    node: tuple[NodeSeen, ...] = ()
    task: tuple[TaskSeen, ...] = ()
    run: tuple[RunRecorded, ...] = ()
    record: tuple[Record, ...] = ()
    files: tuple[Files, ...] = ()

    def matches(self, seen: Seen) -> bool:
        return (
            (not self.node or seen.node in self.node)
            and (not self.task or seen.task in self.task)
            and (not self.run or seen.run in self.run)
            and (not self.record or seen.record in self.record)
            and (not self.files or seen.files in self.files)
        )


ACTIVE: tuple[RunRecorded, ...] = ("starting", "running")
MAY_WRITE: tuple[TaskSeen, ...] = ("unasked", "running", "frozen")

_ORPHANS = Rule(
    step="end_orphans",
    why="a task may still write: its node was away when its run ended",
    task=MAY_WRITE,
)
_AWAY = Rule(step="await_node", why="it may be away for a moment only", node=("away",))
_FINISH = Rule(step="finish_run", why="the tasks have ended, the landing has not", run=("landing",))

RULES: dict[Command, tuple[Rule, ...]] = {
    "down": (
        Rule(step="destroy", why="there is no disk left to land from", node=("gone",)),
        Rule(step="destroy", why="everything has landed", files=("landed",)),
        Rule(step="keep", why="nothing can be landed without the keys", record=("without_keys",)),
        Rule(
            step="destroy",
            why="no task ever ran: a run is on record before its first task starts",
            task=("unasked", "absent"),
            run=("none",),
            record=("there",),
        ),
        Rule(step="start_node", why="its disk may have unlanded files", node=("stopped",)),
        Rule(step="await_node", why="it answers once it runs", node=("starting",)),
        Rule(step="stop_run", why="the run is active", run=ACTIVE),
        _FINISH,
        _AWAY,
        _ORPHANS,
        Rule(step="land", why="tasks have ended; files may be only there", files=("unasked",)),
        Rule(step="keep", why="what is only there could not be landed now"),
    ),
    "down --discard": (Rule(step="destroy", why="the user said so"),),
    "stop-run": (
        Rule(step="stop_run", why="the run is active", run=ACTIVE),
        _FINISH,
        Rule(step="nothing", why="no node, no task", node=("gone",)),
        Rule(
            step="nothing",
            why="no task ever ran",
            task=("unasked", "absent"),
            run=("none",),
            record=("there",),
        ),
        _AWAY,
        _ORPHANS,
        Rule(
            step="land",
            why="a task was ended after its run, and wrote until then",
            task=("exited", "lost"),
            files=("unasked",),
        ),
        Rule(step="nothing", why="no task runs"),
    ),
    "attend": (
        Rule(step="supervise", why="the run is active", run=ACTIVE),
        _FINISH,
        Rule(step="nothing", why="no run is active"),
    ),
    "start": (
        _ORPHANS,
        Rule(step="start_tasks", why="no task of an earlier attempt or run is left"),
    ),
    "finish": (
        _ORPHANS,
        Rule(step="land", why="no task writes any more", files=("unasked",)),
        Rule(step="nothing", why="everything has landed", files=("landed",)),
        Rule(step="keep", why="what is only there could not be landed now"),
    ),
}
"""The first rule that matches, and whose step the command has not taken yet, is the next step. The
last rule of each command matches everything."""


def rule_for(command: Command, seen: Seen, taken: Iterable[Step] = ()) -> Rule:
    """The rule that names a node's next step; `taken` are the steps that this command has taken."""
    rules, gone = RULES[command], frozenset(taken)
    return next((rule for rule in rules if rule.matches(seen) and rule.step not in gone), rules[-1])


def next_step(command: Command, nodes: Iterable[Seen], taken: Iterable[Step] = ()) -> Step:
    """The next step of a command for all its nodes, of which there is at least one (`gone` where
    none is listed): the first in the order of STEPS."""
    gone, order = frozenset(taken), list(STEPS)
    steps = {rule_for(command, seen, gone).step for seen in nodes}
    return min(steps, key=order.index)


def take_steps(
    command: Command, see: Callable[[], Iterable[Seen]], take: Callable[[Step], None]
) -> Step:
    """Take the command's steps, looking again before each, and return its last one, not taken:
    `keep`, `destroy`, `nothing` or `start_tasks`."""
    taken: list[Step] = []
    while (step := next_step(command, see(), taken)) not in LAST:
        take(step)
        taken.append(step)
    return step


LAST: tuple[Step, ...] = ("keep", "start_tasks", "nothing", "destroy")
"""Steps that end a command."""


def node_seen(state: NodeState) -> NodeSeen:
    """A node as its provider lists it."""
    return "away" if state == "unknown" else state


def run_recorded(run: Run | None, had_one: bool = False) -> RunRecorded:
    """State on record of the active run, None if there is none."""
    if run is None:
        return "ended" if had_one else "none"
    if run.state in ("starting", "running", "landing"):
        return run.state
    return "ended"


def of_run(command: Command, run: Run, task: TaskSeen = "unasked") -> Step:
    """The step that follows from a run's record, as on a node that answers."""
    return next_step(command, [Seen(node="running", task=task, run=run_recorded(run))])
