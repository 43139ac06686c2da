"""`--events PATH`: what the console shows, as JSON lines."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from cloudtrain.cli.app import cli, run
from cloudtrain.commands import stop_run
from cloudtrain.console.event_stream import EventStream
from cloudtrain.console.plain import PlainConsole
from cloudtrain.core.errors import NodeUnreachable
from cloudtrain.core.protocols import Console
from cloudtrain.core.run_record import Run
from cloudtrain.state import Records

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "events.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.validators.validator_for(SCHEMA)(SCHEMA)
RUN = Run(id="r", cluster="mnist", command="c", tasks=(), state="stopped", created=1.0, ended=2.0)


def valid(text: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in text.splitlines()]
    for each in found:
        VALIDATOR.validate(each)
    return found


def without_time(text: str) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in each.items() if name not in ("time", "seconds")}
        for each in valid(text)
    ]


def everything(console: Console) -> None:
    console.say("ready")
    with console.stage("nodes", 1) as stage:
        stage.node("mnist-chief0", "requested")
        stage.done("mnist-chief0", "10.0.0.4")
    console.warn("spot")
    console.task_output("chief0", b"one\ntw")
    console.task_output("chief0", b"o\nthree")


EVENTS = [
    {"event": "message", "text": "ready"},
    {"event": "stage begun", "stage": "nodes", "total": 1},
    {"event": "node", "stage": "nodes", "node": "mnist-chief0", "text": "requested"},
    {"event": "node done", "stage": "nodes", "node": "mnist-chief0", "text": "10.0.0.4"},
    {"event": "stage done", "stage": "nodes"},
    {"event": "warning", "text": "spot"},
    {"event": "output", "task": "chief0", "line": "one"},
    {"event": "output", "task": "chief0", "line": "two"},
]


def plain() -> PlainConsole:
    return PlainConsole(err=io.StringIO(), out=io.StringIO())


def test_every_message_and_step_is_an_event_and_is_shown_as_well() -> None:
    stream, err, out = io.StringIO(), io.StringIO(), io.StringIO()
    console = EventStream(PlainConsole(err=err, out=out), stream, clock=lambda: 7.5)
    everything(console)
    console.flush()
    assert without_time(stream.getvalue()) == [
        *EVENTS,
        {"event": "output", "task": "chief0", "line": "three"},
    ]
    assert {each["time"] for each in valid(stream.getvalue())} == {7.5}
    assert out.getvalue() == "chief0 │ one\nchief0 │ two\nchief0 │ three\n"
    assert "nodes: 1 of 1, 10.0.0.4  " in err.getvalue()


def test_a_step_that_fails_says_so_and_the_error_goes_on() -> None:
    stream = io.StringIO()
    console = EventStream(plain(), stream)
    with pytest.raises(NodeUnreachable), console.stage("nodes", 1):
        raise NodeUnreachable("mnist-chief0", "no answer")
    assert without_time(stream.getvalue())[-1] == {"event": "stage failed", "stage": "nodes"}


class Lost(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_the_loss_of_the_stream_does_not_disturb_the_command() -> None:
    everything(EventStream(plain(), Lost()))


@pytest.fixture
def verb(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception | None], None]:
    """What `stop-run` does: everything that a console shows, then the error."""
    Records("mnist").create()
    Records("mnist").save_config({"name": "mnist"})

    def answer(error: Exception | None) -> None:
        def stop(name: str, *, console: Console, **_: object) -> Run:
            everything(console)
            if error is not None:
                raise error
            return RUN

        monkeypatch.setattr(stop_run, "stop_run", stop)

    return answer


def test_the_events_of_a_command_are_appended_and_end_with_its_end(
    verb: Callable[[Exception | None], None], tmp_path: Path
) -> None:
    path = tmp_path / "events.jsonl"
    verb(None)
    assert run(["stop-run", "mnist", "--events", str(path)]) == 0
    verb(NodeUnreachable("mnist-chief0", "no answer"))
    code = run(["stop-run", "mnist", "--events", str(path)])
    found = without_time(path.read_text())
    ends = [each for each in found if each["event"] == "end"]
    assert found[: len(EVENTS)] == EVENTS
    assert ends[0] == {"event": "end", "ok": True}
    assert ends[1]["error"]["kind"] == "NodeUnreachable"
    assert (ends[1]["ok"], ends[1]["error"]["exit_code"], found[-1]) == (False, code, ends[1])


def test_events_on_stdout_stand_alone_there(verb: Callable[[Exception | None], None]) -> None:
    verb(None)
    done = CliRunner().invoke(cli, ["stop-run", "mnist", "--events", "-"])
    assert without_time(done.stdout)[-1] == {"event": "end", "ok": True}
    assert "chief0 │ one" in done.stderr


def test_events_and_a_document_do_not_share_stdout_and_a_bad_path_is_named(
    verb: Callable[[Exception | None], None], capsys: pytest.CaptureFixture[str]
) -> None:
    verb(None)
    assert run(["stop-run", "mnist", "--events", "-", "--json"]) == 2
    assert "exclude each other" in capsys.readouterr().err
    assert run(["stop-run", "mnist", "--events", "/no/such/folder/x"]) == 2
    assert capsys.readouterr().err.startswith("error: --events /no/such/folder/x: No such file")
