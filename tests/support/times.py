"""Writes down where the time of each test goes, for tools/test_times.py.

A pytest plugin: `-p tests.support.times --times FOLDER`; each process has a file there with a line
for each test. What a fixture of a module or session takes is its first test's.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

CAUSES = {
    "SSH": r"^\S*(sshd?|ssh-keygen|scp|sftp-server)\b",
    "the tests' own processes": r"-m pytest|exec\(eval\(sys\.stdin\.readline",
    "pip, uv, venv": r"-m (pip|venv|ensurepip)|/(pip[\d.]*|uv|micromamba) |pip-runner|_in_process",
    "stores": r"moto\.server|azurite|gcp_storage_emulator|fake_gcs|ministack",
    "clouds' stand-ins, package indexes": r"tests\.standins|package_index|pypiserver",
    "cloudtrain": r"-m cloudtrain|/cloudtrain |tests\.support\.|cloudtrain\.__main__",
    "TensorFlow and other tasks": r"/venvs/|rank\.py|tensorboard",
    "nodes: boot": r"^\S*(unshare|nsenter|mmdebstrap|cloud-init|apt-get|dpkg)|standin-boot|bootcmd",
    "nodes: agents, watchers": r" -I -S -c|# Starts, watches|^\S*tail |\.cloudtrain/",
    "compilers": r"^\S*(gcc|g\+\+|cc1\w*|collect2|cmake|make|as|ld)( |$)",
    "ruff, mypy": r"/(ruff|mypy) ",
    "git": r"^\S*git ",
    "other Python": r"^\S*python[\d.]* ",
    "shells and other programs": "",
}
"""What a process is for, by its command line: the first that fits."""
WAITS = {
    "sleep": "time:sleep",
    "events, queues, threads": "threading:Condition.wait threading:Thread.join",
    "pipes": "select:select selectors:PollSelector.select selectors:EpollSelector.select",
    "the end of processes": "subprocess:Popen.wait subprocess:Popen.communicate",
    "answers of servers": "socket:socket.recv_into",
}
"""What the main thread of the tests waits in."""
WORLDS = {
    "clouds' stand-ins": "tests.standins.cloud:start tests.standins.cloud:running",
    "stores": "tests.standins.stores:server",
    "package indexes": "tests.support.package_index:package_index",
    "nodes booted": "tests.standins.nodes:Nodes._boot",
    "servers of OpenSSH": "tests.support.sshd:SshdNode.await_start",
    "SSH logins": "paramiko:SSHClient.connect",
    "cloudtrain commands forked": "tests.support.commands:Forked.__init__",
    "playbooks applied": "cloudtrain.playbooks.apply:apply",
}
"""What tests begin or make in their own processes."""


def cause_of(words: str) -> str:
    return next(name for name, pattern in CAUSES.items() if re.search(pattern, words))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", metavar="FOLDER")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before others import by name what is measured."""
    if folder := early_config.known_args_namespace.times:
        early_config.pluginmanager.register(Times(Path(folder)))


class Times:
    """Of one process."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / f"{os.getpid()}.jsonl"
        self._started: Counter[str] = Counter()
        self._spent: dict[str, list[float]] = {}
        self._within = threading.local()
        for name, places in (WAITS | WORLDS).items():
            for place in places.split():
                self._measure(name, place)
        self._measure("", "subprocess:Popen.__init__")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._started.clear()
        self._spent.clear()
        began, before = time.monotonic(), os.times()
        try:
            return (yield)
        finally:
            user, system, their_user, their_system, _ = map(float.__sub__, os.times(), before)
            line = {"test": item.nodeid, "wall": time.monotonic() - began, "own": user + system}
            line |= {"children": their_user + their_system}
            line |= {"started": self._started, "spent": self._spent}
            with self._file.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def _measure(self, name: str, place: str) -> None:
        module, _, path = place.partition(":")
        *parents, attribute = path.split(".")
        owner = functools.reduce(getattr, parents, importlib.import_module(module))
        real = getattr(owner, attribute)

        @functools.wraps(real)
        def timed(*args: Any, **named: Any) -> Any:
            if not name:
                self._note_start(args[1] if len(args) > 1 else named["args"])
            with self._measured(name):
                return real(*args, **named)

        @contextmanager
        def entered(*args: Any, **named: Any) -> Iterator[Any]:
            with ExitStack() as stack:
                with self._measured(name):
                    value = stack.enter_context(real(*args, **named))
                yield value

        is_context = inspect.isgeneratorfunction(getattr(real, "__wrapped__", None))
        setattr(owner, attribute, entered if is_context else timed)

    @contextmanager
    def _measured(self, name: str) -> Iterator[None]:
        """The outermost alone. Waiting: of the main thread, while this process computes nothing."""
        kind = "waits" if name in WAITS else "worlds"
        is_other = kind == "waits" and threading.current_thread() is not threading.main_thread()
        if not name or is_other or getattr(self._within, kind, False):
            yield
            return
        began, busy = time.monotonic(), time.process_time()
        setattr(self._within, kind, True)
        try:
            yield
        finally:
            setattr(self._within, kind, False)
            computing = time.process_time() - busy if kind == "waits" else 0.0
            spent = self._spent.setdefault(name, [0, 0.0])
            spent[0] += 1
            spent[1] += max(0.0, time.monotonic() - began - computing)

    def _note_start(self, words: Any) -> None:
        is_one = isinstance(words, (str, bytes, os.PathLike))
        self._started[cause_of(" ".join(map(os.fsdecode, [words] if is_one else words)))] += 1
