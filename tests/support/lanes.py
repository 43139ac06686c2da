"""The lanes of the tests: `make test` runs a sample of each enumeration, `make sweeps` all of it.

A pytest plugin that tests/conftest.py takes in. What proves something by trying every case is

- a parametrised test with `@pytest.mark.sweep(3)`: of its cases three are drawn. `per="rig"`: three
  for each value of that parameter; `over="shell"`: of cases that differ in that parameter alone;
  `always=("azure-503",)`: these ids as well, because a fault was found there; `sweep(0)`: a test of
  minutes, which only `make sweeps` runs;
- or several tests of a file that ask much the same of a world that takes long to make:
  `sweep(2, of="faults")` draws two of all that name these;
- or a test that goes through its cases itself and asks the fixture `cases` which ones to take.

`--sweep` runs these tests, and no others, with all their cases. The cases are drawn by `--seed`,
which is new each time and printed.
"""

from __future__ import annotations

import os
import random
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

MARK = "sweep"
LEFT_OUT = pytest.StashKey[list[pytest.Item]]()
T = TypeVar("T")


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--sweep", action="store_true", help="all cases of the enumerations alone")
    parser.addoption("--seed", type=int, help="draws the sample of each enumeration again")


def pytest_configure(config: pytest.Config) -> None:
    told: dict[str, Any] = getattr(config, "workerinput", {})
    if config.option.seed is None:
        config.option.seed = told.get(MARK, secrets.randbelow(100_000))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """All workers of xdist draw the same cases."""
    node.workerinput[MARK] = node.config.option.seed


def pytest_report_header(config: pytest.Config) -> str:
    return _told(config)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if terminalreporter.stats.get("failed"):
        terminalreporter.line(_told(config))


def _told(config: pytest.Config) -> str:
    if config.option.sweep:
        return "sweep: every case"
    return f"cases drawn by --seed {config.option.seed}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = _swept(items) if config.option.sweep else _sampled(items, config.option.seed)
    left_out = [item for item in items if item not in chosen]
    if left_out:
        config.stash[LEFT_OUT] = left_out
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item in chosen]
    items[:] = _long_first(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    left_out = [] if config.option.sweep else config.stash.get(LEFT_OUT, [])
    tests = Counter(item.nodeid.partition("[")[0] for item in left_out)
    return [f"left to --sweep: {count} of {test}" for test, count in tests.items()]


def _long_first(items: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    """Each process of pytest-xdist begins with its share of tests/e2e: what the last one is waited
    for is short then. `--dist worksteal` deals the tests out in as many equal parts, and takes from
    the end of another's."""
    long = [item for item in items if "/e2e/" in item.nodeid]
    short = [item for item in items if "/e2e/" not in item.nodeid]
    return [
        item
        for number in range(processes)
        for tests in (long, short)
        for item in tests[len(tests) * number // processes : len(tests) * (number + 1) // processes]
    ]


def _swept(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    return {
        item
        for item in items
        if item.get_closest_marker(MARK) or "cases" in getattr(item, "fixturenames", ())
    }


def _sampled(items: Sequence[pytest.Item], seed: int) -> set[pytest.Item]:
    chosen, groups = set(), dict[tuple[str, ...], list[pytest.Item]]()
    for item in items:
        if mark := _mark(item):
            groups.setdefault(_group(item, mark), []).append(item)
        else:
            chosen.add(item)
    for name, group in groups.items():
        mark = _mark(group[0])
        assert mark is not None
        always = [item for item in group if _id(item) in mark.kwargs.get("always", ())]
        rest = [item for item in group if item not in always]
        count = min(mark.args[0], len(rest))
        drawn = random.Random(f"{seed} {' '.join(name)}").sample(rest, count)
        chosen |= {*always, *drawn}
    return chosen


def _mark(item: pytest.Item) -> pytest.Mark | None:
    """The closest, but a single case may be left to the sweeps by a mark of its own."""
    marks = list(item.iter_markers(MARK))
    return next((mark for mark in marks if not mark.args[0]), marks[0] if marks else None)


def _group(item: pytest.Item, mark: pytest.Mark) -> tuple[str, ...]:
    """What is drawn from together: the name of a test or of several, and of some cases."""
    file, _, test = item.nodeid.partition("[")[0].partition("::")
    name = (file, mark.kwargs.get("of", test), str(mark.args[0]))
    call: Any = getattr(item, "callspec", None)
    params: dict[str, object] = call.params if call is not None else {}
    if "per" in mark.kwargs:
        return (*name, repr(params[mark.kwargs["per"]]))
    if "over" in mark.kwargs:
        others = {key: value for key, value in params.items() if key != mark.kwargs["over"]}
        return (*name, repr(sorted(others.items())))
    return name


def _id(item: pytest.Item) -> str:
    call: Any = getattr(item, "callspec", None)
    return "" if call is None else str(call.id)


@dataclass(frozen=True)
class Cases:
    """Which cases a test takes that goes through them itself."""

    every: bool
    random: random.Random

    def of(self, cases: Iterable[T], count: int, *, always: Iterable[T] = ()) -> list[T]:
        """All, or those of `always` and as many others, in their order."""
        cases = list(cases)
        if self.every:
            return cases
        fixed = [case for case in cases if case in set(always)]
        rest = [case for case in cases if case not in fixed]
        drawn = self.random.sample(rest, min(count, len(rest)))
        return [case for case in cases if case in fixed or case in drawn]


@pytest.fixture
def cases(request: pytest.FixtureRequest) -> Cases:
    option = request.config.option
    return Cases(option.sweep, random.Random(f"{option.seed} {request.node.nodeid}"))
