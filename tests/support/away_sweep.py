"""`run --away` on real nodes, with its client or its desk killed at a call, and what ends it then;
and with each call of both going wrong once.

Whole processes, as in a terminal. Both speak to the same addresses: whose a call is, is told by the
process that has its connection.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from werkzeug.test import run_wsgi_app

from cloudtrain.core.errors import StoreError
from tests.standins.faults import EVER, FAULTS, Fault, Faults, kill, reset
from tests.standins.stores import faulty
from tests.support.away import Away, away
from tests.support.candidate_sweep import is_read
from tests.support.cloud_user import Account
from tests.support.commands import Command
from tests.support.processes import pids, words
from tests.support.project import Project, until

Actor = Literal["client", "desk"]
LIMIT = 420.0
"""Seconds for one command: beyond those for which `down` waits for a desk."""
TRAINING = """\
import pathlib, sys
pathlib.Path("ckpt").mkdir(exist_ok=True)
pathlib.Path("ckpt/checkpoint").write_text("model_checkpoint_path: \\"ckpt-1\\"\\n")
output = pathlib.Path(sys.argv[sys.argv.index("--output") + 1])
output.mkdir(parents=True, exist_ok=True)
(output / "chief0.txt").write_text("done\\n")
"""
LATER = """\
import sys, time
now = time.time
time.time = lambda: now() + 600
from cloudtrain.core import moments
moments.hear = lambda *given, **named: None
from cloudtrain.__main__ import main
main()
"""
WHOLE = 600.0
"""Seconds for a desk to do all its work: it takes 45, and several times as long beside others."""
FAULTY = {"gcp": "[!Gt]*"}
"""Calls that may go wrong. Not `GET /` of Google's metadata server: google-auth asks it once
whether this is a machine of Google's, and then the BIOS, which these nodes lack. Nor `token`: each
request for one is signed anew, so that each would be the first of its kind."""
STORE_FAULTS = {("azure", "429"): FAULTS["503"]}
"""Azure Storage refuses with 503 (Server Busy), and its SDK does not retry 429 (2026-11-24):
https://learn.microsoft.com/rest/api/storageservices/common-rest-api-error-codes"""
CLIENT_ENDINGS = ("again", "down", "gc", "down elsewhere", "gc elsewhere")
"""What follows a kill of the client: the same command; `down`; `gc`, which leaves alone what is on
record here, and then `down`; `down --discard` and `gc` of a home that knows nothing of it."""
DESK_ENDINGS = (
    "deleted, down",
    "process, wait",
    "stopped, down",
    "deleted, gc elsewhere",
    "process, down",
    "stopped, gc elsewhere",
)
"""What happens to the desk: its process is killed, its machine stops, or is deleted; what follows.
"""


@dataclass(frozen=True, kw_only=True)
class Point:
    """Before or after the work of one call."""

    actor: Actor
    door: str
    """cloud or store"""
    number: int
    after: bool
    action: str
    """What it was when they were counted."""

    def changes(self, points: Iterable[Point]) -> bool:
        """Whether its call changes something, by all points: those have a moment after."""
        moment = (self.actor, self.door, self.number)
        return any(moment == (one.actor, one.door, one.number) for one in points if one.after)

    def __str__(self) -> str:
        when = "after" if self.after else "before"
        return f"{self.actor}, {when} call {self.number} of the {self.door}, {self.action}"


@dataclass
class Watch:
    """Counts the calls of each side, and does something at one of them."""

    client: int = 0
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    """Side, door, action."""
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    point: Point | None = None
    deed: Callable[[int], None] = kill
    wrong: BaseException | None = None
    """What the deed has raised, in a thread of the stand-in's server."""
    done: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, point: Point | None, deed: Callable[[int], None]) -> None:
        with self.lock:
            self.client, self.point, self.deed, self.wrong = 0, point, deed, None
            self.calls.clear()
            self.counts.clear()
            self.done.clear()

    def takes(self, door: str, action: str, environ: Any) -> int:
        """The process to be killed at this call; 0 for none."""
        actor, pid = self._whose(environ)
        with self.lock:
            self.calls.append((actor, door, action))
            self.counts[actor, door] += 1
            at, point = (actor, door, self.counts[actor, door]), self.point
            taken = point is not None and at == (point.actor, point.door, point.number)
        return pid if taken and not self.done.is_set() else 0

    def _whose(self, environ: Any) -> tuple[str, int]:
        inode = _inode(int(environ["REMOTE_PORT"]), int(environ["SERVER_PORT"]))
        if self.client and _has(self.client, inode):
            return "client", self.client
        return next((("desk", pid) for pid in _desks() if _has(pid, inode)), ("", 0))


class Gate:
    """Before a stand-in; all else of it is as without."""

    def __init__(self, inner: Any, door: str, watch: Watch) -> None:
        self.__dict__.update(inner=inner, door=door, watch=watch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)

    def __call__(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        action = self.inner.action(environ)
        environ["wsgi.input"].seek(0)
        pid = self.watch.takes(self.door, action, environ)
        if not pid:
            return self.inner(environ, start_response)
        if self.watch.point.after:
            run_wsgi_app(self.inner, environ, buffered=True)
        try:
            self.watch.deed(pid)
        except BaseException as error:
            self.watch.wrong = error
            raise
        finally:
            self.watch.done.set()
        reset(environ["werkzeug.socket"])
        raise ConnectionAbortedError("a fault that a test asked for")


def _inode(near: int, far: int) -> str:
    """Of the socket with these ports: proc(5), /proc/net/tcp."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[1].endswith(f":{near:04X}") and words[2].endswith(f":{far:04X}"):
            return words[9]
    return ""


def _has(pid: int, inode: str) -> bool:
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(entry.readlink()) == f"socket:[{inode}]":
                    return True
    return False


def _desks() -> Iterator[int]:
    return (pid for pid in pids() if words(pid)[1:4] == ["-m", "cloudtrain", "desk"])


class NotReachedError(Exception):
    """It made fewer calls than when they were counted."""


class Sweep:
    """One account and one store; each `begin_anew` is another cluster of another user's home."""

    def __init__(self, there: Away, watch: Watch, store: Faults, folder: Path) -> None:
        self.there, self.watch, self._folder = there, watch, folder
        self._store = store
        self._environment = there.user.project.environment
        self._uri = there.store.uri
        self._numbers = itertools.count(1)
        self._run: Command | None = None
        self._said: list[str] = []

    @property
    def project(self) -> Project:
        return self.there.user.project

    # ── One trial ────────────────────────────────────────────────────────────

    def begin(self, point: Point | None, deed: Callable[[int], None] = kill) -> None:
        """Another home, and `run --away` begun there."""
        old, number = self.there.user, next(self._numbers)
        project = Project(self._folder / f"user {number}")
        project.name = f"t{os.getpid() % 100000}-{number}"
        home = {"CLOUDTRAIN_HOME": str(project.home)}
        project.environment = {**self._environment, **home}
        self.there.user = Account(project, old.cloud, old.nodes)
        self.there.store = replace(self.there.store, uri=f"{self._uri}/{number}")
        (project.code / "rank.py").write_text(TRAINING)
        self.file = self.there.config(steps=1, roles={"chief": 1}, strategy="mirrored")
        self._said = []
        self.watch.begin(point, deed)
        self._run = project.start("run", self.file, "--away")
        self.watch.client = self._run.pid

    def client_trial(self, point: Point, ending: str) -> None:
        """Raises AssertionError, NotReachedError."""
        self.begin(point)
        assert self._run is not None
        code = self._run.wait(LIMIT)
        if not self.watch.done.is_set():
            self.clear()
            raise NotReachedError(f"exit code {code}")
        self.there.user.cloud.quiet()
        self.end_client(ending)
        self.nothing_left()

    def desk_trial(self, point: Point, ending: str) -> None:
        """Raises AssertionError, NotReachedError."""
        what, _, then = ending.partition(", ")
        lose = {"process": kill, "stopped": self.stop_desk, "deleted": self.delete_desk}
        self.begin(point, lose[what])
        assert self._run is not None
        until(lambda: self.watch.done.is_set() or self._is_over(), WHOLE, "the call")
        if not self.watch.done.is_set():
            self.clear()
            raise NotReachedError
        self.expect(self.watch.wrong is None, f"the trial itself failed: {self.watch.wrong!r}")
        if what == "process":
            self.end_restarted(then)
        else:
            self._run.kill()  # the laptop was off
            self._run.wait()
            self.there.user.cloud.quiet()
            self.end_lost_desk(then)
        self.nothing_left()

    def fault_trial(self, fault: str) -> tuple[int, int]:
        """Every call to the cloud and to the store goes wrong once, and all is done as without it.

        Returns how many did of each. Raises AssertionError, also if that were only a few.
        """
        cloud = self.there.user.cloud
        each: dict[str, Any] = {**FAULTS[fault], "action": "*", "once_each": True, "times": EVER}
        cloud.forget_calls()
        cloud.fault(**{**each, "action": FAULTY.get(cloud.name, "*")})
        self._store.forget()
        self._store.arm(Fault(**{**each, **STORE_FAULTS.get((cloud.name, fault), {})}))
        try:
            self.begin(None)
            assert self._run is not None
            code = self._run.wait(LIMIT)
            self.expect(code == 0, f"the client ended with {code}")
            self.whole_run_ends()
            self.down()
        finally:
            cloud.no_more_faults()
            self._store.disarm()
        self.nothing_left()
        at_cloud, at_store = (
            sum(call["fault"] is not None for call in calls)
            for calls in (cloud.calls(), self._store.calls())
        )
        self.expect(at_cloud > 20, f"only {at_cloud} calls to the cloud went wrong")
        self.expect(at_store > 20, f"only {at_store} calls to the store went wrong")
        return at_cloud, at_store

    def _is_over(self) -> bool:
        assert self._run is not None
        return self._run.poll() is not None and not self.there.user.nodes.running()

    # ── What happens to a desk's machine ─────────────────────────────────────

    def stop_desk(self, _: int) -> None:
        """Its host fails: nothing runs, the machine is listed."""
        self.there.user.nodes.halt(self.there.desk)
        self.there.user.cloud.app.stop(self.there.desk)

    def delete_desk(self, _: int) -> None:
        """The cloud ends it, as it does when its lifetime is over."""
        app, name = self.there.user.cloud.app, self.there.desk
        self.there.user.nodes.halt(name)
        if self.there.user.cloud.name == "aws":
            app.interrupt(name)
        elif self.there.user.cloud.name == "gcp":
            from tests.standins import gcp_instances

            with app.changed:
                thing = next(one for one in app.under("instances") if one.name == name)
                thing.body["scheduling"]["instanceTerminationAction"] = "DELETE"
                gcp_instances.end_by_google(app.inner, thing, "compute.instances.delete")
        else:
            from tests.standins import azure_machine_rules, azure_resources, azure_world

            with app.lock:
                thing = next(
                    one
                    for one in app.of_type(azure_machine_rules.VMS)
                    if azure_world.same(one.name, name)
                )
                azure_resources.kind_of(thing).delete(app.inner, thing)

    # ── What follows ─────────────────────────────────────────────────────────

    def do(self, *arguments: str | Path, home: str = "", later: bool = False) -> tuple[int, str]:
        """Exit code, and all that it said. `later`: ten minutes later, by its clock."""
        other = {"CLOUDTRAIN_HOME": str(self.project.folder / home)} if home else {}
        program = ["-c", LATER] if later else ["-m", "cloudtrain"]
        done = subprocess.run(
            [sys.executable, *program, *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**self.project.environment, **other},
            cwd=self.project.folder,
            timeout=LIMIT,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        said = f"{done.stdout}{done.stderr}"
        self._said.append(f"$ {' '.join(map(str, arguments))} → {done.returncode}\n{said}")
        return done.returncode, said

    def expect(self, condition: object, what: str) -> None:
        if not condition:
            told = "\n".join(self._said)[-3000:]
            raise AssertionError(f"{what}\n{self.project.stderr[-1500:]}\n{told}")

    def end_client(self, ending: str) -> None:
        name = self.there.name
        if ending == "again":
            code, said = self.do("run", self.file, "--away")
            self.expect(code == 0 or (code == 2 and "at work" in said), "not run again")
            self.whole_run_ends()
            self.down()
        elif ending == "down":
            self.down()
        elif ending == "gc":
            code, _ = self.do("gc", "--yes")
            self.expect(code == 0, "gc")
            self.down()
        elif ending == "down elsewhere":
            self.let_lease_end()
            self.end_elsewhere("down", self.file, "--discard", "--yes")
        else:
            self.gc_elsewhere(name)

    def end_restarted(self, then: str) -> None:
        assert self._run is not None
        code = self._run.wait(LIMIT)
        self.expect(code == 0, f"the client ended with {code}")
        if then == "wait":
            self.whole_run_ends()
        self.down()

    def end_lost_desk(self, then: str) -> None:
        """It has not reported for ten minutes."""
        name, landed = self.there.name, self.landed()
        held = self.there.user.cloud.holdings()
        nodes = [line for line in held if f"{name}-chief0" in line]
        self.let_lease_end()
        state = self.there.state()
        code, said = self.do("status", name, later=True)
        if state is not None and state.phase != "ended":
            self.expect("has not reported for" in said, "status does not say it")
        if then == "down":
            code, _ = self.do("down", name, "--yes", later=True)
            if code == 5:
                self.expect(nodes, "nothing was there to land")
                self.expect(any(f"{name}-chief0" in x for x in self.held()), "nodes not kept")
                code, _ = self.do("down", name, "--discard", "--yes")
            elif nodes and not self.has_result():
                self.expect(self.never_trained(), "nodes deleted unlanded without a word")
            self.expect(code == 0, "down")
        else:
            self.gc_elsewhere(name)
        self.expect(set(landed) <= set(self.landed()), "what had landed is gone")

    def down(self) -> None:
        """A cluster that never was is refused."""
        code, said = self.do("down", self.there.name, "--yes")
        never = code == 2 and "no cluster" in said.lower()
        self.expect(code == 0 or never, "down")

    def gc_elsewhere(self, name: str) -> None:
        for each in (f"{name}-desk", name):
            self.end_elsewhere("gc", each, "--yes")

    def end_elsewhere(self, *arguments: str | Path) -> None:
        """Of what may be being created, it says how it is deleted all the same."""
        code, said = self.do(*arguments, home="another")
        if told := re.search(r"is being created until [^`]*`[^`]*--owner (\S+?)[ `]", said):
            code, _ = self.do(*arguments, "--owner", told[1], home="another")
        self.expect(code == 0, f"{arguments[0]} elsewhere")

    def whole_run_ends(self) -> None:
        with contextlib.suppress(AssertionError):
            until(lambda: not self.there.user.nodes.running(), WHOLE)
        state = self.there.state()
        self.expect(state is not None and state.phase == "ended", f"not ended: {state}")
        self.expect(state is not None and state.exit_code == 0, f"failed: {state}")
        self.expect(self.has_result(), "nothing has landed")

    def has_result(self) -> bool:
        return any(path.endswith("chief0/output/chief0.txt") for path in self.landed())

    def never_trained(self) -> bool:
        state = self.there.state()
        return state is None or state.run is None

    def landed(self) -> list[str]:
        """Files of runs."""
        with contextlib.suppress(StoreError):
            found = (each.path for each in self.there.artifacts().list(""))
            return [path for path in found if not path.startswith(".")]
        return []

    def let_lease_end(self) -> None:
        """As a minute after: until then another machine is refused."""
        store = self.there.artifacts()
        for lease in list(store.list(".leases/")):
            store.delete(lease.path)

    def held(self) -> list[str]:
        self.there.user.cloud.quiet()
        return list(self.there.user.cloud.holdings())

    def nothing_left(self) -> None:
        held = self.held()
        self.expect(not held, f"left: {held}")
        running = self.there.user.nodes.running()
        self.expect(not running, f"machines: {running}")

    def clear(self) -> None:
        """After a trial that was none."""
        self.let_lease_end()
        self.do("down", self.there.name, "--discard", "--yes")
        self.nothing_left()

    # ── What there is to try ─────────────────────────────────────────────────

    def points(self) -> list[Point]:
        """Every call of a run without a fault, those that change something before and after."""
        self.begin(None)
        assert self._run is not None
        self.expect(self._run.wait(LIMIT) == 0, "run --away")
        self.whole_run_ends()
        calls = list(self.watch.calls)
        self.down()
        self.nothing_left()
        found, counts = [], Counter[tuple[str, str]]()
        for actor, door, action in calls:
            counts[actor, door] += 1
            if actor not in ("client", "desk"):
                continue
            reads = action.startswith(("GET ", "HEAD ")) if door == "store" else is_read(action)
            made = Point(
                actor=actor,  # type: ignore[arg-type]
                door=door,
                number=counts[actor, door],
                after=False,
                action=action.partition("?")[0],
            )
            found += [made] if reads else [made, replace(made, after=True)]
        return found


@contextlib.contextmanager
def swept(cloud_name: str, folder: Path) -> Iterator[Sweep]:
    watch = Watch()
    with away(cloud_name, folder) as there, faulty(there.store) as (store, faults):
        for door, each in (("cloud", there.user.cloud._faults), ("store", faults)):
            assert each is not None
            each.app = Gate(each.app, door, watch)
        user = {**store.environment, **there.user.cloud.environment}
        there.user.project.environment.update(user)
        if cloud_name == "azure":
            there.environment.update(store.environment)
        yield Sweep(there, watch, faults, folder)
