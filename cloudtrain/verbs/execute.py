"""`cloudtrain exec`: one command on the nodes, side by side."""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.errors import UsageError
from cloudtrain.fan_out import fan_out
from cloudtrain.model import Node
from cloudtrain.protocols import Console
from cloudtrain.records import Records
from cloudtrain.session import open_session, recorded_config
from cloudtrain.shell import Command
from cloudtrain.training.background import idle_is_watched


def execute(
    name: str, *, roles: Sequence[str] = (), command: Sequence[str], console: Console
) -> int:
    """Runs it with each argument as written, shows every node's output; the highest exit code."""
    records = Records(name)
    with (
        idle_is_watched(records),
        records.in_use(),
        open_session(recorded_config(records), records, console) as session,
    ):
        nodes = [
            node
            for node in session.nodes
            if node.state == "running" and (not roles or {node.role, node.task} & set(roles))
        ]
        if not nodes:
            raise UsageError(
                f"{name} has no running node" + (f" of {', '.join(roles)}" if roles else ""),
                hint=f"its nodes: {', '.join(node.task for node in session.nodes) or 'none'}",
            )

        def run(node: Node) -> int:
            done = session.transport.run(
                node,
                Command(tuple(command)),
                on_stdout=lambda data: console.task_output(node.task, data),
                on_stderr=lambda data: console.task_output(node.task, data),
            )
            return done.exit_code

        codes = fan_out(nodes, run, name=lambda node: node.name)
    return max((code if code >= 0 else 128 - code) for code in codes)
