"""Fails each test of this folder that starts a process or opens a socket, a unix socket included.

Such a test belongs in tests/integration or tests/e2e.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import urllib3.util.connection  # noqa: F401 - asks a socket, when imported, whether there is IPv6

HERE = Path(__file__).parent
PROCESS = {
    *("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"),
    *("pty.spawn", "subprocess.Popen"),
}
SOCKET = {
    *("socket.__new__", "socket.getaddrinfo", "socket.getnameinfo"),
    *("socket.gethostbyaddr", "socket.gethostbyname"),
}
REFUSED = PROCESS | SOCKET

running: str | None = None
broken: list[str] = []
_numbers = count()


def refuse(event: str, given: tuple[Any, ...]) -> None:
    if event not in REFUSED or running is None:
        return
    did = "started a process" if event in PROCESS else "opened a socket"
    broken.append(f"{running} {did}: {event} {described(event, given)}; see tests/unit/conftest.py")
    raise PermissionError(broken[-1])


def described(event: str, given: tuple[Any, ...]) -> str:
    """What is started, or for what address."""
    if event == "socket.__new__":
        return f"of {given[1]!r}"
    what = given[1] if event == "subprocess.Popen" else given[0] if given else ""
    parts = what if isinstance(what, (list, tuple)) else [what]
    return " ".join(os.fsdecode(part) if part else "" for part in parts)[:200]


sys.addaudithook(refuse)


@pytest.fixture(autouse=True, scope="package")
def no_disk_is_waited_for(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """pytest's own `mktemp` resolves paths and makes a link for each of the folders."""
    base = tmp_path_factory.getbasetemp()

    def mktemp(name: str, numbered: bool = True) -> Path:
        made = base / f"{name}{next(_numbers)}"
        made.mkdir(mode=0o700)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(tmp_path_factory, "mktemp", mktemp)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Pytest calls this one for every test of the run, also those of other folders."""
    global running
    running = item.nodeid if item.path.is_relative_to(HERE) else None
    try:
        return (yield)
    finally:
        running = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Also where the code under test has handled the error that it got for it."""
    report = yield
    if broken:
        report.outcome = "failed"
        report.longrepr = "\n".join(broken)
        broken.clear()
    return report
