"""A run that a desk attends, followed and ended from other machines through its store alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cloudtrain.away.orders import new_order_key
from cloudtrain.away.published import AwayState, Publisher
from cloudtrain.away.signatures import new_desk_id, publish_desk_key
from cloudtrain.cluster.session import record_cluster
from cloudtrain.config import load
from cloudtrain.state import Records
from cloudtrain.state.away_record import AwayRecord, save_away
from cloudtrain.stores import open_store
from tests.support.desk_parts import record_desk
from tests.support.project import Project, until

COUNTS = """
n=0
until [ -e "$GO" ]; do n=$((n+1)); echo "step $n of {role}{index}"; sleep 0.05; done
echo "the end of {role}{index}"; mkdir -p {output}; echo 1 > {output}/model; exit $(cat "$GO")
"""


@dataclass(frozen=True, kw_only=True)
class Away:
    """`sender` has sent the run away and has its record and key; `other` has the FILE alone."""

    project: Project
    config: Path
    sender: Path
    other: Path
    key: Path
    desk: subprocess.Popen[bytes]
    go: Path

    def cloudtrain(self, home: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
        environment = {**self.project.environment, "CLOUDTRAIN_HOME": str(home)}
        return subprocess.run(
            [sys.executable, "-m", "cloudtrain", *map(str, words)],
            capture_output=True,
            text=True,
            env=environment,
            cwd=self.project.folder,
            timeout=120,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    def state(self, home: Path, argument: str | Path) -> dict[str, object]:
        done = self.cloudtrain(home, "status", argument, "--json")
        (cluster,) = json.loads(done.stdout)["clusters"]
        found: dict[str, object] = cluster["away"] or {}
        return found


@pytest.fixture
def away(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Away]:
    go = project.shared() / "go"
    config = project.config(train={"command": COUNTS, "env": {"GO": str(go)}, "checkpoints": None})
    sender, other = project.folder / "sender", project.folder / "other"
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(sender))
    records, desk = Records(project.name), new_desk_id(1_795_000_000)
    record_cluster(load(config), records)
    record_desk(load(config))
    key, own = new_order_key(records.folder), new_order_key(project.folder / "controller's")
    record = AwayRecord(
        cluster=project.name,
        desk=desk,
        node=f"{project.name}-desk",
        store=project.store.as_uri(),
        public_key=key.public,
        desk_key=own.public,
        created=1_795_000_000.0,
    )
    save_away(records, record)
    store = open_store(project.store.as_uri())
    publish_desk_key(store, key, record)
    begun = AwayState(cluster=project.name, desk=desk, phase="starting", as_of=0.0, began=0.0)
    Publisher(store, project.name, desk, log_file=sender / "log", warn=print).state(begun)
    what = (config, desk, key.public, own.path)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.desk_stand_in", *map(str, what)],
        env=project.environment,
        cwd=project.folder,
        stdin=subprocess.DEVNULL,
        stdout=(project.folder / "desk.out").open("wb"),
        stderr=subprocess.STDOUT,
    )
    made = Away(
        project=project,
        config=config,
        sender=sender,
        other=other,
        key=key.path,
        desk=process,
        go=go,
    )
    try:
        until(lambda: made.state(sender, project.name).get("phase") == "training", 120)
        yield made
    finally:
        process.kill()
        process.wait()


@pytest.mark.sweep(1, of="followers")
def test_a_run_that_is_away_is_followed_to_its_end_and_fetched_from_any_machine(
    away: Away,
) -> None:
    environment = {**away.project.environment, "CLOUDTRAIN_HOME": str(away.other)}
    with subprocess.Popen(
        [sys.executable, "-m", "cloudtrain", "logs", "-f", str(away.config)],
        env=environment,
        cwd=away.project.folder,
        stdout=subprocess.PIPE,
        stderr=(away.project.folder / "followed").open("w"),
        text=True,
    ) as follower:
        assert follower.stdout is not None
        lines = [next(follower.stdout)]
        while not lines[-1].endswith("step 5 of worker0\n"):
            lines.append(next(follower.stdout))
        shown = away.cloudtrain(away.sender, "status")
        assert "away  training" in shown.stdout, shown.stdout + shown.stderr
        listed = away.cloudtrain(away.sender, "ls")
        assert listed.stdout == f"{away.project.name}  local  away (by the local record)\n"
        away.go.write_text("3")
        lines += follower.stdout
    err = (away.project.folder / "followed").read_text()
    assert follower.returncode == 1, err  # that of `run`: a task exited with 3
    for task in ("chief0", "worker0"):
        own = [line.partition(" │ ")[2].strip() for line in lines if line.startswith(f"{task} │")]
        steps = [line for line in own if line.startswith("step")]
        assert steps == [f"step {n + 1} of {task}" for n in range(len(steps))]
    assert "exit code 1" in err
    assert away.desk.wait(60) == 1

    ended = away.state(away.other, away.config)
    assert (ended["phase"], ended["exit_code"]) == ("ended", 1)
    fetched = away.cloudtrain(away.other, "fetch", away.config, away.project.folder / "got")
    assert fetched.returncode == 0, fetched.stderr
    assert list((away.project.folder / "got").rglob("output/model"))
    logs = away.cloudtrain(away.other, "logs", away.config, "--role", "chief", "--tail", "1")
    assert logs.stdout == "chief0 │ the end of chief0\n"
    again = away.cloudtrain(away.sender, "logs", away.project.name, "--tail", "1")
    assert "worker0 │ the end of worker0" in again.stdout
    down = away.cloudtrain(away.sender, "status", away.project.name)
    assert "  down" in down.stdout.splitlines()[0], down.stdout
    assert down.returncode == 0


@pytest.mark.sweep(1, of="followers")
def test_only_the_order_key_stops_a_run_that_is_away(away: Away) -> None:
    refused = away.cloudtrain(away.other, "stop-run", away.config)
    assert refused.returncode == 2
    assert "which is away, needs its order key" in refused.stderr
    assert str(away.key) in refused.stderr
    stopped = away.cloudtrain(
        away.other, "stop-run", away.config, "--order-key", away.key, "--json"
    )
    assert stopped.returncode == 0, stopped.stderr
    assert json.loads(stopped.stdout)["state"] == "stopped"
    assert "the controller has confirmed the order" in stopped.stderr
    away.desk.wait(60)
    late = away.cloudtrain(away.sender, "stop-run", away.project.name)
    assert late.returncode == 2
    assert "has no active run" in late.stderr


@pytest.mark.sweep(1, of="followers")
def test_down_ends_the_desk_first_and_then_asks_what_is_left(away: Away) -> None:
    done = away.cloudtrain(away.sender, "down", away.project.name)
    assert done.returncode == 0, done.stderr
    assert "the controller has confirmed the order" in done.stderr
    assert "lists nothing of it any more" in done.stderr
    assert not away.key.exists()
    assert away.desk.wait(60) != 0
    assert away.project.processes() == {}
    logs = away.cloudtrain(away.sender, "logs", away.project.name, "--tail", "1")
    assert "chief0 │ step" in logs.stdout
