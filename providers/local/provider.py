"""`provider: local`: each node is a real SSH server on this machine, in its own folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import platformdirs

from cloudtrain.core.errors import CloudtrainError, LeftoverError, NodeError, UsageError
from cloudtrain.core.events import NodeDeletionBegun, NodeRequested, NodesShareFiles
from cloudtrain.core.model import (
    DEFAULT_PORT,
    ClusterConfig,
    Holding,
    Identity,
    Node,
    NodePlan,
    NodeState,
    Owner,
    Plan,
)
from cloudtrain.core.owner import login
from cloudtrain.core.partial_list import NotAsked, PartialList
from cloudtrain.core.protocols import Expected, Finding, Journal
from cloudtrain.core.task_id import TaskId
from cloudtrain.providers.base.own_machines import OwnMachines
from cloudtrain.providers.local import environment, processes, trash
from cloudtrain.providers.local.folders import NodeFolder, staging, turn
from cloudtrain.providers.local.linux import resize_in_process
from cloudtrain.providers.local.private_view import View
from cloudtrain.providers.local.processes import ServerRequest

BUILDER = ".builder"
"""Folder of a cluster for what creates environments; no node has its name."""
SHARED = ".shared"
"""Folder of a cluster that all of its nodes see (`shared:`)."""


def provider(config: ClusterConfig) -> LocalProvider:
    return LocalProvider(
        config,
        home=_folder_of("CLOUDTRAIN_HOME", platformdirs.user_state_path("cloudtrain")),
        cache=_folder_of("CLOUDTRAIN_CACHE", platformdirs.user_cache_path("cloudtrain")),
    )


class LocalProvider(OwnMachines):
    """Provider for nodes on this machine: folders `<home>/local/<cluster>/<node>` and processes
    with their tag.

    A node runs while its server holds the lock in its folder, is stopped while no process does, and
    exists as long as the folder or a process does."""

    name = "local"

    def __init__(self, config: ClusterConfig, *, home: Path, cache: Path) -> None:
        self._root = home / "local"
        self._trash = self._root / trash.NAME
        self._cache = cache
        self._own_cache = environment.own_cache(config, cache)
        self._digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
        self._user = _user()

    def check(self, plan: Plan) -> tuple[Finding, ...]:
        return (
            environment.check_system(),
            environment.check_writable(self._root),
            environment.check_writable(self._cache),
            environment.check_disk(self._root, trash.empty(self._trash)),
            environment.check_memory(len(plan.nodes)),
            environment.check_loopback(self._places(plan)[0][0][0]),
        )

    def create(
        self, plan: Plan, identity: Identity, journal: Journal, expected: Expected = None
    ) -> tuple[Node, ...]:
        if not (system := environment.check_system()).ok:
            raise UsageError(system.text, hint=system.hint)
        cluster = plan.config.name
        trash.empty(self._trash)
        self._end_fork_server(cluster)
        before = {node.name: node for node in self.nodes(cluster)}
        running = {node.name for node in before.values() if node.state == "running"}
        missing = [node for node in plan.nodes if node.name not in running]
        new = {node.name for node in missing} - before.keys()
        try:
            # What a dead server left running ends, as at a reboot of a machine.
            tags = {self._tag(cluster, node.name) for node in missing if node.name in before}
            _kill(lambda tag: tag in tags)
            for node in missing:
                NodeFolder(self._cluster_folder(cluster) / node.name).unmark_killed()
            self._make_cache()
            if plan.config.shared is not None and not running:
                shared = self._cluster_folder(cluster) / SHARED
                shared.mkdir(mode=0o700, parents=True, exist_ok=True)
            if missing:
                _make_gpu_devices()
                fork_server = processes.ForkServer(
                    self._tag(cluster, ""), longest=max(len(node.name) for node in missing)
                )
                with fork_server:
                    for node in missing:
                        journal(NodeRequested(node=node.name))
                    refusal = fork_server.start(self._orders(plan, identity, missing, before))
                if refusal is not None:
                    journal(NodesShareFiles(why=refusal))
            there = {node.name: node for node in self.nodes(cluster)}
            nodes = tuple(there[node.name] for node in plan.nodes)
            processes.await_answers(nodes, self._cluster_folder(cluster))
        except BaseException as failure:
            final = self._roll_back(new, cluster, journal, failure)
            if final is failure:
                raise
            raise final from failure
        return nodes

    @contextlib.contextmanager
    def builder(
        self, plan: Plan, identity: Identity, node: Node, folder: str, below: str | None
    ) -> Iterator[Node | None]:
        """Node on which to create an environment of the cache: a server apart from all nodes, or
        the node itself if that shares this machine's files. None if another process has created the
        environment. `below`: the environment that it lies over, which it may read."""
        own = NodeFolder(self._cluster_folder(plan.config.name) / node.name)
        if not own.is_apart():
            yield node
            return
        target = Path(folder)
        with turn(target) as is_ours:
            if not is_ours:
                yield None
                return
            with staging(target) as stage:
                if below:  # a place for it: the server has no right to make one there
                    (stage / Path(below).name).mkdir()
                instead = {str(target.parent): str(stage)}
                with self._builder_server(plan, identity, node, instead, below) as one:
                    yield one

    @contextlib.contextmanager
    def _builder_server(
        self,
        plan: Plan,
        identity: Identity,
        node: Node,
        instead: Mapping[str, str],
        below: str | None,
    ) -> Iterator[Node]:
        cluster = plan.config.name
        folder = self._cluster_folder(cluster) / BUILDER
        tag = self._tag(cluster, f"{node.name}-builder{processes.ROOM}")
        view = self._view(plan)
        if view is not None:
            readable = (*view.read_only, *([below] if below else []))
            view = replace(
                view, read_only=readable, writable=(), shared=(), instead=instead, disk=""
            )
        request = self._request(identity, node, folder, tag, view)
        places = processes.addresses(f"{self._digest}/{cluster}/{BUILDER}", 0)
        self._erase(lambda each: each == tag, [folder])
        try:
            with processes.ForkServer(tag, longest=0) as fork_server:
                refusal = fork_server.start([replace(request, places=places)])
            if view is None or refusal is not None:
                raise NodeError(node.name, f"its environment cannot be created apart: {refusal}")
            meta = NodeFolder(folder).meta()
            address, port = str(meta["address"]), int(meta["port"])
            # In the node's place: it has its name and its host key.
            one = replace(node, state="running", address=address, internal=address, ssh_port=port)
            processes.await_answers([one], folder.parent)
            yield one
        finally:
            self._erase(lambda each: each == tag, [folder])

    def nodes(self, cluster: str) -> tuple[Node, ...]:
        root = self._cluster_folder(cluster)
        tags = processes.tags(lambda tag: tag.startswith(self._tag(cluster, "")))
        alive = {
            tag.rpartition("/")[2] for tag in tags.values() if not tag.endswith(processes.ROOM)
        }
        folders = (
            {path.name for path in root.iterdir() if path.is_dir() and path.name[0] != "."}
            if root.is_dir()
            else set()
        )
        nodes = [self._node(cluster, name, name in alive) for name in alive | folders]
        return tuple(sorted(nodes, key=lambda node: node.rank))

    def destroy(
        self,
        cluster: str,
        journal: Journal,
        expected: Expected = None,
        *,
        spared: Collection[str] = (),
        claimed: Collection[str] = (),
    ) -> tuple[NotAsked, ...]:
        root = self._cluster_folder(cluster)
        for node in self.nodes(cluster):
            journal(NodeDeletionBegun(node=node.name))
            NodeFolder(root / node.name).mark_killed()
        self._erase(lambda tag: tag.startswith(self._tag(cluster, "")), [root])
        return ()

    def remove(
        self, cluster: str, names: Sequence[str], journal: Journal, expected: Expected = None
    ) -> None:
        self._end_fork_server(cluster)
        folders = [self._cluster_folder(cluster) / name for name in names]
        there = {node.name for node in self.nodes(cluster)}
        for folder in folders:
            if folder.name in there:
                journal(NodeDeletionBegun(node=folder.name))
                NodeFolder(folder).mark_killed()
        tags = {self._tag(cluster, name) for name in names}
        self._erase(lambda tag: tag in tags, folders)

    def processes(self, cluster: str, node: str) -> tuple[int, ...]:
        """Every process of a node: its server, and what that has started."""
        wanted = self._tag(cluster, node)
        return tuple(processes.tags(lambda tag: tag == wanted))

    def end_node(self, cluster: str, node: str) -> None:
        """End a node as a cloud takes it back. Raises LeftoverError."""
        wanted = self._tag(cluster, node)
        _kill(lambda tag: tag == wanted)

    def fill_disk(self, cluster: str, node: str) -> int | None:
        """Leave no free byte on the node's own disk; returns its size, None if it has none."""
        return self._resize_disk(cluster, node, None)

    def free_disk(self, cluster: str, node: str, size: int) -> None:
        """Give a full disk its size again."""
        self._resize_disk(cluster, node, size)

    def _resize_disk(self, cluster: str, node: str, size: int | None) -> int | None:
        home = self._cluster_folder(cluster) / node / "home"
        pids = self.processes(cluster, node)
        return resize_in_process(min(pids), home, size) if pids else None

    def sweep(self) -> PartialList[Holding]:
        tags = processes.tags(lambda tag: tag.startswith(f"{self._digest}/"))
        names = {tag.split("/")[1] for tag in tags.values()}
        if self._root.is_dir():
            names |= {path.name for path in self._root.iterdir() if path.is_dir()}
        names.discard(trash.NAME)
        whose = Owner(id=login(), name=login())
        held = [
            Holding(cluster=name, provider=self.name, nodes=self.nodes(name), owners=(whose,))
            for name in sorted(names)
        ]
        return PartialList.of_read([*held, trash.empty(self._trash)])

    def _orders(
        self, plan: Plan, identity: Identity, nodes: Sequence[NodePlan], before: Mapping[str, Node]
    ) -> list[ServerRequest]:
        """The requests to the fork server, through a pipe: host keys are not written to disk."""
        places = dict(zip((node.name for node in plan.nodes), self._places(plan), strict=True))
        cluster = plan.config.name
        links = environment.datasets(os.environ)
        view = self._view(plan)
        orders = []
        for node in nodes:
            folder, tag = self._cluster_folder(cluster) / node.name, self._tag(cluster, node.name)
            known = before.get(node.name)
            kept = [(known.address, known.ssh_port)] if known and known.address else []
            port = node.port if plan.config.train.port == DEFAULT_PORT else None
            request = self._request(identity, node, folder, tag, view)
            orders.append(
                replace(request, places=[*kept, *places[node.name]], links=links, task_port=port)
            )
        return orders

    def _request(
        self, identity: Identity, node: Node | NodePlan, folder: Path, tag: str, view: View | None
    ) -> ServerRequest:
        home = folder / "home"
        return ServerRequest(
            folder=folder,
            meta={"name": node.name, "role": node.role, "index": node.index},
            places=[],
            links={},
            view=view and replace(view, writable=(*view.writable, str(home))),
            task_port=None,
            settings={
                "tag": tag,
                "user": self._user,
                "shell": environment.login_shell(),
                "public_key": identity.public_key,
                "host_key": identity.host_keys[node.name].private.reveal(),
                "environment": {
                    **environment.passed_on(os.environ),
                    **environment.of_node(node.name, self._user, home),
                    processes.VARIABLE: tag,
                },
            },
        )

    def _view(self, plan: Plan) -> View | None:
        view = environment.view_of_nodes(
            plan.config, state=self._root.parent, cache=self._cache, environ=os.environ
        )
        shared = self._cluster_folder(plan.config.name) / SHARED
        if view is None or not shared.is_dir():
            return view
        return replace(view, writable=(*view.writable, str(shared)))

    def _node(self, cluster: str, name: str, alive: bool) -> Node:
        folder = NodeFolder(self._cluster_folder(cluster) / name)
        meta = folder.meta()
        task = TaskId.of_node(name, cluster)  # also for a folder without readable metadata
        address = str(meta.get("address", ""))
        state: NodeState = "stopped"
        if folder.locked() and not folder.is_killed():
            # A process that has the lock but no tag is about to become the server, or is dying.
            state = "running" if alive and address else "starting"
        return Node(
            name=name,
            role=task.role if task else name,
            index=task.index if task else 0,
            state=state,
            address=address,
            internal=address,
            ssh_port=int(meta.get("port", 0)),
            user=self._user,
            host="localhost",
            cache=str(self._own_cache),
            shared_cache=str(self._cache),
            shared_folder=str(shared) if (shared := folder.path.parent / SHARED).is_dir() else "",
            placement="local",
            task_ports=folder.task_ports() if state == "running" else (),
        )

    def _places(self, plan: Plan) -> list[list[tuple[str, int]]]:
        seed = f"{self._digest}/{plan.config.name}"
        return [processes.addresses(seed, number) for number in range(len(plan.nodes))]

    def _make_cache(self) -> None:
        try:
            self._cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self._own_cache, self._cache / "venvs", self._cache / "proofs"):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CloudtrainError(
                f"cannot create the nodes' cache: {error}",
                hint="set CLOUDTRAIN_CACHE to another folder",
            ) from error

    def _end_fork_server(self, cluster: str) -> None:
        """End the fork server of a creation that was killed: it may still be creating nodes."""
        start, end = self._tag(cluster, ""), processes.ROOM
        _kill(lambda tag: tag.startswith(start) and tag.endswith(end))

    def _roll_back(
        self, names: set[str], cluster: str, journal: Journal, failure: BaseException
    ) -> BaseException:
        """Roll back this call's nodes; returns the error to raise, which still has `failure`."""
        tags = {self._tag(cluster, name) for name in names}
        root = self._cluster_folder(cluster)
        try:
            self._end_fork_server(cluster)
            for name in sorted(names):
                journal(NodeDeletionBegun(node=name))
            self._erase(lambda tag: tag in tags, [root / name for name in names])
            if root.is_dir() and {path.name for path in root.iterdir()} <= {SHARED}:
                self._erase(lambda tag: False, [root])
        except (OSError, CloudtrainError) as trouble:
            if isinstance(failure, CloudtrainError):
                hint = f"{failure.hint or ''} The rollback failed too: {trouble}".strip()
                return failure.copy_with(hint=hint)
        return failure

    def _erase(self, matches: Callable[[str], bool], folders: Sequence[Path]) -> None:
        """Kill the processes and delete the folders, then verify that nothing is left."""
        left: Mapping[int, str] = {}
        for _ in range(3):
            left = processes.kill(matches)
            for folder in folders:
                trash.discard(folder, self._trash)
            left = left or processes.tags(matches)
            if not left and not any(folder.exists() for folder in folders):
                return
        raise _leftover(left, [folder for folder in folders if folder.exists()])

    def _cluster_folder(self, cluster: str) -> Path:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", cluster):
            raise UsageError(f"{cluster!r} is not a valid cluster name")
        return self._root / cluster

    def _tag(self, cluster: str, node: str) -> str:
        return f"{self._digest}/{cluster}/{node}"


def _folder_of(variable: str, default: Path) -> Path:
    return Path(os.environ.get(variable) or default).expanduser().absolute()


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container that runs with an unknown user id
        return str(os.getuid())


def _make_gpu_devices() -> None:
    """Make the device of NVIDIA's unified memory, which CUDA makes at its first use by a setuid
    program: on a node that has no effect (nvidia-modprobe(1), `--unified-memory`)."""
    program = shutil.which("nvidia-modprobe")
    if program and Path("/dev/nvidiactl").exists() and not Path("/dev/nvidia-uvm").exists():
        subprocess.run([program, "-u", "-c", "0"], check=False, stdin=subprocess.DEVNULL)


def _kill(matches: Callable[[str], bool]) -> None:
    if left := processes.kill(matches):
        raise _leftover(left, [])


def _leftover(left: Mapping[int, str], folders: Sequence[Path]) -> LeftoverError:
    things = [f"process {pid} ({tag})" for pid, tag in sorted(left.items())]
    things += [f"folder {folder}" for folder in folders]
    return LeftoverError(
        f"not deleted: {', '.join(things)}",
        hint="remove these by hand (another user's processes as that user), then run it again",
    )
