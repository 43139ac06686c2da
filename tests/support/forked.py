"""`--parts N`: the tests in N processes, which are forked once all tests are collected.

For tests of milliseconds, xdist costs as much as they do: each of its workers imports and collects
them all, and each result is sent twice. Here each process takes another file when it has finished
one, and tells of its own tests at its end.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--parts", type=int, default=1, metavar="N", help="run in N forked processes")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.parts > 1 and config.option.capture == "fd":
        raise pytest.UsageError("--parts needs --capture=sys: forked processes share files")
    if config.option.parts > 1:
        gc.set_threshold(1_000_000)  # a quarter of the time otherwise


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    option, terminal = session.config.option, session.config.get_terminal_writer()
    if option.parts == 1 or option.collectonly or session.testsfailed:
        return None  # as without this plugin
    files = by_file(session.items)
    left, numbers = os.pipe()
    os.write(numbers, bytes(each for number in range(len(files)) for each in divmod(number, 256)))
    os.close(numbers)
    others: dict[int, Any] = {}
    for _ in range(option.parts - 1):
        told = tempfile.TemporaryFile("w+", buffering=1, encoding="utf-8")  # noqa: SIM115
        if (process := os.fork()) == 0:
            others.clear()
            terminal._file = told
            break
        others[process] = told
    run(session, (test for number in taken(left) for test in files[number]))
    for process, told in others.items():
        _, status = os.waitpid(process, 0)
        session.testsfailed += status != 0
        told.seek(0)
        terminal.line(f"\n{told.read()}")
    return True


def taken(left: int) -> Iterator[int]:
    """Numbers that no other process has taken."""
    while number := os.read(left, 2):
        yield number[0] * 256 + number[1]


def by_file(tests: Iterable[pytest.Item]) -> Sequence[list[pytest.Item]]:
    """The tests of each file, the largest first: the last one is waited for. Files that read the
    product's source (tests/support/sources.py) are taken together: it is parsed once.
    """
    files: dict[str, list[pytest.Item]] = {}
    for test in tests:
        module = vars(getattr(test, "module", None) or pytest)
        reads = not {"parsed", "walked", "nodes"}.isdisjoint(module)
        files.setdefault("sources" if reads else str(test.path), []).append(test)
    return sorted(files.values(), key=size, reverse=True)


def size(tests: Sequence[pytest.Item]) -> int:
    return sum(path.stat().st_size for path in {test.path for test in tests})


def run(session: pytest.Session, tests: Iterator[pytest.Item]) -> None:
    """As pytest's own loop, `pytest_runtestloop` of _pytest/main.py."""
    test = next(tests, None)
    while test is not None:
        following = next(tests, None)
        test.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        test = following
