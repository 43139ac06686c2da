"""What earlier commits left on disk, in stores and on nodes is read by this one, for ever.

A set that this commit's formats need is made by tests/freeze.py; one that is there stays as it is.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cloudtrain.artifacts.manifest import read_manifest
from cloudtrain.artifacts.spool import ingest_spools
from cloudtrain.artifacts.spool_archive import pending_spools
from cloudtrain.cli.app import cli
from cloudtrain.config import from_json
from cloudtrain.core import paths
from cloudtrain.core.events import USES, was_ready
from cloudtrain.core.events import pending_nodes as asked_for
from cloudtrain.core.run_record import Run, Task
from cloudtrain.runs import task_commands
from cloudtrain.state import Records, known_clusters
from cloudtrain.stores import open_store
from tests.support.landing_parts import RUN, Cluster

SETS = sorted((Path(__file__).parents[1] / "frozen").iterdir())


@pytest.fixture(params=SETS, ids=lambda path: path.name)
def frozen(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the set, which is also the state folder."""
    copied: Path = shutil.copytree(request.param, tmp_path / "set", symlinks=True)
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(copied))
    monkeypatch.chdir(tmp_path)
    return copied


def cloudtrain(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def test_the_records_tell_what_is_up_and_what_was_asked_for(frozen: Path) -> None:
    assert known_clusters() == ("is-up", "was-up")
    up, down = Records("is-up"), Records("was-up")
    assert (up.is_open(), down.is_open()) == (True, False)
    for records in (up, down):
        config = from_json(records.config())
        assert (config.name, config.provider) == (records.name, "local")
        assert [*config.nodes] == ["chief", "worker"]
    assert from_json(down.config()).train.env == {"A": "b c"}
    assert was_ready(up.events())
    assert not was_ready(down.events())
    assert set(asked_for(up.events())) <= {"is-up-chief0", "is-up-worker0"}
    assert {event["event"] for event in up.events()} >= USES - {"started"}


def test_the_runs_tell_their_attempts_and_causes(frozen: Path) -> None:
    (failed,) = Records("is-up").runs()
    assert (failed.state, len(failed.attempts)) == ("failed", 2)
    assert [attempt.cause.exit_code for attempt in failed.attempts if attempt.cause] == [3, 3]
    assert failed.attempts[0].exits == {"chief0": 3, "worker0": 3}
    (well,) = Records("was-up").runs()
    assert (well.state, well.exit_code) == ("succeeded", 0)
    assert [task.name for task in well.tasks] == ["chief0", "worker0"]


def test_status_and_logs_show_them(frozen: Path) -> None:
    told = json.loads(cloudtrain("status", "--offline", "--json").output)
    assert {cluster["name"] for cluster in told["clusters"]} >= {"is-up"}
    logs = cloudtrain("logs", "was-up")
    assert (logs.exit_code, "chief0 step 3" in logs.output) == (0, True)


def test_a_store_is_read_without_any_record(frozen: Path, tmp_path: Path) -> None:
    store = open_store((frozen / "store").as_uri())
    for folder in sorted(path for path in (frozen / "store").iterdir() if path.name[0] == "2"):
        manifest = read_manifest(store, folder.name)
        assert manifest is not None
        assert manifest.complete
        for file in manifest.files.values():
            data = b"".join(store.download(f"{folder.name}/{file.at}"))
            assert hashlib.sha256(data).hexdigest() == file.sha256
    shutil.rmtree(frozen / "clusters")
    status = cloudtrain("status", "--store", store.uri, "--json")
    runs = [run for told in json.loads(status.output)["clusters"] for run in told["runs"]]
    assert {run["state"] for run in runs} == {"succeeded", "failed"}
    fetched = cloudtrain("fetch", "was-up", str(tmp_path / "home"), "--store", store.uri)
    assert fetched.exit_code == 0, fetched.output
    assert list((tmp_path / "home").rglob("output/chief0.txt"))


def test_what_an_agent_stored_lands(frozen: Path) -> None:
    store = open_store((frozen / "spool").as_uri())
    assert len(pending_spools(RUN, store)) == 2
    run = Run(
        id=RUN,
        cluster="mnist",
        command="",
        tasks=tuple(Task(role=r, index=0, node=f"mnist-{r}0", port=0) for r in ("chief", "worker")),
        state="landing",
        created=0.0,
    )
    ingest_spools(run, store, Cluster(frozen / "nodes").console)
    manifest = read_manifest(store, RUN)
    assert manifest is not None
    landed = {
        path: b"".join(store.download(f"{RUN}/{file.at}")) for path, file in manifest.files.items()
    }
    assert landed["chief0/output/model"] == b"model\n"
    assert landed["worker0/output/events"] == b"e" * 100
    assert landed["logs/chief0.attempt-1.log"] == b"trained\n"
    assert pending_spools(RUN, store) == []


def test_a_task_of_an_earlier_commit_is_seen_to_have_ended(frozen: Path, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "nodes")
    for task, exit_code in (("chief0", 3), ("worker0", 0)):
        node = cluster.nodes[task]
        place = paths.attempt_folder("mnist", RUN, task, 1)
        folder = cluster.transport.home(node) / Path(place).parent  # type: ignore[attr-defined]
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(frozen / "node" / task, folder, symlinks=True)
        told = cluster.transport.run(node, task_commands.status(place))
        (status,) = task_commands.parse_status(node.name, told)
        assert status.exit_code == exit_code
        again: Any = task_commands.start(place, tag="t", work=".", command="exit 7", environment={})
        said = cluster.transport.run(node, again.command, stdin=again.stdin)
        assert task_commands.parse_start(node.name, said) == "already"
