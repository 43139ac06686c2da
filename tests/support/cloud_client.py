"""A user's process at work on a cloud's stand-in, forked from a warm one: a test kills it anywhere.

`python -m tests.support.cloud_client CLOUD` has everything imported and no thread. For each line of
stdin, the folder of a Job, it forks, says the child's process id, waits for another line, lets the
child go, and says how it ended.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

from cloudtrain.cluster.lease import holding_lease
from cloudtrain.cluster.session import Handle
from cloudtrain.console.logging_console import LoggingConsole
from cloudtrain.core import moments
from cloudtrain.core.errors import CloudtrainError, NodesError
from cloudtrain.core.events import Event
from cloudtrain.core.model import (
    ClusterConfig,
    Holding,
    Identity,
    Node,
    Plan,
    is_being_created,
)
from cloudtrain.core.partial_list import Whereabouts
from cloudtrain.core.retry import Clock
from cloudtrain.providers.base.timing import CALLS, Timing
from cloudtrain.stores import open_store
from tests.standins.client_world import World
from tests.standins.client_world import made as made_world
from tests.standins.cloud import ROOT, Cloud
from tests.support.botocore_models import read_before_forks
from tests.support.fakes import eventually, line_of

CALLER = "203.0.113.7/32"


@dataclass(frozen=True, kw_only=True)
class Haste:
    """Time that goes faster from `origin` (Unix time) on, for all of a test's processes alike, but
    for what a process believes of its clock (cloudtrain.core.moments)."""

    speed: float = 100.0
    origin: float = field(default_factory=time.time)
    booted: float = field(default_factory=lambda: time.time() - moments.since_boot())
    offset: float = field(default_factory=lambda: time.time() - time.monotonic())

    def now(self) -> float:
        wrong = moments.MOMENTS.began + moments.MOMENTS.offset - self.booted
        passed = time.monotonic() + self.offset - self.origin
        return self.origin + passed * self.speed + (wrong if abs(wrong) > 1.0 else 0.0)

    def clock(self) -> float:
        return time.monotonic() * self.speed

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / self.speed)

    def timing(self) -> Timing:
        """As patient as it is in reality; what a call itself takes is not hastened."""
        clock = Clock(now=self.now, monotonic=self.clock, sleep=self.sleep)
        return Timing(calls=replace(CALLS, within=CALLS.within * self.speed), clock=clock)


TIMING = Haste().timing()
ANSWER = 0.4
"""Seconds after which a call counts as not answered, where some get none: retries are timed to it.
"""
PATIENT = 10.0
"""The same where each gets one: a busy machine is slow to answer."""
HUNG_AFTER = 40.0
"""Seconds after which it counts as hung."""

Verb = Literal["create", "remove", "destroy", "down", "gc", "sweep", "leave", "train"]
"""`remove` takes the last node of the plan away; `leave` is what the desk does last; `down` and
`gc` look before they destroy; `train` writes the nodes that run into a file `nodes` beside its
journal, and goes on until one named `over` lies there."""
LEASED = ("create", "remove", "down", "train")
"""What holds the lease of a cluster that has a store."""
LONG_AFTER = 7200.0
"""Seconds after which no creation goes on by its labels."""


@dataclass(frozen=True, kw_only=True)
class Job:
    do: Verb
    plan: Plan
    identity: Identity
    timing: Timing = field(default_factory=lambda: TIMING)
    answer: float = ANSWER
    expected: bool = True
    """`destroy` knows from the journal what was asked for, as `cloudtrain down` does. Else it comes
    when the creation is over by its labels."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`killed` by SIGKILL, or what it returned, or what it raised."""

    killed: bool = False
    value: Any = None
    error: str = ""
    """The name of the exception's class."""
    message: str = ""
    kinds: frozenset[str] = frozenset()
    """Of several nodes' failures: the names of their classes."""
    clean: bool = True
    """Not an exception that users see as a traceback."""
    seconds: float = 0.0

    @property
    def nodes(self) -> tuple[Node, ...]:
        assert not self.error, f"{self.error}: {self.message}"
        made: tuple[Node, ...] = self.value
        return made

    @property
    def clusters(self) -> list[str]:
        assert not self.error, f"{self.error}: {self.message}"
        found: tuple[Holding, ...] = self.value
        return [holding.cluster for holding in found]


@dataclass
class Running:
    """A child that waits, or works."""

    client: Client
    folder: Path
    pid: int

    def go(self) -> Running:
        self.client.say("go")
        return self

    def outcome(self) -> Outcome:
        impatience = threading.Timer(HUNG_AFTER, os.kill, (self.pid, signal.SIGABRT))
        impatience.start()
        try:
            status = int(self.client.hear())
        finally:
            impatience.cancel()
        if os.WIFSIGNALED(status):
            killed = os.WTERMSIG(status) == signal.SIGKILL
            return Outcome(killed=killed, error="" if killed else "hung", clean=killed)
        result = self.folder / "outcome.pickle"
        outcome: Outcome = pickle.loads(result.read_bytes())
        return outcome


@dataclass
class Client:
    process: subprocess.Popen[str]
    folder: Path
    world: World | None
    jobs: int = field(default=0)

    def ready(self, job: Job, journal: Path) -> Running:
        """A child that has not begun."""
        self.jobs += 1
        folder = self.folder / f"job{self.jobs}"
        folder.mkdir()
        (folder / "job.pickle").write_bytes(pickle.dumps((job, journal)))
        self.say(str(folder))
        return Running(self, folder, int(self.hear()))

    def run(self, job: Job, journal: Path) -> Outcome:
        return self.ready(job, journal).go().outcome()

    def say(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()


@contextmanager
def client(cloud: Cloud, folder: Path) -> Iterator[Client]:
    """One warm process, with the cloud's environment and no proxy."""
    environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    world = made_world(folder)
    told = world.environment if world else {}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.cloud_client", cloud.name],
        cwd=ROOT,
        env={**environment, **cloud.environment, **told, "HOME": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        made = Client(process, folder, world)
        assert made.hear() == "warm"
        yield made


# ── In the process itself ────────────────────────────────────────────────────


def main() -> None:
    name = sys.argv[1]
    read_before_forks()
    assert provider(name, _nothing(name), TIMING).sweep() == ()  # every module is loaded now
    assert threading.active_count() == 1
    print("warm", flush=True)
    for line in sys.stdin:
        folder = Path(line.strip())
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(writing)
            if os.read(reading, 1):
                _work(name, folder)
            os._exit(0)
        os.close(reading)
        print(child, flush=True)
        sys.stdin.readline()
        os.write(writing, b"!")
        os.close(writing)
        print(os.waitpid(child, 0)[1], flush=True)


def _work(name: str, folder: Path) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.enable()  # where it hangs
    begun = time.monotonic()
    moments.MOMENTS.__init__()  # type: ignore[misc] # the command begins now, not the warm process
    job: Job
    job, journal = pickle.loads((folder / "job.pickle").read_bytes())
    be_impatient(job.answer)
    try:
        with leased(job):
            outcome = Outcome(value=_do(name, job, journal))
    except BaseException as error:  # noqa: BLE001 - the test looks at it
        failures = error.failures.values() if isinstance(error, NodesError) else [error]
        outcome = Outcome(
            error=type(error).__name__,
            message=str(error),
            kinds=frozenset(type(one).__name__ for one in failures),
            clean=isinstance(error, CloudtrainError | KeyboardInterrupt),
        )
        if not outcome.clean:
            import traceback

            traceback.print_exc()
    outcome = Outcome(**{**vars(outcome), "seconds": time.monotonic() - begun})
    made = folder / "outcome.new"
    made.write_bytes(pickle.dumps(outcome))
    made.rename(folder / "outcome.pickle")


def leased(job: Job) -> AbstractContextManager[None]:
    """As the commands hold the lease of a cluster that has a store, but for the record."""
    store = job.plan.config.artifacts.store
    if store is None or job.do not in LEASED:
        return nullcontext()
    handle = SimpleNamespace(config=job.plan.config, store=open_store(store))
    return holding_lease(cast("Handle", handle), job.do, LoggingConsole())


def _do(name: str, job: Job, journal: Path) -> Any:
    config = job.plan.config
    timing = job.timing if job.expected else later(job.timing)
    clouds = provider(name, config, timing)
    known = made_here(journal) if job.expected else ()
    clouds.whereabouts = Whereabouts(cluster=config.name, generations=known)

    def write(event: Event, /) -> None:
        with journal.open("a") as file:
            file.write(json.dumps(line_of(event, job.timing.clock.now())) + "\n")

    if job.do == "train":
        nodes = [node for node in clouds.nodes(config.name) if node.state == "running"]
        told = journal.with_name("nodes.new")
        told.write_text("".join(f"{node.name} {node.generation}\n" for node in nodes))
        told.rename(journal.with_name("nodes"))
        eventually(journal.with_name("over").exists, within=HUNG_AFTER)
        return nodes
    if job.do == "create":
        return clouds.create(job.plan, job.identity, write)
    if job.do == "remove":
        late = asked_for(journal) if job.expected else None
        return clouds.remove(config.name, [job.plan.nodes[-1].name], write, late)
    if job.do == "down":
        there = {node.generation for node in clouds.find(config.name)}
        if known and not there <= set(known):
            return ()  # refuse_being_created
    if job.do == "gc":
        held = [each for each in clouds.sweep() if each.cluster == config.name]
        if not held or is_being_created(held[0].creating_until, timing.clock.now()):
            return ()
    if job.do in ("destroy", "down", "gc"):
        return clouds.destroy(config.name, write, asked_for(journal) if job.expected else None)
    if job.do == "leave":
        return clouds.delete_from_inside(config.name, write)
    return clouds.sweep()


def asked_for(journal: Path) -> dict[str, float]:
    """The nodes that were asked for, and when."""
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    return {event["node"]: event["time"] for event in events if event["event"] == "create"}


def later(timing: Timing) -> Timing:
    clock = timing.clock
    return replace(timing, clock=replace(clock, now=lambda: clock.now() + LONG_AFTER))


def made_here(journal: Path) -> tuple[str, ...]:
    """The generations that were created with this journal, last first."""
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    return tuple(e["id"] for e in reversed(events) if e["event"] == "generation")


def provider(name: str, config: ClusterConfig, timing: Timing) -> Any:
    """As the module's own `provider` makes it, but for the timing."""
    from cloudtrain.providers.base.provider import CloudProvider

    module = importlib.import_module(f"cloudtrain.providers.{name}.provider")
    account = getattr(module, f"{name.capitalize()}Driver")(config, timing)
    return CloudProvider(account, caller=lambda: CALLER, timing=timing)


def _nothing(name: str) -> ClusterConfig:
    return ClusterConfig(name="none", provider=name, strategy="custom", nodes={})


def be_impatient(answer: float = ANSWER) -> None:
    """The drivers wait a minute for an answer, in seconds."""
    from requests.adapters import HTTPAdapter

    send = HTTPAdapter.send

    def sooner(self: HTTPAdapter, *given: Any, **named: Any) -> Any:
        return send(self, *given, **{**named, "timeout": answer})

    HTTPAdapter.send = sooner  # type: ignore[method-assign]


if __name__ == "__main__":
    importlib.import_module(
        "tests.support.cloud_client"
    ).main()  # what it pickles is of that module
