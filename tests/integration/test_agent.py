"""What an agent stores with no client: a real process, over real HTTP, with short times."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.artifacts.inventory import Wanted, take_inventory
from cloudtrain.artifacts.manifest import ManifestWriter
from cloudtrain.artifacts.spool_archive import parse_index
from cloudtrain.cluster.session import Session
from cloudtrain.commands.up import renew_agents
from cloudtrain.core.model import SPOT, ArtifactRules, Node
from cloudtrain.core.retry import Clock
from cloudtrain.node.agent import Agent
from cloudtrain.node.archiver import Archive, listed
from cloudtrain.node.listing import File
from cloudtrain.runs import node_agents
from cloudtrain.runs.node_replacement import await_nodes_gone
from cloudtrain.state import Records
from tests.support.agent_parts import SOON, Kept, metadata
from tests.support.fakes import make_plan
from tests.support.landing_parts import RUN
from tests.support.processes import environment, words
from tests.support.web_store import Service, service, until


@pytest.fixture
def told() -> Iterator[Service]:
    with service() as one:
        yield one


@pytest.fixture
def kept(tmp_path: Path, told: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    one = Kept(tmp_path, told, monkeypatch)
    yield one
    one.power_off()


# ── The end of a task ────────────────────────────────────────────────────────


def test_what_a_task_leaves_is_stored_though_no_client_lives(kept: Kept) -> None:
    kept.start("echo trained; mkdir -p output/deep; echo model >output/deep/model")
    kept.write("worker0", "output/events", b"\0" * 3_000_000)
    kept.write("worker0", "train.py", "no artifact")
    kept.start("true", "worker0")
    kept.keep()
    kept.wait_for_archives(2)
    manifest = kept.take()
    assert {path: kept.content(manifest, path) for path in manifest.files} == {
        "chief0/output/deep/model": b"model\n",
        "worker0/output/events": b"\0" * 3_000_000,
        "logs/chief0.attempt-1.log": b"trained\n",
    }


def test_an_agent_waits_while_the_task_runs_and_has_its_patience_after_it(kept: Kept) -> None:
    kept.start("echo 1 >output/a; while [ ! -e ../over ]; do sleep 0.05; done")
    kept.write("chief0", "output/there", "x")
    kept.keep()
    time.sleep(0.4)
    assert kept.arrived() == []
    (kept.place() / "over").touch()
    kept.wait_for_archives()
    until(lambda: "2 of 2 files" in kept.log())


def test_a_task_that_vanished_with_its_watcher_has_ended_too(kept: Kept) -> None:
    kept.write("chief0", "output/a", "what it had")
    kept.start("sleep 600")
    kept.power_off()
    kept.keep()
    kept.wait_for_archives()
    assert "chief0/output/a" in kept.take().files


def test_an_agent_leaves_when_a_client_has_landed_the_end(kept: Kept) -> None:
    kept.write("chief0", "output/a", "x")
    kept.start("while [ ! -e ../over ]; do sleep 0.05; done")
    kept.keep()
    until(lambda: (kept.place() / "keeping").exists())
    finally_landed(kept)
    assert "chief0" in kept.agents().values()
    (kept.place() / "over").touch()
    kept.wait_for_the_agent_to_leave()
    assert kept.arrived() == []


def finally_landed(kept: Kept) -> None:
    kept.land(checkpoints=kept.checkpoints, store=kept.web)


# ── Meanwhile ────────────────────────────────────────────────────────────────


def test_an_agent_stays_for_what_is_beyond_the_limit_until_its_nodes_end(kept: Kept) -> None:
    kept.rules = ArtifactRules(limit=10)
    kept.nodes_are(expires=time.time() + 128)  # the last sync is two minutes before
    kept.begin("chief0")
    kept.write("chief0", "model/w.h5", "x" * 100)
    kept.write("chief0", "train.log", "x" * 9)
    kept.start("true")
    kept.keep()
    until(lambda: (kept.place() / "attempt-1/exit").is_symlink())
    manifest = kept.land(store=kept.web)
    assert manifest.complete
    assert set(manifest.task_files("chief0")) == {"train.log"}
    assert "chief0" not in manifest.landed_attempts, "more of it is on its node"
    assert json.loads((kept.place() / "landed").read_text())["final"] is False
    kept.wait_for_archives()
    kept.power_off()
    assert kept.content(kept.take(), "chief0/model/w.h5") == b"x" * 100


def test_each_every_an_archive_has_what_is_new_while_no_client_lands(kept: Kept) -> None:
    kept.every = 0.1
    kept.nodes_are(expires=time.time() + 4)
    kept.start("trap '' TERM; sleep 600")  # else the agent might be done before the second file
    kept.write("chief0", "output/a", "first")
    kept.keep()
    kept.wait_for_archives()
    kept.write("chief0", "output/b", "second")
    kept.wait_for_archives(2)
    manifest = kept.take()
    assert kept.content(manifest, "chief0/output/a") == b"first"
    assert kept.content(manifest, "chief0/output/b") == b"second"
    assert "chief0" in kept.agents().values()


def test_what_has_landed_is_not_stored_again(kept: Kept) -> None:
    kept.start("true")
    kept.write("chief0", "output/landed", "x")
    (kept.place() / "keeping").touch()
    kept.land(final=False, store=kept.web)
    kept.write("chief0", "output/new", "y")
    kept.keep()
    kept.wait_for_archives()
    kept.wait_for_the_agent_to_leave()
    (archive,) = kept.told.objects.values()
    assert b"work/output/new" in archive
    assert b"work/output/landed" not in archive


# ── The node's end ───────────────────────────────────────────────────────────


def test_before_the_nodes_end_all_is_stored_and_then_what_still_comes(kept: Kept) -> None:
    kept.nodes_are(expires=time.time() + 60)  # the last sync is two minutes before: it is due
    kept.start("sleep 600")
    kept.write("chief0", "output/a", "early")
    kept.keep()
    kept.wait_for_archives()
    kept.power_off()
    assert kept.content(kept.take(), "chief0/output/a") == b"early"


def test_before_the_nodes_end_what_nobody_named_is_stored_beyond_its_limit(kept: Kept) -> None:
    kept.rules = ArtifactRules(limit=10)
    kept.nodes_are(expires=time.time() + 60)
    kept.begin("chief0")
    kept.start("sleep 600")
    kept.write("chief0", "model/w.h5", "x" * 100)
    (kept.transport.home(kept.nodes["chief0"]) / "best.ckpt").write_text("y" * 100)
    kept.write("chief0", "id_rsa", "a key")
    kept.keep()
    kept.wait_for_archives()
    kept.power_off()
    manifest = kept.take()
    assert kept.content(manifest, "chief0/model/w.h5") == b"x" * 100
    assert kept.content(manifest, "chief0/_home/best.ckpt") == b"y" * 100
    assert "chief0/id_rsa" not in manifest.files


def test_while_the_node_has_time_only_as_much_as_the_limit_is_stored(kept: Kept) -> None:
    kept.rules = ArtifactRules(limit=10)
    kept.begin("chief0")
    kept.write("chief0", "model/w.h5", "x" * 100)
    kept.write("chief0", "train.log", "x" * 9)
    kept.start("true")
    kept.keep()
    kept.wait_for_archives()
    kept.power_off()
    assert set(kept.take().task_files("chief0")) == {"train.log"}


def test_what_a_node_could_not_store_before_its_end_is_on_record(kept: Kept) -> None:
    """Small and new files come first; the record has what the last archive left."""
    found = {
        name: File(f"work/{name}", name, size, f"{at}.0/{at}.0/1", named)
        for name, size, at, named in (
            ("model/old.h5", 5000, 1, False),
            ("model/new.h5", 5000, 2, False),
            ("notes", 3, 1, False),
            ("output/large", 9000, 1, True),
        )
    }
    order: dict[str, object] = {
        **SOON,
        "attempt": 1,
        "patterns": [],
        "checkpoint": None,
        "tickets": [],
        "every": 0.0,
    }
    times = dict.fromkeys(("until", "end", "last", "stop"), float("inf"))
    agent = Agent({**order, **times, "limit": None, "home": False}, b"")
    assert [each.source for each in agent.due(found)] == [
        "output/large",
        "notes",
        "model/new.h5",
        "model/old.h5",
    ]
    assert agent.left(found, []) == {}
    agent.ending.word = "preempted"
    chosen = [found["output/large"], found["notes"]]
    assert agent.left(found, chosen) == {"model/": 10000}

    archive = Archive([], None, {}, dict, {"model/": 10000})
    assert parse_index(archive.index(), {}).left == {"model/": 10000}
    assert len(archive.index()) == len(archive.about), "there is room for it in the archive"
    ledger = ManifestWriter(kept.web, RUN)
    assert ledger.lose("chief0", 1, "model/ (10.0 kB)") == (
        "chief0/attempt 1: model/ (10.0 kB): lost with its node"
    )
    ledger.warn("chief0", ["id_rsa looks like a key: not landed"])
    assert ledger.manifest.warnings == (
        "chief0/attempt 1: model/ (10.0 kB): lost with its node",
        "chief0/id_rsa looks like a key: not landed",
    )
    assert ledger.lose("chief0", 1, "") == ""
    assert len(ledger.manifest.warnings) == 1


@pytest.mark.parametrize(
    ("life", "margin"), [(12 * 3600, 600), (3600, 180), (1800, 120), (60, 120)]
)
def test_the_last_sync_has_time_enough(kept: Kept, life: float, margin: float) -> None:
    node = Node(
        name="n",
        role="chief",
        index=0,
        state="running",
        address="",
        internal="",
        created=1000.0,
        expires=1000.0 + life,
    )
    assert node_agents.last_sync(node, 0.0) == 1000.0 + life - margin


# ── A notice ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["aws", "gcp", "azure"])
def test_at_a_notice_the_task_may_save_and_what_it_saved_is_stored(
    kept: Kept, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.provider = kind
    kept.nodes_are(provisioning=SPOT)
    kept.start("trap 'echo saved >output/a; exit 42' TERM; while :; do sleep 0.05; done")
    names: list[str] = []
    with metadata(kind, names) as (address, asked):
        monkeypatch.setenv("CLOUDTRAIN_METADATA", address)
        kept.keep()
        until(lambda: len(asked) > 4)
        assert kept.arrived() == []
        names.append("mnist-chief0")
        kept.wait_for_the_agent_to_leave()
    kept.power_off()
    assert kept.content(kept.take(), "chief0/output/a") == b"saved\n"
    assert (kept.place() / "attempt-1/notice").exists()
    assert (kept.place() / "attempt-1/exit").readlink() == Path("42")


def test_at_a_notice_the_checkpoint_that_the_task_saves_is_stored_instead_of_the_last(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.checkpoints = "ckpt"
    kept.nodes_are(provisioning=SPOT)
    kept.write("chief0", "ckpt/state", b"a" * 1_000_000)
    kept.write("chief0", "output/log", "small")
    kept.start(
        "trap 'until [ -e ../go ]; do sleep 0.05; done; echo new >ckpt/state; exit 42' TERM; "
        "while :; do sleep 0.05; done"
    )
    with metadata("gcp", ["mnist-chief0"]) as (address, _):
        monkeypatch.setenv("CLOUDTRAIN_METADATA", address)
        kept.keep()
        kept.wait_for_archives()  # everything else
        (archive,) = kept.told.objects.values()
        assert b"work/output/log" in archive
        assert b"work/ckpt/state" not in archive
        (kept.place() / "go").touch()
        kept.wait_for_the_agent_to_leave()
    assert kept.content(kept.take(), "chief0/ckpt/state") == b"new\n"


def test_at_a_notice_a_task_that_does_not_save_has_its_last_checkpoint_stored(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = node_agents.notice_query
    monkeypatch.setattr(
        node_agents, "notice_query", lambda *node: {**(query(*node) or {}), "seconds": 0.9}
    )
    kept.checkpoints = "ckpt"
    kept.nodes_are(provisioning=SPOT)
    kept.write("chief0", "ckpt/state", "last")
    kept.start("trap '' TERM; while :; do sleep 0.05; done")
    with metadata("gcp", ["mnist-chief0"]) as (address, _):
        monkeypatch.setenv("CLOUDTRAIN_METADATA", address)
        kept.keep()
        until(lambda: any(b"work/ckpt/state" in data for data in kept.told.objects.values()))
    kept.power_off()
    assert kept.content(kept.take(), "chief0/ckpt/state") == b"last"


def test_on_demand_nodes_ask_for_no_notice(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    with metadata("gcp", ["mnist-chief0"]) as (address, asked):
        monkeypatch.setenv("CLOUDTRAIN_METADATA", address)
        kept.start("true")
        kept.write("chief0", "output/a", "x")
        kept.keep()
        kept.wait_for_archives()
        assert asked == []


def test_an_attempt_begins_when_the_nodes_under_notice_are_gone(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [(kept.nodes["chief0"], kept.nodes["worker0"])] * 3 + [(kept.nodes["worker0"],)]
    monkeypatch.setattr(Session, "refreshed", lambda self: replace(self, nodes=listed.pop(0)))
    session = replace(kept.session(), clock=Clock(sleep=lambda seconds: None))
    await_nodes_gone(session, {kept.run.tasks[0].node})
    assert listed == []


# ── The machine's shutdown ───────────────────────────────────────────────────


def shut_down(kept: Kept) -> None:
    """As systemd: SIGTERM to every process of a session, and to their agents."""
    for path in kept.processes():
        with contextlib.suppress(OSError):
            os.kill(int(path.name), signal.SIGTERM)


def test_a_machine_that_is_shut_down_stores_what_its_task_saves(kept: Kept) -> None:
    kept.start("trap 'sleep 0.3; echo saved >output/a; exit 42' TERM; while :; do sleep 0.05; done")
    kept.write("chief0", "output/there", b"x" * 3_000_000)
    kept.keep()
    until(lambda: "chief0" in kept.agents().values())
    shut_down(kept)
    kept.wait_for_the_agent_to_leave()
    kept.power_off()
    manifest = kept.take()
    assert kept.content(manifest, "chief0/output/a") == b"saved\n"
    assert kept.content(manifest, "chief0/output/there") == b"x" * 3_000_000
    assert (kept.place() / "attempt-1/notice").read_text().endswith(" shutdown\n")


def test_a_notice_that_cannot_be_written_stops_no_upload(kept: Kept) -> None:
    kept.start("sleep 600")
    kept.write("chief0", "output/a", "x")
    (kept.place() / "attempt-1/notice").mkdir()
    kept.keep()
    until(lambda: "chief0" in kept.agents().values())
    shut_down(kept)
    kept.wait_for_archives()
    kept.power_off()
    assert kept.content(kept.take(), "chief0/output/a") == b"x"


def test_an_agent_killed_during_the_shutdown_leaves_whole_archives_only(
    kept: Kept, told: Service
) -> None:
    told.fault = lambda number, path: "slow" if number == 1 else None
    kept.start("sleep 600")
    kept.write("chief0", "output/a", "x")
    kept.keep()
    until(lambda: "chief0" in kept.agents().values())
    shut_down(kept)
    until(lambda: told.seen)
    kept.power_off()
    assert kept.take().files == {}


# ── The end of a lifetime ────────────────────────────────────────────────────


def test_before_the_end_of_its_life_a_node_ends_its_task_and_stores_what_that_saves(
    kept: Kept,
) -> None:
    kept.start("trap 'echo saved >output/a; exit 42' TERM; while :; do sleep 0.05; done")
    now = time.time()
    kept.nodes_are(created=now - 100, expires=now + 10)  # SIGTERM at a tenth of the life
    kept.keep()
    kept.wait_for_the_agent_to_leave()
    assert kept.content(kept.take(), "chief0/output/a") == b"saved\n"
    assert (kept.place() / "attempt-1/notice").read_text().endswith(" lifetime\n")
    assert (kept.place() / "attempt-1/exit").readlink() == Path("42")


def test_a_moved_end_is_told_to_the_agents_of_an_unattended_run(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Records, "active_run", lambda self: kept.run)
    kept.start("trap 'echo saved >output/a; exit 42' TERM; while :; do sleep 0.05; done")
    now = time.time()
    kept.nodes_are(created=now - 100, expires=now + 3600)
    kept.keep()
    before = kept.agents()
    assert before
    kept.nodes_are(expires=now + 10)  # SIGTERM at a tenth of the life
    renew_agents(kept.session())
    assert not before.keys() & kept.agents().keys(), "one that knew the old end has made room"
    kept.wait_for_the_agent_to_leave()
    assert kept.content(kept.take(), "chief0/output/a") == b"saved\n"


@pytest.mark.parametrize(("life", "lead"), [(12 * 3600, 300), (3600, 90), (1800, 60), (60, 6)])
def test_a_task_gets_sigterm_when_half_of_the_last_sync_is_left(life: float, lead: float) -> None:
    node = Node(
        name="n",
        role="chief",
        index=0,
        state="running",
        address="",
        internal="",
        created=1000.0,
        expires=1000.0 + life,
    )
    config = make_plan().config
    assert node_agents.task_stop(config, node, 0.0) == 1000.0 + life - lead
    endless = replace(node, expires=None)
    assert node_agents.task_stop(config, endless, 0.0) == float("inf")


# ── Faults ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fault", [403, 503, "reset", "half"])
def test_a_store_that_refuses_is_asked_again(kept: Kept, told: Service, fault: int | str) -> None:
    told.fault = lambda number, path: fault if number <= 2 else None
    kept.start("true")
    kept.write("chief0", "output/a", b"a" * 2_000_000)
    kept.keep()
    kept.wait_for_archives()
    assert kept.content(kept.take(), "chief0/output/a") == b"a" * 2_000_000


def test_an_agent_killed_half_way_leaves_no_archive_and_the_next_one_stores_all(
    kept: Kept, told: Service
) -> None:
    told.fault = lambda number, path: "slow" if number == 1 else None
    kept.start("true")
    kept.write("chief0", "output/a", "x")
    kept.keep()
    until(lambda: told.seen)
    for pid in kept.agents():
        os.kill(pid, signal.SIGKILL)
    kept.keep()
    kept.wait_for_archives()
    assert "chief0/output/a" in kept.take().files


def test_a_later_agent_takes_the_place_of_an_earlier_one(kept: Kept) -> None:
    kept.start("sleep 600")
    kept.keep()
    until(lambda: sorted(kept.agents().values()) == ["chief0", "worker0"])
    before = set(kept.agents())
    kept.keep()
    until(lambda: len(kept.agents()) == 2 and before.isdisjoint(kept.agents()))


def test_a_file_that_changes_while_it_is_sent_is_sent_again(kept: Kept, told: Service) -> None:
    told.fault = lambda number, path: grow(kept) if number == 1 else None
    kept.start("true")
    kept.write("chief0", "output/a", b"a" * 8_000_000)
    kept.keep()
    kept.wait_for_archives(2)
    kept.wait_for_the_agent_to_leave()
    assert kept.content(kept.take(), "chief0/output/a") == b"b" * 8_000_000


def grow(kept: Kept) -> None:
    """The service is about to read; the sender has at most what the sockets hold in flight."""
    kept.write("chief0", "output/a", b"b" * 8_000_000)


def test_no_right_is_seen_on_the_node_but_in_the_agents_memory(kept: Kept, told: Service) -> None:
    told.fault = lambda number, path: 403 if number < 4 else None
    kept.start("sleep 600")
    kept.write("chief0", "output/a", "x")
    kept.nodes_are(expires=time.time() + 30)
    kept.keep()
    kept.wait_for_archives()
    assert "403" in kept.log()
    places = [path for path in kept.top.rglob("*") if path.is_file() and "web" not in path.parts]
    seen = [path.read_bytes() for path in places]
    for pid in kept.agents():
        seen += [*environment(pid), *map(str.encode, words(pid))]
    assert kept.agents()
    assert not [text for text in seen if b"/parcels/" in text or b"127.0.0.1:" in text]


def test_a_store_that_gives_no_right_has_no_agent(kept: Kept) -> None:
    kept.web.presigner = None
    kept.keep()
    assert kept.agents() == {}


def test_a_node_without_python_is_warned_of(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudtrain.core.ship.BOOT", "raise SystemExit('no such thing')")
    node_agents.start_agents(kept.session(), kept.run)
    (warning,) = kept.console.warned
    assert "chief0: no such thing" in warning


# ── The same files as those that land ────────────────────────────────────────


def test_an_agent_means_the_same_files_with_the_same_stamps_as_a_landing(kept: Kept) -> None:
    work = kept.work("chief0")
    for path in ("output/a", "output/.hidden", "output/ö/b", "models/x/y.h5", "deep/z.h5", "no"):
        kept.write("chief0", path, path)
    (work / "output" / "file").symlink_to("../models/x/y.h5")
    (work / "output" / "folder").symlink_to("../models")
    (work / "output" / "around").symlink_to("..")
    (work / "output" / "out").symlink_to("/etc/passwd")
    (work / "output" / "gone").symlink_to("nothing")
    (work / "models" / "two").symlink_to("x")
    os.mkfifo(work / "output" / "pipe")
    (work / os.fsdecode(b"output/\xff")).write_text("odd")
    for patterns in (("output/**",), ("**/*.h5",), (".",), ("models", "output/[!a]*")):
        found = take_inventory(
            kept.nodes["chief0"], layout_of(kept), Wanted(patterns=patterns), kept.transport
        )
        mine = listed(os.fsencode(work), list(patterns))
        assert {path: (each.size, each.stamp) for path, each in mine.items()} == {
            file.path: (file.size, file.stamp) for file in found.files
        }


def layout_of(kept: Kept) -> str:
    return str(kept.work("chief0").relative_to(kept.transport.home(kept.nodes["chief0"])))
