"""Sends HTTP requests on an open connection and reads their answers: simple ones here, all others
with the library, whose parser of headers takes longer than the whole of a small file.
"""

import http.client
import io
import socket
import typing
import urllib.parse

PORTS = {"http": ":80", "https": ":443"}
SIMPLE = (b"HTTP/1.1 200 ", b"HTTP/1.1 201 ", b"HTTP/1.1 206 ")
HEADERS = 1 << 16
"""Bytes in which the headers of a simple answer must end."""


class SimpleAnswer:
    """An answer with a body of known length. As http.client.HTTPResponse, what is used of it.
    Header names in lower case; the body's first bytes may have come with the headers."""

    reason = ""

    def __init__(
        self, sock: socket.socket, status: int, headers: "dict[str, str]", length: int, begun: bytes
    ) -> None:
        self.sock, self.status, self.headers, self.length = sock, status, headers, length
        self.begun = begun
        self.will_close = headers.get("connection", "").lower() == "close"

    def getheader(self, name: str) -> "str | None":
        return self.headers.get(name.lower())

    def readinto(self, buffer: memoryview) -> int:
        """Read some bytes of the body; 0 at its end, also if the connection broke."""
        if self.begun:
            count = min(len(buffer), len(self.begun))
            buffer[:count] = self.begun[:count]
            self.begun = self.begun[count:]
        else:
            count = self.sock.recv_into(buffer, min(len(buffer), self.length))
        self.length -= count
        return count

    def read(self, most: int) -> bytes:
        """Read the body, or its first `most` bytes; less if the connection broke."""
        data = bytearray(min(most, self.length))
        view, count = memoryview(data), 0
        while count < len(data):
            came = self.readinto(view[count:])
            if not came:
                break
            count += came
        return bytes(view[:count])

    def isclosed(self) -> bool:
        return self.length == 0


Answer = typing.Union[SimpleAnswer, http.client.HTTPResponse]  # noqa: UP007


def head(
    method: str, target: "urllib.parse.SplitResult", path: str, headers: "dict[str, str]"
) -> bytes:
    """The request's first lines. Raises HTTPException if they would be other lines than these."""
    host, usual = target.netloc, PORTS[target.scheme]
    if host.endswith(usual):  # signatures are of the name without it
        host = host[: -len(usual)]
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    lines.extend(f"{name}: {value}" for name, value in headers.items())
    text = "\r\n".join([*lines, "", ""])
    if " " in path or {text.count("\n"), text.count("\r")} != {len(lines) + 1}:
        raise http.client.InvalidURL("a space or a line break within the request")
    return text.encode("latin-1")


def read(sock: socket.socket) -> "Answer":
    """The answer at its body's first byte. Raises OSError, HTTPException."""
    data = b""
    while b"\r\n\r\n" not in data and len(data) < HEADERS:
        more = sock.recv(HEADERS)
        if not more:
            break
        data = data + more if data else more
    return simple(sock, data) or replayed(sock, data)


def simple(sock: socket.socket, data: bytes) -> "SimpleAnswer | None":
    """The answer if it is a success with its length, else None."""
    head, end, begun = data.partition(b"\r\n\r\n")
    if not end or head[:13] not in SIMPLE:
        return None
    headers = {}  # type: dict[str, str]
    for line in head.decode("latin-1").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or name in headers or name[:1].isspace() or name == "transfer-encoding":
            return None  # the library knows what these mean
        headers[name] = value.strip()
    length = headers.get("content-length", "")
    if not length.isdigit() or len(begun) > int(length):
        return None
    return SimpleAnswer(sock, int(head[9:12]), headers, int(length), begun)


def replayed(sock: socket.socket, data: bytes) -> http.client.HTTPResponse:
    """The library's answer, given the bytes that were read already."""
    answer = http.client.HTTPResponse(Replay(sock, data), method="GET")  # type: ignore[arg-type]
    answer.begin()
    return answer


class Replay(io.RawIOBase):
    """A socket of which `data` was read already, as far as HTTPResponse uses one."""

    def __init__(self, sock: socket.socket, data: bytes) -> None:
        super().__init__()
        self.sock, self.data = sock, data

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        if not self.data:
            return self.sock.recv_into(buffer)
        count = min(len(buffer), len(self.data))
        buffer[:count] = self.data[:count]
        self.data = self.data[count:]
        return count
