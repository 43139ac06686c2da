"""Ends its machine once nobody attends to it and nothing on it is left to land.

Part of the agent beside a task (agent.py); alone on a node that no run has used yet. It needs no
credential: the machine shuts itself down, and the cloud stops billing it. A signed mark in the
store says what the machine held, so that a later client need not take it for lost.
"""

import contextlib
import hashlib
import hmac
import http.client
import json
import os
import pwd
import re
import subprocess
import time
import urllib.parse
from typing import Any

from cloudtrain.node import archiver, client, formats, web

BUSY = 5
"""Percent of utilization from which a GPU is in use."""

ASK_EVERY = 60.0
"""Seconds between two questions whether the run is over."""

AGAIN = 300.0
"""Seconds until a machine that did not go down, or may not yet, is tried again."""

STOPPING = 30.0
"""Seconds from SIGTERM to SIGKILL of a task whose run is over."""

MOST = 1 << 16
"""Maximum bytes of another task's mark."""

_SESSION = re.compile(r"sshd(?:-session)?: ([^@\s]+)(?:@(\S*))?\s*")
"""Title of the process that serves one connection: the user, and the terminals of its shells,
`notty` without any (OpenSSH, session.c, session_proctitle; `sshd-session` since 9.8)."""


def main() -> None:
    """Watch a node that no run has used yet, until one does."""
    order = client.order()
    os.umask(0o077)
    folder = client.plain(order["folder"])
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    alone, word = seen_from_here(order["alone"])
    client.detach(formats.AGENT_LOCK.encode(), formats.AGENT_LOG, word)
    watch = OwnEnd(alone, Unused())
    while watch.goes_on(busy=False):
        time.sleep(float(order["tick"]))


class Unused:
    """A stand-in for the agent of a task where no task ever ran: there is nothing to land."""

    word = ""
    final = True

    def ended_at(self) -> float:
        return 1.0

    def left_to_land(self) -> str:
        return ""

    def held(self) -> "dict[str, str]":
        return {}

    def left_out(self) -> "dict[str, int]":
        return {}

    def exit_code(self) -> "str | None":
        return None

    def end_task(self, kills: bool) -> None:
        raise AssertionError("no task runs")


class OwnEnd:
    """The order has seconds without use (`idle`) and without work of the GPUs (`gpu`), each may be
    None; `run`, `task` and `attempt`; `decides`, if the task decides the run, and requests for the
    marks of the `others` that do, and their `attempts`, by task; requests to store both marks of
    its own, `over` and `end`; the `key` that signs them; the command that ends the machine; the
    least seconds of `grace` that a task of its own may go on. All durations are those of a clock
    that nobody sets."""

    def __init__(self, order: "dict[str, Any] | None", agent: Any) -> None:
        self.order = order or {}
        self.agent = agent
        self.quiet_since = self.gpus_idle_since = time.monotonic()
        self.next = self.next_question = 0.0
        self.others = dict(self.order.get("others") or {})
        self.has_told = False
        self.marked = None  # type: dict[str, str] | None
        self.stopped_at = 0.0
        self.said = ""

    def goes_on(self, busy: bool) -> bool:
        """Look at the machine if it is time, and end it if it is; False once this process is of no
        more use: it is not `busy` otherwise, and another one watches."""
        if not self.order:
            return busy
        now = time.monotonic()
        if now >= self.next:
            self.next = now + float(self.order["look"])
            if self.has_successor():
                self.order = {}
                return busy
            why = self.due(now)
            if why:
                self.end(why, now)
        return True

    def due(self, now: float) -> str:
        """The reason why the machine is to end now; "" while it is in use."""
        here = self.sessions()
        if not all(map(is_shell, here)) or self.agent.word or not self.is_over(now):
            self.quiet_since = self.gpus_idle_since = now
            return ""
        if here:
            self.quiet_since = now
        idle, gpu = self.order["idle"], self.order["gpu"]
        if gpu is not None and gpus_work():
            self.gpus_idle_since = now
        if idle is not None and now - self.quiet_since >= idle:
            return f"nobody has used it for {minutes(now - self.quiet_since)}"
        if gpu is not None and now - self.gpus_idle_since >= gpu:
            return f"its GPUs were idle for {minutes(now - self.gpus_idle_since)}"
        return ""

    def sessions(self) -> "list[str]":
        return sessions(str(self.order["proc"]), user_here())

    def is_over(self, now: float) -> bool:
        """True if the tasks that decide the run have ended. Their agents say so in the store while
        nobody attends; without an answer, the run goes on."""
        ended = bool(self.agent.ended_at())
        if self.order["decides"] and not ended:
            return False
        if now >= self.next_question:
            self.next_question = now + min(ASK_EVERY, 12 * float(self.order["look"]))
            if (
                self.order["decides"]
                and not self.has_told
                and self.order[formats.OVER_MARK] is not None
            ):
                self.has_told = self.store(formats.OVER_MARK, self.mark("the task has ended", {}))
            for task in list(self.others):
                if self.has_ended(task):
                    del self.others[task]
        return not self.others

    def has_ended(self, task: str) -> bool:
        """True if the other task's agent has said that it has ended."""
        request = self.others[task]
        if request is None:
            return False
        try:
            told = json.loads(fetched(request).decode("utf-8"))
            if request["method"] == "PUT":  # a question about its upload, which is complete
                return int(told["size"]) > 0  # by its agent, not by the question
            text = str(told["mark"])
            if not hmac.compare_digest(str(told["mac"]), self.mac(text)):
                return False
            mark = json.loads(text)
        except (web.Refused, OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
            return False
        told = [mark.get(key) for key in ("run", "task", "attempt")]
        return told == [self.order["run"], task, self.order["attempts"][task]]

    def has_successor(self) -> bool:
        """True once a later run, or attempt, has begun on this machine, whose agent watches it; it
        may have none."""
        try:
            runs = os.listdir(client.plain(self.order["runs"]))
        except OSError:
            return False
        numbers = [name[len("attempt-") :] for name in os.listdir() if name.startswith("attempt-")]
        is_later = any(int(each) > self.order["attempt"] for each in numbers if each.isdigit())
        return is_later or any(client.text(each) > str(self.order["run"]) for each in runs)

    def end(self, why: str, now: float) -> None:
        """Land what is left and shut the machine down; it stays as long as something has not
        landed: its lifetime ends it then."""
        if not self.agent.ended_at():
            if now - min(self.quiet_since, self.gpus_idle_since) < float(self.order["grace"]):
                return
            if not self.stopped_at:
                self.say("the run is over: ending its task")
            self.agent.end_task(bool(self.stopped_at) and now - self.stopped_at >= STOPPING)
            self.stopped_at = self.stopped_at or now
            return
        left = self.agent.left_to_land() or unseen_files(self.order)
        if not self.due(time.monotonic()):  # somebody came meanwhile
            return
        if left:
            self.say(f"this machine stays until its lifetime ends: {left} not landed")
            self.next = now + min(AGAIN, 12 * float(self.order["look"]))
            return
        held = self.agent.held()
        if self.order[formats.END_MARK] is not None and self.marked != held:
            if not self.store(formats.END_MARK, self.mark(why, held)):
                self.say("this machine stays until its lifetime ends: the store takes no mark")
                self.next = now + min(AGAIN, 12 * float(self.order["look"]))
                return
            self.marked = held
            if not self.due(time.monotonic()):
                return
        self.say(f"shutting this machine down: {why}, and everything has landed")
        self.next = now + AGAIN
        try:
            code = subprocess.call(self.order["shutdown"], stdin=subprocess.DEVNULL)
        except OSError as error:
            self.say(f"it cannot be shut down: {error.strerror}")
        else:
            if code:
                self.say(f"it cannot be shut down: exit code {code}")

    def mark(self, why: str, held: "dict[str, str]") -> bytes:
        """A signed mark: how the task ended, and each file that the machine held, by its stamp."""
        order = self.order
        facts = {key: order[key] for key in ("run", "task", "attempt")}
        facts.update(why=why, files=held, exit=self.agent.exit_code())
        facts.update(left_out=self.agent.left_out())
        facts.update(ended=self.agent.ended_at(), at=time.time())
        text = json.dumps(facts, sort_keys=True)
        return json.dumps({"mark": text, "mac": self.mac(text)}).encode("ascii")

    def mac(self, text: str) -> str:
        key = bytes.fromhex(str(self.order["key"]))
        return hmac.new(key, text.encode("ascii"), hashlib.sha256).hexdigest()

    def store(self, name: str, data: bytes) -> bool:
        """Store a mark; False, said once, if the store does not take it."""
        ticket = self.order[name]
        try:
            archiver.store(ticket["requests"][0], int(ticket["piece"]), archiver.Text(data))
        except (web.Refused, web.Transient, web.Unreachable, OSError) as error:
            self.say(f"mark `{name}` not stored: {web.reason(error)}")
            return False
        return True

    def say(self, text: str) -> None:
        """Say it, unless it was the last thing said."""
        if text.partition(":")[0] != self.said.partition(":")[0]:
            client.say(text)
        self.said = text


def seen_from_here(order: "dict[str, Any] | None") -> "tuple[dict[str, Any] | None, bytes]":
    """The order while its client is connected, and the word for the client. None if the client's
    own connection cannot be seen: then nobody's could, and the machine does not end itself."""
    if not order or sessions(str(order["proc"]), user_here()):
        return order, client.KEEPING
    return None, client.UNSEEN


def user_here() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def sessions(proc: str, user: str) -> "list[str]":
    """The terminals of each SSH connection of this user: `pts/0`, `notty` for one without a shell,
    "" for one that has just begun. One whose client vanished counts until TCP gives it up."""
    found = []
    for entry in os.listdir(proc):
        if not entry.isdigit():
            continue
        try:
            with open(f"{proc}/{entry}/comm") as file:
                if not file.read().startswith("sshd"):
                    continue
            with open(f"{proc}/{entry}/cmdline") as file:
                title = _SESSION.fullmatch(file.read().replace("\0", " ").strip())
        except (OSError, ValueError):
            continue
        if title and title.group(1) == user:
            found.append(title.group(2) or "")
    return found


def is_shell(terminals: str) -> bool:
    """True for a connection with a shell that a person has open."""
    return terminals.startswith("pts/")


def gpus_work() -> bool:
    """True if a GPU of this machine computes, or if nobody knows."""
    asked = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    try:
        nowhere = subprocess.DEVNULL
        done = subprocess.run(
            asked, stdin=nowhere, stdout=subprocess.PIPE, stderr=nowhere, timeout=60
        )
        figures = [int(line) for line in done.stdout.decode("ascii", "replace").split()]
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return True
    return done.returncode != 0 or not figures or max(figures) >= BUSY


def unseen_files(order: "dict[str, Any]") -> str:
    """A file of an earlier run here that is newer than its last landing; "" for none."""
    runs = client.plain(order["runs"])
    try:
        names = sorted(os.listdir(runs))
    except OSError:
        return ""
    for run in names:
        if client.text(run) == order["run"]:
            continue
        for task in os.listdir(os.path.join(runs, run)):
            folder = os.path.join(runs, run, task)
            work = os.path.join(folder, formats.WORK.encode())
            if not os.path.isdir(work):
                continue
            newest = newest_in(work, landed_at(os.path.join(folder, formats.LANDED.encode())))
            if newest:
                return newest
    return ""


def landed_at(report: bytes) -> float:
    """Unix time at which all of a task had landed, as a client has reported; 0 if it has not: what
    is more than `artifacts.limit` stays on the node."""
    try:
        with open(report, "rb") as file:
            is_all = json.loads(file.read().decode())["final"]
            return os.fstat(file.fileno()).st_mtime if is_all else 0.0
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


def newest_in(folder: bytes, since: float) -> str:
    """A file below the folder that has changed since then; "" for none."""
    for top, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(top, name)
            with contextlib.suppress(OSError):
                if os.lstat(path).st_ctime > since:
                    return repr(client.text(path))
    return ""


def fetched(request: "dict[str, Any]") -> bytes:
    """The bytes of one small object, or what the service says of a complete upload. Raises Refused,
    OSError or HTTPException."""
    part = web.Part(request, 0, 0, 0)
    target = urllib.parse.urlsplit(part.url)
    made = web.Web().made(target.scheme, target.hostname or "", target.port)
    try:
        path = target.path + ("?" + target.query if target.query else "")
        made.request(part.method, path, headers=part.headers)
        answer = made.getresponse()
        data = answer.read(MOST)
    finally:
        made.close()
    if answer.status not in (200, 201):
        raise web.Refused(str(answer.status))
    return data


def minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"
