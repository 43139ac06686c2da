"""Starts compute_work with the environment's Python and watches it, for runs/proof.py.

Reads an order, answers with what an earlier proof of this boot found; then reads what to compute,
passes that process's answers on, line by line, and says how each process ended. A phase that takes
longer than its limit is killed. When stdin ends, so does everything that was started here.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from cloudtrain.node import client

TAIL = 8000
"""Bytes of a process's messages that are kept for the case that it fails."""
EVENTS = ("phase", "ready", "done", "failed", "device")
"""Answers that are no figures."""


def main() -> None:
    client.attend()
    order = client.order()
    boot = client.boot_id()
    earlier = found(order["stamp"], order["key"], boot)
    client.tell({"found": earlier})
    line = sys.stdin.buffer.readline()
    if not line:
        return
    wanted = json.loads(line.decode())
    works = [Work(part, order, wanted) for part in wanted["parts"]]
    threading.Thread(target=follow, args=(works,), daemon=True).start()
    facts = dict(earlier or {}, boot=boot, key=order["key"])  # type: dict[str, Any]
    watch(works, order["limits"], facts)
    if all(work.done for work in works):
        keep(order["stamp"], facts)
    ended.wait()
    for work in works:
        work.process.wait()


ended = threading.Event()
"""Set once the client has ended: until then peers read from processes here, with the port."""


def follow(works: "list[Work]") -> None:
    """Start the part that each line names; end everything when stdin ends."""
    for line in sys.stdin.buffer:
        part = json.loads(line.decode())["go"]
        for work in (each for each in works if each.part == part):
            with contextlib.suppress(OSError):
                work.process.stdin.write(b"go\n")  # type: ignore[union-attr]
                work.process.stdin.flush()  # type: ignore[union-attr]
    for work in works:
        work.kill()
    ended.set()


class Work:
    """One process of compute_work, a session of its own, so that all of it can be killed."""

    def __init__(
        self, part: "dict[str, Any]", order: "dict[str, Any]", wanted: "dict[str, Any]"
    ) -> None:
        self.part = part["part"]
        self.phase = "start"
        self.since = time.monotonic()
        self.done = self.late = False
        self.log = self.rest = b""
        environment = dict(os.environ)
        environment.update(order["environment"])
        # Without the process's own name for them, a GPU that was masked is not missing.
        for name in ("TF_CONFIG", "CUDA_VISIBLE_DEVICES"):
            environment.pop(name, None)
        if not part["gpus"]:
            environment["CUDA_VISIBLE_DEVICES"] = "-1"
        self.process = subprocess.Popen(
            [*words_of(order["python"]), "-I", "-c", str(wanted["work"]), json.dumps(part)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Exit code once it has ended. It keeps its number, by which `kill` ends what is left."""
        ended = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def heard(self, data: bytes) -> "list[dict[str, Any]]":
        """New answers; the phase that they announce begins now."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        facts = [json.loads(line.decode()) for line in lines]
        for fact in facts:
            if "phase" in fact or "ready" in fact:
                self.phase, self.since = str(fact.get("phase", "ready")), time.monotonic()
            self.done = self.done or "done" in fact
        return facts


def words_of(python: "str | list[str]") -> "list[str]":
    """A Python, or what starts one in a container."""
    return [python] if isinstance(python, str) else python


def watch(works: "list[Work]", limits: "dict[str, float]", facts: "dict[str, Any]") -> None:
    """Pass answers on until each process is done or has ended."""
    poll = selectors.DefaultSelector()
    for work in works:
        poll.register(work.process.stdout, selectors.EVENT_READ, (work, True))  # type: ignore[arg-type]
        poll.register(work.process.stderr, selectors.EVENT_READ, (work, False))  # type: ignore[arg-type]
    going = list(works)
    while going:
        for key, _ in poll.select(0.5):
            work, answers = key.data
            data = os.read(key.fd, 65536)
            if not data:
                poll.unregister(key.fileobj)
            elif answers:
                for fact in work.heard(data):
                    if work.done and work.part == "node":
                        work.wait()  # two processes may not have the GPU at once
                    facts.update({k: v for k, v in fact.items() if k not in EVENTS})
                    client.tell(dict(fact, part=work.part))
            else:
                work.log = (work.log + data)[-TAIL:]
        open_ends = {key.data[0].part for key in poll.get_map().values()}
        for work in list(going):
            if work.done:
                going.remove(work)
            elif work.part not in open_ends:
                going.remove(work)
                tell_end(work)
            elif time.monotonic() - work.since > limits.get(work.phase, limits["other"]):
                work.late = True
                work.kill()


def tell_end(work: Work) -> None:
    log = work.log.decode("utf-8", "replace")
    code = work.wait()
    client.tell(
        {"part": work.part, "ended": code, "phase": work.phase, "late": work.late, "log": log}
    )


def found(stamp: str, key: str, boot: str) -> "dict[str, Any] | None":
    """Figures of a proof with this key since the machine booted."""
    try:
        with open(stamp, encoding="utf-8") as file:
            facts = json.load(file)
    except (OSError, ValueError):
        return None
    if not isinstance(facts, dict) or (facts.get("boot"), facts.get("key")) != (boot, key):
        return None
    return facts


def keep(stamp: str, facts: "dict[str, Any]") -> None:
    os.makedirs(os.path.dirname(stamp), exist_ok=True)
    new = f"{stamp}.{os.getpid()}"
    with open(new, "w", encoding="utf-8") as file:
        json.dump(facts, file)
    os.replace(new, stamp)
