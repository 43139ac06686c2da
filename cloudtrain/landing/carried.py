"""Our own modules run on a node, by what its Python is given on stdin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files

from cloudtrain.shell import Command, script

BOOT = """
import json, sys, types
order = json.loads(sys.stdin.buffer.readline().decode("ascii"))
for name, text in order.pop("modules"):
    module = sys.modules[name] = types.ModuleType(name)
    parent, _, own = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], own, module)
    exec(text, module.__dict__)
sys.modules[sys.argv[1]].begin(order)
"""


def carrying(main: str) -> Command:
    """`main`, of those that are carried, begins with the order that its first line on stdin is."""
    start = 'exec "$(command -v python3 || command -v python)" -c "$1" "$2"'
    return script(start, BOOT, f"cloudtrain.landing.{main}")


@cache
def carried(*names: str) -> Sequence[tuple[str, str]]:
    """An order's `modules`: names and texts, each after those that it imports."""
    return tuple(_modules(names))


def _modules(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    package = files("cloudtrain")
    yield "cloudtrain", ""
    yield "cloudtrain.paths", (package / "paths.py").read_text("utf-8")
    yield "cloudtrain.landing", ""
    for name in names:
        yield f"cloudtrain.landing.{name}", (package / "landing" / f"{name}.py").read_text("utf-8")
