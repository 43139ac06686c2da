"""Agents beside the tasks: they upload what is only on a node while no client is connected.

When the laptop sleeps, so does the process that supervises the run; the cloud still deletes a node
at the end of its lifetime, or preempts it. An agent (node/agent.py) then needs no client: it has
presigned uploads for some archives. Each process that supervises the run starts new ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict

from cloudtrain.artifacts.own_ends import OverRequests
from cloudtrain.artifacts.spool_archive import spool_name
from cloudtrain.artifacts.uploads import revealed
from cloudtrain.cluster.session import Session
from cloudtrain.core.cloud import cloud_of
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.events import own_ends as armed
from cloudtrain.core.events import runs_begun
from cloudtrain.core.model import ClusterConfig, Node
from cloudtrain.core.presign import PresignedUpload
from cloudtrain.core.run_record import Run, Task
from cloudtrain.core.ship import program
from cloudtrain.runs import own_ends
from cloudtrain.runs.tasks import landing_of
from cloudtrain.training.strategies import strategy_of

LASTS = 7 * 24 * 3600.0
"""Seconds that presigned uploads are valid: the most that S3 signs, or Google keeps a session."""

RENEW = 1800.0
"""Seconds after which presigned uploads are renewed: the credentials that signed them may expire
sooner. Google's sessions are not signed, and each costs a call."""


PARCELS, PARCELS_MEANWHILE = 12, 24
"""Presigned uploads for each task: without and with `artifacts.every`."""

TIMES = {"tick": 1.0, "rest": 10.0, "poll": 2.0, "patience": 60.0}
"""Seconds: between two checks; between archives when the end is near; between two queries for a
notice; from a task's end until its files are archived, if no client lands them."""

SHUTDOWN, SPOT_SHUTDOWN = 90.0, 30.0
"""Seconds of a machine's shutdown: systemd kills what has not ended after 90 s
(DefaultTimeoutStopSec); spot VMs of Google are cut off after 30 s, others after 120 s
(`skipGuestOsShutdown` of the discovery document, compute v1, revision 20261106)."""


def start_agents(session: Session, run: Run) -> float:
    """Start an agent beside every task whose node exists, or warn if that is impossible. Returns
    the seconds after which their presigned uploads have to be renewed."""
    tasks = {task.name: task for task in run.tasks}
    there = [(t.name, node) for t in run.tasks if (node := session.node(t.node)) is not None]
    now, sessions = session.clock.now(), False
    own_ends.record_if_on(session)
    over: dict[str, OverRequests] = {}
    with suppress(CloudtrainError):  # each agent's own requests say why
        ends = [lasts(node, now) for _, node in there]
        over = own_ends.over_requests(session, run, min(ends, default=LASTS))

    def order(item: tuple[str, Node]) -> dict[str, object] | None:
        nonlocal sessions
        task, node = tasks[item[0]], item[1]
        uploads = presigned_uploads(session, run, task, node, now)
        alone = own_ends.order_of(session, run, task, over, lasts(node, now))
        if not uploads and alone is None:
            return None
        sessions = any(upload.resumable for upload in uploads)
        return {**agent_order(session, run, task, node, uploads, now), "alone": alone}

    lack = "nodes without an agent, which land nothing while no client supervises the run: "
    own_ends.start_on_nodes(session, program("agent"), there, order, lack=lack)
    own_ends.record(session)
    return LASTS / 2 if sessions else RENEW


def watch_idle_nodes(session: Session) -> None:
    """Have every node end itself as the config says now, or not any more."""
    lines = session.records.events()
    if not own_ends.wanted(session.config).is_on and armed(lines) is None:
        return
    begun, used = runs_begun(lines), set()
    run = next((each for each in reversed(session.records.runs()) if each.id in begun), None)
    if run is not None:
        start_agents(session, run)
        used = {task.node for task in run.tasks}
    own_ends.record_if_on(session)
    own_ends.watch_unused(session, [node for node in session.nodes if node.name not in used])
    own_ends.record(session)


def presigned_uploads(
    session: Session, run: Run, task: Task, node: Node, now: float
) -> list[PresignedUpload]:
    """One presigned upload for each archive; none if the store offers none. Raises StoreError."""
    count = PARCELS_MEANWHILE if session.config.artifacts.every else PARCELS
    presigner = session.store.presigner
    if presigner is None:
        return []

    def upload(number: int) -> PresignedUpload | None:
        name = spool_name(run.id, task.name, task.attempt, int(now), number)
        return presigner.sign_upload(name, None, expires_in=lasts(node, now))

    first = upload(0)
    if first is None:
        return []
    with ThreadPoolExecutor(8) as pool:
        return [first, *filter(None, pool.map(upload, range(1, count)))]


def lasts(node: Node, now: float) -> float:
    """Seconds for which the node's presigned requests are to be valid."""
    return min(LASTS, end_of(node, now) - now)


def end_of(node: Node, now: float) -> float:
    return node.expires if node.expires is not None else now + LASTS


def last_sync(node: Node, created: float) -> float:
    """Unix time of the last sync: ten minutes before the node's end, or 5 % of its life, but at
    least two minutes. Infinite if no end is known."""
    if node.expires is None:
        return float("inf")
    life = node.expires - (node.created if node.created is not None else created)
    return node.expires - max(120.0, min(600.0, life / 20))


def task_stop(config: ClusterConfig, node: Node, created: float) -> float:
    """Unix time at which the task gets SIGTERM, so that it saves before the node's end: halfway
    between the last sync and the end, but at most a tenth of the node's life before it. Infinite if
    no end is known, or the cloud does not enforce it."""
    if node.expires is None or strategy_of(config).tpus:
        return float("inf")
    life = node.expires - (node.created if node.created is not None else created)
    return node.expires - min((node.expires - last_sync(node, created)) / 2, life / 10)


def notice_query(provider: str, node: Node) -> dict[str, object] | None:
    """Query with which the node polls for a preemption notice; None if no notice can come.
    CLOUDTRAIN_METADATA overrides the address."""
    cloud = cloud_of(provider)
    if cloud is None or cloud.preemption is None or not node.spot:
        return None
    query = asdict(cloud.preemption)
    address = os.environ.get("CLOUDTRAIN_METADATA") or query["address"]
    return {**query, "address": address, "node": node.name}


def agent_order(
    session: Session,
    run: Run,
    task: Task,
    node: Node,
    uploads: Sequence[PresignedUpload],
    now: float,
) -> dict[str, object]:
    """The agent's order. It contains presigned uploads: only for its stdin."""
    config = session.config
    what = landing_of(session).source(run.id, task.name, node, run.tasks[0].name)
    last = last_sync(node, run.created)
    until = min(end_of(node, now), now + LASTS)
    return {
        **TIMES,
        "folder": what.folder.rpartition("/")[0],
        "attempt": task.attempt,
        "patterns": what.wanted.patterns,
        "limit": what.wanted.limit,
        "home": what.wanted.home,
        "checkpoint": what.checkpoint,
        "every": config.artifacts.every or 0.0,
        "until": until,
        "end": node.expires if node.expires is not None else float("inf"),
        "last": min(last, until),
        "stop": task_stop(config, node, run.created),
        "shutdown": SPOT_SHUTDOWN if node.spot else SHUTDOWN,
        "metadata": notice_query(config.provider, node),
        "tickets": [
            {
                "n": number,
                "requests": [revealed(request) for request in upload.requests],
                "piece": upload.chunk,
            }
            for number, upload in enumerate(uploads)
        ],
    }
