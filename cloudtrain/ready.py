"""Makes nodes ready for a run: the playbooks on all of them side by side, then the code."""

from __future__ import annotations

import os

from cloudtrain.apply import apply
from cloudtrain.config import read_secrets
from cloudtrain.errors import NodeError, UsageError
from cloudtrain.fan_out import fan_out
from cloudtrain.launch import Site, prepare_work
from cloudtrain.model import Node, Run, Task
from cloudtrain.playbooks import code, tensorflow
from cloudtrain.session import Session
from cloudtrain.step import Step


def make_ready(session: Session) -> str:
    """What `setup:` and `code:` ask for is on every node; the code's commit or digest."""
    source = code.resolve(session.config)
    note = tensorflow.keras_note(session.config)
    if note is not None:
        session.console.say(note)

    def steps(node: Node) -> tuple[Step, ...]:
        return (
            *tensorflow.steps(session.config, node),
            *code.steps(source, session.config.name),
        )

    with session.console.stage("setup and code", len(session.nodes)) as stage:
        apply(steps, session.nodes, session.transport, stage)
    return source.digest


def site(session: Session, run: Run) -> Site:
    """Work folders made, and all that a launch must know of the nodes."""
    config = session.config
    by_name = {node.name: node for node in session.nodes}

    def work(task: Task) -> str:
        node = by_name[task.node]
        done = session.transport.run(node, prepare_work(config, run, task), timeout=600.0)
        if done.exit_code == 3:
            raise UsageError(done.stderr.decode("utf-8", "replace").strip())
        if done.exit_code != 0:
            words = done.stderr.decode("utf-8", "replace").strip()
            raise NodeError(node.name, f"its work folder could not be made: {words}")
        return done.stdout.decode("utf-8", "surrogateescape").rstrip("\n")

    folders = fan_out(run.tasks, work, name=lambda task: task.node)
    return Site(
        addresses={node.name: node.internal for node in session.nodes},
        work={task.node: folder for task, folder in zip(run.tasks, folders, strict=True)},
        bin_folder={node.name: tensorflow.bin_folder(config, node) for node in session.nodes},
        extra={node.name: tensorflow.environment(config, node) for node in session.nodes},
        secrets=read_secrets(config, os.environ),
    )
