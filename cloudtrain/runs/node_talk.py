"""Talks with a program on every node at once: node/probe, and node/compute_proof."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from queue import SimpleQueue
from typing import Any

from cloudtrain.artifacts.inventory import json_line, last_line
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import text_of
from cloudtrain.core.model import Node
from cloudtrain.core.protocols import Transport
from cloudtrain.core.retry import PROOF_ANSWER, PROOF_SILENT
from cloudtrain.core.ship import Program, program, text


@dataclass(kw_only=True, eq=False)
class Conversation:
    """Talk with one node's program, in JSON lines both ways; filled in by its own thread."""

    node: Node
    program: Program
    lines: SimpleQueue[bytes | None] = field(default_factory=SimpleQueue)
    over: bool = False
    error: str = ""
    """Why it ended, unless with exit code 0."""
    blamed: str = ""
    """Begins `error` if the program itself has failed."""

    def tell(self, what: object) -> None:
        """Send a line; None ends the conversation."""
        self.lines.put(None if what is None else json_line(what))

    def heard(self, fact: dict[str, Any]) -> None:
        """See one line of the program, under the lock."""
        raise NotImplementedError

    def ended(self) -> None:
        """See the end of the program, under the lock."""

    def start(self, transport: Transport, changed: threading.Condition, silence: float) -> None:
        """Run the program in a thread; `changed` is its lock, and notified of all that it says."""
        work = partial(self._converse, transport, changed, silence)
        threading.Thread(target=work, daemon=True).start()

    def _converse(self, transport: Transport, changed: threading.Condition, silence: float) -> None:
        rest, errors = b"", list[bytes]()

        def hear(data: bytes) -> None:
            nonlocal rest
            *lines, rest = (rest + data).split(b"\n")
            with changed:
                for line in lines:
                    if line.startswith(b"{"):  # else a banner of the node's shell
                        with suppress(ValueError):
                            self.heard(json.loads(line))
                changed.notify_all()

        error = ""
        try:
            done = transport.run(
                self.node,
                self.program.command,
                stdin=chain([self.program.source], iter(self.lines.get, None)),
                on_stdout=hear,
                on_stderr=errors.append,
                timeout=silence,
            )
            if done.exit_code != 0:
                words = b"".join(errors) or done.stderr
                error = f"{self.blamed}{last_line(words, done.exit_code)}"
        except Exception as failure:  # noqa: BLE001 - a finding like all others
            error = text_of(self.node.name, failure)
        finally:
            self.lines.put(None)
            with changed:
                self.error, self.over = error, True
                self.ended()
                changed.notify_all()


# ── the compute check ──────────────────────────────────────────────────────────


NODE, BETWEEN = "node", "between"
"""Parts of the proof: what each node computes by itself, and what they compute together."""
ANSWER = PROOF_ANSWER
"""Seconds for a node's first answer."""
PHASE_LIMITS = {"import": 300.0, "ready": 7200.0, "other": 120.0}
"""Seconds for each phase; `ready` waits for the other nodes."""
SILENCE = PROOF_SILENT
"""Seconds without the node's heartbeat after which its connection counts as lost."""
OTHERS = 10.0
"""Seconds that the other nodes get to fail by themselves after one has failed between them."""
END = 20.0
"""Seconds for all processes to end: their ports are needed next."""


@dataclass(frozen=True, kw_only=True)
class ProofOrder:
    """Order for one node: what it is to compute, and with which Python."""

    node: Node
    python: str | tuple[str, ...]
    """Absolute, or relative to the user's home; or the words that start one in a container."""
    environment: Mapping[str, str] = field(default_factory=dict)
    stamp: str
    """File on the node, as `python`: what it has found since its last boot."""
    key: str
    """What the stamp must be of."""
    own: bool = True
    """Whether the node computes by itself; else it only works together with others."""
    tf_config: str = ""
    """With which it works together with others; empty: it does not."""
    gpus: int = 0
    limits: Mapping[str, float] = field(default_factory=dict)
    """Phase → seconds; `other` for those that are not named."""


@dataclass(frozen=True, kw_only=True)
class NodeAnswer:
    """All that a node said."""

    facts: Mapping[str, Any]
    """`tflops`, `gpus`, `grpc`, …, as node/compute_work names them; of its stamp, too."""
    failures: tuple[Failure, ...] = ()


def compute(
    orders: Sequence[ProofOrder],
    transport: Transport,
    *,
    size: int,
    begins: Callable[[int], Callable[[str], None]],
) -> dict[str, NodeAnswer]:
    """Answers by node name. All nodes begin together, once all have imported TensorFlow; the work
    between them begins once each could compute by itself.

    `size`: bytes that are reduced between nodes. `begins` is called with the number of nodes that
    have something to compute, if any; what it returns, with the name of each that is through.
    """
    board = _Board(
        [_Talk(node=o.node, program=program("compute_proof"), order=o) for o in orders], transport
    )
    try:
        board.start()
        board.wait(lambda talk: talk.first is not None, ANSWER)
        board.give_up_silent()
        wanted = _wanted(board.talks, size)
        through = begins(len(wanted)) if wanted else None
        for talk in board.talks:
            talk.parts, talk.through = wanted.get(talk.node.name, ()), through
            talk.tell(
                {"parts": talk.parts, "work": text("compute_work.py")} if talk.parts else None
            )
        board.wait(lambda talk: all(each["part"] in talk.states for each in talk.parts))
        for part in (NODE, BETWEEN):
            if not any(each.fatal for talk in board.talks for each in talk.failures):
                board.begin(part)
    finally:
        for talk in board.talks:
            talk.tell(None)
        board.wait(lambda talk: talk.over, END)
    return {
        talk.node.name: NodeAnswer(facts=talk.facts, failures=tuple(talk.failures))
        for talk in board.talks
    }


@dataclass(kw_only=True, eq=False)
class _Talk(Conversation):
    order: ProofOrder
    first: Mapping[str, Any] | None = None
    parts: Sequence[Mapping[str, Any]] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    """Part → words of its failure."""
    states: dict[str, str] = field(default_factory=dict)
    """Part → `ready`, `done` or `failed`."""
    failures: list[Failure] = field(default_factory=list)
    device: str = ""
    """The device that the last failure names."""
    closed: bool = False
    """Whether it was told to end: how its processes end from then on says nothing."""
    through: Callable[[str], None] | None = None
    """Called with the node's name at the end."""

    def tell(self, what: object) -> None:
        self.closed = self.closed or what is None
        super().tell(what)

    def heard(self, fact: dict[str, Any]) -> None:
        part = fact.pop("part", "")
        if self.first is None:
            self.first = fact
            self.facts.update(fact["found"] or {})
        elif "ended" in fact and not self.closed:
            self.states[part] = "failed"
            self.failures.append(self._failure(part, fact))
        elif "failed" in fact:
            self.words[part] = fact["failed"]
        elif "device" in fact:
            self.device = fact["device"]
        elif "done" in fact:
            self.states[part] = "done"
        elif "phase" not in fact and "ended" not in fact:
            if fact.pop("ready", False):
                self.states[part] = "ready"
            self.facts.update(fact)

    def ended(self) -> None:
        if self.through is not None:
            self.through(self.node.name)
        if self.error or (self.first is None and not self.failures):
            self.fails(self.error or "it did not answer")

    def fails(self, words: str) -> None:
        """Note a failure that is not a part's."""
        self.failures.append(Failure(node=self.node.name, phase="the compute check", words=words))

    def _failure(self, part: str, end: Mapping[str, Any]) -> Failure:
        phase, limits = end["phase"], {**PHASE_LIMITS, **self.order.limits}
        return Failure(
            node=self.node.name,
            phase=_PHASES.get(phase, phase),
            words=self.words.get(part, ""),
            device=self.device,
            log=end["log"],
            signal=-end["ended"] if end["ended"] < 0 else None,
            late=limits.get(phase, limits["other"]) if end["late"] else None,
            fatal=_is_fatal(phase, self.order.gpus, str(self.facts.get("tensorflow", ""))),
        )


_PHASES = {"start": "starting Python", "import": "importing TensorFlow"}


def _is_fatal(phase: str, gpus: int, version: str) -> bool:
    """True if a failure in this phase means that training fails, too. NCCL between nodes is used
    only by scripts that ask for it, and XLA by those that ask and, on GPUs, by Keras 3; what XLA
    needs is installed from 2.11 on."""
    if phase.endswith("NCCL"):
        return False
    number = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    return phase != "XLA" or (gpus > 0 and number >= (2, 11))


def _wanted(talks: Sequence[_Talk], size: int) -> dict[str, tuple[Mapping[str, Any], ...]]:
    """Parts to compute, by node: those without a stamp; between nodes all, if one lacks it."""
    together = any(talk.order.tf_config and "grpc" not in talk.facts for talk in talks)
    wanted: dict[str, tuple[Mapping[str, Any], ...]] = {}
    for talk in talks:
        order, parts = talk.order, list[Mapping[str, Any]]()
        if talk.over or talk.first is None:
            continue
        if order.own and "tflops" not in talk.facts:
            parts.append({"part": NODE, "gpus": order.gpus})
        if together and order.tf_config:
            part = {"part": BETWEEN, "gpus": order.gpus, "tf_config": order.tf_config}
            parts.append({**part, "bytes": size})
        if parts:
            wanted[talk.node.name] = tuple(parts)
    return wanted


class _Board:
    """All conversations, and the condition that changes with every answer."""

    def __init__(self, talks: list[_Talk], transport: Transport) -> None:
        self.talks = talks
        self._transport = transport
        self._changed = threading.Condition()

    def start(self) -> None:
        for talk in self.talks:
            order = talk.order
            named = {
                "stamp": order.stamp,
                "key": order.key,
                "python": order.python,
                "environment": order.environment,
                "limits": {**PHASE_LIMITS, **order.limits},
            }
            talk.tell(named)
            talk.start(self._transport, self._changed, SILENCE)

    def wait(self, done: Callable[[_Talk], bool], seconds: float | None = None) -> None:
        """Wait until this holds for every conversation that is not over, or for so long."""
        with self._changed:
            self._changed.wait_for(
                lambda: all(talk.over or done(talk) for talk in self.talks), seconds
            )

    def give_up_silent(self) -> None:
        with self._changed:
            for talk in self.talks:
                if talk.first is None and not talk.over:
                    talk.fails(f"no answer within {ANSWER:g} s")

    def begin(self, part: str) -> None:
        """Start a part on all its nodes and wait until all are through; between nodes, until a
        moment after the first has failed."""
        talks = [talk for talk in self.talks if talk.states.get(part) == "ready"]
        for talk in talks:
            talk.tell({"go": part})

        def is_through(talk: _Talk) -> bool:
            return talk.over or talk.states[part] != "ready"

        def failed() -> bool:
            return part == BETWEEN and any(
                talk.over or talk.states[part] == "failed" for talk in talks
            )

        with self._changed:
            self._changed.wait_for(lambda: failed() or all(map(is_through, talks)))
            self._changed.wait_for(lambda: all(map(is_through, talks)), OTHERS)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A part of the proof that did not end well on a node."""

    node: str
    phase: str
    """What it was doing: `matrix product`, `XLA`, …"""
    words: str = ""
    """TensorFlow's words; empty after a crash."""
    device: str = ""
    """The device at fault, as TensorFlow names it: `/GPU:1`."""
    log: str = ""
    """The last messages of the process."""
    signal: int | None = None
    """The signal that ended it."""
    late: float | None = None
    """The limit of seconds that the phase exceeded."""
    fatal: bool = True
    """False if training does without what failed."""
