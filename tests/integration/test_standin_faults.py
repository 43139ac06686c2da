"""The server that stand-ins run on, and the faults that it injects: held to by a tiny stand-in."""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from werkzeug.wrappers import Request, Response

from tests.standins import serve
from tests.standins.cloud import Cloud
from tests.standins.faults import Faults
from tests.support.fakes import eventually


class Counter:
    """Keeps what it is sent; /refuse refuses."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.lag = 0.0
        self.time = 0.0

    def __call__(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        request = Request(environ)
        if request.method == "POST":
            self.kept.append(request.get_data(as_text=True))
        return Response(f"{len(self.kept)}")(environ, start_response)

    def holdings(self) -> list[str]:
        return sorted(self.kept)

    def error(self, status: int, code: str, message: str) -> Response:
        return Response(f"{code or 'its own'}: {message}", status)

    def advance(self, seconds: float) -> None:
        self.time += seconds

    def add(self, text: str) -> int:
        self.kept.append(text)
        return len(self.kept)


@pytest.fixture
def counter() -> Counter:
    return Counter()


@pytest.fixture
def cloud(counter: Counter) -> Iterator[Cloud]:
    faults = Faults(counter)
    with serve.serving(faults) as url:
        yield Cloud("aws", {"url": url, "environment": {}, "endpoints": {}}, faults)


@pytest.fixture
def client(cloud: Cloud) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(urlsplit(cloud.url).netloc, timeout=10)
    yield connection
    connection.close()


def ask(
    client: http.client.HTTPConnection, method: str, path: str, body: str | None = None
) -> tuple[int, str]:
    client.request(method, path, body)
    answer = client.getresponse()
    return answer.status, answer.read().decode()


def test_one_connection_serves_many_calls(client: http.client.HTTPConnection, cloud: Cloud) -> None:
    ask(client, "POST", "/things", "a")
    first = client.sock
    assert ask(client, "POST", "/things", "b") == (200, "2")
    assert ask(client, "GET", "/things") == (200, "2")
    assert client.sock is first
    assert [(c["number"], c["action"], c["status"]) for c in cloud.calls()] == [
        (1, "POST /things", 200),
        (2, "POST /things", 200),
        (3, "GET /things", 200),
    ]


def test_a_body_that_nobody_reads_does_not_disturb_the_next_call(
    client: http.client.HTTPConnection,
) -> None:
    assert ask(client, "PUT", "/things", "GET / HTTP/1.1\r\n\r\n") == (200, "0")
    assert ask(client, "GET", "/things") == (200, "0")


def test_an_answer_is_the_clouds_own_and_the_work_is_not_done(
    client: http.client.HTTPConnection, cloud: Cloud, counter: Counter
) -> None:
    cloud.fault("answer", number=2, status=429, code="Slow", message="down", retry_after=3)
    assert ask(client, "POST", "/things", "a") == (200, "1")
    client.request("POST", "/things", "b")
    answer = client.getresponse()
    assert (answer.status, answer.read(), answer.headers["Retry-After"]) == (
        429,
        b"Slow: down",
        "3",
    )
    assert ask(client, "POST", "/things", "c") == (200, "2")
    assert counter.kept == ["a", "c"]


def test_a_pattern_names_the_calls_and_times_says_how_many(
    client: http.client.HTTPConnection, cloud: Cloud
) -> None:
    cloud.fault("answer", action="POST /th*", skip=1, times=2, status=500)
    assert [ask(client, "POST", "/things", "x")[0] for _ in range(4)] == [200, 500, 500, 200]
    cloud.fault("answer", action="POST /th*", status=500)
    cloud.no_more_faults()
    assert ask(client, "POST", "/things", "x")[0] == 200


def test_each_call_goes_wrong_once(client: http.client.HTTPConnection, cloud: Cloud) -> None:
    cloud.fault("answer", action="*", times=9, once_each=True, status=500)
    asked = [("POST", "a"), ("POST", "a"), ("POST", "b"), ("PUT", "b"), ("POST", "b")]
    told = [ask(client, method, "/things", body)[0] for method, body in asked]
    assert told == [500, 200, 500, 500, 200]


@pytest.mark.parametrize("after", [False, True])
def test_a_reset_comes_before_or_after_the_work(
    client: http.client.HTTPConnection, cloud: Cloud, counter: Counter, after: bool
) -> None:
    cloud.fault("reset", action="POST *", after=after)
    with pytest.raises(ConnectionResetError):
        ask(client, "POST", "/things", "a")
    assert counter.kept == (["a"] if after else [])
    client.close()
    assert ask(client, "POST", "/things", "b")[0] == 200


def test_silence_is_a_time_out(cloud: Cloud, counter: Counter) -> None:
    impatient = http.client.HTTPConnection(urlsplit(cloud.url).netloc, timeout=0.05)
    cloud.fault("silence", action="POST *", after=True)
    with pytest.raises(TimeoutError):
        ask(impatient, "POST", "/things", "a")
    eventually(lambda: counter.kept == ["a"])
    cloud.no_more_faults()


@pytest.mark.parametrize("after", [False, True])
def test_a_client_is_killed_before_or_after_the_work(
    cloud: Cloud, counter: Counter, after: bool
) -> None:
    script = (
        "import sys, urllib.request as u; sys.stdin.read(); "
        f"u.urlopen('{cloud.url}/things', b'a'); print('came back')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as client:
        cloud.fault("kill", number=1, pid=client.pid, after=after)
        output, _ = client.communicate(timeout=60)
    assert (client.returncode, output) == (-9, b"")
    assert counter.kept == (["a"] if after else [])
    assert cloud.calls()[0]["status"] is None


def test_a_test_sees_and_moves_a_stand_in_from_another_process(
    cloud: Cloud, counter: Counter
) -> None:
    cloud.set(lag=2.0)
    cloud.advance(60)
    assert cloud.tell("add", text="by hand") == 1
    assert (counter.lag, counter.time, cloud.holdings()) == (2.0, 60.0, ["by hand"])
    assert cloud.calls() == []


def test_calls_are_counted_anew_from_one(client: http.client.HTTPConnection, cloud: Cloud) -> None:
    ask(client, "GET", "/things")
    cloud.forget_calls()
    ask(client, "GET", "/others")
    assert [(c["number"], c["action"]) for c in cloud.calls()] == [(1, "GET /others")]


def test_tls_with_a_certificate_of_its_own(tmp_path: Path, counter: Counter) -> None:
    tls = serve.certificate(tmp_path)
    with serve.serving(counter, tls=tls) as url:
        assert url.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=str(tls[0]))
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusting)
        )
        with opener.open(url) as answer:
            assert json.load(answer) == 0
