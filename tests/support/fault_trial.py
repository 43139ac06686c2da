"""One run with faults at planned moments, from `up` to `down`, and what is wrong about it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socketserver
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.support.commands import Command
from tests.support.fault_places import (
    TASKS,
    Place,
    agents,
    send,
    task_processes,
    watchers,
)
from tests.support.fault_plan import KINDS, OF_TASKS, Fault, FaultPlan, may_cause
from tests.support.project import DATA

STEPS = 50
LIMIT = 300.0
"""Seconds for one command: TensorFlow's nodes are lost after 60 or 300 s."""
DOWNS = 3
ATTEMPTED = 30.0
"""Seconds for a task to begin, for faults of tasks."""

AWAY = ("cut", "kill node", "freeze server")
"""Faults by which a node does not answer: nothing can be landed from it then (exit code 5)."""

Verdict = Literal["came through", "failed rightly", "wrong"]


@dataclass
class Hit:
    """A fault that came."""

    fault: Fault
    at: float
    """Unix time."""
    processes: int
    """How many it met; 0 if there was nothing to break."""


@dataclass
class Result:
    """What became of a run."""

    plan: FaultPlan
    hits: list[Hit]
    verdict: Verdict = "came through"
    wrong: list[str] = field(default_factory=list)
    codes: dict[str, list[int]] = field(default_factory=dict)
    cause: str = ""
    detected: float | None = None
    """Seconds from the first fault that may end a task until its attempt was over."""
    files: int = 0
    """Of the ledger, and so in the store."""
    words: str = ""
    """What the commands have said."""


class Ledger(socketserver.ThreadingTCPServer):
    """Notes each file that a task has finished."""

    daemon_threads = True

    def __init__(self) -> None:
        self.entries: dict[str, tuple[str, str, float]] = {}
        super().__init__(("127.0.0.1", 0), _Reader)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Reader(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Ledger)
        with suppress(OSError):
            for line in self.rfile:
                if line.endswith(b"\n"):
                    task, path, digest, when = json.loads(line)
                    self.server.entries[path] = (task, digest, when)


class Trial:
    """`run` does it all and judges."""

    def __init__(self, place: Place, plan: FaultPlan) -> None:
        self.place, self.plan = place, plan
        self.project = place.project
        self.result = Result(plan=plan, hits=[])
        self.ledger = Ledger()
        self._begun = {phase: threading.Event() for phase in ("up", "train", "land", "down")}
        self._over = {phase: threading.Event() for phase in self._begun}
        self._client: Command | None = None
        self._ended = threading.Event()
        self._disks: dict[str, int] = {}
        self._last = ""
        """What the last command has said."""

    def run(self) -> Result:
        shutil.copy(DATA / "ledger.py", self.project.code / "ledger.py")
        host, port = self.ledger.server_address[:2]
        config = self.place.config(
            train={
                "command": f"python3 ledger.py {STEPS}",
                "max_restarts": self.plan.restarts,
                "env": {"LEDGER": f"{host!s}:{port}"},
            }
        )
        threads = [
            threading.Thread(target=self._inject, args=(fault,), daemon=True)
            for fault in self.plan.faults
        ]
        for thread in threads:
            thread.start()
        threading.Thread(target=self._await_landing, daemon=True).start()
        try:
            if self._phase("up", [("up", config, "--yes")] * 3):
                self._disks = self._inodes()
                self._train()
            for phase in ("up", "train", "land"):
                self._begun[phase].set()
                self._over[phase].set()
            for thread, fault in zip(threads, self.plan.faults, strict=True):
                if fault.phase != "down":
                    thread.join(LIMIT)
            self.place.free()
            gone = self._gone()
            self._phase("down", [("down", self.project.name, "--yes")] * DOWNS)
            for thread in threads:
                thread.join(60)
            self._look_at_files(gone)
            self._look_for_leftovers()
        finally:
            self._ended.set()
            self.ledger.shutdown()
            self.ledger.server_close()
        if self.result.wrong:
            self.result.verdict = "wrong"
        return self.result

    # ── the commands ─────────────────────────────────────────────────────────

    def _phase(self, phase: str, commands: list[tuple[object, ...]]) -> bool:
        """Until one exits 0; False, and wrong, if none does."""
        for words in commands:
            self._begun[phase].set()
            code = self._command(phase, *words)
            self._over[phase].set()
            if code == 0:
                return True
            if code == -1000:
                break
            if code not in self._allowed(phase):
                self._is_wrong(f"{phase} exited {code}")
            if phase == "up":
                self._await_faults("up")
        self._is_wrong(f"{phase} did not succeed: {self.result.codes[phase]}")
        return False

    def _await_faults(self, phase: str) -> None:
        """Until what was cut or frozen is not any more."""
        longest = max((f.lasts for f in self.plan.faults if f.phase == phase), default=0.0)
        time.sleep(longest)
        self.place.free()

    def _allowed(self, phase: str) -> set[int]:
        if self._clients_killed():
            return {-9, 1, 2, 5, 6}
        if phase == "down":
            return {1, 5, 6}
        # `up` refuses a full disk of this machine, which is the nodes' on `local`.
        full = any(hit.fault.kind == "full disk" and hit.processes for hit in self.result.hits)
        return {1, 2, 6} if full else {1, 6}

    def _train(self) -> None:
        self._begun["train"].set()
        code = self._command("train", "train", self.project.name)
        if code == -9:
            code = self._command("train", "logs", self.project.name, "-f")
        self._over["train"].set()
        record = self._record()
        if code == -1000:
            return
        if code == -9 or (record is None and self._clients_killed()):
            return  # killed twice, or before there was a run
        if record is None:
            named = any(f"-{hit.fault.task}" in self._last for hit in self.result.hits)
            if code not in (1, 2) or not named:  # 2: its cluster is not up any more
                self._is_wrong(f"train exited {code} without a run, and names no node")
            self.result.verdict = "failed rightly"
            return
        self._judge(code, record)

    def _judge(self, code: int, record: dict[str, Any]) -> None:
        state, attempts = record["state"], record["attempts"]
        causes = [each["cause"] for each in attempts if each["cause"]]
        causes += [cause for each in attempts for cause in each["restarted"]]
        self.result.cause = "; ".join(f"{c['kind']} {c['task']}: {c['text']}" for c in causes)
        faults = [hit.fault for hit in self.result.hits if hit.processes]
        allowed = may_cause(faults)
        kinds = {fault.kind for fault in faults}
        targets = {fault.task for fault in faults if KINDS[fault.kind][1]}
        targets |= set(TASKS) if "full disk" in kinds else set()
        targets |= {"No space left on device"} if "full store" in kinds else set()
        for cause in causes:
            of_nodes = cause["kind"] == "not_started"  # the error names nodes or store, in its text
            known = any(
                name in cause["text"] if of_nodes else name == cause["task"] for name in targets
            )
            if cause["kind"] not in allowed or not known:
                self._is_wrong(
                    f"cause {cause['kind']} of {cause['task'] or 'no task'}: {cause['text']}"
                )
        full = any(fault.kind.startswith("full") for fault in faults)
        by_code = {"succeeded": 0, "failed": 1, "stopped": 1}.get(state)
        killed = self._clients_killed()
        away = any(f.kind in AWAY and f"{f.task}: " in self.result.words for f in faults)
        unlanded = code == 5 and (full or allowed or away)
        if not (code == by_code or unlanded or (killed and code == 0)):
            self._is_wrong(f"train exited {code}, the run has {state}")
        if state == "failed" and not causes:
            self._is_wrong("failed without a cause")
        if code != 0 or state != "succeeded":
            self.result.verdict = "failed rightly"
        self._judge_detection(attempts, bool(causes))

    def _judge_detection(self, attempts: list[dict[str, Any]], named: bool) -> None:
        ends = [a["ended"] for a in attempts if a["cause"] and a["ended"]]
        for hit in self.result.hits:
            kind = hit.fault.kind
            if not hit.processes or not KINDS[kind][1] or hit.fault.phase != "train":
                continue
            later = [end for end in ends if end >= hit.at]
            if later and self.result.detected is None:
                self.result.detected = min(later) - hit.at
            last = max((e[2] for e in self.ledger.entries.values()), default=0.0)
            unseen = kind in OF_TASKS and kind != "kill watcher" and last > hit.at + 2.0
            if unseen and not named:
                self._is_wrong(f"{kind} of {hit.fault.task} was not seen")

    def _command(self, phase: str, *words: object) -> int:
        """Its exit code; -1000 if it does not end."""
        self._note(f"\n$ {' '.join(map(str, words))}   [{time.time():.1f}]\n")
        before = len(self.project.stderr) if (self.project.folder / "stderr").exists() else 0
        self._client = self.project.start(*map(str, words))
        try:
            code = self._client.wait(LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(self._client.pid, signal.SIGKILL)
            self._is_wrong(f"{words[0]} did not end within {LIMIT:g} s")
            code = -1000
        finally:
            self._client = None
        self.result.codes.setdefault(phase, []).append(code)
        self._last = self.project.stderr[before:]
        self._note(f"{self._last}exit {code}   [{time.time():.1f}]\n")
        return code

    # ── the faults ───────────────────────────────────────────────────────────

    def _inject(self, fault: Fault) -> None:
        self._begun[fault.phase].wait()
        if not self._over[fault.phase].is_set():
            self._over[fault.phase].wait(fault.after)
        if fault.kind in OF_TASKS:
            limit = time.monotonic() + ATTEMPTED
            while not self._tasks_of(fault) and time.monotonic() < limit:
                if self._over["train"].wait(0.02):
                    break
        if self._ended.is_set():
            return
        hit = Hit(fault=fault, at=time.time(), processes=1)
        self.result.hits.append(hit)
        self._note(f"! {fault}   [{hit.at:.1f}]\n")
        hit.processes = self._do(fault)
        self._note(f"! {fault.kind} met {hit.processes} processes   [{time.time():.1f}]\n")

    def _tasks_of(self, fault: Fault) -> list[int]:
        found = {"kill watcher": watchers, "kill agent": agents}.get(fault.kind, task_processes)
        return found(self.place, fault.task)

    def _do(self, fault: Fault) -> int:
        if fault.kind in OF_TASKS:
            how = signal.SIGSTOP if fault.kind == "freeze task" else signal.SIGKILL
            return send(self._tasks_of(fault), how)
        if fault.kind == "kill node":
            return self.place.kill_node(fault.task)
        if fault.kind == "cut":
            return self.place.cut(fault.task, fault.lasts)
        if fault.kind == "freeze server":
            frozen = self.place.server(fault.task)
            return self._frozen(frozen, fault.lasts)
        if fault.kind.startswith("full"):
            count = self.place.fill(fault.kind)
            if fault.kind == "full disk":
                time.sleep(fault.lasts)
                self.place.free()
            return count
        client = self._await_client()
        if client is None:
            return 0
        if fault.kind == "kill client":
            return send([client.pid], signal.SIGKILL)
        return self._frozen([client.pid], fault.lasts)

    def _frozen(self, processes: list[int], seconds: float) -> int:
        count = send(processes, signal.SIGSTOP)
        self._ended.wait(seconds)
        send(processes, signal.SIGCONT)
        return count

    def _await_client(self) -> Command | None:
        limit = time.monotonic() + 10
        while self._client is None and time.monotonic() < limit and not self._ended.is_set():
            time.sleep(0.01)
        return self._client

    def _clients_killed(self) -> bool:
        return any(h.fault.kind == "kill client" and h.processes for h in self.result.hits)

    def _await_landing(self) -> None:
        while not self._ended.wait(0.005):
            record = self._record()
            if record is not None and record["state"] == "landing":
                self._begun["land"].set()
                return

    # ── what is there ────────────────────────────────────────────────────────

    def _record(self) -> dict[str, Any] | None:
        for path in sorted(self.project.home.glob("clusters/*/runs/*/run.json"))[-1:]:
            with suppress(OSError, ValueError):
                return dict(json.loads(path.read_text()))
        return None

    def _inodes(self) -> dict[str, int]:
        found = {}
        for task in TASKS:
            with suppress(OSError, KeyError):
                found[task] = self.place.disk(task).stat().st_ino
        return found

    def _gone(self) -> set[str]:
        """Tasks whose node has another disk than at the end of `up`."""
        now = self._inodes()
        return {task for task, inode in self._disks.items() if now.get(task) != inode}

    def _look_at_files(self, gone: set[str]) -> None:
        wanted = {p: d for p, (task, d, _) in self.ledger.entries.items() if task not in gone}
        self.result.files = len(wanted)
        if not wanted:
            return
        folder = self.project.folder / "fetched"
        done = self.project.cloudtrain("fetch", self.project.name, folder, timeout=LIMIT)
        if done.returncode:
            self._is_wrong(f"fetch exited {done.returncode}: {done.stderr[-300:]}")
        lost = [path for path, digest in wanted.items() if _digest(folder / path) != digest]
        if lost:
            self._is_wrong(f"{len(lost)} of {len(wanted)} files not in the store: {lost[0]}")

    def _look_for_leftovers(self) -> None:
        limit = time.monotonic() + 15
        while (left := self.place.left()) and time.monotonic() < limit:
            time.sleep(0.2)
        if left:
            self._is_wrong(f"{len(left)} left: {left[:4]}")

    def _is_wrong(self, why: str) -> None:
        self.result.wrong.append(why)

    def _note(self, text: str) -> None:
        self.result.words += text


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
