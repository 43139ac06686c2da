"""Nodes that end themselves when nobody attends: what their agents get, and how a run is taken up.

`limits.idle` is kept by a process of this machine. Should that be off, the agents on the nodes wait
`GRACE` longer, land what there is and shut their machines down (node/own_end.py), where the cloud
then bills them no more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from cloudtrain.artifacts import own_ends
from cloudtrain.artifacts.inventory import json_line, last_line
from cloudtrain.artifacts.landing import own_manifests
from cloudtrain.artifacts.own_ends import Mark, OverRequests
from cloudtrain.artifacts.spool import can_spool
from cloudtrain.cluster.lifetime import moment
from cloudtrain.cluster.plan import deciding_tasks
from cloudtrain.cluster.session import Session, artifact_store
from cloudtrain.core import moments, paths
from cloudtrain.core.cloud import cloud_of
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.events import (
    OwnEndsArmed,
    last_started,
    last_use,
    nodes_standing,
    runs_begun,
)
from cloudtrain.core.events import own_ends as armed_on_record
from cloudtrain.core.model import ClusterConfig, Node
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.paths import some
from cloudtrain.core.run_record import Run, Task
from cloudtrain.core.shell import script
from cloudtrain.core.ship import Program, program
from cloudtrain.node.client import KEEPING, UNSEEN
from cloudtrain.node.formats import OVER_MARK
from cloudtrain.runs.state_machine import grace_after_success
from cloudtrain.runs.tasks import ingest_left_spools
from cloudtrain.state import Records
from cloudtrain.training.strategies import strategy_of

GRACE = 600.0
"""Seconds that agents wait beyond `limits.idle`, in which the idle process of a client that is
there has landed everything and deletes the nodes."""

LOOK = 5.0
"""Seconds between two looks of an agent at its machine."""

MACHINE = {"proc": "/proc", "shutdown": ["sudo", "-n", "shutdown", "-P", "now"]}
"""How an agent looks at its machine, and ends it."""


def wanted(config: ClusterConfig) -> OwnEndsArmed:
    """The way in which the config's nodes end themselves. Not those of a cloud that would bill
    them on, nor the hosts of TPUs, of which no document says what their shutdown does."""
    cloud, limits = cloud_of(config.provider), config.limits
    if cloud is None or cloud.shutdown_leaves is None or strategy_of(config).tpus:
        return OwnEndsArmed()
    idle = None if limits.idle is None else limits.idle + GRACE
    return OwnEndsArmed(idle=idle, gpu=limits.idle_gpu)


def said_of_their_ends(config: ClusterConfig) -> str:
    """Say what ends the nodes of a cloud if this machine is off, to follow a sentence on that."""
    cloud = cloud_of(config.provider)
    if cloud is None:
        return ""
    if wanted(config).idle is None:
        return "; if this machine is off, only limits.max_lifetime ends them"
    left = f"; {cloud.shutdown_leaves} is billed until `down`" if cloud.shutdown_leaves else ""
    return f"; if this machine is off, the nodes end themselves {GRACE / 60:.0f} min later{left}"


def over_requests(session: Session, run: Run, expires_in: float) -> dict[str, OverRequests]:
    """Presigned requests for the marks by which the tasks that decide the run say that they have
    ended; none if no agent ends its machine. Raises StoreError."""
    if not wanted(session.config).is_on:
        return {}
    deciding = deciding_tasks(run.tasks, session.config)
    tasks = [task for task in run.tasks if task.name in deciding]

    def presign(task: Task) -> OverRequests:
        return own_ends.over_requests(session.store, run, task, expires_in)

    made = fan_out(tasks, presign, name=lambda task: task.name)
    return {task.name: each for task, each in zip(tasks, made, strict=True)}


def order_of(
    session: Session,
    run: Run,
    task: Task,
    over: Mapping[str, OverRequests],
    expires_in: float,
) -> dict[str, Any] | None:
    """The agent's order to end its machine; None if it does not. Contains presigned requests and
    a key: only for its stdin. `over`: see `over_requests`. Raises StoreError."""
    ends = wanted(session.config)
    if not ends.is_on:
        return None
    deciding = deciding_tasks(run.tasks, session.config)
    others = {each.name: each for each in run.tasks if each.name in deciding - {task.name}}
    return {
        **MACHINE,
        "look": LOOK,
        **own_ends.requests(session.store, run, task, over, others, expires_in),
        "idle": ends.idle,
        "gpu": ends.gpu,
        # An evaluator scores the last checkpoint, for as long as a client would let it.
        "grace": grace_after_success(session.config, task) if task.role == "evaluator" else 0.0,
        "runs": "../..",
        "run": run.id,
        "task": task.name,
        "attempt": task.attempt,
        "decides": task.name in deciding,
        "key": own_ends.key_of(session.records.folder, run.id),
    }


def watch_unused(session: Session, nodes: Sequence[Node]) -> None:
    """Start an agent on each of these nodes, which no run has used yet."""
    ends, watcher = wanted(session.config), program("own_end")
    order: dict[str, Any] = {
        **MACHINE,
        "look": LOOK,
        "idle": ends.idle,
        "gpu": ends.gpu,
        "runs": "runs",
        "run": "",
        "task": "",
        "attempt": 0,
        "decides": True,
        "key": "",
        "others": {},
        "over": None,
        "end": None,
    }
    told = {
        "folder": paths.cluster_folder(session.config.name),
        "tick": 1.0,
        "alone": order if ends.is_on else None,
    }
    start_on_nodes(
        session,
        watcher,
        [(node.name, node) for node in nodes],
        lambda _: told,
        lack="nodes that do not end themselves when idle: ",
    )


def start_on_nodes(
    session: Session,
    program: Program,
    nodes: Sequence[tuple[str, Node]],
    order: Callable[[tuple[str, Node]], Mapping[str, Any] | None],
    *,
    lack: str,
) -> None:
    """Start this program of an agent on each node that gets an order. Warn of the others, by the
    name that stands with them, after `lack`; and of nodes whose agents could not see their client,
    so that they do not end them."""
    unseen: list[str] = []

    def begin(item: tuple[str, Node]) -> str | None:
        name, node = item
        try:
            if (told := order(item)) is None:
                return None
            stdin = program.source + json_line(told)
            done = session.transport.run(node, program.command, stdin=stdin, timeout=60.0)
        except CloudtrainError as error:
            return f"{name}: {error.message}"
        if done.stdout.strip() == UNSEEN:
            unseen.append(node.name)
        elif done.stdout.strip() != KEEPING:
            return f"{name}: {last_line(done.stderr, done.exit_code)}"
        return None

    failures = [why for why in fan_out(nodes, begin, name=lambda item: item[1].name) if why]
    if failures:
        session.console.warn(f"{lack}{'; '.join(failures[:3])}")
    if unseen:
        session.console.warn(
            f"{some(sorted(unseen))}: will not end by itself when idle, as it cannot be seen there "
            "who is connected: is its SSH server OpenSSH?"
        )


def keep_connected(session: Session) -> None:
    """Open a connection to each running node, which stays open as long as this command, however
    long that waits for other nodes: their agents see by it that somebody attends."""
    if armed_on_record(session.records.events()) is None:
        return

    def connect(node: Node) -> None:
        with suppress(CloudtrainError):  # what needs the node says why it does not answer
            session.transport.run(node, script(":"), timeout=60.0)

    running = [node for node in session.nodes if node.state == "running"]
    fan_out(running, connect, name=lambda node: node.name)


def record(session: Session) -> None:
    """Record how the nodes end themselves, if that has changed."""
    ends, known = wanted(session.config), armed_on_record(session.records.events())
    if ends != (known or OwnEndsArmed()):
        session.records.journal(ends)


def record_if_on(session: Session) -> None:
    """The same before agents start that may end their nodes: should this process be killed."""
    if wanted(session.config).is_on:
        record(session)


# ── what a later command finds ─────────────────────────────────────────────────


def ended_nodes(session: Session, run: Run) -> tuple[Session, Mapping[str, Mark]]:
    """The session without nodes that ended themselves once everything on them had landed, and by
    task what their agents said last. What they stored is landed here first. Raises StoreError."""
    events = session.records.events()
    if armed_on_record(events) is None:
        return session, {}
    session = session.refreshed()
    gone = {task.name for task in run.tasks if not _runs(session, task)}
    if not gone or not can_spool(session.store):
        return session, {}
    ingest_left_spools(session, run)
    found = own_ends.proven_ends(
        run,
        session.store,
        own_manifests(session.records),
        own_ends.key_of(session.records.folder, run.id),
        last_started(events),
    )
    ends = {task: mark for task, mark in found.items() if task in gone}
    names = {task.node for task in run.tasks if task.name in ends}
    left = tuple(node for node in session.nodes if node.name not in names)
    return replace(session, nodes=left), ends


def told_ends(session: Session, run: Run) -> Mapping[str, Mark]:
    """By task whose node exists, what its agent said to those of the others once it had ended.
    Raises StoreError."""
    key = own_ends.key_of(session.records.folder, run.id)
    told = own_ends.read_marks(run, session.store, key, OVER_MARK)
    since = last_started(session.records.events())
    nodes = {node.name for node in session.nodes if node.state != "gone"}
    there = {task.name for task in run.tasks if task.node in nodes}
    return {task: mark for task, mark in told.items() if task in there and mark.at > since}


def _runs(session: Session, task: Task) -> bool:
    node = session.node(task.node)
    return node is not None and node.state not in ("stopped", "gone")


def ended_by_their_words(
    config: ClusterConfig, records: Records, running: Collection[str]
) -> dict[str, str]:
    """Names of nodes that do not run and ended themselves → when, and why, as they say; those that
    no run had used leave no word."""
    events = records.events()
    begun, own = runs_begun(events), armed_on_record(events)
    run = next((each for each in reversed(records.runs()) if each.id in begun), None)
    if run is None:
        due = own and own.idle and last_use(events) + own.idle
        if not due or moments.now() < due:
            return {}
        names = nodes_standing(events).keys() - running
        return dict.fromkeys(sorted(names), f"not before {moment(due)}, unused")
    if all(task.node in running for task in run.tasks):
        return {}
    try:
        store = artifact_store(config, records)
        key = own_ends.key_of(records.folder, run.id)
        marks = own_ends.read_marks(run, store, key) if can_spool(store) else {}
    except CloudtrainError:
        return {}
    return {
        task.node: f"{moment(mark.at)}, {mark.why}"
        for task in run.tasks
        if task.node not in running
        and (mark := marks.get(task.name)) is not None
        and mark.at > last_started(events)
    }
