"""Answers of GET requests as a node reads them: simple ones itself, all others with the library."""

from __future__ import annotations

import http.client
import socket
from urllib.parse import urlsplit

import pytest

from cloudtrain.node import answers

Got = answers.Answer
HEADERS = {"Accept-Encoding": "identity", "If-Match": '"v"'}


def got(text: bytes, url: str = "http://h:80/a") -> tuple[Got, bytes, bytes]:
    """The answer that a server gives, its body, and the request that it received."""
    ours, server = socket.socketpair()
    with ours, server:
        server.sendall(text)
        server.shutdown(socket.SHUT_WR)
        ours.sendall(answers.head("GET", urlsplit(url), "/a", HEADERS))
        answer = answers.read(ours)
        body, buffer = b"", memoryview(bytearray(3))
        while count := answer.readinto(buffer):
            body += buffer[:count]
        return answer, body, server.recv(1 << 16)


def test_a_simple_answer_is_read_to_its_length() -> None:
    answer, body, request = got(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: x\r\n\r\nhello")
    assert isinstance(answer, answers.SimpleAnswer)
    assert (body, answer.isclosed(), answer.getheader("Etag")) == (b"hello", True, "x")
    assert request == (
        b'GET /a HTTP/1.1\r\nHost: h\r\nAccept-Encoding: identity\r\nIf-Match: "v"\r\n\r\n'
    )


def test_an_answer_that_breaks_off_is_not_closed() -> None:
    answer, body, _ = got(b"HTTP/1.1 206 OK\r\nContent-Length: 5\r\n\r\nhell")
    assert (body, answer.isclosed()) == (b"hell", False)


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nX: 1\r\nX: 2\r\nContent-Length: 5\r\n\r\nhello",
    ],
)
def test_all_other_answers_are_read_by_the_library(text: bytes) -> None:
    answer, body, _ = got(text)
    assert isinstance(answer, http.client.HTTPResponse)
    assert body == b"hello"


def test_a_closed_connection_is_an_error_of_the_connection() -> None:
    with pytest.raises(http.client.RemoteDisconnected):
        got(b"")


@pytest.mark.parametrize("value", ["x\r\nHost: other", "x\ny"])
def test_a_line_break_in_a_header_is_refused(value: str) -> None:
    ours, server = socket.socketpair()
    with ours, server, pytest.raises(http.client.InvalidURL):
        answers.head("GET", urlsplit("http://h/a"), "/a", {"A": value})
