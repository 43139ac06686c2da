"""`cloudtrain ssh`, `exec` and `ssh-config`: the nodes, by this machine's ssh or by our own."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

from cloudtrain.cluster.session import (
    Handle,
    open_provider,
    open_session,
    recorded_config,
    write_ssh_config,
)
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import NodeError, UsageError
from cloudtrain.core.model import Node, NodePlan
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.paths import work_folder
from cloudtrain.core.protocols import Console
from cloudtrain.core.shell import Command
from cloudtrain.runs.idle import ensure_idle_process, starting_idle_process
from cloudtrain.ssh import keys, user_config
from cloudtrain.ssh.editor import EditorRemote
from cloudtrain.ssh.user_config import Included
from cloudtrain.state import Records, home


def shell_command(name: str, node: str | None, command: Sequence[str]) -> list[str]:
    """Arguments of ssh to one node: `worker0`, its whole name, or a role's first; default: the
    first node. This process is to become that ssh: the cluster counts as in use until it ends."""
    records = Records(name)
    there = open_provider(recorded_config(records)).nodes(name)
    identity = keys.load_identity(records.folder)
    nodes = tuple(node for node in there if keys.is_known(identity, node))
    for one in sorted(nodes, key=lambda one: one.index):
        if node is None or node in (one.task, one.name, one.role):
            break
    else:
        if not there:
            raise UsageError(f"{name} has no nodes", hint="run `cloudtrain up`")
        listed = ", ".join(one.task for one in nodes)
        others = [one.name for one in there if one not in nodes]
        hint = f"its nodes: {listed}"
        hint += f"; not of this machine's record: {', '.join(others)}" if others else ""
        raise UsageError(f"{name} has no node {node or 'whose host key is here'}", hint=hint)
    records.begin_use("ssh")
    ensure_idle_process(records)
    path = write_ssh_config(records, identity, nodes)
    remote = [shlex.join(command)] if command else []
    return ["ssh", "-F", str(path), "--", one.name, *remote]


@dataclass(frozen=True, kw_only=True)
class Executed:
    exit_codes: Mapping[str, int]
    """By task; as a shell has it, 128 and more for one that a signal ended."""
    skipped: tuple[str, ...] = ()
    """Selected nodes on which it was not run, with their state."""

    @property
    def exit_code(self) -> int:
        """The highest of all nodes, not 0 if a node was skipped."""
        return max([int(bool(self.skipped)), *self.exit_codes.values()])


def execute(
    name: str, *, roles: Sequence[str] = (), command: Sequence[str], console: Console
) -> Executed:
    """Run the command with each argument as written and show every node's output. Skipped nodes are
    reported last."""
    records = Records(name)
    with (
        starting_idle_process(records),
        records.in_use("exec"),
        open_session(Handle(recorded_config(records)), console) as session,
    ):
        meant = [node for node in session.nodes if is_meant(node, roles)]
        nodes = [node for node in meant if node.state == "running"]
        if not nodes:
            raise UsageError(
                f"{name} has no running node" + (f" of {', '.join(roles)}" if roles else ""),
                hint=f"its nodes: {', '.join(map(node_words, session.nodes)) or 'none'}",
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
        skipped = [node_words(node) for node in meant if node not in nodes]
        there = {node.name for node in session.nodes}
        planned = [node for node in session.plan.nodes if is_meant(node, roles)]
        skipped += [f"{node.task} (gone)" for node in planned if node.name not in there]
    for node in skipped:
        console.warn(f"skipped: {node}")
    ended = {
        node.task: code if code >= 0 else 128 - code
        for node, code in zip(nodes, codes, strict=True)
    }
    return Executed(exit_codes=ended, skipped=tuple(skipped))


def is_meant(node: Node | NodePlan, roles: Sequence[str]) -> bool:
    return not roles or bool({node.role, node.task} & set(roles))


def node_words(node: Node) -> str:
    """Format `worker0 (stopped)`."""
    if node.state == "running":
        return node.task
    return f"{node.task} ({node.state}{': ' if node.fault else ''}{node.fault})"


def ssh_config(name: str) -> str:
    """Entries for the nodes that exist now, written to the cluster's folder with their host keys,
    too."""
    records = Records(name)
    there = open_provider(recorded_config(records)).nodes(name)
    if not there:
        raise UsageError(f"{name} has no nodes", hint=f"`cloudtrain up {name}` creates them")
    identity = keys.load_identity(records.folder)
    nodes = tuple(node for node in there if keys.is_known(identity, node))
    return write_ssh_config(records, identity, nodes).read_text("utf-8")


def install_include() -> Included:
    """Let this user's ssh know all clusters of this machine, also those of later."""
    return user_config.install_include(home())


def editor_remote(name: str, wanted: str | None, console: Console) -> EditorRemote:
    """The node, by default the first one, and a folder that exists there: it is asked."""
    records = Records(name)
    with open_session(Handle(recorded_config(records)), console) as session:
        running = [node for node in session.nodes if node.state == "running"]
        node = next((n for n in running if wanted in (None, n.task, n.name, n.role)), None)
        if node is None:
            raise UsageError(
                f"{name} has no running node {wanted or ''}".rstrip(),
                hint=f"its nodes: {', '.join(map(node_words, session.nodes)) or 'none'}",
            )
        run = records.latest_run()
        work = work_folder(name, run.id, node.task) if run else "."
        script = 'cd -- "$1" 2>/dev/null; pwd'
        asked = session.transport.run(node, Command(("sh", "-c", script, "sh", work)))
    # Tasks can change what a login prints before it, and a word with a dash is an option.
    folder = os.fsdecode(asked.stdout.rstrip(b"\n").rpartition(b"\n")[2])
    if not folder.startswith("/") or not folder.isprintable():
        raise NodeError(
            node.name,
            f"its shell names no folder, but {folder[:80]!r}",
            hint=f"`cloudtrain ssh {name} {node.task}` shows what it says at a login",
        )
    return EditorRemote(node=node.name, folder=folder)
