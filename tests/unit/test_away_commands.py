"""A run that is away, followed and ended from other machines: what they see, say and do."""

from __future__ import annotations

import contextlib
import io
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from cloudtrain.artifacts import spool
from cloudtrain.artifacts.run_index import store_record
from cloudtrain.away import away_orders, find_run
from cloudtrain.away.job import Process
from cloudtrain.away.orders import Order, OrderInbox, new_order_key
from cloudtrain.away.published import (
    STALE,
    AwayState,
    LoggedEvent,
    Phase,
    Published,
    Publisher,
    log_stream,
    write_state,
)
from cloudtrain.away.signatures import SigningKey, new_desk_id, publish_desk_key
from cloudtrain.cli.live_view import Changes, screen
from cloudtrain.cli.status import report_json, report_text
from cloudtrain.cluster.session import record_cluster
from cloudtrain.commands.down import down
from cloudtrain.commands.fetch import fetch
from cloudtrain.commands.logs import logs, show_so_far
from cloudtrain.commands.status import StatusReport, status
from cloudtrain.commands.stop_run import stop_run
from cloudtrain.console.event_stream import EventStream
from cloudtrain.console.plain import PlainConsole
from cloudtrain.core.errors import CloudtrainError, NotLanded, StoreError, UsageError
from cloudtrain.core.model import ArtifactRules, ClusterConfig, Node, NodeGroup
from cloudtrain.core.model import Away as AwaySection
from cloudtrain.core.partial_list import NotAsked
from cloudtrain.core.protocols import StoreBackend
from cloudtrain.core.retry import ORDER_RECEIVED, Clock
from cloudtrain.core.run_record import Run, Task
from cloudtrain.runs.idle import idle_limit
from cloudtrain.runs.tail import LineView, LogLine, RoleFilter
from cloudtrain.state import Records, resolve
from cloudtrain.state.away_record import AwayRecord, desk_mark, save_away
from cloudtrain.stores import open_store
from tests.support.desk_parts import desk_node, record_desk
from tests.support.fakes import FakeProvider
from tests.support.landing_parts import Heard, land_logs
from tests.support.nodes_here import node

NOW = 1_795_000_000.0
DESK = new_desk_id(NOW)
RUN = Run(
    id="20261118-110700-k3f9",
    cluster="mnist",
    command="python train.py",
    tasks=(Task(role="chief", index=0, node="mnist-chief0", port=8900),),
    state="running",
    created=NOW + 60,
)
ENDED = replace(RUN, state="stopped", ended=NOW + 300, exit_code=1)


class Shown(Heard):
    """A console that remembers the output of tasks, too."""

    def __init__(self) -> None:
        super().__init__()
        self.output: list[str] = []

    def task_output(self, task: str, data: bytes) -> None:
        self.output += [f"{task}: {line}" for line in data.decode().splitlines()]


@dataclass
class Away:
    """A cluster that was sent away from this machine's record, and its desk."""

    folder: Path
    store: StoreBackend
    config: ClusterConfig
    now: float = NOW + 120
    then: dict[float, Callable[[], object]] = field(default_factory=dict)
    """What happens once so many seconds of waiting are over."""
    console: Shown = field(default_factory=Shown)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.begun = self.now
        self.records = Records("mnist")
        self.key = new_order_key(self.folder / "key")
        self.desk_key = new_order_key(self.folder / "desk")
        self.publisher = Publisher(
            self.store,
            "mnist",
            DESK,
            log_file=self.folder / "log",
            warn=self.warnings.append,
            key=self.desk_key,
        )
        self.inbox = OrderInbox(
            self.store,
            "mnist",
            DESK,
            self.key.public,
            self.folder / "seen",
            warn=self.warnings.append,
            key=self.desk_key,
        )
        publish_desk_key(self.store, self.key, self.record(self.key))
        plain = PlainConsole(err=io.StringIO(), out=io.StringIO())
        self.desk = EventStream(plain, log_stream(self.publisher.log), clock=lambda: self.now)

    def sent_from_here(self) -> None:
        record_cluster(self.config, self.records)
        key = new_order_key(self.records.folder)
        self.inbox._public_key = key.public
        self.key = key
        save_away(self.records, self.record(key))
        publish_desk_key(self.store, key, self.record(key))

    def record(self, key: SigningKey) -> AwayRecord:
        return AwayRecord(
            cluster="mnist",
            desk=DESK,
            node="mnist-desk",
            store=self.store.uri,
            public_key=key.public,
            desk_key=self.desk_key.public,
            created=NOW,
        )

    @property
    def node(self) -> dict[str, Node]:
        """The desk in the account."""
        return desk_node("mnist", desk_mark(DESK, self.key.public))

    def reports(self, phase: Phase = "training", **changes: object) -> None:
        state = AwayState(
            cluster="mnist",
            desk=DESK,
            phase=phase,
            text="2 of 2 nodes",
            run=RUN.id,
            as_of=self.now,
            began=NOW,
            expires=NOW + 7200,
            node="mnist-desk",
            place="gcp us-east4-c",
            price_per_hour=0.034,
            sequence=int(self.now * 1000),
        )
        self.publisher.send_log()
        self.publisher.state(replace(state, **changes))  # type: ignore[arg-type]

    def forges(self, phase: Phase, **changes: object) -> None:
        """Somebody who may write to the store says so, of this desk."""
        state = AwayState(cluster="mnist", desk=DESK, phase=phase, as_of=self.now, began=NOW)
        forged = replace(state, run=RUN.id, node="mnist-desk", sequence=1 << 60)
        key = new_order_key(self.folder / "another's")
        self.store.upload(f".away/mnist/desks/{DESK}", [b""])
        write_state(self.store, replace(forged, **changes), key)  # type: ignore[arg-type]

    def clock(self) -> Clock:
        return Clock(now=lambda: self.now, monotonic=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for moment in sorted(m for m in self.then if self.begun + m <= self.now):
            self.then.pop(moment)()

    def takes(self) -> Order:
        (order,) = self.inbox.take(self.now)
        return order

    def logs(self, **options: object) -> int:
        return logs(
            "mnist",
            config=self.config,
            console=self.console,
            clock=self.clock(),
            **options,  # type: ignore[arg-type]
        )

    def status(self) -> StatusReport:
        return status("mnist", config=self.config, offline=False)


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Away:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "home"))
    store = open_store((tmp_path / "store").as_uri())
    config = ClusterConfig(
        name="mnist",
        provider="local",
        strategy="one_device",
        nodes={"chief": NodeGroup()},
        artifacts=ArtifactRules(store=store.uri),
        source=str(tmp_path / "mnist.yaml"),
    )
    return Away(tmp_path, store, config)


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> FakeProvider:
    fake = FakeProvider()
    monkeypatch.setattr("cloudtrain.cluster.session.open_provider", lambda config: fake)
    return fake


# ── logs ─────────────────────────────────────────────────────────────────────


def test_the_log_is_followed_to_the_end_of_the_run_with_its_exit_code(
    away: Away, cloud: FakeProvider
) -> None:
    cloud.cloud["mnist-desk"] = away.node
    away.desk.say("creating")
    away.desk.task_output("chief0", b"step 1\n")
    away.reports()
    away.desk.task_output("chief0", b"step 2\n")

    def end() -> None:
        away.desk.task_output("chief0", b"step 3\n")
        away.desk.warn("chief0 failed")
        away.reports("ended", exit_code=1, error="chief0: exit code 3", text="failed")

    away.then = {5: away.publisher.send_log, 20: end}
    assert away.logs(follow=True) == 1
    assert away.console.output == ["chief0: step 1", "chief0: step 2", "chief0: step 3"]
    assert re.fullmatch(r"2026-11-18 \d\d:\d\d  creating", away.console.said[0])
    assert away.console.said[1:] == ["the controller of mnist has ended, exit code 1"]
    assert away.console.warned == ["chief0 failed", "chief0: exit code 3"]


def test_without_follow_the_log_so_far_is_shown_by_the_flags(away: Away) -> None:
    for number in range(4):
        away.desk.task_output("chief0", b"step %d\n" % number)
        away.desk.task_output("worker1", b"step %d\n" % number)
        away.now += 60
    away.desk.say("a message")
    away.reports()
    assert away.logs(tail=1) == 0
    assert away.console.output == ["chief0: step 3", "worker1: step 3"]
    away.console.output.clear()
    away.logs(roles=["worker"])
    assert away.console.output == [f"worker1: step {number}" for number in range(4)]
    lines: list[LogLine] = []
    view = LineView(away.console, lines.append, since=NOW + 170, pattern=re.compile("[12]"))
    away.logs(view=view)
    assert [(line.task, line.text, line.time) for line in lines] == [
        ("chief0", "step 1", NOW + 180),
        ("chief0", "step 2", NOW + 240),
        ("worker1", "step 1", NOW + 180),
        ("worker1", "step 2", NOW + 240),
    ]


def test_a_log_of_a_hundred_thousand_lines_is_read_in_one_go(away: Away) -> None:
    """Its bytes are not copied anew for each line: that took 50 s for 20,000."""
    line = LoggedEvent(time=NOW, event="output", task="chief0", line="x" * 200)
    show_so_far([line] * 100_000, RoleFilter(away.console, ()), tail=1)
    assert away.console.output == ["chief0: " + "x" * 200]


def test_what_others_write_into_the_log_is_no_tasks_name_and_controls_nothing(away: Away) -> None:
    lines = [
        {"time": NOW, "event": "output", "task": "chief0\x1b[2J", "line": "x"},
        {"time": NOW, "event": "output", "task": "a" * 1000, "line": "x"},
        {"time": 1e300, "event": "message", "text": "x"},
        {"time": NOW, "event": "dance"},
        {"time": NOW, "event": "output", "task": "chief0", "line": "good"},
    ]
    away.publisher.log(b"\n".join(json.dumps(line).encode() for line in lines) + b"\n{\n\n")
    away.reports()
    away.logs()
    assert away.console.output == ["chief0: good"]
    assert away.console.said == []


def test_a_store_that_does_not_answer_is_asked_again_while_following(
    away: Away, cloud: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.cloud["mnist-desk"] = away.node
    away.reports()

    def break_store() -> None:
        def fails(*_: object, **__: object) -> None:
            raise StoreError("no route")

        monkeypatch.setattr(Published, "state", fails)

    away.desk.task_output("chief0", b"last\n")
    away.then = {5: break_store, 30: monkeypatch.undo, 40: lambda: away.reports("ended")}
    with monkeypatch.context() as patch:
        patch.setenv("CLOUDTRAIN_HOME", str(away.folder / "home"))
        assert away.logs(follow=True) == 0
    assert away.console.warned == ["the store does not answer, trying again: no route"]
    assert away.console.output == ["chief0: last"]


def test_a_desk_that_stops_reporting_is_told_of_once_and_followed_on(
    away: Away, cloud: FakeProvider
) -> None:
    cloud.cloud["mnist-desk"] = away.node
    away.reports()
    away.then = {900: lambda: away.reports(), 905: lambda: away.reports("ended")}
    assert away.logs(follow=True) == 0
    (warning,) = away.console.warned
    assert warning.startswith("the controller of mnist has not reported for 5 min")
    assert "whether it exists as mnist-desk" in warning


def test_logs_of_a_run_that_has_ended_are_the_landed_ones(away: Away, tmp_path: Path) -> None:
    log = tmp_path / "chief0.log"
    log.write_text("landed\n")
    done = replace(ENDED, attempts=())
    store_record(done, away.store, NOW)
    land_logs(done, {"chief0.attempt-1.log": log}, away.store)
    away.reports("ended", exit_code=1)
    away.sent_from_here()
    assert away.logs(follow=True) == 0
    assert fetch("mnist", tmp_path / "got", console=away.console).run == RUN.id
    (other,) = status(None, store=away.store.uri, offline=False).clusters
    assert other.away is not None


def test_a_desk_that_ended_before_a_run_has_its_own_log(away: Away) -> None:
    away.desk.say("no capacity anywhere")
    away.reports("ended", run=None, exit_code=3, error="no capacity")
    away.sent_from_here()
    assert away.logs(follow=True) == 3
    assert away.console.said[0].endswith("no capacity anywhere")
    assert away.console.warned == ["no capacity"]


def test_a_later_run_is_not_hidden_by_a_desk_that_never_reported_its_end(away: Away) -> None:
    away.reports()
    later = replace(RUN, id="20270101-000000-aaaa", created=NOW + 3e6)
    store_record(later, away.store, NOW + 3e6)
    away.now += STALE * 2
    with pytest.raises(UsageError, match=rf"run {later.id} is still active"):
        away.logs(follow=True)


def test_a_cluster_that_is_up_from_here_is_not_away(away: Away) -> None:
    away.reports()
    record_cluster(away.config, away.records)
    away.records.save_run(RUN)
    away.logs()
    assert away.console.output == []


def test_what_nodes_stored_after_their_desk_was_lost_lands_on_the_machine_that_sent_it(
    away: Away, cloud: FakeProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before: two that write one manifest undo each other's work."""
    ingested: list[str] = []
    for module in (find_run, spool):
        monkeypatch.setattr(module, "can_spool", lambda store: True)
    monkeypatch.setattr(spool, "ingest_spools", lambda run, *_, **__: ingested.append(run.id))
    monkeypatch.setattr(time, "time", lambda: away.now)
    land_logs(ENDED, {}, away.store)
    away.reports()
    away.sent_from_here()
    cloud.cloud["mnist-desk"] = away.node
    fetch("mnist", tmp_path / "got", console=away.console)
    away.forges("ended")
    store_record(replace(RUN, id="20270101-000000-aaaa"), away.store, NOW)
    fetch("mnist", tmp_path / "got", run=RUN.id, console=away.console)
    assert ingested == []
    cloud.cloud.clear()
    fetch("mnist", tmp_path / "got", run=RUN.id, console=away.console)
    away.reports("ended", exit_code=1)
    fetch("mnist", tmp_path / "got", run=RUN.id, console=away.console)
    assert ingested == [RUN.id, RUN.id]


# ── status ───────────────────────────────────────────────────────────────────


def test_status_shows_what_the_desk_reports_and_its_age(away: Away, cloud: FakeProvider) -> None:
    store_record(RUN, away.store, NOW + 100)
    away.reports()
    away.sent_from_here()
    report = away.status()
    text = report_text(report, away.now + 12)
    assert f"  away  training: 2 of 2 nodes  {RUN.id}  as of 12s ago" in text
    assert re.search(
        r"  controller  mnist-desk  gcp us-east4-c  0\.034 \$/hour  since 2026-\S+ \S+  expires",
        text,
    )
    assert f"run  {RUN.id}  running, as of" in text
    assert "has not reported" not in text
    (cluster,) = report_json(report, away.now)["clusters"]
    assert cluster["away"]["phase"] == "training"
    assert cluster["away"]["silent"] is False
    later = report_text(report, away.now + STALE + 60)
    assert "the controller of mnist has not reported for 6 min" in later


def test_status_watch_shows_the_desk_and_each_change_of_its_phase(
    away: Away, cloud: FakeProvider
) -> None:
    away.sent_from_here()
    away.reports("creating", run=None)
    changes = Changes()
    seen = changes.of(away.status(), away.now)
    assert any("away: creating" in line for line in seen)
    away.now += 10
    away.reports("training")
    assert [line[10:] for line in changes.of(away.status(), away.now)] == ["mnist  away: training"]
    assert changes.of(away.status(), away.now) == []
    (silent,) = changes.of(away.status(), away.now + STALE + 1)
    assert silent.endswith("mnist  away: training, but has not reported for long")
    lines = screen(away.status(), away.now, 24)
    assert any(line.startswith("  away  training: 2 of 2 nodes") for line in lines)


def test_nodes_count_as_missing_only_while_the_run_trains(away: Away, cloud: FakeProvider) -> None:
    away.sent_from_here()
    for phase, code in (("creating", 0), ("waiting", 0), ("training", 1), ("deleting", 0)):
        away.reports(phase)  # type: ignore[arg-type]
        assert away.status().exit_code(away.now) == code, phase
    away.reports("ended", exit_code=0)
    report = away.status()
    assert report_text(report, away.now).startswith("mnist  local  one_device  down")
    assert report.exit_code(away.now) == 0


def test_a_desks_own_cluster_is_not_one_that_a_user_has_to_name(
    away: Away, cloud: FakeProvider
) -> None:
    away.sent_from_here()
    away.reports()
    record_desk(away.config)
    assert resolve(None) == "mnist"
    assert resolve("mnist-desk") == "mnist-desk"
    listed = status(None, offline=False).clusters
    assert [cluster.name for cluster in listed] == ["mnist"]


def test_status_offline_asks_no_store_and_says_so(away: Away) -> None:
    away.sent_from_here()
    (away.folder / "store").mkdir(exist_ok=True)
    report = status(None, offline=True)
    assert "  away: no report of its controller" in report_text(report, away.now)


def test_a_store_that_cannot_be_read_is_a_fault_of_that_cluster_alone(
    away: Away, cloud: FakeProvider
) -> None:
    away.sent_from_here()
    away.reports()
    away.store.upload(f".away/mnist/{DESK}/state.json", [b"{"])
    (cluster,) = away.status().clusters
    assert cluster.faults
    assert "state.json" in cluster.faults[0]


def test_no_idle_process_takes_down_what_a_desk_attends_to(away: Away) -> None:
    limits = replace(away.config.limits, idle=60.0)
    away.config = replace(away.config, limits=limits)
    record_cluster(away.config, away.records)
    assert idle_limit(away.records) == 60
    away.sent_from_here()
    assert idle_limit(away.records) is None


# ── what others write to the store ───────────────────────────────────────────


@pytest.mark.parametrize("discard", [False, True])
@pytest.mark.parametrize("role", ["chief", "desk"])
@pytest.mark.parametrize("named", ["prod", "mnist-desk"])
def test_no_cluster_is_deleted_because_the_store_names_it_as_a_desk(
    named: str, role: str, discard: bool, away: Away, cloud: FakeProvider
) -> None:
    """On a machine that has the FILE alone: two small objects name another, running cluster."""
    for phase in ("ended", "training"):
        away.forges(phase, node=named)  # type: ignore[arg-type]
        there = {f"{named}-{role}0": replace(node(f"{named}-{role}0"), role=role)}
        cloud.cloud[named] = there
        with contextlib.suppress(CloudtrainError):
            go_down(away, discard=discard)
        assert cloud.cloud[named] == there
    assert cloud.deeds == []


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("process", ["running", None])
def test_a_desk_that_the_store_wrongly_calls_ended_is_ordered_and_not_deleted(
    process: Process | None,
    lost: bool,
    away: Away,
    cloud: FakeProvider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or of which it says nothing any more. It trains, and the machine that sent it goes down."""
    away.sent_from_here()
    record_desk(away.config)
    away.reports()
    cloud.cloud["mnist-desk"] = away.node
    cloud.cloud["mnist"] = {"mnist-chief0": node("mnist-chief0")}
    monkeypatch.setattr(away_orders, "process_there", lambda desk, console: process)
    if lost:
        away.store.delete(f".away/mnist/{DESK}/state.json")
    else:
        away.forges("ended", exit_code=0)
    taken: list[Order] = []

    def forged_answer() -> None:
        taken.append(away.takes())
        data = {"nonce": taken[0].nonce, "state": "done", "text": "all is gone", "as_of": 0}
        away.store.upload(
            f".away/mnist/{DESK}/answers/{data['nonce']}.json", [json.dumps(data).encode()]
        )

    def end() -> None:
        assert set(cloud.cloud) == {"mnist", "mnist-desk"}
        del cloud.cloud["mnist"]
        away.inbox.answer(taken[0], "done", now=away.now)

    away.then = {10: forged_answer, 40: end}
    if lost and process is None:  # nobody says anything of it, and its nodes are there
        with pytest.raises(NotLanded, match="the keys of mnist-chief0 are on its disk alone"):
            go_down(away)
        assert set(cloud.cloud) == {"mnist", "mnist-desk"}
        return
    go_down(away)
    assert "ignored an answer: done: it is not signed by this run's controller" in away.console.said
    assert cloud.deeds == [("destroy", "mnist-desk-desk0")]


def test_a_desk_whose_client_was_killed_before_it_was_started_is_deleted_and_not_ordered(
    away: Away, cloud: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    away.sent_from_here()
    record_desk(away.config)
    away.reports("starting", run=None)
    cloud.cloud["mnist-desk"] = away.node
    monkeypatch.setattr(away_orders, "process_there", lambda desk, console: "none")
    go_down(away)
    assert cloud.cloud == {}
    assert not [line for line in away.console.said if "ordered" in line]


def test_a_forged_end_ends_no_following_and_no_exit_code_is_taken_from_it(
    away: Away, cloud: FakeProvider
) -> None:
    cloud.cloud["mnist-desk"] = away.node
    away.reports()
    away.then = {
        10: lambda: away.forges("ended", exit_code=0),
        20: lambda: away.desk.task_output("chief0", b"step 9\n"),
        60: lambda: away.reports("ended", exit_code=4),
    }
    assert away.logs(follow=True) == 4
    assert away.console.output == ["chief0: step 9"]
    assert away.console.warned == [
        "the store has a report of the controller, ended, which is not signed by this run's "
        "controller"
    ]
    away.forges("waiting", run=None)
    assert "waiting  as of" in report_text(away.status(), away.now)
    assert "not signed by this run's controller" in report_text(away.status(), away.now)
    assert away.status().exit_code(away.now) == 0


def test_an_end_that_nobody_can_verify_any_more_is_no_success(
    away: Away, cloud: FakeProvider
) -> None:
    """The desk is gone with its label, or an earlier version made it."""
    away.forges("ended", run=None, exit_code=0)
    assert away.logs(follow=True) == 1
    assert away.console.said == [
        "the controller of mnist has ended, exit code 0 (not signed by this run's controller)"
    ]


# ── orders ───────────────────────────────────────────────────────────────────


def stopped(away: Away, **options: object) -> Run:
    return stop_run(
        "mnist",
        config=away.config,
        console=away.console,
        clock=away.clock(),
        **options,  # type: ignore[arg-type]
    )


def test_stop_run_orders_the_desk_and_waits_for_what_becomes_of_it(away: Away) -> None:
    away.reports()
    taken: list[Order] = []

    def end() -> None:
        store_record(ENDED, away.store, away.now)
        away.inbox.answer(taken[0], "done", "run stopped", now=away.now)

    away.then = {
        10: lambda: taken.append(away.takes()),
        20: lambda: away.reports("landing", text="3 files"),
        60: end,
    }
    assert stopped(away, order_key=away.key.path).state == "stopped"
    assert (taken[0].verb, taken[0].run) == ("stop-run", RUN.id)
    assert away.console.said == [
        f"ordered the controller of mnist: stop-run {RUN.id}",
        "the controller has confirmed the order",
        "landing: 3 files",
        "run stopped",
    ]


def test_the_end_of_the_desk_is_an_answer_too(away: Away) -> None:
    away.reports()
    store_record(ENDED, away.store, away.now)
    away.then = {10: away.takes, 20: lambda: away.reports("ended")}
    assert stopped(away, order_key=away.key.path).state == "stopped"


def test_without_the_key_nothing_is_posted_and_its_place_is_named(away: Away) -> None:
    away.sent_from_here()
    away.reports()
    place = str(away.records.folder / "order_key.pem")
    away.records.remove()
    with pytest.raises(UsageError, match="needs its order key") as caught:
        stopped(away)
    assert place in (caught.value.hint or "")
    assert "`cloudtrain down FILE --discard`" in (caught.value.hint or "")
    assert away.inbox.take(away.now) == ()


def test_a_desk_that_confirms_nothing_ends_the_waiting_with_what_to_do(away: Away) -> None:
    away.sent_from_here()
    away.reports()
    with pytest.raises(CloudtrainError, match="has not confirmed the order after 5 min") as caught:
        stopped(away)
    assert ORDER_RECEIVED < away.now - away.begun < ORDER_RECEIVED + 60
    assert "it last reported 5 min ago" in caught.value.message
    assert "`cloudtrain down mnist --discard`" in (caught.value.hint or "")


@pytest.mark.parametrize(("state", "error"), [("refused", UsageError), ("failed", NotLanded)])
def test_what_the_desk_refuses_or_cannot_do_is_told(
    state: str, error: type[CloudtrainError], away: Away
) -> None:
    away.sent_from_here()
    away.reports()

    def answer() -> None:
        away.inbox.answer(away.takes(), state, "because", now=away.now)  # type: ignore[arg-type]

    away.then = {10: answer}
    with pytest.raises(error, match="because"):
        stopped(away)


def test_stop_run_before_a_run_has_begun_says_what_ends_it(away: Away) -> None:
    away.sent_from_here()
    away.reports("waiting", run=None)
    with pytest.raises(UsageError, match="no active run yet: its controller is waiting") as caught:
        stopped(away)
    assert caught.value.hint == "`cloudtrain down mnist` ends it before a run has begun"


# ── down ─────────────────────────────────────────────────────────────────────


def go_down(away: Away, **options: object) -> None:
    down(
        "mnist",
        away.config,
        console=away.console,
        clock=away.clock(),
        **{"discard": False, **options},  # type: ignore[arg-type]
    )


def test_down_orders_the_desk_and_then_looks_itself_what_is_left(
    away: Away, cloud: FakeProvider
) -> None:
    away.sent_from_here()
    record_desk(away.config)
    away.reports("waiting", run=None)
    cloud.cloud["mnist-desk"] = away.node
    taken: list[Order] = []

    def end() -> None:
        away.inbox.answer(taken[0], "done", now=away.now)
        away.reports("ended", exit_code=130)

    away.then = {10: lambda: taken.append(away.takes()), 60: end}
    go_down(away)
    assert (taken[0].verb, taken[0].run) == ("down", None)
    assert cloud.cloud == {}
    assert away.console.said[-1] == "mnist: fake lists nothing of it any more"
    assert not away.records.is_open()
    assert not (away.records.folder / "order_key.pem").exists()


def test_down_discard_deletes_the_desk_before_the_nodes_and_tells_other_machines(
    away: Away, cloud: FakeProvider
) -> None:
    """From a machine that has neither record nor key."""
    away.reports()
    cloud.cloud["mnist"] = {"mnist-chief0": node("mnist-chief0")}
    cloud.cloud["mnist-desk"] = away.node
    go_down(away, discard=True)
    assert cloud.cloud == {}
    assert [name for deed, name in cloud.deeds] == ["mnist-desk-desk0", "mnist-chief0"]
    assert away.inbox.take(away.now) == ()
    state = Published(away.store, "mnist").state()
    assert state is not None
    assert (state.phase, state.exit_code) == ("ended", 1)
    text = report_text(away.status(), away.now)
    unsigned = "not signed by this run's controller"  # this machine has no key that could
    assert re.search(rf"\n  away  ended, .* 1  {RUN.id}  as of 2026-\S+ \S+  {unsigned}\n", text)
    assert "unreadable" not in text


def test_down_on_another_machine_finds_a_desk_that_has_not_reported_yet(
    away: Away, cloud: FakeProvider
) -> None:
    """Its client was killed once the machine was there."""
    away.config = replace(away.config, away=AwaySection(identity="desk"))
    cloud.cloud["mnist-desk"] = away.node
    go_down(away)
    assert cloud.cloud == {}
    go_down(away)
    assert [name for _, name in cloud.deeds] == ["mnist-desk-desk0"]


def test_a_desk_that_does_not_report_is_kept_while_there_are_nodes_whose_keys_it_has(
    away: Away, cloud: FakeProvider
) -> None:
    """It may report to another store than the file names now."""
    away.config = replace(away.config, away=AwaySection(identity="desk"))
    cloud.cloud["mnist-desk"] = away.node
    cloud.cloud["mnist"] = {"mnist-chief0": node("mnist-chief0")}
    with pytest.raises(NotLanded, match="mnist-desk has not reported to the store, and the keys"):
        go_down(away)
    assert set(cloud.cloud) == {"mnist", "mnist-desk"}
    go_down(away, discard=True)
    assert cloud.cloud == {}


def test_a_desk_that_does_not_report_is_kept_while_a_region_does_not_answer(
    away: Away, cloud: FakeProvider
) -> None:
    """It may have nodes."""
    away.config = replace(away.config, away=AwaySection(identity="desk"))
    cloud.cloud["mnist-desk"] = away.node
    cloud.not_asked = (NotAsked(place="us-east1", why="503"),)
    with pytest.raises(NotLanded, match="nodes in us-east1, which does not answer, are on its"):
        go_down(away)
    assert set(cloud.cloud) == {"mnist-desk"}


def test_down_does_not_wait_for_a_desk_that_is_gone(away: Away, cloud: FakeProvider) -> None:
    away.sent_from_here()
    record_desk(away.config)
    away.reports()
    away.now += STALE + 1
    go_down(away)
    assert "the controller of mnist is gone" in away.console.warned
    state = Published(away.store, "mnist").state()
    assert state is not None
    assert state.phase == "ended"


def test_a_desk_whose_machine_has_stopped_is_gone_too(away: Away, cloud: FakeProvider) -> None:
    """Its secrets and its process were in memory: it would never read an order."""
    away.sent_from_here()
    record_desk(away.config)
    cloud.cloud["mnist-desk"] = away.node
    cloud.stop("mnist-desk", "mnist-desk-desk0")
    away.reports()
    away.now += STALE + 1
    go_down(away)
    assert "the controller of mnist is gone" in away.console.warned
    assert cloud.cloud == {}


def test_a_stopped_desk_is_kept_while_there_are_nodes_whose_keys_it_has(
    away: Away, cloud: FakeProvider
) -> None:
    away.sent_from_here()
    record_desk(away.config)
    cloud.cloud["mnist-desk"] = away.node
    cloud.stop("mnist-desk", "mnist-desk-desk0")
    cloud.cloud["mnist"] = {"mnist-chief0": node("mnist-chief0")}
    away.reports()
    away.now += STALE + 1
    with pytest.raises(NotLanded, match="the keys of mnist-chief0 are on its disk alone"):
        go_down(away)
    assert set(cloud.cloud) == {"mnist", "mnist-desk"}
    go_down(away, discard=True)
    assert cloud.cloud == {}


def test_nodes_whose_desk_is_gone_are_kept_until_they_are_given_up(
    away: Away, cloud: FakeProvider
) -> None:
    away.sent_from_here()
    record_desk(away.config)
    cloud.cloud["mnist"] = {"mnist-chief0": node("mnist-chief0")}
    away.reports()
    away.now += STALE + 1
    with pytest.raises(NotLanded) as caught:
        go_down(away)
    assert (caught.value.hint or "").startswith("its controller had them, and is gone: --discard")
    assert cloud.cloud["mnist"]
    go_down(away, discard=True)
    assert cloud.cloud == {}


def test_down_never_deletes_a_silent_desk_unasked_as_it_alone_has_the_keys(
    away: Away, cloud: FakeProvider
) -> None:
    away.sent_from_here()
    record_desk(away.config)
    cloud.cloud["mnist-desk"] = away.node
    away.reports()
    away.now += STALE + 1
    with pytest.raises(CloudtrainError, match="has not confirmed the order"):
        go_down(away)
    assert cloud.cloud["mnist-desk"]
