"""Takes the steps of `down` and `stop-run` on an open cluster, as the state table names them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from cloudtrain.artifacts.land import Pending, by_folder
from cloudtrain.cluster.provision import (
    await_known_states,
    await_started,
    plan_with_existing,
    start_stopped,
)
from cloudtrain.cluster.session import Session
from cloudtrain.config.location import place_in_file
from cloudtrain.core.errors import CloudtrainError, NotLanded, UsageError
from cloudtrain.core.model import AUTO, ClusterConfig
from cloudtrain.core.paths import shown, size_text
from cloudtrain.runs.cluster_seen import cluster_seen
from cloudtrain.runs.finish import finish_run
from cloudtrain.runs.outage import passes
from cloudtrain.runs.pending_artifacts import land_what_is_left
from cloudtrain.runs.state_table import Command, Files, Seen, Step, TaskSeen, take_steps
from cloudtrain.runs.supervise import end_attempts
from cloudtrain.runs.tasks import end_orphans


class LandingSteps:
    """Observations and steps of one command so far. `ended`: ids of runs whose tasks it ended."""

    def __init__(self, session: Session) -> None:
        session = plan_with_existing(session.refreshed())
        there = tuple(node for node in session.nodes if node.state != "gone")
        self.session = replace(session, nodes=there)
        self.ended: frozenset[str] = frozenset()
        self.left: tuple[Pending, ...] = ()
        self._transport = session.patient().transport
        self._task: TaskSeen = "unasked"
        self._files: Files = "unasked"

    def take_all(self, command: Command) -> Step:
        """Take every step of the command and return its last one, which is left to the caller."""
        return take_steps(command, self._see, self._take)

    def _see(self) -> tuple[Seen, ...]:
        records, nodes = self.session.records, self.session.nodes
        return cluster_seen(records, nodes, task=self._task, files=self._files)

    def _take(self, step: Step) -> None:
        if step == "start_node":
            self.session = start_stopped(self.session)
        elif step == "await_node":
            self.session = await_known_states(await_started(self.session))
        elif step in ("stop_run", "finish_run"):
            self._end_run(step)
        elif step == "end_orphans":
            self.ended = end_orphans(self._patient())
            self._task = "exited" if self.ended else "absent"
        else:
            self.left = land_what_is_left(self._patient())
            self._files = "unlanded" if self.left else "landed"

    def _patient(self) -> Session:
        """The session for all steps but the end of an attempt, which has limits of its own."""
        return replace(self.session, transport=self._transport)

    def _end_run(self, step: Step) -> None:
        """Stop the active run, or finish it. A failure that does not pass is reported: `land` then
        compares the nodes with the store, whatever the run's record says.
        """
        records = self.session.records
        run = records.active_run()
        if run is None:
            return
        try:
            if step == "stop_run":
                records.ask_stop(run.id)
                self.session, _ = end_attempts(self.session, run)
            else:
                finish_run(self.session, run)
        except UsageError:
            raise
        except CloudtrainError as error:
            if passes(error):
                raise
            self.session.console.warn(error.message)


def only_on_nodes(config: ClusterConfig, left: Sequence[Pending]) -> NotLanded:
    """NotLanded for files that no landing has brought, with the ways out."""
    name, limit = config.name, config.artifacts.limit
    why = ""
    if AUTO in config.artifacts.paths and sum(file.size for file in left) > 0:
        why = f": more than artifacts.limit ({size_text(limit)} for each task)"
    file = shown(os.path.relpath(config.source)) if config.source else name
    return NotLanded(
        f"not landed{why}: {by_folder(left)}; the nodes are kept",
        hint=f"{place_in_file(config, 'artifacts.limit')}: raise it, or name the files in "
        f"artifacts.paths, and run `cloudtrain down {file}`\n"
        f"or copy it here with `cloudtrain fetch {name} --from-nodes`\n"
        f"or delete it with the nodes: `cloudtrain down {name} --discard`",
    )


def land_everything(session: Session) -> None:
    """End the active run, and land what the nodes hold of every run, by the record and by the
    nodes. Raises NotLanded if files are left.
    """
    steps = LandingSteps(session)
    if steps.take_all("down") == "keep":
        raise only_on_nodes(session.config, steps.left)
