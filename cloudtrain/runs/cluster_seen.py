"""Facts that a command has seen of a cluster, as the state table takes them."""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.cluster.ownership import is_recorded
from cloudtrain.core.events import runs_begun
from cloudtrain.core.model import Node
from cloudtrain.runs.state_table import Files, Record, Seen, TaskSeen, node_seen, run_recorded
from cloudtrain.state import Records


def cluster_seen(
    records: Records,
    nodes: Sequence[Node],
    *,
    task: TaskSeen = "unasked",
    files: Files = "unasked",
) -> tuple[Seen, ...]:
    """One value per node; a single `gone` one if there is none."""
    run = run_recorded(records.active_run(), had_one=bool(records.runs()))
    record = record_seen(records, nodes)
    states = [node_seen(node.state) for node in nodes] or ["gone"]
    return tuple(
        Seen(node=state, task=task, run=run, record=record, files=files) for state in states
    )


def record_seen(records: Records, nodes: Sequence[Node] = ()) -> Record:
    """State of the records of this cluster's runs on this machine.

    Its journal names every attempt before it starts, and names `up` before the first node. Nodes
    that another machine created since then may have run anything.
    """
    if not records.has_keys():
        return "without_keys"
    if not is_recorded(records, nodes):
        return "lost"
    runs, faults = records.runs_and_faults()
    lines = records.events()
    return "there" if lines and not faults and runs_begun(lines) <= {r.id for r in runs} else "lost"
