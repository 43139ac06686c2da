"""`cloudtrain ssh`: the system's own ssh, with the cluster's keys and pinned host keys."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from cloudtrain.cluster.session import open_provider, recorded_config, write_ssh_config
from cloudtrain.core.errors import UsageError
from cloudtrain.runs.background import ensure_idle_process
from cloudtrain.ssh.keys import is_known, load_identity
from cloudtrain.state import Records


def shell_command(name: str, node: str | None, command: Sequence[str]) -> list[str]:
    """Arguments of ssh to one node: `worker0`, its whole name, or a role's first; default: the
    first node.

    This process is to become that ssh: the cluster counts as in use until it ends.
    """
    records = Records(name)
    there = open_provider(recorded_config(records)).nodes(name)
    identity = load_identity(records.folder)
    nodes = tuple(node for node in there if is_known(identity, node))
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
    records.begin_use()
    ensure_idle_process(records)
    path = write_ssh_config(records, identity, nodes)
    remote = [shlex.join(command)] if command else []
    return ["ssh", "-F", str(path), "--", one.name, *remote]
