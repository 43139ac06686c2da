"""Runs found by the index in their store, as values."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.artifacts.run_index import (
    LandedLogs,
    StoredRuns,
    clusters_in,
    record_of,
    store_record,
    stored_run,
)
from cloudtrain.away.find_run import find_run
from cloudtrain.cli.status import report_json, report_text
from cloudtrain.commands.status import status
from cloudtrain.config import to_json
from cloudtrain.core.errors import StoreError, UsageError
from cloudtrain.core.model import ArtifactRules, ClusterConfig, NodeGroup
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.core.run_record import Cause, Run, RunAttempt, Task
from cloudtrain.state import Records
from tests.support.landing_parts import land_logs, land_logs_so_far
from tests.support.run_index_parts import store

__all__ = ["store"]

RUN = Run(
    id="20261121-062404-k3f9",
    cluster="mnist",
    command="python train.py",
    tasks=(Task(role="chief", index=0, node="mnist-chief0", port=8900),),
    state="failed",
    created=1000.0,
    ended=1075.0,
    exit_code=1,
    attempts=(
        RunAttempt(
            number=1,
            started=1001.0,
            ended=1070.0,
            exits={"chief0": -9},
            cause=Cause(task="chief0", node="mnist-chief0", kind="signal", text="killed"),
        ),
    ),
)
OLDER = replace(RUN, id="20261120-000000-aaaa")
GOES_ON = replace(RUN, id="20261122-000000-bbbb", state="running", ended=None, exit_code=None)


def run_json(store: ArtifactStore, run: Run, **changes: Any) -> None:
    facts = {**json.loads(record_of(run)), **changes}
    store.upload(f"{run.id}/run.json", [json.dumps(facts).encode()])


# ── the records of a store ───────────────────────────────────────────────────


def test_the_runs_of_one_cluster_are_told_from_those_of_others(store: ArtifactStore) -> None:
    for run in (RUN, OLDER, replace(RUN, id="20270101-000000-zzzz", cluster="mnist-2")):
        land_logs(run, {}, store)
    assert clusters_in(store) == ("mnist", "mnist-2")
    runs = StoredRuns(store, "mnist")
    assert runs.ids() == (OLDER.id, RUN.id)
    assert runs.latest().run == RUN
    assert runs.run(OLDER.id).run == OLDER
    with pytest.raises(UsageError, match="mnist has no run '20270101-000000-zzzz'"):
        runs.run("20270101-000000-zzzz")


@pytest.mark.parametrize("run", ["none", "../../etc", "", "a/b", ".runs"])
def test_a_run_that_is_not_there_is_told_with_those_that_are(
    store: ArtifactStore, run: str
) -> None:
    land_logs(RUN, {}, store)
    with pytest.raises(UsageError) as raised:
        StoredRuns(store, "mnist").run(run)
    assert raised.value.hint == f"its latest runs: {RUN.id}"


def test_a_cluster_without_runs_is_told_with_those_that_have_some(store: ArtifactStore) -> None:
    with pytest.raises(UsageError) as raised:
        StoredRuns(store, "mnist").latest()
    assert raised.value.hint == "no run has landed there yet: `cloudtrain train` starts one"
    land_logs(RUN, {}, store)
    with pytest.raises(UsageError) as raised:
        StoredRuns(store, "mnits").latest()
    assert raised.value.hint == "the store has runs of: mnist"


def test_the_runs_are_found_without_a_listing_of_what_they_made(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    land_logs(RUN, {}, store)
    asked: list[str] = []
    whole = store.list
    monkeypatch.setattr(store, "list", lambda prefix="": asked.append(prefix) or whole(prefix))
    StoredRuns(store, "mnist").latest()
    assert asked == [".runs/mnist/", f"{RUN.id}/run.json"]


def test_a_run_that_somebody_removed_is_no_run(store: ArtifactStore, tmp_path: Path) -> None:
    for run in (OLDER, RUN):
        land_logs(run, {}, store)
    (tmp_path / "store" / RUN.id / "run.json").unlink()
    assert StoredRuns(store, "mnist").latest().run == OLDER
    runs, faults = StoredRuns(store, "mnist").runs_and_faults()
    assert ([each.run for each in runs], faults) == ([OLDER], ())


def test_a_run_that_was_copied_without_the_index_is_found_by_its_id(store: ArtifactStore) -> None:
    run_json(store, RUN)
    assert StoredRuns(store, "mnist").run(RUN.id).run == RUN


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"format": 2}, "`format` should be 1"),
        ({"id": "another"}, "it is the record of run 'another'"),
        (
            {"state": "dancing"},
            "'succeeded', 'failed' or 'stopped'",
        ),
        ({"created": float("nan")}, "`created` should be a finite number"),
        ({"ended": 1e300}, "`ended` should be less than 253370764800"),
        ({"as_of": "now"}, "`as_of` should be a valid number"),
        ({"tasks": "none"}, "`tasks` should be a list"),
    ],
)
def test_a_record_that_makes_no_sense_is_one_clear_error(
    store: ArtifactStore, change: dict[str, Any], fault: str
) -> None:
    land_logs(OLDER, {}, store)
    land_logs(RUN, {}, store)
    run_json(store, RUN, **change)
    runs = StoredRuns(store, "mnist")
    with pytest.raises(StoreError) as raised:
        runs.latest()
    assert str(raised.value).startswith(f"{store.uri}/{RUN.id}/run.json is not a run record")
    assert str(raised.value).endswith(fault)
    found, faults = runs.runs_and_faults()
    assert [each.run for each in found] == [OLDER]
    assert faults == (str(raised.value),)


def test_the_latest_run_is_never_an_older_one_as_the_latest_is_damaged(
    store: ArtifactStore,
) -> None:
    land_logs(OLDER, {}, store)
    land_logs(RUN, {}, store)
    store.upload(f"{RUN.id}/run.json", [b"{"])
    with pytest.raises(StoreError, match="is not a run record"):
        StoredRuns(store, "mnist").latest()


def test_a_huge_file_is_not_read_as_a_record(store: ArtifactStore) -> None:
    land_logs(RUN, {}, store)
    store.upload(f"{RUN.id}/run.json", [b" " * (1 << 20)] * 17)
    with pytest.raises(StoreError, match="17825792 bytes"):
        StoredRuns(store, "mnist").latest()


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.binary(max_size=60))
def test_no_bytes_of_a_record_are_a_traceback(data: bytes) -> None:
    with pytest.raises(ValueError):
        stored_run(RUN.id, data)


@given(st.data())
def test_no_change_of_a_record_is_a_traceback(data: st.DataObject) -> None:
    """Whatever is read can be shown, and is the same when it is written."""
    facts = json.loads(record_of(RUN, as_of=5.0))
    place = data.draw(st.sampled_from([facts, facts["tasks"][0], facts["attempts"][0]]))
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(anything)
    try:
        found = stored_run(RUN.id, json.dumps(facts).encode())
    except ValueError:
        return
    assert stored_run(RUN.id, record_of(found.run, found.as_of)) == found


def test_deeply_nested_records_are_one_clear_error(store: ArtifactStore) -> None:
    land_logs(RUN, {}, store)
    store.upload(f"{RUN.id}/run.json", [b"[" * 200_000])
    with pytest.raises(StoreError, match="is not a run record"):
        StoredRuns(store, "mnist").latest()


# ── logs ─────────────────────────────────────────────────────────────────────


def test_logs_land_while_the_run_goes_on_and_are_read_as_they_landed_last(
    store: ArtifactStore, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    name = "chief0.attempt-1.log"
    for text in ("one\n", "one\ntwo\n", "one\ntwo\nthree\n"):
        log.write_text(text)
        land_logs_so_far(GOES_ON, {name: log}, store)
        assert LandedLogs(GOES_ON.id, store).read(name) == text.encode()
    assert StoredRuns(store, "mnist").latest().as_of is not None
    log.write_text("done\n")
    land_logs(replace(GOES_ON, state="stopped", ended=9.0), {name: log}, store)
    assert LandedLogs(GOES_ON.id, store).read(name) == b"done\n"
    latest = StoredRuns(store, "mnist").latest()
    assert (latest.run.state, latest.as_of) == ("stopped", None)


def test_a_log_that_was_landed_anew_while_it_was_read_is_read_anew(
    store: ArtifactStore, tmp_path: Path
) -> None:
    log, name = tmp_path / "log", "chief0.attempt-1.log"
    log.write_text("one\n")
    land_logs_so_far(GOES_ON, {name: log}, store)
    logs = LandedLogs(GOES_ON.id, store)
    for text in ("one\ntwo\n", "one\ntwo\nthree\n"):
        log.write_text(text)
        land_logs_so_far(GOES_ON, {name: log}, store)
    assert logs.read(name) == b"one\ntwo\nthree\n"


def test_a_log_that_was_changed_in_the_store_is_an_error(
    store: ArtifactStore, tmp_path: Path
) -> None:
    log, name = tmp_path / "log", "chief0.attempt-1.log"
    log.write_text("one\n")
    land_logs(RUN, {name: log}, store)
    store.upload(f"{RUN.id}/logs/{name}", [b"eno\n"])
    with pytest.raises(StoreError, match="differs from what landed"):
        LandedLogs(RUN.id, store).read(name)


# ── status ───────────────────────────────────────────────────────────────────


def test_status_of_a_store_shows_all_its_clusters(
    store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "empty"))
    land_logs(RUN, {}, store)
    store_record(replace(GOES_ON, cluster="other"), store, now=1200.0)
    store.upload(".runs/mnist/damaged", [b""])
    store.upload("damaged/run.json", [b""])
    report = status(None, store=store.uri, offline=False)
    lines = [" ".join(line.split()) for line in report_text(report, 5000.0).splitlines()]
    assert lines[0] == "mnist nodes not queried"
    assert lines[1].startswith(f"run {RUN.id} failed attempt 1")
    assert lines[3] == f"no local record: these runs landed in {store.uri}"
    assert lines[4].startswith(f"unreadable: {store.uri}/damaged/run.json is not a run record")
    assert lines[6] == "other nodes not queried"
    assert lines[7].startswith(f"run {GOES_ON.id} running, as of 1970-01-01")
    assert ", 3m" in lines[7]
    mnist, other = report_json(report, 5000.0)["clusters"]
    assert (mnist["open"], mnist["nodes"], mnist["store"]) == (None, None, store.uri)
    assert other["runs"][0]["as_of"] == 1200.0
    assert not (tmp_path / "empty").exists()


def test_status_of_a_file_shows_what_landed_where_the_record_has_no_run(
    store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an `up` that was refused for want of the keys."""
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "home"))
    config = ClusterConfig(
        name="mnist",
        provider="local",
        strategy="custom",
        nodes={"worker": NodeGroup()},
        artifacts=ArtifactRules(store=store.uri),
    )
    records = Records("mnist")
    records.create()
    records.save_config(to_json(config))
    land_logs(RUN, {}, store)
    (cluster,) = status("mnist", config=config, offline=False).clusters
    assert cluster.runs == (RUN,)
    assert cluster.store == store.uri
    assert find_run("mnist", None, config=config, uri=None).run == RUN
    (cluster,) = status("mnist", offline=True).clusters
    assert (cluster.runs, cluster.store) == ((), None)


def test_a_store_that_does_not_answer_is_not_a_cluster_without_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "home"))
    (tmp_path / "file").touch()
    config = ClusterConfig(
        name="mnist",
        provider="local",
        strategy="custom",
        nodes={"worker": NodeGroup()},
        artifacts=ArtifactRules(store=(tmp_path / "file").as_uri()),
    )
    Records("mnist").create()
    with pytest.raises(StoreError):
        find_run("mnist", None, config=config, uri=None)
    with pytest.raises(UsageError, match="has no run 'typo'"):
        find_run("mnist", "typo", config=config, uri=None)
