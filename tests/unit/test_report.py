"""`cloudtrain report`: the facts of a run, and the page of them."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib.font_manager  # noqa: F401 - on a new machine, its first import starts fc-list
import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cloudtrain.artifacts.manifest import Manifest
from cloudtrain.cli import report as report_command
from cloudtrain.cli.app import cli
from cloudtrain.console.times import exact_duration
from cloudtrain.core.codec import decode
from cloudtrain.core.events import (
    AttemptBegun,
    AttemptStarted,
    DownBegun,
    Event,
    NodeCreated,
    NodeDeletionBegun,
    NodeRequested,
    NodesPlaced,
    RunEnded,
    UpBegun,
    UpCompleted,
    to_line,
)
from cloudtrain.core.metrics import GpuSample, LogLine, Sample, repeated_of
from cloudtrain.core.model import Artifact
from cloudtrain.core.run_record import Cause, Run, RunAttempt, Task
from cloudtrain.money.node_hours import CostSoFar
from cloudtrain.report.build import build, reproduce
from cloudtrain.report.curves import POINTS, charts_in, charts_of_events, pace_of, stragglers
from cloudtrain.report.facts import Chart, Report, Series
from cloudtrain.report.landed import to_json, warned, written
from cloudtrain.report.page import page
from cloudtrain.report.sources import Sources
from cloudtrain.state import Records
from cloudtrain.stores.file import FileStore
from tests.support.landing_parts import write_manifest

START = 1_790_000_000.0
NODES = ("mnist-chief0", "mnist-worker0")
ID = "20260921-131320-abcd"


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts are drawn, which takes a tenth of a second each."""
    pytest.importorskip("matplotlib")
    monkeypatch.undo()


@pytest.fixture(autouse=True)
def without_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("chart", "page"):
        monkeypatch.setattr(f"cloudtrain.report.{module}.missing_library", lambda: True)


def task(role: str, index: int = 0, attempt: int = 2) -> Task:
    return Task(
        role=role, index=index, node=f"mnist-{role}{index}", port=8900 + index, attempt=attempt
    )


CAUSE = Cause(
    task="worker0",
    node="mnist-worker0",
    kind="signal",
    text="killed by SIGKILL",
    last_lines=("step 7 loss 0.5",),
    hint="add memory",
    collateral=("chief0",),
)

RUN = Run(
    id=ID,
    cluster="mnist",
    command="python train.py --rate 0.1",
    state="succeeded",
    created=START + 600,
    ended=START + 4200,
    exit_code=0,
    code="0123456789abcdef0123456789abcdef01234567",
    tasks=(task("chief"), task("worker")),
    attempts=(
        RunAttempt(
            number=1,
            started=START + 600,
            ended=START + 1800,
            exits={"chief0": 1, "worker0": -9},
            cause=CAUSE,
        ),
        RunAttempt(
            number=2,
            started=START + 1810,
            ended=START + 4000,
            exits={"chief0": 0, "worker0": 0},
            formed_after=3.5,
        ),
    ),
)

JOURNAL: tuple[tuple[float, Event], ...] = (
    (0, UpBegun(nodes=NODES)),
    *((1, NodeRequested(node=node, made={})) for node in NODES),
    *((30, NodeCreated(node=node, id="i", placement="east")) for node in NODES),
    (100, NodesPlaced(places=dict.fromkeys(NODES, "east"), prices=dict.fromkeys(NODES, 3.6))),
    (500, UpCompleted()),
    (600, AttemptBegun(run=ID, attempt=1)),
    (700, AttemptStarted(run=ID, attempt=1)),
    (1810, AttemptBegun(run=ID, attempt=2)),
    (1900, AttemptStarted(run=ID, attempt=2)),
    (4200, RunEnded(run=ID, state="succeeded", exit_code=0)),
    (4300, DownBegun(nodes=NODES)),
    *((4310, NodeDeletionBegun(node=node)) for node in NODES),
)

CONFIG: dict[str, Any] = {
    "name": "mnist",
    "source": "/home/me/mnist.yaml",
    "overrides": ["nodes.worker.count=1"],
    "code": {"git": "https://me:t0ken@example.com/code.git", "ref": "main"},
    "train": {"command": "python train.py"},
    "setup": {"tensorflow": "2.21"},
    "secrets": {"API_KEY": "MY_API_KEY"},
    "project": None,
}


def lines(*texts: str, name: str = "chief0", every: float = 1.0) -> list[LogLine]:
    """Lines that arrive one after the other."""
    found = enumerate(texts)
    return [LogLine(task=name, seen=START + number * every, text=text) for number, text in found]


def keras(first: float, epochs: int = 3) -> list[LogLine]:
    texts = []
    for epoch in range(1, epochs + 1):
        texts += [f"Epoch {epoch}/{epochs}", f"9/9 - 1s - loss: {first / epoch:.3f} - val_loss: 2"]
    return lines(*texts)


def sample(time: float, gpu: float = 50.0) -> Sample:
    gpus = (GpuSample(utilization=gpu, memory_used=1, memory_total=4),)
    figures = {"received": 1e6, "sent": 1e6, "disk_read": 0.0, "disk_written": 0.0}
    return Sample(time=time, cpu=20.0, memory_used=1, memory_total=2, gpus=gpus, **figures)


def sources(run: Run = RUN, **changes: Any) -> Sources:
    file = Artifact(path="chief0/output/model.h5", size=2_500_000, sha256="ab" * 32)
    facts: dict[str, Any] = {
        "run": run,
        "log": lambda one, _most: keras(2.0 / one.attempt),
        "samples": lambda one: [sample(run.created + n, 90.0 * (n % 2)) for n in range(60)],
        "manifest": Manifest(run=run.id, files={file.path: file}, complete=True),
        "read": lambda _file: iter(()),
        "journal": [to_line(event, time=START + at, pid=1) for at, event in JOURNAL],
        "config": CONFIG,
    }
    return Sources(**{**facts, **changes})


def made(run: Run = RUN, **changes: Any) -> Report:
    return build(sources(run, **changes), now=START + 5000)


class Parsed(HTMLParser):
    """Elements, ids, and the text outside `style`."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def test_what_restarts_cost_is_on_the_page() -> None:
    """Attempt 1 had begun step 10, attempt 2 begins at step 7; 100 s without a task lie between."""
    logs = {1: range(1, 11), 2: range(7, 21)}

    def log(one: Task, _most: int) -> list[LogLine]:
        return lines(*(f"step {number}" for number in logs[one.attempt]), every=2.0)

    report = made(log=log)
    lost = report.lost
    assert lost is not None
    assert (lost.restarts, lost.unit, lost.repeated, lost.repeated_seconds) == (1, "step", 4, 8.0)
    assert lost.repeated_cost is not None
    assert lost.repeated_cost.exact == pytest.approx(2 * 3.6 / 3600 * 8.0)
    assert (lost.between_seconds, lost.between_cost) == (100.0, CostSoFar(least=0.2, most=0.2))
    shown = Parsed(page(report)).text
    assert (
        "1 restart: 4 steps again, by the log, 8s, 0.02 $; 1m40s between attempts, 0.20 $." in shown
    )
    assert made(replace(RUN, attempts=RUN.attempts[:1])).lost is None


def test_steps_that_three_attempts_began_count_each_time() -> None:
    assert repeated_of([[1, 2, 3, 4], [], [3, 4, 5], [3, 4]]) == 2 + 2
    assert repeated_of([[10, 20], [30, 40]]) == 0


def test_the_phases_of_a_cluster_follow_each_other_and_their_cost_is_all_of_it() -> None:
    report = made()
    assert [(phase.name, phase.seconds) for phase in report.phases] == [
        ("create", 100),
        ("boot and setup", 400),
        ("no run", 100),
        ("start attempt 1", 100),
        ("attempt 1", 1100),
        ("before the next attempt", 10),
        ("start attempt 2", 90),
        ("attempt 2", 2100),
        ("landing", 200),
        ("no run", 100),
        ("delete", 10),
    ]
    setup = report.phases[1]
    assert setup.cost.exact == pytest.approx(2 * 3.6 * 400 / 3600)
    assert report.cost is not None
    assert report.cost.exact == pytest.approx(2 * 3.6 * 4270 / 3600)  # until `down` deletes them


def test_each_node_has_its_times_from_its_creation_to_its_deletion() -> None:
    _, worker = made().nodes
    assert worker.node == "mnist-worker0"
    assert (worker.place, worker.price) == ("east", 3.6)
    assert [(each.kind, each.end - each.begin, each.text) for each in worker.segments] == [
        ("create", 29, ""),
        ("boot", 70, ""),
        ("setup", 400, ""),
        ("start", 100, ""),
        ("train", 1100, "attempt 1: exit code -9"),
        ("start", 90, ""),
        ("train", 2100, "attempt 2: exit code 0"),
        ("delete", 0, ""),
    ]


def test_a_local_node_that_run_creates_has_its_creation_and_setup_too() -> None:
    """No cloud says that it was made, and `run` goes on without a word that all is ready."""
    journal = [
        (at, event) for at, event in JOURNAL if not isinstance(event, NodeCreated | UpCompleted)
    ]
    _, worker = made(
        journal=[to_line(event, time=START + at, pid=1) for at, event in journal]
    ).nodes
    assert [(each.kind, each.end - each.begin) for each in worker.segments[:3]] == [
        ("create", 99),
        ("setup", 500),
        ("start", 100),
    ]


def test_a_run_without_a_journal_still_has_its_attempts() -> None:
    report = made(journal=(), config=None)
    assert [phase.name for phase in report.phases] == [
        "attempt 1",
        "before the next attempt",
        "attempt 2",
        "landing",
    ]
    assert report.cost is None
    assert "not on record" in Parsed(page(report)).text


def test_curves_of_all_attempts_come_from_the_log() -> None:
    loss, val_loss = made().charts
    assert (loss.metric, loss.unit, val_loss.metric) == ("loss", "epoch", "val_loss")
    first, second = loss.series
    assert (first.attempt, first.x, first.y) == (1, (1.0, 2.0, 3.0), (2.0, 1.0, 0.667))
    assert (second.attempt, second.y[0]) == (2, 1.0)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("step 10 loss 0.5", "step 20 loss 0.25"), {"loss": ((10, 20), (0.5, 0.25))}),
        (
            ("step: 1 train_loss=1e-3 lr: 0.1",),
            {"train_loss": ((1,), (0.001,)), "lr": ((1,), (0.1,))},
        ),
        (("loss: 3", "loss: nan", "loss: 2"), {"loss": ((1, 3), (3, 2))}),
        # Steps that each epoch counts anew.
        (
            ("Epoch 1", "step 1 loss 4", "step 2 loss 3", "Epoch 2", "step 1 loss 2"),
            {"loss": ((1, 2, 3), (4, 3, 2))},
        ),
        (("lost 3 of 4 peers", "port: 8900, losses: [1]", "gloss: 3", "step 3"), {}),
    ],
)
def test_metrics_are_what_the_log_names(texts: tuple[str, ...], expected: dict[str, Any]) -> None:
    charts = charts_in([(task("chief"), lines(*texts))])
    assert {each.metric: (each.series[0].x, each.series[0].y) for each in charts} == expected


def test_values_that_are_no_number_are_counted_and_a_long_curve_is_thinned() -> None:
    texts = [f"step {n} loss {'nan' if n % 2 else n}" for n in range(4000)]
    ((curve,),) = [each.series for each in charts_in([(task("chief"), lines(*texts))])]
    assert (curve.not_finite, len(curve.x)) == (2000, POINTS)
    assert (curve.x[0], curve.x[-1]) == (0.0, 3998.0)


def test_a_task_that_is_slower_than_its_role_is_named() -> None:
    paces = [
        pace_of(
            task("worker", index),
            lines("step 0", "step 10", every=60.0 if index == 2 else 10.0),
        )
        for index in range(4)
    ]
    assert list(stragglers([pace for pace in paces if pace])) == [
        "worker2: 6 s per step; the median of its role is 1 s"
    ]
    assert pace_of(task("worker"), lines("importing")) is None


def test_utilization_is_by_role_over_time_and_by_task() -> None:
    report = made()
    assert [chart.metric for chart in report.use_over_time] == [
        "GPU, %",
        "GPU memory, %",
        "CPU, %",
        "memory, %",
        "network, MB/s",
    ]
    assert {chart.unit for chart in report.use_over_time} == {"second"}
    long = made(samples=lambda _task: [sample(START + 600 + at) for at in (0, 3600)])
    assert (long.use_over_time[0].unit, max(long.use_over_time[0].series[0].x)) == ("minute", 60.25)
    chief = report.use[0]
    assert (chief.task, chief.cpu, chief.memory) == ("chief0", 20.0, 50.0)
    assert (chief.gpu, chief.gpu_memory, chief.idle) == (45.0, 25.0, 50.0)
    assert [series.name for series in report.use_over_time[0].series] == ["chief", "worker"]


def test_the_command_that_reproduces_a_run_has_its_commit_and_its_words() -> None:
    assert list(reproduce(CONFIG, RUN)) == [
        f"cloudtrain up mnist.yaml --set nodes.worker.count=1 --set code.ref={RUN.code}",
        "cloudtrain train mnist -- --rate 0.1",
    ]


def test_no_password_of_a_url_is_in_a_report() -> None:
    run = replace(RUN, command="python x.py --db=postgres://u:secretpw@db/x")
    report = made(run)
    text = page(report) + json.dumps(to_json(report))
    assert "t0ken" not in text
    assert "secretpw" not in text
    assert "https://***@example.com/code.git" in text
    assert "MY_API_KEY" in text  # the name of a variable


def test_verdict_and_cause_come_first() -> None:
    failed = replace(
        RUN, state="failed", exit_code=1, attempts=RUN.attempts[:1], ended=START + 1900
    )
    text = Parsed(page(made(failed))).text
    verdict = "failed after 21m: worker0 on mnist-worker0: killed by SIGKILL"
    assert text.index(verdict) < text.index("add memory") < text.index("Timeline")
    titles = ["Attempts", "Timeline", "Curves", "Utilization", "Cost", "Artifacts", "Origin"]
    places = [text.index(title, text.index("Notes") if "Notes" in text else 0) for title in titles]
    assert places == sorted(places)


@pytest.mark.usefixtures("drawing")
def test_a_page_loads_nothing_and_runs_no_script() -> None:
    text = page(made())
    parsed = Parsed(text)
    assert parsed.open == []
    assert not {"script", "link", "img", "iframe", "object", "form", "base"} & set(parsed.names)
    assert "default-src &#x27;none&#x27;" in text or "default-src 'none'" in text
    assert not re.search(r"@import|url\((?!#)", text)
    for name, value in parsed.attributes:
        assert name not in ("src", "srcset", "action", "data")
        assert not name.startswith("on")
        if name == "href":
            assert value.startswith("#")
    assert ("lang", "en") in parsed.attributes
    assert len(parsed.ids) == len(set(parsed.ids))


@pytest.mark.usefixtures("drawing")
def test_charts_have_a_title_a_description_and_their_values() -> None:
    text = page(made())
    parsed = Parsed(text)
    assert parsed.names.count("svg") == parsed.names.count("desc") == 7
    assert "A line chart. chief0, attempt 1 from 2 to 0.667" in parsed.text
    assert "1: 2, 2: 1, 3: 0.667" in parsed.text
    labels = [value for name, value in parsed.attributes if name == "aria-labelledby"]
    assert all(set(value.split()) <= set(parsed.ids) for value in labels)


@pytest.mark.usefixtures("drawing")
def test_how_busy_nodes_were_is_drawn_from_0_to_100_percent() -> None:
    figures = [sample(RUN.created + n, 99.0) for n in range(9)]
    text = page(made(samples=lambda _: figures))
    (gpu,) = re.findall(r"<figcaption>GPU, % by second.*?</svg>", text, re.DOTALL)
    (network,) = re.findall(r"<figcaption>network, MB/s by second.*?</svg>", text, re.DOTALL)
    ticks = re.findall(r"<text[^>]*>([^<]*)</text>", gpu)
    assert ticks[-6:] == ["0", "20", "40", "60", "80", "100"]
    assert not re.findall(r"<text[^>]*>\N{MINUS SIGN}", network)


def test_what_stands_in_backticks_is_code_and_a_hint_stays_text() -> None:
    cause = replace(CAUSE, hint="set `--set a=<b>`; see `docs` or <this>")
    text = page(
        made(replace(RUN, state="failed", attempts=(replace(RUN.attempts[0], cause=cause),)))
    )
    assert "set <code>--set a=&lt;b&gt;</code>; see <code>docs</code> or &lt;this&gt;" in text


def test_durations_that_differ_by_seconds_look_different() -> None:
    assert [exact_duration(each) for each in (7.4, 60, 73.4, 3599.7, 7260)] == [
        "7s",
        "1m00s",
        "1m13s",
        "1h 00m",
        "2h 01m",
    ]


def test_the_page_of_a_run_that_goes_on_is_written_until_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_command, "AGAIN_AFTER", 0.01)
    pages: list[str] = []
    monkeypatch.setattr(report_command, "write", lambda _path, text: pages.append(text))
    reports = iter([made(replace(RUN, ended=None, state="running")), made()])
    report_command.write_again(tmp_path / "page.html", lambda: next(reports))
    assert ['http-equiv="refresh"' in text for text in pages] == [True, False]


def test_the_page_of_a_run_that_goes_on_is_loaded_again() -> None:
    assert 'http-equiv="refresh"' not in page(made())
    text = page(made(), again_after=30.0)
    assert '<meta http-equiv="refresh" content="30">' in text
    assert "every 30 s this page is written" in text


def test_without_the_extra_the_page_has_tables_and_says_how_to_get_curves() -> None:
    parsed = Parsed(page(made()))
    assert "svg" not in parsed.names
    assert "the curves need cloudtrain's extra report" in parsed.text
    assert "1: 2, 2: 1, 3: 0.667" in parsed.text


MARKUP = "</pre><script>alert(1)</script><img src=x onerror=y>\"'&"


def hostile(text: str) -> Report:
    """A report with this text wherever a log, a config or a cloud has one."""
    cause = replace(CAUSE, text=text, last_lines=(text,), hint=text, collateral=(text,))
    run = replace(
        RUN,
        command=text,
        commands={"worker": text},
        code=text,
        store=text,
        state="failed",
        attempts=(replace(RUN.attempts[0], cause=cause),),
    )
    file = Artifact(path=f"chief0/{text}", size=1, sha256="ab" * 32)
    report = made(
        run,
        log=lambda _task, _most: lines(f"step 1 loss 1 {text}", text),
        manifest=Manifest(run=run.id, files={file.path: file}),
        config={**CONFIG, "name": text, "setup": {text: text}},
        notes=(text,),
    )
    curve = Series(name=text, attempt=1, x=(1.0, 2.0), y=(1.0, 2.0))
    return replace(report, charts=(Chart(metric=text, unit=text, series=(curve,)),))


@pytest.mark.usefixtures("drawing")
def test_markup_in_logs_configs_and_names_stays_text() -> None:
    parsed = Parsed(page(hostile(MARKUP)))
    assert parsed.open == []
    assert not {"script", "img"} & set(parsed.names)
    assert parsed.text.count("<script>alert(1)</script>") >= 10
    assert not any(name.startswith("on") for name, _ in parsed.attributes)


@settings(max_examples=min(50, settings().max_examples), deadline=None)
@given(text=st.text(st.characters(), min_size=1, max_size=40))
@example(text="'`0`'")
def test_no_text_breaks_the_page(text: str) -> None:
    """What stands in backquotes is code, also in the words of a log that a sentence quotes."""
    usual, found = Parsed(page(hostile("x"))), Parsed(page(hostile(text)))
    assert found.open == []
    assert [name for name in found.names if name != "code"] == [
        name for name in usual.names if name != "code"
    ]


def test_the_facts_of_a_report_come_back_from_json() -> None:
    report = made()
    found = decode(Report, json.loads(json.dumps(to_json(report))))
    assert page(found) == page(report)


def test_a_node_that_failed_is_shown_before_the_others() -> None:
    text = Parsed(page(made())).text
    assert text.index("mnist-worker0", text.index("Timeline")) < text.index("mnist-chief0")


def test_a_report_of_128_nodes_is_of_bounded_size() -> None:
    tasks = tuple(task("worker", index) for index in range(128))
    run = replace(RUN, tasks=tasks)
    long = lines(*[f"step {n} loss {n} {'x' * 5000}" for n in range(300)])
    report = made(run, log=lambda _task, _most: long)
    assert len(page(report)) < 3_000_000
    assert [len(tail.lines) for tail in report.tails] == [20] + [5] * 127


def test_a_fault_of_the_report_is_a_warning_and_a_slow_one_is_given_up() -> None:
    said: list[str] = []

    def broken(_task: Task) -> list[Sample]:
        raise RuntimeError("no such thing")

    assert warned(said.append, lambda: sources(samples=broken)) == {}
    assert said == ["the run's report was not written: no such thing"]
    over = threading.Event()

    def slow(_task: Task) -> list[Sample]:
        over.wait()
        return []

    with pytest.raises(TimeoutError):
        written(sources(samples=slow), limit=0.0)
    over.set()


def test_a_part_that_cannot_be_read_is_a_note() -> None:
    def broken(_task: Task) -> list[Sample]:
        raise OSError("disk gone")

    report = made(samples=broken)
    assert report.notes == ("a part of this report is missing: disk gone",)
    assert report.charts


def test_event_files_are_read_by_tensorboards_reader(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event as TfEvent
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(tmp_path))
    for step, value in enumerate([3.0, 2.0, float("nan")]):
        event = TfEvent(step=step, wall_time=START + 700 + 1200 * step)
        event.summary.value.add(tag="epoch_loss", simple_value=value)
        writer.add_event(event)
    writer.close()
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    file = Artifact(path=f"chief0/output/logs/train/{path.name}", size=len(data), sha256="ab" * 32)
    ((found,), notes) = charts_of_events([file], lambda _file: [data], RUN.attempts)
    assert (found.metric, found.unit, notes) == ("epoch_loss", "step", ())
    assert [(s.name, s.attempt, s.x, s.y, s.not_finite) for s in found.series] == [
        ("chief0/output/logs/train", 1, (0.0,), (3.0,), 0),
        ("chief0/output/logs/train", 2, (1.0,), (2.0,), 1),
    ]
    # A file that a crash has torn is read up to there, and one that is too large is not read.
    (torn,), _ = charts_of_events([file], lambda _file: [data[:-5]], RUN.attempts)
    assert torn.series[0].y == (3.0,)
    large = replace(file, size=1 << 40)
    assert charts_of_events([large], lambda _file: [data], ()) == (
        (),
        (f"{file.path} was not read: the event files are too large",),
    )


def test_report_writes_the_page_of_a_run_on_record_or_in_its_store(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    records = Records("mnist")
    records.folder.mkdir(parents=True)
    store = FileStore((tmp_path / "store").as_uri())
    records.save_config({"name": "mnist"})
    text = "".join(f"{json.dumps(line)}\n" for line in sources().journal)
    (records.folder / "events.jsonl").write_text(text)
    records.save_run(RUN)
    log = records.log_path(ID, "chief0", 2)
    log.write_text("step 1 loss 0.5\nbye\n")
    done = CliRunner().invoke(cli, ["report", "mnist"], catch_exceptions=False)
    path = tmp_path / f"mnist-{ID}.html"
    assert done.stdout == f"{path.name}: succeeded after 1h 00m, in 2 attempts\n"
    assert "bye" in Parsed(path.read_text("utf-8")).text
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == [path.name]
    # The config names no store that could be read, which is a note.
    facts = json.loads(CliRunner().invoke(cli, ["report", "mnist", "--json"]).output)
    assert "what has landed is not known" in facts["notes"][0]
    # From the store alone: what has landed at the run's end.
    done = CliRunner().invoke(cli, ["report", "mnist", "--watch"], catch_exceptions=False)
    assert (done.exit_code, 'http-equiv="refresh"' in path.read_text("utf-8")) == (0, False)
    from cloudtrain.artifacts.run_index import index, record_of

    pages = written(sources())
    landed = {
        name: replace(store.upload(f"{ID}/{name}", [data]), path=name, at=name)
        for name, data in {**pages, "run.json": record_of(RUN)}.items()
    }
    index(RUN, store)
    write_manifest(store, Manifest(run=ID, files=landed, complete=True))
    asked = ["report", "mnist", "--store", store.uri, "--json", "--output", "other.html"]
    facts = json.loads(CliRunner().invoke(cli, asked, catch_exceptions=False).output)
    assert facts["cost"]["least"] == pytest.approx(8.54)
    assert "Cost by phase" in (tmp_path / "other.html").read_text("utf-8")
    # Without a landed report, from the record, the manifest and the logs.
    write_manifest(store, Manifest(run=ID, files={"run.json": landed["run.json"]}))
    facts = json.loads(CliRunner().invoke(cli, asked, catch_exceptions=False).output)
    assert (facts["cost"], facts["verdict"]) == (None, "succeeded after 1h 00m, in 2 attempts")
