"""kill -9 of the client before and after every call of a landing, or the store is away for a minute
from there on: no byte is lost.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from cloudtrain.artifacts.manifest import Manifest, read_manifest
from cloudtrain.core import paths
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.model import ArtifactRules
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.stores import open_store
from tests.standins.faults import Fault, Faults
from tests.standins.stores import KINDS, Store, faulty
from tests.support.landing_parts import RUN, Cluster, Heard
from tests.support.lanes import Cases

RULES = ArtifactRules()
HASTE = 100.0
"""How much faster the stores' libraries wait before they try again."""
REFUSED = 3
AWAY = {
    "reset": Fault(kind="reset", lasts=60.0 / HASTE),
    "503": Fault(kind="answer", status=503, lasts=60.0 / HASTE),
}
"""What each call meets while the store is away."""
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.e2e.test_land_crash", "boto3", "google.cloud.storage"])


@pytest.fixture(scope="module", params=KINDS)
def door(request: pytest.FixtureRequest) -> Iterator[tuple[Store, Faults]]:
    with KINDS[request.param]() as store, faulty(store) as door:
        yield door


class Client:
    """Lands one run from a process of its own, that a test may kill."""

    def __init__(self, folder: Path, door: tuple[Store, Faults]) -> None:
        self.folder, (self.place, self.faults) = folder, door
        self.uri = f"{self.place.uri}/{folder.name}"
        self.cluster = Cluster(folder)
        self.store = open_store(self.uri)
        self.files: dict[str, bytes] = {}

    def write(self, task: str, path: str, data: bytes) -> None:
        file = self._file(task, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        self.files[f"{task}/{path}"] = data

    def remove(self, task: str, path: str) -> None:
        self._file(task, path).unlink()
        del self.files[f"{task}/{path}"]

    def _file(self, task: str, path: str) -> Path:
        home = self.cluster.transport.home(self.cluster.nodes[task])
        return home / paths.work_folder("mnist", RUN, task) / path

    def lands(self, *, final: bool) -> None:
        landing(self.cluster, self.store, final=final)

    def is_killed(self, number: int, after: bool) -> bool:
        """False where it made fewer calls than that."""
        return self.lands_with(Fault(kind="kill", number=number, after=after)) != 0

    def lands_with(self, fault: Fault) -> int:
        """Exit code of a last landing: 0, REFUSED where the store was away, or by a signal."""
        self.faults.forget()
        here, gate = PROCESSES.Pipe()
        process = PROCESSES.Process(
            target=final_landing, args=(self.folder, self.uri, self.place.environment, gate)
        )
        process.start()
        assert process.pid is not None
        self.faults.arm(replace(fault, pid=process.pid))
        here.recv()
        here.send("go")
        process.join(60)
        self.faults.disarm()
        assert process.exitcode is not None
        return process.exitcode

    def left(self) -> tuple[str, ...]:
        return self.cluster.unlanded("ckpt", rules=RULES, store=self.store)

    def nothing_else_is_billed(self) -> None:
        manifest = read_manifest(self.store, RUN)
        assert manifest is not None
        names = {f"{RUN}/manifest.json", *(f"{RUN}/{each.at}" for each in manifest.files.values())}
        assert {found.path for found in self.store.list()} == names

    def everything_is_there(self) -> Manifest:
        manifest = read_manifest(self.store, RUN)
        assert manifest is not None
        held = {
            path: b"".join(self.store.download(f"{RUN}/{each.at}"))
            for path, each in manifest.files.items()
        }
        assert held == self.files
        return manifest


def landing(cluster: Cluster, store: ArtifactStore, *, final: bool) -> None:
    cluster.land(final=final, checkpoints="ckpt", rules=RULES, store=store, console=Heard())


def final_landing(folder: Path, uri: str, environment: dict[str, str], gate: Connection) -> None:
    os.environ.update(environment)
    slowly = time.sleep
    time.sleep = lambda seconds: slowly(seconds / HASTE)  # type: ignore[assignment]
    cluster, store = Cluster(folder), open_store(uri)
    gate.send("ready")
    gate.recv()
    try:
        landing(cluster, store, final=True)
    except CloudtrainError as error:
        print(error)
        sys.exit(REFUSED)


@pytest.fixture(autouse=True)
def _environment(door: tuple[Store, Faults], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in door[0].environment.items():
        monkeypatch.setenv(name, value)
    door[1].disarm()


def begun(folder: Path, door: tuple[Store, Faults]) -> Client:
    """With a file that landed before and has changed, and a checkpoint of which a file is gone."""
    client = Client(folder, door)
    client.write("chief0", "output/log", b"first")
    client.write("chief0", "ckpt/1.index", b"1")
    client.lands(final=False)
    client.write("chief0", "output/log", b"first and second")
    client.write("worker0", "output/empty", b"")
    client.write("chief0", "ckpt/2.index", b"2")
    client.remove("chief0", "ckpt/1.index")
    return client


@pytest.mark.sweep(1)
def test_a_landing_that_is_killed_anywhere_is_finished_by_the_next(
    tmp_path: Path, door: tuple[Store, Faults], cases: Cases
) -> None:
    """The sample: after the first write, before the last, and two that are drawn."""
    assert not begun(tmp_path / "whole", door).is_killed(1_000_000, False)
    actions = [call["action"] for call in door[1].calls()]
    writes = [n for n, action in enumerate(actions, start=1) if not action.startswith("GET ")]
    assert len(actions) > 7
    points = list(itertools.product(range(1, len(actions) + 1), (False, True)))
    known = [(writes[0], True), (writes[-1], False)]
    killed = 0
    for number, after in cases.of(points, 2, always=known):
        client = begun(tmp_path / f"{number}-{after}", door)
        killed += client.is_killed(number, after)
        is_finished(client)
    assert killed > (14 if cases.every else 1)


@pytest.mark.parametrize("away", AWAY)
@pytest.mark.sweep(1)
def test_a_landing_whose_store_is_away_for_a_minute_is_done_or_finished_by_the_next(
    tmp_path: Path, door: tuple[Store, Faults], away: str, cases: Cases
) -> None:
    assert not begun(tmp_path / "whole", door).is_killed(1_000_000, False)
    last = len(door[1].calls())
    for number in cases.of(range(1, last + 1), 2):
        client = begun(tmp_path / f"{number}", door)
        code = client.lands_with(replace(AWAY[away], number=number))
        assert code in (0, REFUSED), f"at call {number}"
        if code == 0:
            assert client.left() == ()
        is_finished(client)


def is_finished(client: Client) -> None:
    """By the next landing; what counts as landed was there before."""
    if client.left() == ():
        client.everything_is_there()
    client.lands(final=True)
    assert client.left() == ()
    assert client.everything_is_there().complete
    client.nothing_else_is_billed()
