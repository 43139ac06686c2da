"""Shares one folder among a cluster's nodes (`shared:`): serves it, gives each run its part of it,
and proves that what one node writes there the others read."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from cloudtrain.artifacts.checkpoints import StoredCheckpoint, fill_folder
from cloudtrain.artifacts.inventory import last_line, run_checked
from cloudtrain.cluster.session import Session
from cloudtrain.core.cloud import is_cloud, served_folder
from cloudtrain.core.errors import CloudtrainError, PreflightError, UsageError
from cloudtrain.core.model import Node
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.run_record import Run
from cloudtrain.core.shell import script
from cloudtrain.playbooks import nfs
from cloudtrain.playbooks.apply import apply

SERVED = "/srv/cloudtrain"
"""Folder with that of each cluster, on rented nodes: data that a machine serves, by hier(7)."""


def folder_of_cluster(session: Session, node: Node) -> str:
    """Absolute path of the cluster's shared folder, the same on every node. Raises UsageError for
    local nodes without one."""
    config = session.config
    assert config.shared is not None, "only called with `shared:`"
    if config.shared.path is not None:
        return f"{config.shared.path}/{config.name}"
    if is_cloud(config.provider):
        return f"{SERVED}/{config.name}"
    if not node.shared_folder:
        raise UsageError(
            f"the nodes of {config.name} were made without `shared`, and have no folder in common",
            hint=f"run `cloudtrain down {config.name}`, then `up`",
        )
    return node.shared_folder


def share_folder(session: Session, only: Sequence[Node] | None = None) -> None:
    """Have the first node serve the folder to the others, if it is rented; mount it on them, or on
    `only` some. Nothing if the first node is not among the session's: its caller prepares others.

    Traffic between a cluster's nodes is open in each cloud's rules, and nothing else but SSH is."""
    if served_folder(session.config) is None:
        return
    server = session.node(session.plan.nodes[0].name)
    if server is None:
        return
    others = [node for node in session.nodes if node.name != server.name]
    due = others if only is None else [node for node in others if node in only]
    folder = folder_of_cluster(session, server)
    addresses = sorted(node.internal for node in others)
    with session.console.stage("shared folder", 1 + len(due)) as stage:
        apply(lambda _: nfs.server_steps(folder, addresses), [server], session.transport, stage)
        if due:
            apply(
                lambda _: nfs.client_steps(folder, server.internal), due, session.transport, stage
            )


def share_run_folder(
    session: Session, run: Run, source: Callable[[], StoredCheckpoint | None]
) -> str:
    """Create the run's part of the shared folder if it is not there, with what has landed of it, or
    with `source` if nothing has; returns its absolute path, "" without `shared:`.

    What is there is never changed: a restart finds the folder as it was."""
    shared = session.config.shared
    if shared is None:
        return ""
    node = first_node(session)
    place = f"{folder_of_cluster(session, node)}/{run.id}"
    look = script(LOOK, place, shared.path or "/")
    there = run_checked(node, look, session.transport, f"cannot look for its folder {place}")
    if there.stdout.strip():
        return place
    if len(run.attempts) == 1 and run.resumed_from is None:
        create = script(CREATE, place)
        run_checked(node, create, session.transport, "cannot create its shared folder")
        return place
    say = session.console.say
    found = fill_folder(
        run, node, place, shared.folder, session.transport, session.store, source=source, say=say
    )
    what = f"the shared folder begins with {found or 'nothing, as none of it has landed'}"
    if len(run.attempts) == 1:
        say(what)
    else:
        session.console.warn(
            f"{place} is not on {node.name} any more: {what}; what was written later is lost"
        )
    return place


def first_node(session: Session) -> Node:
    """Node that serves the folder, and from which it lands."""
    return next(node for node in session.nodes if node.name == session.plan.nodes[0].name)


LOOK = """\
[ -d "$2" ] || { echo "shared.path: there is no folder $2" >&2; exit 1; }
[ ! -d "$1" ] || echo there
"""
CREATE = 'exec mkdir -p -- "$1"\n'


def prove_shared(session: Session, run: Run) -> None:
    """Have each node of the run read what the first one wrote into the shared folder, and the first
    one what they wrote. Raises PreflightError with each node that does not share it."""
    if session.config.shared is None:
        return
    first, transport = first_node(session), session.transport
    place = f"{folder_of_cluster(session, first)}/{PROOFS}/{secrets.token_hex(8)}"
    word = secrets.token_hex(8)
    names = {task.node for task in run.tasks}
    others = [n for n in session.nodes if n.name in names and n.name != first.name]
    write = script(WRITE, place, word)
    run_checked(first, write, transport, f"cannot write in its shared folder {place}")

    def ask(node: Node) -> str:
        try:
            done = transport.run(node, script(ANSWER, place, word, node.name), timeout=60.0)
        except CloudtrainError as error:
            return error.message
        return "" if done.exit_code == 0 else last_line(done.stderr, done.exit_code)

    failed = dict(zip(others, fan_out(others, ask, name=lambda node: node.name), strict=True))
    came = run_checked(first, script(READ, place), transport, f"cannot read in {place}")
    back = came.stdout.decode("utf-8", "replace").split()
    problems = [
        (
            (node.name,),
            f"it does not share {folder_of_cluster(session, node)} with {first.name}: {why}",
        )
        for node, why in (
            (node, why or ("" if node.name in back else f"{first.name} does not see what it wrote"))
            for node, why in failed.items()
        )
        if why
    ]
    if problems:
        raise PreflightError(problems=problems)


PROOFS = ".proofs"
WRITE = 'umask 077; mkdir -p -- "$1" && printf %s "$2" >"$1/word"\n'
ANSWER = """\
timeout -s KILL 30 sh -c '
    for pause in 0 1 2 4; do
        sleep $pause
        why=$(cat "$1/word" 2>&1)
        [ "$why" = "$2" ] || continue
        : >"$1/$3"
        exit
    done
    echo "${why#cat: }" >&2
    exit 1' sh "$@" </dev/null && exit 0
code=$?
[ "$code" != 137 ] || echo "no answer within 30 s" >&2
exit "$code"
"""
READ = 'cd "$1" && ls && cd / && rm -rf -- "$1"\n'
