"""Machines that end themselves when nobody attends: real agents, real HTTP, short times."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.artifacts.manifest import read_manifest
from cloudtrain.artifacts.own_ends import OverRequests, key_of, read_marks
from cloudtrain.core.events import NodesPlaced, OwnEndsArmed
from cloudtrain.core.model import ArtifactRules, Limits
from cloudtrain.core.presign import PresignedRequest, PresignedUpload
from cloudtrain.core.run_record import Cause
from cloudtrain.core.shell import Secret
from cloudtrain.node.agent import Agent
from cloudtrain.node.own_end import OwnEnd, Unused
from cloudtrain.runs import node_agents, own_ends, supervise
from cloudtrain.runs.monitor import new_attempt_state
from cloudtrain.runs.supervise import without_own_ends
from cloudtrain.state import Records
from tests.support.agent_parts import SOON, ArchiveStore, Kept
from tests.support.fakes import FakeProvider
from tests.support.landing_parts import RUN
from tests.support.web_store import Service, service, until


class Alone(Kept):
    """Nodes whose agents end them after a moment without use. `off(task)`: it has shut down."""

    def __init__(self, folder: Path, told: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, told, monkeypatch)
        self.proc = folder / "proc"
        self.proc.mkdir()
        shutdown = ["touch", "off"]
        machine = {"proc": str(self.proc), "shutdown": shutdown}
        monkeypatch.setattr(own_ends, "MACHINE", machine)
        monkeypatch.setattr(own_ends, "GRACE", 0.0)
        monkeypatch.setattr(own_ends, "LOOK", 0.05)
        self.web = ReadableStore(folder / "web", told)
        self.limits = Limits(idle=0.3)
        self.success: Any = None
        self.records = Records("mnist")
        self.records.create()
        monkeypatch.setattr(Kept, "session", session)

    def keep(self) -> None:
        """Start the agents over a connection that ends then."""
        with self.connected():
            super().keep()

    @contextmanager
    def connected(self) -> Iterator[None]:
        self.connect(1, use("sshd: {user}@notty"))
        yield
        self.disconnect(1)

    def off(self, task: str = "chief0") -> bool:
        return (self.place(task) / "off").exists()

    def connect(self, number: int, title: str) -> None:
        """As if a process of sshd served a connection."""
        folder = self.proc / str(number)
        folder.mkdir(exist_ok=True)
        (folder / "cmdline").write_text(title)
        (folder / "comm").write_text("sshd\n")

    def disconnect(self, number: int) -> None:
        for name in ("comm", "cmdline"):
            (self.proc / str(number) / name).unlink()

    def commands(self) -> list[bytes]:
        return [(path / "cmdline").read_bytes() for path in self.processes()]

    def said(self, text: str, task: str = "chief0") -> bool:
        return text in self.log(task)

    def nodes_gone(self) -> None:
        self.power_off()
        self.web.bring()
        self.nodes = {}

    def saved(self) -> None:
        """The run is on record, as its client left it."""
        self.run = replace(self.run, state="running")
        self.records.save_run(self.run)


class ReadableStore(ArchiveStore):
    def sign_download(  # type: ignore[override]
        self, path: str, *, expires_in: float
    ) -> PresignedRequest | None:
        return PresignedRequest(url=Secret(f"{self.address}/{path}"), method="GET")


kept_session = Kept.session


def session(self: Alone) -> Any:
    made = kept_session(self)
    config = made.config
    train = replace(config.train, success=self.success)
    config = replace(config, limits=self.limits, train=train)
    there = {node.name: node for node in self.nodes.values()}
    return replace(
        made,
        plan=replace(made.plan, config=config),
        provider=FakeProvider(cloud={config.name: there}),
    )


@pytest.fixture
def told() -> Iterator[Service]:
    with service() as one:
        yield one


@pytest.fixture
def alone(tmp_path: Path, told: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Alone]:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "home"))
    one = Alone(tmp_path, told, monkeypatch)
    yield one
    one.power_off()


def marks(alone: Alone) -> dict[str, Any]:
    alone.web.bring()
    return dict(read_marks(alone.run, alone.web, key_of(alone.records.folder, RUN)))


def use(title: str) -> str:
    import pwd

    return title.format(user=pwd.getpwuid(os.getuid()).pw_name)


def over(alone: Alone) -> dict[str, OverRequests]:
    return own_ends.over_requests(alone.session(), alone.run, 60.0)


def quiet(seconds: float = 0.8) -> None:
    """Longer than it takes an agent that does not stay to end its machine."""
    time.sleep(seconds)


def test_a_machine_that_nobody_attends_to_ends_once_everything_has_landed(alone: Alone) -> None:
    alone.start("echo trained; echo model >output/model; exit 3")
    alone.keep()
    until(alone.off)
    mark = marks(alone)["chief0"]
    assert (mark.exit, mark.attempt) == ("3", 1)
    assert "output/model" in mark.files
    assert mark.why.startswith("nobody has used it for")
    assert alone.said("shutting this machine down: nobody has used it")
    alone.power_off()
    assert alone.content(alone.take(), "chief0/output/model") == b"model\n"


def test_a_machine_stays_while_its_task_runs(alone: Alone) -> None:
    alone.start("until [ -e ../over ]; do sleep 0.05; done")
    alone.keep()
    until(lambda: (alone.place() / "keeping").exists())
    quiet()
    assert not alone.off()
    (alone.place() / "over").touch()
    until(alone.off)


@pytest.mark.parametrize("title", ["sshd: {user}@notty", "sshd-session: {user}", "sshd: {user}"])
def test_a_client_that_comes_back_in_the_middle_wins(alone: Alone, title: str) -> None:
    alone.connect(7, use(title))
    alone.start("true")
    alone.keep()
    quiet()
    assert not alone.off()
    alone.disconnect(7)
    until(alone.off)


def test_a_machine_whose_clients_cannot_be_seen_does_not_end_itself(alone: Alone) -> None:
    alone.start("true")
    node_agents.start_agents(alone.session(), alone.run)
    own_ends.watch_unused(alone.session(), [replace(alone.nodes["chief0"], name="mnist-new0")])
    assert [text.partition(",")[0] for text in alone.console.warned] == [
        "mnist-chief0",
        "mnist-new0: will not end by itself when idle",
    ]
    quiet()
    assert not alone.off()


def test_others_connections_are_no_use_of_it(alone: Alone) -> None:
    alone.connect(7, "sshd: somebody@pts/0")
    alone.connect(8, use("sshd: {user} [priv]"))
    alone.start("true")
    alone.keep()
    until(alone.off)


def gpus(alone: Alone, monkeypatch: pytest.MonkeyPatch, percent: str) -> None:
    """A driver whose GPUs are so busy."""
    folder = alone.top / "bin"
    folder.mkdir(exist_ok=True)
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' {percent}\n")
    program.chmod(0o755)
    alone.transport.environment["PATH"] = f"{folder}:{os.environ['PATH']}"


def test_a_shell_that_is_open_does_not_keep_machines_whose_gpus_are_idle(
    alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(alone, monkeypatch, "3 0")
    alone.limits = Limits(idle=0.2, idle_gpu=0.4)
    alone.connect(7, use("sshd: {user}@pts/0"))
    alone.start("true")
    alone.keep()
    until(alone.off)
    assert marks(alone)["chief0"].why.startswith("its GPUs were idle for")


@pytest.mark.parametrize(
    ("percent", "title"),
    [
        ("3 80", "sshd: {user}@pts/0"),
        ("", "sshd: {user}@pts/0"),
        ("0", "sshd: {user}@notty"),
    ],
)
def test_gpus_that_compute_and_commands_that_run_are_use_of_it(
    alone: Alone, monkeypatch: pytest.MonkeyPatch, percent: str, title: str
) -> None:
    gpus(alone, monkeypatch, percent)
    alone.limits = Limits(idle=0.2, idle_gpu=0.2)
    alone.connect(7, use(title))
    alone.start("true")
    alone.keep()
    quiet(1.5)
    assert not alone.off()


def test_a_machine_with_more_than_the_limit_stays(alone: Alone) -> None:
    alone.rules = ArtifactRules(limit=10)
    alone.begin("chief0")
    alone.write("chief0", "model/w.h5", "x" * 100)
    alone.start("true")
    alone.keep()
    until(lambda: alone.said("stays until its lifetime ends: 'work/model/w.h5'"))
    quiet()
    assert not alone.off()
    assert marks(alone) == {}


def test_a_machine_stays_while_the_store_takes_nothing_and_ends_when_it_does(
    alone: Alone, told: Service
) -> None:
    told.fault = lambda number, path: 403
    alone.write("chief0", "output/a", "x")
    alone.start("true")
    alone.keep()
    until(lambda: alone.said("stays until its lifetime ends"))
    assert not alone.off()
    told.fault = lambda number, path: None
    until(alone.off)


def test_what_came_after_the_landing_lands_before_the_end(alone: Alone) -> None:
    alone.start("echo 1 >output/a")
    alone.connect(7, use("sshd: {user}@notty"))
    alone.keep()
    until(lambda: (alone.place() / "attempt-1/exit").is_symlink())
    alone.land(store=alone.web)
    assert json.loads((alone.place() / "landed").read_text())["final"] is True
    alone.write("chief0", "output/late", "late")
    alone.disconnect(7)
    until(alone.off)
    alone.power_off()
    assert alone.content(alone.take(), "chief0/output/late") == b"late"


def test_a_file_of_an_earlier_run_that_no_landing_has_seen_keeps_the_machine(alone: Alone) -> None:
    alone.start("true")
    earlier = alone.place().parents[1] / "20261101-000000-aaaa/chief0/work"
    earlier.mkdir(parents=True)
    (earlier / "late").write_text("x")
    alone.keep()
    until(lambda: alone.said("/late' not landed"))
    assert not alone.off()


def test_a_file_that_cannot_be_read_keeps_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    order: dict[str, Any] = {**SOON, "attempt": 1, "patterns": [], "checkpoint": None}
    times = dict.fromkeys(("until", "end", "last", "stop"), float("inf"))
    more = {"tickets": [], "every": 0.0, "limit": None, "home": False}
    agent = Agent({**order, **times, **more}, b"")
    unread = "output/a: Permission denied"
    monkeypatch.setattr("cloudtrain.node.archiver.listed", lambda *given: given[4].append(unread))
    monkeypatch.setattr(agent, "due", lambda found: [])
    assert agent.left_to_land() == unread


def test_what_nobody_named_is_named_with_its_size_before_it_is_lost(alone: Alone) -> None:
    alone.rules = ArtifactRules(paths=("output/**",))
    alone.begin("chief0")
    ended(alone, "echo 1 >output/a; mkdir model; echo weights >model/w")
    without_own_ends(alone.session(), alone.run)
    manifest = read_manifest(alone.web, RUN)
    assert manifest is not None
    assert manifest.warnings == (
        "chief0/model/ (8 B): made or changed, but not in artifacts.paths: not landed",
    )


def test_an_agent_leaves_the_machine_to_that_of_a_later_run(alone: Alone) -> None:
    alone.start("true")
    (alone.place().parents[1] / "20261201-000000-aaaa").mkdir()
    alone.keep()
    alone.wait_for_the_agent_to_leave()
    assert not alone.off()


# ── Several nodes ────────────────────────────────────────────────────────────


def test_no_machine_ends_before_all_tasks_that_decide_have(alone: Alone) -> None:
    alone.success = "all_workers"
    alone.start("true")
    alone.start("until [ -e ../over ]; do sleep 0.05; done", "worker0")
    alone.keep()
    quiet(1.5)
    assert not alone.off()
    (alone.place("worker0") / "over").touch()
    until(lambda: alone.off() and alone.off("worker0"))


def test_a_task_that_serves_for_ever_is_ended_once_the_run_is_over(alone: Alone) -> None:
    alone.start("until [ -e ../over ]; do sleep 0.05; done")
    alone.start("sleep 600", "worker0")
    alone.keep()
    quiet()
    assert not alone.off("worker0")
    (alone.place() / "over").touch()
    until(lambda: alone.off() and alone.off("worker0"))
    assert alone.said("the run is over: ending its task", "worker0")


def test_a_mark_that_no_agent_of_the_run_has_signed_ends_no_task(alone: Alone) -> None:
    path = f"/{RUN}/parcels/chief0.1.over"
    mark = json.dumps({"run": RUN, "task": "chief0"})
    alone.told.objects[path] = json.dumps({"mark": mark, "mac": "0" * 64}).encode()
    alone.start("sleep 600")
    alone.start("sleep 600", "worker0")
    alone.keep()
    until(lambda: f"GET {path}" in alone.told.seen)
    quiet()
    assert not alone.said("the run is over", "worker0")


# ── A later client ───────────────────────────────────────────────────────────


def ended(alone: Alone, command: str = "echo 1 >output/a") -> None:
    """Nodes that ended themselves after a run that nobody attended to."""
    alone.saved()
    alone.start(command)
    alone.start("true", "worker0")
    alone.keep()
    until(lambda: alone.off() and alone.off("worker0"))
    alone.nodes_gone()


def test_a_run_is_over_whose_nodes_ended_themselves_and_none_is_replaced(alone: Alone) -> None:
    ended(alone)
    after, run = without_own_ends(alone.session(), alone.run)
    assert after.nodes == ()
    assert (run.state, run.attempts[-1].exits) == ("landing", {"chief0": 0, "worker0": 0})
    assert run.attempts[-1].cause is None
    manifest = read_manifest(alone.web, RUN)
    assert manifest is not None
    assert manifest.landed_attempts == {"chief0": 1, "worker0": 1}


def test_a_run_that_failed_alone_has_its_cause(alone: Alone) -> None:
    ended(alone, "echo Traceback: no such file; exit 3")
    _, run = without_own_ends(alone.session(), alone.run)
    cause = run.attempts[-1].cause
    assert cause is not None
    assert (cause.task, cause.kind, cause.exit_code) == ("chief0", "exit", 3)


def test_a_client_that_slept_takes_no_node_for_lost_that_ended_itself(
    alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(alone)
    opened = alone.session()
    state = new_attempt_state(opened, alone.run)
    lost = Cause(task="chief0", node="mnist-chief0", kind="lost", text="its node is gone")
    monkeypatch.setattr(supervise, "monitor", lambda *_: (alone.run, state, lost))
    monkeypatch.setattr(supervise, "begins_again", lambda *_: pytest.fail("it is over"))
    _, run = supervise.run_attempt(opened, alone.run)
    assert (run.state, run.attempts[-1].cause) == ("landing", None)


@pytest.mark.parametrize("harm", ["forged", "altered", "huge", "lost", "started", "unarmed"])
def test_a_mark_counts_only_if_it_is_ours_and_the_store_has_all_that_it_names(
    alone: Alone, harm: str
) -> None:
    ended(alone)
    path = alone.top / "web" / RUN / "parcels"
    if harm == "forged":
        (alone.records.folder / "end_key").write_bytes(b"another")
    elif harm == "altered":
        told = (path / "chief0.1.end").read_text()
        (path / "chief0.1.end").write_text(told.replace('\\"exit\\": \\"0\\"', '\\"exit\\": null'))
    elif harm == "huge":
        with (path / "chief0.1.end").open("ab") as file:
            file.write(b" " * (64 << 20))
    elif harm == "lost":
        for archive in path.glob("chief0.1-*.tar"):
            archive.unlink()
    elif harm == "started":
        alone.records.journal(NodesPlaced(places={"mnist-chief0": "here"}))
    else:
        alone.records.journal(OwnEndsArmed())
    _, run = without_own_ends(alone.session(), alone.run)
    assert run.state == "running"


def test_an_agent_says_nothing_of_its_key_or_its_requests(alone: Alone) -> None:
    ended(alone)
    secret = (alone.records.folder / "end_key").read_bytes().hex()
    for path in alone.top.rglob("*"):
        if path.is_file() and "home" not in path.relative_to(alone.top).parts[:1]:
            text = path.read_bytes()
            assert key_of(alone.records.folder, RUN).encode() not in text, path
            assert secret.encode() not in text, path


class Killed(BaseException):
    pass


class MortalStore(ReadableStore):
    """The client that works on it is killed at its n-th call."""

    left = -1

    def __getattribute__(self, name: str) -> Any:
        if name in ("upload", "upload_all", "download", "list", "delete", "copy"):
            self.left -= 1
            if self.left == 0:
                raise Killed
        return super().__getattribute__(name)


def test_whoever_takes_such_a_run_up_may_be_killed_at_each_call_of_the_store(
    alone: Alone,
) -> None:
    ended(alone)
    places = [alone.top / name for name in ("web", "home")]
    for place in places:
        shutil.copytree(place, place.with_name(f"{place.name} before"))
    killed = 0
    for number in itertools.count(1):
        for place in places:
            shutil.rmtree(place)
            shutil.copytree(place.with_name(f"{place.name} before"), place)
        alone.web = MortalStore(alone.top / "web", alone.told)
        alone.web.left = number
        with suppress(Killed):
            without_own_ends(alone.session(), alone.run)
        if alone.web.left > 0:
            break
        killed += 1
        alone.web.left = -1
        _, run = without_own_ends(alone.session(), alone.records.run(RUN))
        manifest = read_manifest(alone.web, RUN)
        assert run.state == "landing"
        assert manifest is not None
        assert manifest.landed_attempts == {"chief0": 1, "worker0": 1}
        assert alone.content(manifest, "chief0/output/a") == b"1\n"
    assert killed > 10


# ── Nodes that no run has used ───────────────────────────────────────────────


def test_a_node_that_no_run_has_used_ends_itself_too(alone: Alone) -> None:
    nodes = [replace(node, name=f"{node.name}-new") for node in alone.nodes.values()]
    with alone.connected():
        own_ends.watch_unused(alone.session(), nodes)
    assert alone.console.warned == []
    places = [alone.transport.home(node) / ".cloudtrain/mnist" for node in nodes]
    until(lambda: all((place / "off").exists() for place in places))


def test_a_node_is_left_to_the_agent_of_its_first_run(alone: Alone) -> None:
    alone.limits = Limits(idle=1.0)
    node = replace(alone.nodes["chief0"], name="mnist-new0")
    with alone.connected():
        own_ends.watch_unused(alone.session(), [node])
    assert "own_end" in str(alone.commands())
    place = alone.transport.home(node) / ".cloudtrain/mnist"
    (place / "runs" / RUN).mkdir(parents=True)
    until(lambda: "own_end" not in str(alone.commands()))
    assert not (place / "off").exists()


def test_a_command_that_waits_keeps_a_connection_to_each_node(alone: Alone) -> None:
    own_ends.keep_connected(alone.session())
    assert alone.transport.commands == []
    alone.records.journal(OwnEndsArmed(idle=900.0))
    own_ends.keep_connected(alone.session())
    assert len(alone.transport.commands) == 2


def test_limits_that_are_off_again_end_no_node(alone: Alone) -> None:
    alone.limits = Limits(idle=1.0)
    alone.start("sleep 600")
    alone.keep()
    alone.limits = Limits()
    alone.keep()
    alone.power_off()
    assert not alone.off()
    assert [line["event"] for line in alone.records.events()].count("own ends") == 2


def test_a_cloud_that_bills_on_has_no_such_agents(
    alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    for provider in ("azure", "hosts", "local"):
        config = replace(alone.session().config, provider=provider)
        assert not own_ends.wanted(config).is_on
    config = alone.session().config
    monkeypatch.setattr(own_ends, "GRACE", 600.0)
    config = replace(config, limits=Limits(idle=60.0))
    assert own_ends.wanted(config).idle == 660.0, "a client that is there is first"
    assert not own_ends.wanted(replace(config, strategy="tpu", provider="gcp")).is_on
    assert own_ends.wanted(replace(config, provider="gcp")).is_on
    assert not own_ends.wanted(replace(alone.session().config, limits=Limits())).is_on


# ── A client that comes back while some nodes have ended themselves, and others not yet ──


def test_a_run_is_over_though_a_node_of_a_deciding_task_has_not_ended_itself_yet(
    alone: Alone,
) -> None:
    alone.success = "all_workers"
    alone.rules = ArtifactRules(limit=10)
    alone.begin("worker0")
    alone.saved()
    alone.write("worker0", "model/w.h5", "x" * 100)
    alone.start("true")
    alone.start("exit 3", "worker0")
    alone.keep()
    until(alone.off)
    alone.web.bring()
    del alone.nodes["chief0"]
    after, run = without_own_ends(alone.session(), alone.run)
    assert [node.name for node in after.nodes] == ["mnist-worker0"]
    assert (run.state, run.attempts[-1].exits) == ("landing", {"chief0": 0, "worker0": 3})
    cause = run.attempts[-1].cause
    assert cause is not None
    assert cause.task == "worker0"


def test_a_run_whose_deciding_task_vanished_has_not_succeeded(alone: Alone) -> None:
    alone.saved()
    alone.start("true", "worker0")
    alone.start("sleep 600")
    record = (alone.place() / "attempt-1/task").readlink().name.split(":")
    for pid in (record[3], record[0]):
        os.kill(int(pid), 9)
    alone.keep()
    until(lambda: alone.off() and alone.off("worker0"))
    alone.nodes_gone()
    _, run = without_own_ends(alone.session(), alone.run)
    cause = run.attempts[-1].cause
    assert run.state == "landing"
    assert cause is not None


def test_a_silent_task_without_files_keeps_no_machine(alone: Alone) -> None:
    alone.start("true")
    until(lambda: (alone.place() / "attempt-1/exit").is_symlink())
    (alone.place() / "attempt-1/log").write_text("")
    (alone.place() / "attempt-1/metrics").write_text("1 cpu 3\n")
    alone.keep()
    until(alone.off, 60)


def test_what_an_earlier_run_left_beyond_the_limit_keeps_the_machine(alone: Alone) -> None:
    alone.start("true")
    earlier = alone.place().parents[1] / "20261101-000000-aaaa/chief0"
    (earlier / "work").mkdir(parents=True)
    (earlier / "work/large").write_text("x")
    (earlier / "landed").write_text(json.dumps({"final": False, "files": {}}))
    alone.keep()
    until(lambda: alone.said("/large' not landed"))
    assert not alone.off()


def test_a_mark_of_an_earlier_attempt_ends_no_task(alone: Alone) -> None:
    ended(alone)
    first = (alone.top / "web" / RUN / "parcels/chief0.1.over").read_bytes()
    later = f"/{RUN}/parcels/chief0.2.over"
    tasks = tuple(replace(task, attempt=2) for task in alone.run.tasks)
    alone.run = replace(alone.run, tasks=tasks)
    order = own_ends.order_of(alone.session(), alone.run, tasks[1], over(alone), 60.0)
    assert order is not None
    assert order["others"]["chief0"]["url"].endswith(later)
    alone.told.objects[later] = first
    assert not OwnEnd(order, Unused()).has_ended("chief0")
    alone.told.objects[later] = first.replace(b'\\"attempt\\": 1', b'\\"attempt\\": 2')
    assert not OwnEnd(order, Unused()).has_ended("chief0")


@pytest.mark.parametrize("while_", ["left_to_land", "store"])
def test_a_shell_that_opens_while_the_last_files_land_keeps_the_machine(
    alone: Alone, while_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = own_ends.order_of(alone.session(), alone.run, alone.run.tasks[0], over(alone), 60.0)
    assert order is not None
    off = alone.top / "off"
    here = OwnEnd({**order, "runs": "none", "shutdown": ["touch", str(off)]}, Unused())
    here.has_told = True

    def opens(*_: object) -> str:
        alone.connect(7, use("sshd: {user}@pts/0"))
        return ""

    if while_ == "store":
        monkeypatch.setattr(here, "store", lambda *_: not opens())
    else:
        here.marked = here.agent.held()  # at an earlier try
        monkeypatch.setattr(here.agent, "left_to_land", opens)
    now = time.monotonic()
    here.quiet_since = now - 9.0
    assert here.due(now)
    here.end("nobody has used it", now)
    assert not off.exists()


def test_a_machine_whose_mark_the_store_does_not_take_stays(
    alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = own_ends.order_of(alone.session(), alone.run, alone.run.tasks[0], over(alone), 60.0)
    assert order is not None
    off = alone.top / "off"
    here = OwnEnd({**order, "runs": "none", "shutdown": ["touch", str(off)]}, Unused())
    here.has_told, now = True, time.monotonic()
    here.quiet_since = now - 9.0
    monkeypatch.setattr(here, "store", lambda *_: False)
    here.end("nobody has used it", now)
    assert not off.exists()
    monkeypatch.setattr(here, "store", lambda *_: True)
    here.end("nobody has used it", now)
    assert off.exists()


def test_a_mark_that_is_stored_again_for_a_later_attempt_is_none(alone: Alone) -> None:
    """Whoever may write to the store may copy it."""
    ended(alone)
    assert set(marks(alone)) == {"chief0", "worker0"}
    folder = alone.top / "web" / RUN / "parcels"
    (folder / "chief0.2.end").write_bytes((folder / "chief0.1.end").read_bytes())
    chief, worker = alone.run.tasks
    alone.run = replace(alone.run, tasks=(replace(chief, attempt=2), worker))
    assert set(marks(alone)) == {"worker0"}


def test_an_evaluator_has_its_grace_before_it_is_ended(alone: Alone) -> None:
    chief, worker = alone.run.tasks
    alone.run = replace(alone.run, tasks=(chief, replace(worker, role="evaluator")))
    order = own_ends.order_of(alone.session(), alone.run, alone.run.tasks[1], over(alone), 60.0)
    assert order is not None
    assert order["grace"] == 0.0  # it gets no checkpoint
    alone.checkpoints = "ckpt"
    order = own_ends.order_of(alone.session(), alone.run, alone.run.tasks[1], over(alone), 60.0)
    assert order is not None
    assert order["grace"] == 600.0

    ended = []

    class Scoring(Unused):
        def ended_at(self) -> float:
            return 0.0

        def end_task(self, kills: bool) -> None:
            ended.append(kills)

    watch = OwnEnd(order, Scoring())
    watch.end("nobody has used it", watch.quiet_since + 599)
    assert ended == []
    watch.end("nobody has used it", watch.quiet_since + 601)
    assert ended == [False]


def test_where_a_right_to_read_lasts_an_hour_an_agent_asks_for_the_others_upload(
    alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with Google's tokens. An upload that the question itself has completed is empty: some
    emulators take it for the end."""
    right = PresignedRequest(url=Secret("http://x/"), method="GET", headers={"Authorization": "t"})
    monkeypatch.setattr(alone.web, "sign_download", lambda *_, **__: right)
    session = PresignedRequest(url=Secret("http://x/session"))
    upload = PresignedUpload(path="over", requests=(session,), chunk=1 << 18)
    monkeypatch.setattr(alone.web, "sign_upload", lambda *_, **__: upload)
    order = own_ends.order_of(alone.session(), alone.run, alone.run.tasks[1], over(alone), 60.0)
    assert order is not None
    asked = order["others"]["chief0"]
    assert (asked["method"], asked["url"]) == ("PUT", "http://x/session")
    assert asked["headers"] == {"Content-Range": "bytes */*"}
    answers = iter([(308, b""), (200, b'{"size": "0"}'), (404, b""), (200, b'{"size": "312"}')])
    monkeypatch.setattr(
        "cloudtrain.node.own_end.web.Web.made", lambda *_: Answering(*next(answers))
    )
    watch = OwnEnd(order, Unused())
    assert [watch.has_ended("chief0") for _ in range(4)] == [False, False, False, True]


class Answering:
    """A connection to a service that gives one answer."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status, self.body = status, body

    def request(self, method: str, path: str, headers: dict[str, str]) -> None:
        assert (method, path) == ("PUT", "/session")

    def getresponse(self) -> Answering:
        return self

    def read(self, most: int) -> bytes:
        return self.body

    def close(self) -> None:
        pass


def test_a_later_attempt_that_no_agent_watches_yet_keeps_the_machine(alone: Alone) -> None:
    """Its client was killed, or could not start agents, once the task had begun again."""
    alone.start("exit 3")
    alone.limits = Limits(idle=1.5)
    alone.keep()
    attempts = (*alone.run.attempts, replace(alone.run.attempts[0], number=2))
    alone.run = replace(alone.run, attempts=attempts)
    alone.start("sleep 600")
    alone.wait_for_the_agent_to_leave()
    assert not alone.off()


def test_a_run_that_was_to_begin_again_keeps_its_cause_and_begins_again(alone: Alone) -> None:
    ended(alone, "exit 143")
    lost = Cause(task="worker0", node="mnist-worker0", kind="lost", text="its node is gone")
    last = replace(alone.run.attempts[-1], ended=time.time(), cause=lost)
    run = replace(alone.run, attempts=(last,), state="starting")
    _, after = without_own_ends(alone.session(), run)
    assert (after.state, after.attempts[-1].cause) == ("starting", lost)
