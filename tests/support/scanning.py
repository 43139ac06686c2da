"""Looks for what must be nowhere: in files, in command lines and in processes' environments."""

from __future__ import annotations

import base64
import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import processes


def forms(text: str) -> tuple[bytes, ...]:
    """As it is, and as it looks in base64 and in hexadecimal digits."""
    plain = text.encode()
    return plain, base64.b64encode(plain).rstrip(b"="), plain.hex().encode()


def told(markers: Iterable[str], data: bytes) -> list[str]:
    return [marker for marker in markers if any(form in data for form in forms(marker))]


def files_that_tell(roots: Iterable[Path], markers: Iterable[str]) -> list[str]:
    """Every file, link or name below the roots that holds a marker, and which."""
    markers = tuple(markers)
    found = []
    for root in roots:
        for folder, names, files in os.walk(root):
            for name in (*names, *files):
                path = Path(folder, name)
                data = os.fsencode(name)
                with contextlib.suppress(OSError):
                    if path.is_symlink():
                        data += os.fsencode(path.readlink())
                    elif path.is_file():
                        data += path.read_bytes()
                found += [f"{path}: {marker}" for marker in told(markers, data)]
    return found


@dataclass
class Sampled:
    """What /proc showed, again and again: each different command line and environment once."""

    commands: set[bytes] = field(default_factory=set)
    environments: set[bytes] = field(default_factory=set)

    def look(self) -> None:
        for pid in set(processes.pids()) - {os.getpid()}:
            self.commands.add(b"\0".join(map(os.fsencode, processes.words(pid))))
            self.environments.add(b"\0".join(processes.environment(pid)))

    def bearing(self, *variables: str) -> list[Mapping[str, str]]:
        """The environments that have one of these variables."""
        parsed = [_parsed(environment) for environment in self.environments]
        return [one for one in parsed if any(variable in one for variable in variables)]


@contextlib.contextmanager
def sampling(pause: float = 0.05) -> Iterator[Sampled]:
    """`pause` in seconds between two looks at all processes of this machine."""
    sampled = Sampled()
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(pause):
            sampled.look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield sampled
    finally:
        stop.set()
        thread.join()


def _parsed(environment: bytes) -> dict[str, str]:
    pairs = (os.fsdecode(entry).partition("=") for entry in environment.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}
