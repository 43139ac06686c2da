"""`notify`: each end is told once, by a process of its own that nothing waits for."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.console.logging_console import LoggingConsole
from cloudtrain.core.model import ClusterConfig, Notify
from cloudtrain.core.run_record import Run, Task
from cloudtrain.report import notify, send_notice
from cloudtrain.state import Records
from tests.support.fakes import eventually
from tests.support.tensorflow_parts import config


class Warned(LoggingConsole):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


class Service:
    """Answers with these codes in turn, the last one again and again."""

    def __init__(self, *codes: int) -> None:
        self.codes, self.got = list(codes), list[Any]()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                service.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                assert "urllib" not in self.headers["User-Agent"]  # Discord refuses it
                self.send_response(service.codes[0])
                if service.codes[1:]:
                    del service.codes[0]
                self.send_header("Location", "http://127.0.0.1:9/")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook-secret"


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service(200)
    yield service
    service.server.shutdown()


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Records:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "state"))
    return Records("mnist")


def told(monkeypatch: pytest.MonkeyPatch, url: str, **more: Any) -> ClusterConfig:
    monkeypatch.setenv("HOOK_VALUE", url)
    names = dict.fromkeys(("end", "failed", "budget", "idle"), "HOOK")
    secrets = {"HOOK": "HOOK_VALUE"}
    return replace(config(**more.pop("setup", {})), notify=Notify(**names, **more), secrets=secrets)


def run(state: Any = "succeeded") -> Run:
    task = Task(role="chief", index=0, node="mnist-chief0", port=8900)
    facts: Mapping[str, Any] = {"id": "20261127-1", "cluster": "mnist", "command": "x"}
    return Run(**facts, tasks=(task,), state=state, created=0.0, exit_code=0, store="file:///s/1")


def test_a_run_is_told_once_though_two_processes_end_it(
    records: Records, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, console = told(monkeypatch, service.url), Warned()
    for _ in range(2):
        notify.run_ended(records, wanted, run(), "", console)
    log = records.folder / notify.LOG
    eventually(lambda: log.exists() and "end 20261127-1: sent" in log.read_text())
    (given,) = service.got
    assert given == {
        "event": "end",
        "cluster": "mnist",
        "text": "mnist: run 20261127-1 succeeded",
        "run": "20261127-1",
        "state": "succeeded",
        "exit_code": 0,
        "artifacts": "file:///s/1",
    }
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    kept = [path.read_text() for path in records.folder.rglob("*") if path.is_file()]
    assert not [text for text in kept if "hook-secret" in text]


def test_a_run_that_failed_and_a_cluster_that_is_gone_say_why(
    records: Records, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, console = told(monkeypatch, service.url), Warned()
    notify.run_ended(records, wanted, run("failed"), "worker1 exited with 1", console)
    notify.cluster_ended(records, wanted, "idle", "was idle for 1800 s (limits.idle)", console)
    eventually(lambda: len(service.got) == 2)
    assert sorted(given["text"] for given in service.got) == [
        "mnist was idle for 1800 s (limits.idle): down",
        "mnist: run 20261127-1 failed: worker1 exited with 1",
    ]


def test_a_program_of_this_machine_gets_the_json(
    records: Records, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted = replace(
        config(source=str(tmp_path / "m.yaml")), notify=Notify(command="tee 'to ld.json'")
    )
    notify.run_ended(records, wanted, run(), "", Warned())
    eventually(lambda: (tmp_path / "to ld.json").exists() and (tmp_path / "to ld.json").read_text())
    assert json.loads((tmp_path / "to ld.json").read_text())["state"] == "succeeded"


@pytest.mark.parametrize(
    "url", ["", "http://e.org/secret", "secret", "file:///secret", "https://e.org/?sig=a secret"]
)
def test_a_wrong_url_is_a_warning_without_it_and_no_error(
    records: Records, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    console = Warned()
    notify.run_ended(records, told(monkeypatch, url), run(), "", console)
    (warning,) = console.warnings
    assert warning.startswith("notify.end: not sent: ")
    assert "secret" not in warning.replace("secrets", "")


def test_nothing_is_sent_or_recorded_where_nobody_is_named(records: Records) -> None:
    notify.run_ended(records, config(), run(), "", Warned())
    assert records.events() == ()


# ── the process that sends ───────────────────────────────────────────────────


def send(monkeypatch: pytest.MonkeyPatch, url: str, pauses: list[float]) -> None:
    monkeypatch.setattr(send_notice.time, "sleep", pauses.append)
    order = {"what": "w", "url": url, "headers": {}, "body": "{}", "command": []}
    monkeypatch.setattr(send_notice.json, "load", lambda _: {**order, "folder": "/", "given": ""})
    send_notice.main()


@pytest.mark.parametrize(
    ("codes", "asked", "last"),
    [
        ((500, 429, 204), 3, "sent"),
        ((0, 204), 2, "sent"),  # what is no answer of HTTP
        ((404,), 1, "HTTP 404"),
        ((302,), 1, "HTTP 302"),
        ((503,), 6, "HTTP 503"),
    ],
)
def test_what_may_help_is_tried_again_and_no_redirect_is_followed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    codes: tuple[int, ...],
    asked: int,
    last: str,
) -> None:
    service, pauses = Service(*codes), list[float]()
    send(monkeypatch, service.url, pauses)
    service.server.shutdown()
    assert len(service.got) == asked
    assert pauses == list(send_notice.PAUSES)[: asked - 1]
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == f"w: {last}"
    assert service.url not in "".join(said)


def test_a_url_that_cannot_be_asked_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """http.client names it in an InvalidURL, which is neither OSError nor ValueError."""
    send(monkeypatch, "http://127.0.0.1:9/?sig=secret x", [])
    assert set(capsys.readouterr().out.splitlines()) == {"w: InvalidURL"}


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://hooks.slack.com/services/T/B/x", "text"),
        ("https://prod-1.westus.logic.azure.com:443/workflows/x?sig=y", "attachments"),
        ("https://discord.com/api/webhooks/1/x", "content"),
        ("https://example.org/hook?token=x", "cluster"),
    ],
)
def test_each_service_gets_the_form_that_it_reads(url: str, key: str) -> None:
    given = {"text": "<!channel> @everyone", "cluster": "c", "event": "end"}
    headers, body = notify.message(url, given)
    assert headers == {"Content-Type": "application/json"}
    assert key in json.loads(body)
    if key == "text":
        assert json.loads(body) == {"text": "&lt;!channel&gt; @everyone"}
    if key == "content":
        assert json.loads(body)["allowed_mentions"] == {"parse": []}


def test_ntfy_gets_a_title_and_plain_text() -> None:
    headers, body = notify.message(
        "https://ntfy.sh/topic", {"text": "done ✓", "cluster": "c", "event": "end"}
    )
    assert (headers["Title"], body) == ("cloudtrain: c end", "done ✓")
