"""`up` with candidates on three clouds' stand-ins, killed at any API call, and what ends it then.

The commands run whole, as in a terminal, in processes forked from a warm one that has everything
imported: `python -m tests.support.candidate_sweep`. Nodes are not booted: their first login and
their setup are left out, and the providers' clock goes a hundred times as fast.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from tests.standins.cloud import DESCRIPTIONS, ROOT, Cloud, start
from tests.standins.faults import EVER, FAULTS
from tests.support.cloud_client import LONG_AFTER
from tests.support.three_clouds import NO_ROOM

PLACES = {"aws": ["us-east-1a"], "azure": ["eastus-1"], "gcp": ["us-central1-a"]}
ORDER = ("aws", "azure", "gcp")
"""As the file has them; only the last has room, so that the first two are rolled back."""
MACHINES = {"aws": "m6i.xlarge", "gcp": "n1-standard-8", "azure": "Standard_D4s_v5"}
HUNG_AFTER = 240.0
SPEED = 100.0

Ending = Literal["down", "up", "up elsewhere", "gc", "down elsewhere"]
ENDINGS: tuple[Ending, ...] = ("down", "up", "gc", "down elsewhere", "up elsewhere")
"""What follows a kill: `down`; `up`, also where another cloud has room by then; `gc` and `down` of
a user whose home knows nothing of it. Each ends with nothing left in any account."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One moment of `up`: before or after the work of one call."""

    cloud: str
    number: int
    after: bool

    def __str__(self) -> str:
        return f"{'after' if self.after else 'before'} call {self.number} of {self.cloud}"


@dataclass(frozen=True, kw_only=True)
class Done:
    code: int
    """Negative: the signal that ended it."""
    output: str


@dataclass
class Sweep:
    """One user, three accounts. Each `begin_anew` is another cluster in empty accounts."""

    clouds: dict[str, Cloud]
    process: subprocess.Popen[str]
    folder: Path
    origin: float
    """When the providers' clock began to go faster."""
    numbers: Iterator[int] = field(default_factory=itertools.count)
    impatient: bool = False
    """Whether commands wait for an answer for less than a second instead of a minute."""

    def begin_anew(self, only: str = "") -> None:
        """`only`: a file for this cloud alone, with room in all."""
        self.impatient = False
        for name, cloud in self.clouds.items():
            cloud.renew()
            cloud.set(delay=0.0, **DESCRIPTIONS[name].small)
        self.fill(*([] if only else ["aws", "azure"]))
        self.name = f"any{next(self.numbers)}"
        self.home = self.folder / self.name
        self.home.mkdir()
        candidates = [
            {
                "provider": name,
                "placement": PLACES[name],
                **({"project": project} if (project := DESCRIPTIONS[name].project) else {}),
                "nodes": {role: {"machine": MACHINES[name]} for role in ("chief", "worker")},
            }
            for name in ((only,) if only else ORDER)
        ]
        values = {
            "name": self.name,
            "strategy": "multi_worker_mirrored",
            **(candidates[0] if only else {"ordered": candidates}),
            **({} if only else {"nodes": {"chief": {}, "worker": {"count": 1}}}),
            "network": {"ssh_from": "203.0.113.7/32"},
            "artifacts": {"store": (self.home / "store").as_uri()},
        }
        self.file = self.home / "cluster.yaml"
        self.file.write_text(yaml.safe_dump(values))

    def fill(self, *names: str) -> None:
        """These clouds have no capacity; all others have."""
        for name, cloud in self.clouds.items():
            cloud.set(capacity=NO_ROOM[name] if name in names else {})

    def killed(self, point: Point, *command: str) -> bool:
        """Whether there was such a call of the command to be killed at; without one, of `up`."""
        running = self._ready(*(command or ("up", str(self.file), "--yes")))
        cloud = self.clouds[point.cloud]
        cloud.fault("kill", number=point.number, after=point.after, pid=running)
        done = self._go(running)
        cloud.no_more_faults()
        for each in self.clouds.values():
            each.quiet()
        assert done.code in (0, -9), done.output
        return done.code == -9

    def faulty(self, fault: str, *, cloud: str | None = None, number: int | None = None) -> int:
        """`up` and `down` while this call of a cloud goes wrong, or without one each call once.

        Returns how many did. Raises AssertionError unless both are done, in one place.
        """
        self.impatient = FAULTS[fault]["kind"] == "silence"
        for each in (self.clouds[cloud],) if cloud else self.clouds.values():
            which = {"number": number} if number else {"action": "*", "once_each": True}
            each.fault(**FAULTS[fault], **which, times=EVER)
        self.do("up", str(self.file), "--yes")
        held = {name: each.holdings() for name, each in self.clouds.items()}
        assert not [name for name in ("aws", "azure") if held[name]], held
        assert self.instances() == [f"{self.name}-chief0", f"{self.name}-worker0"]
        self.do("down", self.name, "--discard", "--yes")
        for each in self.clouds.values():
            each.no_more_faults()
            each.quiet()
        assert self.holding() == {}
        calls = (call for each in self.clouds.values() for call in each.calls())
        return sum(call["fault"] is not None for call in calls)

    def do(self, *arguments: str, home: str = "state", code: int = 0) -> str:
        done = self._go(self._ready(*arguments, home=home))
        assert done.code == code, f"{arguments}: {done.code}\n{done.output}"
        return done.output

    def end(self, ending: Ending) -> None:
        """End what a killed `up` left; raises AssertionError if anything stays, or is twice."""
        if ending in ("up", "up elsewhere"):
            if ending == "up elsewhere":
                self.fill("azure", "gcp")
            self.do("up", str(self.file), "--yes")
            held = self.holding()
            assert len(held) == 1, held
            assert self.instances() == [f"{self.name}-chief0", f"{self.name}-worker0"]
            self.do("down", self.name, "--discard", "--yes")
        elif ending == "down":
            self.do("down", str(self.file), "--discard", "--yes")
        elif ending == "down elsewhere":
            self._let_lease_end()
            self.do("down", str(self.file), "--discard", "--yes", home="another")
        elif self.holding():
            self.do("gc", self.name, "--yes", home="another")
        assert self.holding() == {}

    def _let_lease_end(self) -> None:
        """As a minute after the kill: until then another machine is refused."""
        for lease in (self.home / "store").glob(".leases/**/*.json"):
            lease.unlink()

    def holding(self) -> dict[str, list[str]]:
        held = {name: cloud.holdings() for name, cloud in self.clouds.items()}
        return {name: lines for name, lines in held.items() if lines}

    def instances(self) -> list[str]:
        words = ("instance ", "virtual machine ")
        lines = [line for held in self.holding().values() for line in held]
        names = [line for line in lines if line.startswith(words)]
        return sorted(line.removeprefix("virtual ").split()[1] for line in names)

    def points(self) -> list[Point]:
        """One moment of `up` for each state in which a kill can leave the accounts and the record:
        before and after each call that changes something, and at the first call after each event
        of the journal. Between these nothing changes that a later command could see.
        """
        self.begin_anew()
        self.do("up", str(self.file), "--yes")
        journal = self._journal_times()
        calls = [(call, name) for name, cloud in self.clouds.items() for call in cloud.calls()]
        calls.sort(key=lambda found: found[0]["started"])
        found: dict[tuple[int, int], Point] = {}
        changes = 0
        for call, name in calls:
            written = sum(time < call["started"] for time in journal)
            moment = {"cloud": name, "number": call["number"]}
            if not is_read(call["action"]):
                found.setdefault((changes, written), Point(**moment, after=False))
                changes += 1
            found.setdefault((changes, written), Point(**moment, after=True))
        return list(found.values())

    def deep_points(self, cloud: str) -> list[Point]:
        """Before and after each call of `check --deep` that changes something."""
        self.begin_anew(cloud)
        self.do("check", str(self.file), "--deep")
        assert (self.holding(), self.trials()) == ({}, [])
        changing = [c for c in self.clouds[cloud].calls() if not is_read(c["action"])]
        return [
            Point(cloud=cloud, number=call["number"], after=after)
            for call in changing
            for after in (False, True)
        ]

    def trials(self) -> list[str]:
        """The machines of `check --deep` that are on record."""
        return [p.name for p in (self.home / "state" / "clusters").glob("*-trial-*") if p.is_dir()]

    def _journal_times(self) -> list[float]:
        (path,) = (self.home / "state" / "clusters").glob("*/events.jsonl")
        times = [json.loads(line)["time"] for line in path.read_text().splitlines()]
        return [self.origin + (time - self.origin) / SPEED for time in times]

    def calls(self) -> dict[str, list[str]]:
        return {
            name: [call["action"] for call in cloud.calls()] for name, cloud in self.clouds.items()
        }

    def _ready(self, *arguments: str, home: str = "state") -> int:
        job = {
            "arguments": arguments,
            "home": str(self.home / home),
            "folder": str(self.home),
            "impatient": self.impatient,
            # Others leave alone what may be being created.
            "later": LONG_AFTER if home == "another" else 0.0,
        }
        self._say(json.dumps(job))
        return int(self._hear())

    def _go(self, pid: int) -> Done:
        self._say("go")
        impatience = threading.Timer(HUNG_AFTER, os.kill, (pid, 6))
        impatience.start()
        try:
            status = int(self._hear())
        finally:
            impatience.cancel()
        output = (self.home / "output").read_text(errors="replace")
        return Done(code=os.waitstatus_to_exitcode(status), output=output)

    def _say(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def _hear(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()


def is_read(action: str) -> bool:
    """By what the three clouds call their actions."""
    words = ("Describe", "Get", "GET ", "LIST ", "token", "openid-configuration")
    verbs = (".get", ".list", ".aggregatedList", ".getFromFamily", ".wait")
    return action.startswith(words) or action.endswith(verbs)


@contextlib.contextmanager
def swept(folder: Path) -> Iterator[Sweep]:
    with contextlib.ExitStack() as stack:
        clouds = {name: stack.enter_context(start(name)) for name in ORDER}
        environment = {k: v for k, v in os.environ.items() if not k.startswith("CLOUDTRAIN_")}
        for cloud in clouds.values():
            environment.update(cloud.environment)
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.candidate_sweep"],
                cwd=ROOT,
                env={**environment, "HOME": str(folder), "CLOUDTRAIN_CACHE": str(folder / "cache")},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        assert process.stdout
        yield Sweep(clouds, process, folder, origin=float(process.stdout.readline()))


# ── In the process itself ────────────────────────────────────────────────────


def main() -> None:
    from cloudtrain.checks import check
    from cloudtrain.cli.app import run
    from cloudtrain.cluster import provision, session
    from cloudtrain.commands import accounts, up
    from cloudtrain.core import moments
    from cloudtrain.runs import idle
    from tests.support import cloud_client
    from tests.support.botocore_models import read_before_forks

    read_before_forks()
    haste = cloud_client.Haste(speed=SPEED)
    timing = haste.timing()
    later = [0.0]
    clock = replace(timing.clock, now=lambda: haste.now() + later[0])
    timing = replace(timing, clock=clock)

    real = session.open_provider

    def open_provider(config: Any) -> Any:
        if config.provider not in ORDER:  # `gc` asks local nodes, too
            return real(config)
        made = cloud_client.provider(config.provider, config, timing)
        made.whereabouts = session.whereabouts(config)
        return made

    for name in ORDER:  # every module is loaded now
        cloud_client.provider(name, cloud_client._nothing(name), timing).sweep()
    changes: list[tuple[Any, str, Any]] = [
        (session, "open_provider", open_provider),
        (accounts, "open_provider", open_provider),
        (provision, "await_first_login", lambda *given, **named: None),
        (up, "prepare_nodes", lambda session: ""),
        (check, "confirm_own_ends", lambda session: session),
        (check, "prove_upload", lambda *given: "not asked"),
        (idle, "start_process", lambda records, command: None),
        (moments, "now", timing.clock.now),
    ]
    for module, attribute, value in changes:
        assert hasattr(module, attribute), (module, attribute)
        setattr(module, attribute, value)
    assert threading.active_count() == 1
    print(haste.origin, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(writing)
            if os.read(reading, 1):
                later[0] = job["later"]
                os._exit(_work(run, job))
            os._exit(1)
        os.close(reading)
        print(child, flush=True)
        sys.stdin.readline()
        os.write(writing, b"!")
        os.close(writing)
        print(os.waitpid(child, 0)[1], flush=True)


def _work(run: Any, job: dict[str, Any]) -> int:
    from tests.support.cloud_client import be_impatient

    if job["impatient"]:
        be_impatient()
    os.environ["CLOUDTRAIN_HOME"] = job["home"]
    output = os.open(f"{job['folder']}/output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    code = run(job["arguments"])
    sys.stdout.flush()
    sys.stderr.flush()
    return int(code)


if __name__ == "__main__":
    main()
