"""Nodes for the tests of environments: folders of this machine, each the same home to its node.

A command of a node runs in a mount namespace of its own, where that node's folder lies at the path
that all have in common, as homes of real nodes do. Needs root, and no SSH.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from cloudtrain.artifacts.inventory import Stop
from cloudtrain.cluster.session import Session
from cloudtrain.core.model import ClusterConfig, Node, NodeGroup, Setup
from cloudtrain.core.protocols import ArtifactStore, Completed
from cloudtrain.core.shell import Command, script
from cloudtrain.playbooks import tensorflow
from cloudtrain.playbooks.apply import apply
from cloudtrain.setup import programs
from cloudtrain.setup.prepare import shared_environments
from cloudtrain.setup.programs import ArchiveServer, OnNode
from tests.support.landing_parts import FolderTransport, Heard
from tests.support.nodes_here import Remembered, node
from tests.support.package_index import PackageIndex
from tests.support.wheels import digest, wheel

KEY = "k" * 32
LABEL = "tf2.21-cpu"


def unavailable() -> str | None:
    """Why there can be no such nodes here, in words for a skipped test."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return "would show it on nodes in mount namespaces, which only root can make"
    return None


_INSIDE = """\
exec unshare --mount --propagation private /bin/sh -c '
    mount --bind "$1" "$2" && cd "$2" && HOME=$2 PIP_INDEX_URL=$3 exec /bin/sh -c "exec $4"
' sh "$@"
"""


class SameHomes(FolderTransport):
    """`kill(program, number)`: from then on that program of a node is killed before that operation
    on files, processes or connections, without the processes that it has started (the downloader
    with them); 0 lets it live."""

    def __init__(self, folder: Path, home: Path, index: PackageIndex) -> None:
        super().__init__(folder)
        self.place = home
        self.index = index
        home.mkdir(parents=True, exist_ok=True)
        tools = folder / "tools"
        tools.mkdir(parents=True, exist_ok=True)
        (tools / "hook.py").write_text(_HOOK)
        python = tools / "python3"
        python.write_text(_PYTHON.format(python=sys.executable, hook=tools / "hook.py"))
        python.chmod(0o755)
        kept = {"PIP_CONFIG_FILE": "/dev/null", "PIP_FIND_LINKS": "", "PIP_NO_CACHE_DIR": "1"}
        self.environment = {**kept, "PATH": f"{tools}:{os.environ['PATH']}"}

    def run(
        self, node: Node, command: Command, *, stdin: bytes | Iterable[bytes] = b"", **given: Any
    ) -> Completed:
        folder, line = str(self.home(node)), command.shell()
        url = self.index.url(node.name)
        inside = script(_INSIDE, folder, str(self.place), url, line)
        return super().run(node, inside, stdin=stdin, **given)

    def ask(self, node: Node, script_: str, *, timeout: float = 30.0) -> Completed:
        return self.run(node, script(script_))

    def kill(self, program: str, number: int) -> None:
        self.environment["CLOUDTRAIN_KILL"] = f"cloudtrain.node.{program}:{number}"

    def copy(self, source: Node, target: Node) -> None:
        """All that one node has is the other's, too."""
        shutil.copytree(self.home(source), self.home(target), symlinks=True, dirs_exist_ok=True)

    def environments(self, node: Node) -> list[Path]:
        """The folders that tasks of that node may use: those with the mark of a whole one."""
        found = (self.home(node) / node.cache / "venvs").glob("*/.complete")
        return sorted(mark.parent for mark in found)

    def is_whole(self, node: Node, wanted: str) -> bool:
        """True if it has the environment with that digest, False if it has none."""
        found = [digest(folder) for folder in self.environments(node)]
        assert found in ([], [wanted]), f"half an environment is in use on {node.name}"
        return bool(found)

    def halves(self, node: Node) -> list[str]:
        """What lies beside whole environments."""
        folder = self.home(node) / node.cache / "venvs"
        there = {each.name for each in folder.glob("*") if each.suffix != ".lock"}
        return sorted(there - {each.name for each in self.environments(node)})


_PYTHON = """\
#!/bin/sh
if [ -n "$CLOUDTRAIN_KILL" ] && [ "$1 $2 $3" = "-I -S -c" ]; then
    case "$5 $8" in "${{CLOUDTRAIN_KILL%:*}}"*)
        shift 3
        exec {python} -I -S {hook} "${{CLOUDTRAIN_KILL##*:}}" "$@";;
    esac
fi
exec {python} "$@"
"""

_HOOK = """\
import os, signal, sys
at, code = int(sys.argv[1]), sys.argv[2]
del sys.argv[1:3]
EVENTS = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "subprocess.Popen", "socket.connect",
          "socket.bind", "os.truncate", "shutil.rmtree"}
seen = 0
def hook(event, args):
    global seen
    writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
    if event in EVENTS or writes:
        seen += 1
    if at and seen == at:
        os.kill(0 if sys.argv[1].endswith("downloader") else os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
exec(compile(code, "<boot>", "exec"))
"""


def config(**setup: Any) -> ClusterConfig:
    return ClusterConfig(
        name="mnist",
        provider="gcp",
        strategy="custom",
        nodes={"chief": NodeGroup(), "worker": NodeGroup()},
        setup=Setup(tensorflow="2.21", **setup),
        source="/nowhere/mnist.yaml",
    )


def environment_of(one: Node) -> str:
    """Its folder on a node, relative to the home."""
    folder = tensorflow.environment_folder(config(), one)
    assert folder is not None
    return folder


def wheels(folder: Path) -> None:
    """A TensorFlow that installs in a moment, of three packages."""
    wheel(folder, "tensorflow_cpu", "2.21.0", "one")
    wheel(folder, "tf_keras", "2.21.0")
    wheel(folder, "tensorboard", "2.21.0")
    wheel(folder, "one", "1.0", "two")
    wheel(folder, "two")


PACKAGES = {"tensorflow-cpu", "tf-keras", "tensorboard", "one", "two"}


def nodes(*names: str) -> list[Node]:
    return [node(name) for name in names]


class Cluster:
    """`up` of environments alone: what `prepare_nodes` does for that step."""

    def __init__(self, transport: SameHomes, store: ArtifactStore | None, *names: str) -> None:
        self.transport, self.store = transport, store
        self.nodes = nodes(*names)
        self.console = Heard()
        self.stage = Remembered()

    def up(self, **setup: Any) -> None:
        session = Session(
            plan=_Plan(config(**setup)),  # type: ignore[arg-type]
            records=None,  # type: ignore[arg-type]
            provider=None,  # type: ignore[arg-type]
            store=cast("Any", self.store or _NoStore()),
            console=self.console,
            identity=None,  # type: ignore[arg-type]
            transport=self.transport,
            host_keys=None,  # type: ignore[arg-type]
            nodes=tuple(self.nodes),
        )
        with shared_environments(session) as sharing:
            apply(
                lambda one: tensorflow.steps(session.config, one),
                self.nodes,
                self.transport,
                self.stage,
                sharing=sharing,
            )


class _Plan:
    def __init__(self, config: ClusterConfig) -> None:
        self.config = config


class _NoStore:
    uri = "file:///nowhere"
    presigner = None


def pack(transport: SameHomes, one: Node) -> OnNode:
    return programs.pack(one, environment_of(one), KEY, LABEL, transport, Stop(), lambda text: None)


def fetch(transport: SameHomes, target: Node, packed: OnNode) -> None:
    """From its builder, as another node of the cluster does."""
    server = ArchiveServer(packed=packed, transport=transport, stop=Stop())
    try:
        server.start()
        programs.fetch(
            target,
            environment_of(target),
            packed.archive,
            server,
            transport,
            Stop(),
            lambda text: None,
        )
    finally:
        server.close()
