"""Creates the work folders of a run and collects what its launches need of the nodes."""

from __future__ import annotations

import os

from cloudtrain.cluster.session import Session
from cloudtrain.config import read_secrets
from cloudtrain.errors import NodeError, NodeUnreachable, UsageError
from cloudtrain.model import ClusterConfig
from cloudtrain.parallel import fan_out
from cloudtrain.playbooks import tensorflow
from cloudtrain.run_record import Run, Task
from cloudtrain.runs.task_launch import ClusterFacts, prepare_work
from cloudtrain.shell import Secret
from cloudtrain.ssh.retrying import AWAY


def cluster_facts(session: Session, run: Run) -> ClusterFacts:
    """Create work folders and collect the facts for launches."""
    config = session.config
    by_name = {node.name: node for node in session.nodes}

    def work(task: Task) -> str:
        node = by_name[task.node]
        command = prepare_work(config, run, task)
        done = AWAY.call(
            lambda: session.transport.run(node, command, timeout=600.0),
            on=NodeUnreachable,
            clock=session.clock,
        )
        if done.exit_code == 3:
            raise UsageError(done.stderr.decode("utf-8", "replace").strip())
        if done.exit_code != 0:
            words = done.stderr.decode("utf-8", "replace").strip()
            raise NodeError(node.name, f"its work folder could not be created: {words}")
        return done.stdout.decode("utf-8", "surrogateescape").rstrip("\n")

    folders = fan_out(run.tasks, work, name=lambda task: task.node)
    return ClusterFacts(
        addresses={node.name: node.internal for node in session.nodes},
        work={task.node: folder for task, folder in zip(run.tasks, folders, strict=True)},
        bin_folder={node.name: tensorflow.bin_folder(config, node) for node in session.nodes},
        extra={node.name: tensorflow.environment(config, node) for node in session.nodes},
        secrets=secrets_of_tasks(config),
    )


def secrets_of_tasks(config: ClusterConfig) -> dict[str, Secret]:
    """All secrets but the token of the code's repository, which no task needs."""
    values = read_secrets(config, os.environ)
    return {name: value for name, value in values.items() if name != config.code.token}
