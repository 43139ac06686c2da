"""Runs playbook steps on all nodes side by side: check, run what is missing, check again."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import HostKeyMismatch, NodeUnreachable, StepFailed
from cloudtrain.core.model import Node
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.protocols import Stage, Transport
from cloudtrain.core.retry import Clock, Retry, poll_until
from cloudtrain.core.shell import Command, Step, script, within

KEPT_LINES = 20
SHOWN_LINES = 4
HINT = "hint: "
"""Prefix of a line of a failing step that becomes the error's hint."""
NOTE = "note: "
"""Prefix of a line that stays on the screen."""


class Sharing(Protocol):
    """Lets nodes get what a step creates from other nodes."""

    def provide(
        self, node: Node, step: Step, create: Callable[[Node], None], say: Callable[[str], None]
    ) -> bool:
        """Get `step.shared`, or `create` it on a node of its name; False if others have failed."""

    def interrupt(self) -> None: ...


def apply(
    steps: Callable[[Node], Sequence[Step]],
    nodes: Sequence[Node],
    transport: Transport,
    stage: Stage,
    *,
    sharing: Sharing | None = None,
    clock: Clock | None = None,
    note: Callable[[str], None] | None = None,
) -> None:
    """Run steps on every node until all their checks pass; steps that already pass are skipped.

    `note` gets what steps have to say for longer than a progress line lasts.
    A node that lacks nothing costs one round trip. Raises StepFailed, or NodesError with every
    node's failure. Ctrl-C closes the transport, so that a long step is not waited for."""
    interrupted = threading.Event()
    hosts: dict[str, _Host] = {}
    clock = clock or Clock(sleep=interrupted.wait)

    def ready(node: Node) -> None:
        _Work(node, transport, stage, hosts, clock, sharing, note).do(steps(node))

    def interrupt() -> None:
        interrupted.set()
        if sharing is not None:
            sharing.interrupt()
        transport.close()

    fan_out(nodes, ready, name=lambda node: node.name, on_interrupt=interrupt)


@dataclass(frozen=True)
class _Work:
    """One node's progress through its steps."""

    node: Node
    transport: Transport
    stage: Stage
    hosts: dict[str, _Host]
    clock: Clock
    sharing: Sharing | None
    note: Callable[[str], None] | None

    def do(self, steps: Sequence[Step]) -> None:
        started = self.clock.monotonic()
        missing = self._missing(steps)
        for step in missing:
            # Of a home that machines share, each step changes what is the others', too.
            together = step.once_per_host or bool(self.node.home)
            done = self._in_turn(step) if together else self._run(step)
            if not done:
                return
        took = f"{len(missing)} of {len(steps)} steps, {_seconds(self.clock.monotonic() - started)}"
        self.stage.done(self.node.name, took if missing else "nothing to do")

    def _missing(self, steps: Sequence[Step]) -> list[Step]:
        """Run all checks in one round trip: one character each, in order."""
        checks = [step.unless for step in steps if step.unless is not None]
        if not checks:
            return list(steps)
        lines = (
            f"( {within(check)} ) </dev/null >/dev/null 2>&1\n"
            "case $? in 0) printf y;; *) printf n;; esac"  # below `if`, `set -e` would do nothing
            for check in checks
        )
        answer = self.transport.ask(self.node, "\n".join(lines))
        states = answer.stdout.decode("ascii", "replace").strip()
        if answer.exit_code != 0 or len(states) != len(checks) or set(states) - {"y", "n"}:
            text = (answer.stderr or answer.stdout).decode("utf-8", "replace").strip()
            raise StepFailed(
                self.node.name,
                f"cannot run the steps' checks: exit {answer.exit_code}: {text}",
                step_exit_code=answer.exit_code,
            )
        answers = iter(states)
        return [step for step in steps if step.unless is None or next(answers) == "n"]

    def _in_turn(self, step: Step) -> bool:
        """Run a step on one node of a host after another, and only on those that still lack it.
        False if it failed on one of them: that node's error is raised, once."""
        host = self.hosts.setdefault(self.node.storage, _Host())  # atomic
        if host.lock.locked():
            self.stage.node(self.node.name, f"{step.name}: waiting for another node of this host")
        with host.lock:
            if step.run in host.failed:
                return False
            if step.run in host.tried and not self._missing([step]):
                return True
            host.tried.add(step.run)
            try:
                return self._run(step)
            except BaseException:
                host.failed.add(step.run)
                raise

    def _run(self, step: Step) -> bool:
        """Do a step. False if it was not tried, since it has failed on other nodes."""
        if step.shared is None or self.sharing is None:
            self._create(step)
            return True
        say = partial(self._say, step)

        def create(on: Node) -> None:
            replace(self, node=on)._create(step)

        return self.sharing.provide(self.node, step, create, say)

    def _say(self, step: Step, text: str) -> None:
        if text.startswith(NOTE) and self.note is not None:
            self.note(f"{self.node.name}: {step.name}: {text.removeprefix(NOTE)}")
        self.stage.node(self.node.name, f"{step.name}: {text}")

    def _create(self, step: Step) -> None:
        started = self.clock.monotonic()
        self.stage.node(self.node.name, step.name)
        output = self._output_of(step)
        if step.reboots and self._missing([step]):
            reboot(self.node, self.transport, self.stage, self.clock)
            if self._missing([step]):
                output = self._output_of(step)
        if step.unless is not None and self._missing([step]):
            raise self._failed(step, "command succeeded, but its check still fails", 0, output)
        self.stage.node(self.node.name, f"{step.name} {_seconds(self.clock.monotonic() - started)}")

    def _output_of(self, step: Step) -> _Output:
        output = _Output(partial(self._say, step))
        done = self.transport.run(
            self.node,
            step.run,
            stdin=step.stdin() if step.stdin else b"",
            on_stdout=partial(output.take, "stdout"),
            on_stderr=partial(output.take, "stderr"),
            timeout=step.timeout,
        )
        output.end()
        if done.exit_code != 0:
            raise self._failed(step, f"exit {done.exit_code}", done.exit_code, output)
        return output

    def _failed(self, step: Step, what: str, exit_code: int, output: _Output) -> StepFailed:
        hints = [line.removeprefix(HINT) for line in output.lines if line.startswith(HINT)]
        lines = tuple(line for line in output.lines if not line.startswith(HINT))
        return StepFailed(
            self.node.name,
            "\n  ".join([f"{step.name}: {what}", *tail_for_error(lines)]),
            hint=hints[-1] if hints else None,
            step=step.name,
            step_exit_code=exit_code,
            last_lines=lines,
        )


@dataclass
class _Host:
    """Outcomes shared by nodes of one host or home, of which one at a time runs a step."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    tried: set[Command] = field(default_factory=set)
    failed: set[Command] = field(default_factory=set)


@dataclass
class _Output:
    """A step's output as lines: each is shown as it arrives, the last ones are kept."""

    show: Callable[[str], None]
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    _begun: dict[str, bytes] = field(default_factory=dict)

    def end(self) -> None:
        for stream in tuple(self._begun):
            self.take(stream, b"\n")

    def take(self, stream: str, data: bytes) -> None:
        *whole, begun = (self._begun.get(stream, b"") + data.replace(b"\r", b"\n")).split(b"\n")
        self._begun[stream] = begun[-4096:]
        for raw in whole:
            line = "".join(c if c.isprintable() else " " for c in raw.decode("utf-8", "replace"))
            if line.strip():
                self.lines.append(line.strip())
                self.show(line.strip())


def tail_for_error(lines: Sequence[str]) -> Sequence[str]:
    """The lines that show what went wrong: from the first that pip marks, else the last ones. Below
    its first error pip lists the conflicting packages, and then much advice."""
    marked = [number for number, line in enumerate(lines) if line.startswith("ERROR: ")]
    start = marked[0] if marked else max(0, len(lines) - SHOWN_LINES)
    return lines[start : start + SHOWN_LINES]


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


# ── reboot ─────────────────────────────────────────────────────────────────────


BACK = Retry(pause=3.0, within=600.0)
"""Checks whether a rebooted node answers."""


def reboot(node: Node, transport: Transport, stage: Stage, clock: Clock) -> None:
    """Reboot a node. Raises StepFailed if it refuses, NodeUnreachable if it stays away."""
    stage.node(node.name, "reboot")
    before = _boot(node, transport)
    try:
        done = transport.run(node, script(_REBOOT), timeout=60.0)
    except NodeUnreachable:
        pass  # it went down before it could answer
    else:
        if done.exit_code != 0:
            text = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
            raise StepFailed(node.name, f"it needs a reboot: {text}", step="reboot")
    text = ""

    def is_back() -> bool | None:
        nonlocal text
        try:
            if _boot(node, transport) != before:
                return True
            text = "it has not gone down yet"
        except (NodeUnreachable, HostKeyMismatch) as error:
            text = error.text
        stage.node(node.name, f"rebooting: {text}")
        return None

    if poll_until(is_back, BACK, clock=clock) is None:
        raise NodeUnreachable(
            node.name,
            f"not back after a reboot within {BACK.within:.0f} s: {text}",
            hint="check the node's boot log in the cloud's console; "
            "`cloudtrain up` continues from here",
        )


def _boot(node: Node, transport: Transport) -> str:
    answer = transport.ask(node, "cat /proc/sys/kernel/random/boot_id")
    return answer.stdout.decode("ascii", "replace").strip()


# Never under a training task: its processes have CLOUDTRAIN_TASK in their environment.
_REBOOT = """\
root=
[ "$(id -u)" = 0 ] || root='sudo -n'
if $root grep -qsa CLOUDTRAIN_TASK= /proc/[0-9]*/environ; then
    echo "a training task is running there: run \\`cloudtrain stop-run\\` first" >&2
    exit 1
fi
sync
$root systemctl reboot </dev/null || $root reboot </dev/null
"""
