"""Creates the work folders of a run's tasks on their nodes, and sets old ones aside."""

from __future__ import annotations

from collections.abc import Mapping

from cloudtrain.cluster.session import Session
from cloudtrain.core import paths, ship
from cloudtrain.core.cloud import facts_of
from cloudtrain.core.errors import NodeError, NodeUnreachable, UsageError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.retry import AWAY
from cloudtrain.core.run_record import Run, Task
from cloudtrain.core.shell import Command, script
from cloudtrain.playbooks import code_packages


def create_work_folders(session: Session, run: Run) -> Mapping[str, str]:
    """Create a work folder for each task, and its layer over the environment of `setup:`; returns
    the work folders' absolute paths by node name.
    """
    config = session.config
    by_name = {node.name: node for node in session.nodes}

    def work(task: Task) -> str:
        node = by_name[task.node]
        below = code_packages.environment_folder(config, node, run.code)
        command = prepare_work(config, run, task, below)
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
    return {task.node: folder for task, folder in zip(run.tasks, folders, strict=True)}


def create_part_folders(session: Session, run: Run, folder: str) -> None:
    """Create the checkpoint folder on every ps: TensorFlow 1's Saver has each ps write its part on
    its own disk, and SaveV2 creates no parent folders (run on 1.15.5 and 2.21.0, 2026-11-22).
    """
    by_name = {node.name: node for node in session.nodes}

    def work(task: Task) -> None:
        place = f"{paths.work_folder(run.cluster, run.id, task.name)}/{folder}"
        done = session.transport.run(by_name[task.node], script(MKDIR, place), timeout=60.0)
        if done.exit_code != 0:
            words = done.stderr.decode("utf-8", "replace").strip()
            raise NodeError(task.node, f"its folder {folder} could not be created: {words}")

    fan_out([task for task in run.tasks if task.role == "ps"], work, name=lambda task: task.node)


def prepare_work(
    config: ClusterConfig, run: Run, task: Task, environment: str | None = None
) -> Command:
    """Copy the delivered code to the task's own folder, once, and print the absolute path.

    `work` is a link to `train.dir` inside that copy, created last: an interrupted copy has none.
    With an `environment` on the node, the task gets a layer over it.
    """
    source = paths.code_folder(config.name, run.code) if run.code != NO_CODE else ""
    work = paths.work_folder(config.name, run.id, task.name)
    own = paths.environment_folder(config.name, run.id, task.name)
    layer = (own, environment, ship.text("layer.py")) if environment else ()
    home = "" if facts_of(config.provider).takes_hosts else "."
    records = (ship.START, ship.inline("changes"), home)
    return script(PREPARE, work, source, config.train.dir, *records, *layer)


def set_work_aside(run: Run, task: Task) -> Command:
    """Move the last attempt's work folder out of the way; prepare_work then creates a new one."""
    work = paths.work_folder(run.cluster, run.id, task.name)
    return script(SET_ASIDE, work, f"code.attempt-{task.attempt - 1}")


NO_CODE = "none"
"""`Run.code` if the config has no `code:`."""

MKDIR = 'exec mkdir -p -- "$1"'

PREPARE = """
set -eu
work=$1 source=$2 dir=$3
task=$(dirname "$work")
if ! [ -e "$work" ]; then
    mkdir -p "$task"
    rm -rf "$task/code"
    if [ -n "$source" ]; then cp -a "$source" "$task/code"; else mkdir "$task/code"; fi
    if ! [ -d "$task/code/$dir" ]; then
        echo "train.dir: no folder $dir in the code" >&2
        exit 3
    fi
    # What the task finds here: the rest of what is there at its end, it has made or changed.
    /bin/sh -c "$4" sh "$5" begin "$task" "$6"
    ln -sfn "code/$dir" "$work"
fi
mkdir -p "$work/output"
[ -z "${7:-}" ] || /bin/sh -c "$4" sh "$9" "$7" "$8"
cd "$work" && pwd -P
"""

SET_ASIDE = """
set -eu
work=$1 aside=$2
cd "$(dirname "$work")" 2>/dev/null || exit 0
# In this order: if interrupted, it leaves no folder that PREPARE would take for its own.
if [ -e code ] && ! [ -e "$aside" ]; then mv code "$aside"; fi
rm -f work
"""
