"""A cluster's folder: private, whole after a crash, nothing left behind."""

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from cloudtrain.core.codec import decode
from cloudtrain.core.errors import CloudtrainError, ConfigError, UsageError
from cloudtrain.core.events import (
    DownBegun,
    LandingFailed,
    NodeDeletionBegun,
    NodeRequested,
    UpBegun,
)
from cloudtrain.core.run_record import Cause, Run, RunAttempt, Task, run_to_json
from cloudtrain.core.shell import Secret
from cloudtrain.state import Records, home, known_clusters, resolve

pytestmark = pytest.mark.usefixtures("own_home")

RUN = Run(
    id="20261121-062404-k3f9",
    cluster="mnist",
    command="python train.py --name 'à b'",
    tasks=(
        Task(role="chief", index=0, node="mnist-chief0", port=8900),
        Task(role="worker", index=0, node="mnist-worker0", port=8900),
    ),
    state="failed",
    created=1795242244.25,
    code="3f2a",
    attempts=(
        RunAttempt(
            number=1,
            started=1795242245.0,
            ended=1795242260.5,
            exits={"chief0": 1, "worker0": -9},
            cause=Cause(
                task="worker0",
                node="mnist-worker0",
                kind="signal",
                text="killed by SIGKILL",
                exit_code=-9,
                last_lines=("Epoch 1/2", "\udcff\x1b[2J"),
                hint="memory?",
                collateral=("chief0",),
            ),
        ),
        RunAttempt(number=2, started=1795242270.0),
    ),
    ended=1795242300.0,
    exit_code=1,
    store="file:///tmp/x",
)


def test_a_run_comes_back_as_it_was_saved() -> None:
    assert decode(Run, json.loads(json.dumps(run_to_json(RUN)))) == RUN
    records = Records("mnist")
    records.save_run(RUN)
    assert records.run(RUN.id) == RUN


@pytest.mark.parametrize("key", ["id", "cluster", "command", "state", "created"])
@pytest.mark.parametrize("value", [None, [], {"a": 1}, True])
def test_a_run_with_a_wrong_value_is_refused_by_its_key(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=key):
        decode(Run, {**run_to_json(RUN), key: value})


def test_folders_are_0700_and_files_0600_whatever_the_umask() -> None:
    old = os.umask(0)
    try:
        records = Records("mnist")
        records.create()
        records.save_config({"name": "mnist"})
        records.journal(UpBegun())
        records.save_run(RUN)
        with records.lock("up"):
            modes = {
                path: stat.S_IMODE(path.stat().st_mode) for path in [home(), *home().rglob("*")]
            }
    finally:
        os.umask(old)
    assert len(modes) == 9
    assert {
        path for path, mode in modes.items() if mode != (0o700 if path.is_dir() else 0o600)
    } == set()


def test_runs_are_listed_by_time_and_the_active_one_is_found() -> None:
    records = Records("mnist")
    assert (records.runs(), records.latest_run(), records.active_run()) == ((), None, None)
    later = Run(**{**vars(RUN), "id": "20261122-000000-aaaa", "state": "running"})
    for run in (later, RUN):
        records.save_run(run)
    assert records.runs() == (RUN, later)
    assert records.latest_run() == later
    assert records.active_run() == later
    records.save_run(Run(**{**vars(later), "state": "succeeded"}))
    assert records.active_run() is None


@pytest.mark.parametrize("garbage", [b"", b"{", b"[]", b"\xff\xfe", b'{"id": 1}', b"[" * 100_000])
def test_a_garbage_run_file_is_named_and_the_other_runs_are_still_listed(garbage: bytes) -> None:
    records = Records("mnist")
    records.save_run(RUN)
    broken = records.folder / "runs" / "20261123-000000-bbbb" / "run.json"
    broken.parent.mkdir()
    broken.write_bytes(garbage)
    with pytest.raises(ConfigError, match=str(broken)):
        records.run("20261123-000000-bbbb")
    runs, faults = records.runs_and_faults()
    assert runs == (RUN,)
    assert str(broken) in faults[0]


def test_what_a_crash_left_of_a_save_is_not_a_run() -> None:
    records = Records("mnist")
    records.save_run(RUN)
    (records.folder / "runs" / RUN.id / ".run.json.123-0").write_text("{")
    (records.folder / "runs" / "20261123-000000-bbbb").mkdir()
    assert records.runs_and_faults() == ((RUN,), ())


@pytest.mark.parametrize("run", ["../../secrets", "", ".", "a/b", "-x", "a\n"])
def test_a_run_id_never_leads_out_of_the_folder(run: str) -> None:
    with pytest.raises(UsageError):
        Records("mnist").run(run)
    with pytest.raises(UsageError):
        Records("mnist").log_path(run, "chief0", 1)


@pytest.mark.parametrize("name", ["../x", "", "Mnist", "a" * 31, "a.b", "a/b", "a\n"])
def test_a_cluster_name_never_leads_out_of_the_home(name: str) -> None:
    with pytest.raises(UsageError):
        Records(name)


def test_config_comes_back_and_garbage_is_named() -> None:
    records = Records("mnist")
    with pytest.raises(ConfigError, match="never saved"):
        records.config()
    records.save_config({"name": "mnist", "é": ["\udcff"]})
    assert records.config() == {"name": "mnist", "é": ["\udcff"]}
    for garbage in (b"", b"{", b"[]", b"\xff"):
        (records.folder / "config.json").write_bytes(garbage)
        with pytest.raises(ConfigError, match=r"config\.json"):
            records.config()


def test_a_secret_is_never_written() -> None:
    records = Records("mnist")
    with pytest.raises(TypeError):
        records.save_config({"secrets": {"K": Secret("s3cr3t")}})
    with pytest.raises(TypeError):
        records.journal(NodeRequested(node="a", made={"key": Secret("s3cr3t")}))
    assert [p for p in home().rglob("*") if p.is_file() and b"s3cr3t" in p.read_bytes()] == []


def test_events_come_back_in_order_and_a_torn_line_costs_only_itself() -> None:
    records = Records("mnist")
    records.journal(NodeRequested(node="mnist-chief0"))
    with (records.folder / "events.jsonl").open("ab") as file:
        file.write(b'{"time": 1, "event": "to')
    records.journal(NodeDeletionBegun(node="mnist-chief0"))
    assert [(e["event"], e["node"], e["pid"]) for e in records.events()] == [
        ("create", "mnist-chief0", os.getpid()),
        ("destroy", "mnist-chief0", os.getpid()),
    ]
    assert records.since() == records.events()[0]["time"]


def test_events_of_many_threads_are_whole_lines() -> None:
    records = Records("mnist")
    threads = [
        threading.Thread(
            target=lambda n=n: [
                records.journal(LandingFailed(run=f"{n}", why="y" * 3000)) for _ in "1234"
            ]
        )
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(records.events()) == 32


def test_an_unwritable_home_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "file" / "home"))
    for write in (
        lambda: Records("mnist").create(),
        lambda: Records("mnist").journal(UpBegun()),
        lambda: Records("mnist").save_run(RUN),
        lambda: Records("mnist").lock("up").__enter__(),
    ):
        with pytest.raises(CloudtrainError, match="Not a directory") as caught:
            write()
        assert "CLOUDTRAIN_HOME" in (caught.value.hint or "")


def test_a_full_disk_leaves_the_old_record(monkeypatch: pytest.MonkeyPatch) -> None:
    records = Records("mnist")
    records.save_run(RUN)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CloudtrainError, match=r"run\.json: No space left on device"):
        records.save_run(Run(**{**vars(RUN), "state": "running"}))
    assert records.runs() == (RUN,)
    assert [p.name for p in (records.folder / "runs" / RUN.id).iterdir()] == ["run.json"]


# ── which cluster ────────────────────────────────────────────────────────────


def test_the_only_known_cluster_is_meant_when_none_is_named() -> None:
    with pytest.raises(UsageError, match="no cluster is known here") as caught:
        resolve(None)
    assert caught.value.hint == "run `cloudtrain up FILE` to create one"
    Records("mnist").create()
    assert resolve(None) == "mnist"
    Records("bert").create()
    assert known_clusters() == ("bert", "mnist")
    with pytest.raises(UsageError, match="2 clusters are known here: bert, mnist"):
        resolve(None)
    assert resolve("bert") == "bert"
    with pytest.raises(UsageError, match="no cluster 'mnits'") as caught:
        resolve("mnits")
    assert caught.value.hint == "did you mean mnist?"


def test_an_error_lists_five_clusters_those_that_are_up_first() -> None:
    for name in "abcdefg":
        Records(name).create()
        if name != "f":
            Records(name).close()
    with pytest.raises(UsageError) as caught:
        resolve("nobody")
    assert caught.value.hint == "known: f (up), a, b, c, d and 2 more"


def test_a_home_that_is_a_file_says_what_to_choose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "file"))
    for use in (known_clusters, Records("mnist").create):
        with pytest.raises(UsageError, match="Not a directory") as caught:
            use()
        assert "choose another folder with CLOUDTRAIN_HOME (or HOME)" in str(caught.value.hint)


def test_the_holder_of_a_lock_is_named_by_what_a_user_knows() -> None:
    with Records("mnist").lock("attend"):
        found = str(Records("mnist").holder())
    assert found.startswith("the process that supervises its detached run (pid ")


def test_a_cluster_that_was_taken_down_is_meant_by_name_or_where_there_is_no_other() -> None:
    for name in ("old", "mnist"):
        Records(name).create()
    Records("old").close()
    assert resolve(None) == "mnist"
    assert resolve("old") == "old"
    Records("mnist").close()
    with pytest.raises(UsageError, match="2 clusters"):
        resolve(None)
    Records("old").create()
    assert resolve(None) == "old"


def test_closing_removes_the_keys_and_keeps_what_was_learnt() -> None:
    records = Records("mnist")
    records.save_run(RUN)
    records.save_config({"name": "mnist"})
    records.journal(DownBegun())
    (records.folder / "host_keys").mkdir()
    for name in ("key", "key.pub", "known_hosts", "ssh_config", "host_keys/mnist-chief0"):
        (records.folder / name).write_text("")
    records.close()
    records.close()
    left = {p.relative_to(records.folder).as_posix() for p in records.folder.rglob("*")}
    run = f"runs/{RUN.id}"
    assert left == {"closed", "config.json", "events.jsonl", "runs", run, f"{run}/run.json"}


def test_a_stop_is_asked_of_whoever_attends() -> None:
    Records("mnist").save_run(RUN)
    assert not Records("mnist").stop_asked(RUN.id)
    Records("mnist").ask_stop(RUN.id)
    assert Records("mnist").stop_asked(RUN.id)


# ── the lock ─────────────────────────────────────────────────────────────────


def test_a_failed_command_leaves_no_lock() -> None:
    with pytest.raises(ZeroDivisionError), Records("mnist").lock("up"):
        raise ZeroDivisionError
    assert list((home() / "clusters").iterdir()) == []


def test_a_garbage_lock_file_stops_nobody() -> None:
    path = home() / "clusters" / "mnist.lock"
    path.parent.mkdir(parents=True)
    for garbage in (b"", b"\xff", b"[]", b'{"pid": "x"}', b"null"):
        path.write_bytes(garbage)
        assert Records("mnist").holder() is None
        with Records("mnist").lock("up"):
            pass
