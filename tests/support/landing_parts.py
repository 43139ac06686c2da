"""Doors for the landing tests: nodes that are folders here, and doors that misbehave."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from cloudtrain.artifacts.land import Closing, land_files, land_so_far, pending_files
from cloudtrain.artifacts.landing import Landing
from cloudtrain.artifacts.manifest import NAME, Manifest, OwnManifests, to_bytes
from cloudtrain.artifacts.run_index import store_record
from cloudtrain.core import paths, ship
from cloudtrain.core.errors import NodeUnreachable, StoreError
from cloudtrain.core.model import Artifact, ArtifactRules, Node
from cloudtrain.core.protocols import ArtifactStore, Completed, Stage, StoreBackend
from cloudtrain.core.run_record import Run, Task
from cloudtrain.core.shell import Command, script
from cloudtrain.stores import open_store

FEEDER_GRACE = 0.5
"""Seconds to wait for an iterable that is busy when the command ends, as SSH's transport does."""
RUN = "20261121-062404-k3f9"


class FolderTransport:
    """Runs commands by /bin/sh with the node's folder as its home."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands: list[str] = []
        self.received = 0
        self.environment: dict[str, str] = {}
        self.processes: list[subprocess.Popen[bytes]] = []
        self.break_after: int | None = None
        """Bytes of output in all, after which connections break."""
        self.before: Callable[[str], None] = lambda line: None
        """Called with each command's line before it runs."""
        self.during: Callable[[str], None] = lambda line: None
        """Called with the command's line at each piece of its output."""

    def home(self, node: Node) -> Path:
        home = self.folder / node.name
        home.mkdir(parents=True, exist_ok=True)
        return home

    def run(
        self,
        node: Node,
        command: Command,
        *,
        stdin: bytes | Iterable[bytes] = b"",
        on_stdout: Callable[[bytes], None] | None = None,
        on_stderr: Callable[[bytes], None] | None = None,
        timeout: float | None = None,
    ) -> Completed:
        line = command.shell()
        self.commands.append(line)
        self.before(line)
        out, err = bytearray(), bytearray()
        with subprocess.Popen(
            ["/bin/sh", "-c", f"exec {line}"],
            cwd=self.home(node),
            env={**os.environ, "HOME": str(self.home(node)), **self.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        ) as process:
            self.processes.append(process)
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            feed = threading.Thread(target=_feed, args=(process.stdin, stdin), daemon=True)
            feed.start()
            try:
                for pipe, data in _pieces(process.stdout, process.stderr):
                    if pipe is process.stderr:
                        (on_stderr or err.extend)(data)
                        continue
                    self._count(node, len(data))
                    (on_stdout or out.extend)(data)
                    self.during(line)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
            finally:
                feed.join(FEEDER_GRACE)
        return Completed(exit_code=process.returncode, stdout=bytes(out), stderr=bytes(err))

    def _count(self, node: Node, size: int) -> None:
        self.received += size
        if self.break_after is not None and self.received > self.break_after:
            raise NodeUnreachable(node.name, "the connection broke")

    def ask(self, node: Node, script: str, *, timeout: float = 30.0) -> Completed:
        raise NotImplementedError

    def close(self) -> None:
        pass


def _feed(pipe: object, data: bytes | Iterable[bytes]) -> None:
    with pipe as stdin:  # type: ignore[attr-defined]
        try:
            for chunk in [data] if isinstance(data, bytes) else data:
                view = memoryview(chunk)
                while view:  # a profiler interrupts it
                    view = view[stdin.write(view) :]
        except (BrokenPipeError, ValueError):  # ended, or closed here
            pass


def _pieces(*pipes: IO[bytes]) -> Iterator[tuple[IO[bytes], bytes]]:
    """What each of them says, as it says it."""
    with selectors.DefaultSelector() as selector:
        for pipe in pipes:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                data = os.read(key.fd, 1 << 16)
                if data:
                    yield key.fileobj, data  # type: ignore[misc]
                else:
                    selector.unregister(key.fileobj)


class Heard:
    """A console that remembers."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.warned: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def warn(self, text: str) -> None:
        self.warned.append(text)

    def stage(self, title: str, total: int) -> AbstractContextManager[Stage]:
        return nullcontext(_NoStage())

    def task_output(self, task: str, data: bytes) -> None:
        raise AssertionError("landing shows no task's output")


class _NoStage:
    def node(self, name: str, text: str) -> None:
        pass

    def done(self, name: str, text: str = "") -> None:
        pass


class FaultyStore:
    """Refuses uploads once `uploads_left` have been made; counts bytes."""

    def __init__(self, store: StoreBackend) -> None:
        self.store = store
        self.uri = store.uri
        self.presigner = store.presigner
        self.uploads_left: int | None = None
        self.uploaded: list[str] = []

    def check(self) -> None:
        self.store.check()

    def upload(self, path: str, data: Iterable[bytes]) -> Artifact:
        if self.uploads_left is not None:
            if self.uploads_left == 0:
                raise StoreError(f"{self.uri}/{path}: No space left on device")
            self.uploads_left -= 1
        self.uploaded.append(path)
        return self.store.upload(path, data)

    def create(self, location: str | None, tags: Mapping[str, str] | None = None) -> bool:
        return self.store.create(location)

    def copy(self, source: str, target: str) -> None:
        """One more upload, and refused as one."""
        self.upload(target, self.download(source))

    def delete(self, path: str) -> None:
        self.store.delete(path)

    def list(self, prefix: str = "", known: Collection[str] = ()) -> Iterator[Artifact]:
        return self.store.list(prefix, known)

    def download(self, path: str) -> Iterator[bytes]:
        return self.store.download(path)


def land_logs(run: Run, files: Mapping[str, Path], store: ArtifactStore) -> Manifest:
    """The logs of a run that has ended, and its record, without any node."""
    closing = Closing(without_nodes(run, store), run, {})
    closing.record(run, files)
    return closing.complete()


def land_logs_so_far(run: Run, files: Mapping[str, Path], store: ArtifactStore) -> None:
    land_so_far(without_nodes(run, store), run, {}, files)
    store_record(run, store, time.time())


def write_manifest(store: ArtifactStore, manifest: Manifest) -> None:
    """As another machine does."""
    store.upload(f"{manifest.run}/{NAME}", [to_bytes(manifest)])


def without_nodes(run: Run, store: ArtifactStore) -> Landing:
    return Landing(
        cluster=run.cluster,
        rules=ArtifactRules(),
        checkpoints=None,
        transport=FolderTransport(Path("/nowhere")),
        store=store,
        console=Heard(),
    )


class Cluster:
    """A chief and workers with one run, their work folders, and the doors to all of it."""

    def __init__(self, folder: Path, workers: int = 1, ps: int = 0) -> None:
        names = ["chief0", *(f"worker{index}" for index in range(workers))]
        names += [f"ps{index}" for index in range(ps)]
        self.nodes = {name: node(name) for name in names}
        self.run = Run(
            id=RUN,
            cluster="mnist",
            command="python train.py",
            tasks=tuple(
                Task(role=each.role, index=each.index, node=each.name, port=8900)
                for each in self.nodes.values()
            ),
            state="running",
            created=1.0,
        )
        self.rules = ArtifactRules()
        self.transport = FolderTransport(folder / "nodes")
        self.folder = folder / "a store, with: ünusual name"
        self.store = FaultyStore(open_store(self.folder.as_uri()))
        self.console = Heard()
        for name in names:
            self.work(name).mkdir(parents=True, exist_ok=True)

    def landing(self, checkpoints: str | None = None, **changes: Any) -> Landing:
        given = Landing(
            cluster="mnist",
            rules=self.rules,
            checkpoints=checkpoints,
            transport=self.transport,
            store=self.store,
            console=self.console,
            own=OwnManifests(folder=self.folder.with_name("manifests")),
        )
        return replace(given, **changes)

    def land(
        self, *, final: bool = True, checkpoints: str | None = None, **changes: Any
    ) -> Manifest:
        way = land_files if final else land_so_far
        return way(self.landing(checkpoints, **changes), self.run, self.nodes)

    def unlanded(self, checkpoints: str | None = None, **changes: Any) -> tuple[str, ...]:
        left = pending_files(self.landing(checkpoints, **changes), list(self.nodes.values()))
        return tuple(file.path for file in left)

    def work(self, task: str) -> Path:
        home = self.transport.home(self.nodes[task])
        return home / paths.work_folder("mnist", RUN, task)

    def write(self, task: str, path: str, content: str | bytes) -> Path:
        place = self.work(task) / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)
        return place

    def begin(self, task: str) -> None:
        """Record what the task finds, as where its work folder is created."""
        work = self.work(task)
        work.rename(work.with_name("code"))
        work.symlink_to("code")
        place = paths.work_folder("mnist", RUN, task).rpartition("/")[0]
        begins = "\nbegin(*map(os.fsencode, sys.argv[1:]))\n"
        command = script(ship.START, ship.text("changes.py") + begins, place, ".")
        done = self.transport.run(self.nodes[task], command)
        assert done.exit_code == 0, done.stderr

    def landed(self) -> dict[str, bytes]:
        """Everything below the run's folder in the store, but for the manifest."""
        top = self.folder / RUN
        return {
            path.relative_to(top).as_posix(): path.read_bytes()
            for path in sorted(top.rglob("*"))
            if path.is_file() and path.name != "manifest.json"
        }


def node(task: str) -> Node:
    role = task.rstrip("0123456789")
    return Node(
        name=f"mnist-{task}",
        role=role,
        index=int(task[len(role) :]),
        state="running",
        address="127.0.0.1",
        internal="127.0.0.1",
    )
