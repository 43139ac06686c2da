"""A playbook step as a pure value: a command and the check that makes it unnecessary."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cloudtrain.core.shell import Command


@dataclass(frozen=True, kw_only=True)
class Step:
    """Run `run` unless the check `unless` exits 0; then `unless` must exit 0.

    A step without `unless` runs every time. `stdin` creates the input of `run` for each node.
    `once_per_host`: nodes that share a host take turns, and skip `run` if `unless` passes after
    another's run; nodes that share a home do so with every step. `reboots`: if `unless` still fails
    after `run`, reboot the node and retry both once. `timeout`: seconds without output. `shared`:
    folder that `run` creates, and that a node may get from another one instead.
    """

    name: str
    run: Command
    unless: Command | None = None
    stdin: Callable[[], Iterable[bytes]] | None = None
    once_per_host: bool = False
    reboots: bool = False
    timeout: float = 1800.0
    shared: str | None = None
