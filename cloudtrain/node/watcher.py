"""Runs one attempt of one task in a session of its own and records how it ended.

A fork of the starter, which needs no start of Python and no tools: that saves 11 of the 31 ms of
CPU that a task costs which does nothing, when a shell is its watcher (2026-11-27). What is rare is
left to task_watcher.sh. PORT is the one, in hex, that TensorFlow opens in this task, or empty;
SAMPLER the text of sampler.py, which writes FOLDER/metrics; TAG marks the task's processes, of
which none outlives the attempt: TERM, after GRACE seconds KILL.

Records are symlinks: created atomically, by the first to try, also on a full disk.
   FOLDER/task -> PID:START:BOOT:WATCHER:WATCHER_START   (the lock: no task runs without it)
   FOLDER/exit -> exit code, as a shell reports it
   FOLDER/served -> TIME after the start when PORT was seen open, or `never TIME` after its end;
   FOLDER/oom -> LIMIT:PEAK:RSS in bytes, each may be empty: the kernel killed it, out of memory
   FOLDER/elsewhere -> TIME when it listened on another port, all in hundredths of a second
"""

import _signal  # type: ignore[import-not-found]
import os
import select
import sys
import time

SET_CHILD_SUBREAPER = 36

UNSAMPLED = 1.0
"""Seconds after which a task gets its sampler: a shorter one needs none."""


class Watcher:
    def __init__(
        self,
        folder: str,
        work: str,
        port: str,
        address: str,
        tag: str,
        grace: str,
        sampler: str,
        helpers: str,
    ) -> None:
        self.folder, self.work, self.address = folder, work, address
        self.port = port if os.access("/proc/net/tcp", os.R_OK) else ""
        self.tag, self.grace, self.sampler, self.helpers = tag, grace, sampler, helpers
        self.environment = own_environment()
        self.log = os.path.join(folder, "log")
        self.log_most = int(os.environ.get("CLOUDTRAIN_LOG_MIB", "1024")) << 20
        self.log_every = float(os.environ.get("CLOUDTRAIN_LOG_EVERY", "5"))
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().partition("-")[0]
        self.end_of_record = f"{boot}:{os.getpid()}:{started()}"
        self.codes = {}  # type: dict[int, int | None]
        """Exit codes of what it has started, None until the end; orphans that it got have none."""
        self.woken, wakes = os.pipe()
        os.set_blocking(wakes, False)
        _signal.signal(_signal.SIGCHLD, lambda number, frame: None)
        _signal.set_wakeup_fd(wakes)

    def watch(self, given: "tuple[dict[bytes, bytes], bytes]", tells: int) -> None:
        adopt()
        kills = memory()[0]
        begun = content("/proc/uptime").partition(" ")[0].replace(".", "")
        looker = self.helper("serving", begun) if self.port else 0
        task = os.fork()
        if not task:
            try:
                self.become_task(given, tells)
            finally:
                os._exit(126)
        self.codes[task] = None
        os.close(tells)
        sampler = self.attend(task)
        for each in (sampler, looker):
            self.end(each)
        record = link(self.folder + "/task")
        if not record.endswith(":" + self.end_of_record):
            os._exit(0)  # another start holds, or none
        code = self.wait(task)
        if self.port:
            self.wait(self.helper("served", begun))
        if code == 137:
            self.tell_starved(record, kills)
        if is_left(self.tag, int(record.split(":")[0])):
            self.wait(self.helper("left_behind", ""))
        if code and os.path.exists(self.folder + "/end-container"):
            self.wait(self.helper("container_gone", self.folder))
        while os.path.isdir(self.folder) and not mark(self.folder, "exit", str(code)):
            time.sleep(1)
        os._exit(0)

    def become_task(self, given: "tuple[dict[bytes, bytes], bytes]", tells: int) -> None:
        """Be the task, if no other start of this attempt holds."""
        variables, line = given
        os.setsid()
        _signal.set_wakeup_fd(-1)
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        try:
            os.chdir(self.work)
        except OSError:
            say(tells, f"failed no folder {self.work}")
            return
        try:
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError:
            say(tells, f"failed {self.log} cannot be written")
            return
        for target in (1, 2):
            os.dup2(log, target)
        os.close(log)
        if not mark(self.folder, "task", f"{os.getpid()}:{started()}:{self.end_of_record}"):
            held = link(self.folder + "/task")
            is_held = "already" if ":" in held else f"failed {self.folder} cannot be written"
            say(tells, "stopped" if held == "stopped" else is_held)
            return
        say(tells, f"started {os.getpid()}")
        shell = found("bash") or found("sh")
        its = {**self.environment, **variables}
        its[b"CLOUDTRAIN_STACKS"] = os.fsencode(self.folder) + b"/stacks"  # see layer.py
        self.name_interface(its)
        try:
            os.execve(shell, [shell, b"-c", line], its)
        except OSError as error:  # its variables are too long, for one
            os.write(2, f"{os.fsdecode(shell)}: {error.strerror}\n".encode())

    def name_interface(self, its: "dict[bytes, bytes]") -> None:
        """Name the interface for NCCL, which excludes only `lo` and `docker*` by itself, unless
        the user or the image (in NCCL's own file) has named one. `=` is for exactly this name.
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
        (documented)"""
        name = b"NCCL_SOCKET_IFNAME"
        if not self.address or name in its:
            return
        try:
            with open("/etc/nccl.conf", "rb") as file:
                if any(line.startswith(name + b"=") for line in file):
                    return
        except OSError:
            pass
        for line in output("ip", "-o", "addr", "show", "to", self.address, of=its).splitlines():
            words = line.split()
            if len(words) > 1 and words[1] != b"lo":
                its[name] = b"=" + words[1]
                return

    def attend(self, task: int) -> int:
        """Wait for the end of the task. Returns its sampler, 0 for none."""
        soon = time.monotonic() + UNSAMPLED
        while self.codes[task] is None and time.monotonic() < soon:
            self.reap(soon - time.monotonic())
        sampler = self.sample() if self.codes[task] is None else 0
        look = time.monotonic()
        while self.codes[task] is None:
            if time.monotonic() >= look:
                self.bound()
                look = time.monotonic() + self.log_every
            self.reap(look - time.monotonic())
        return sampler

    def reap(self, seconds: float) -> None:
        """Take the exit codes of the children that end within that time, once the first has."""
        poll = select.poll()
        poll.register(self.woken, select.POLLIN)
        if poll.poll(max(0.0, seconds) * 1000 + 1):
            os.read(self.woken, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except OSError:
                return
            if not pid:
                return
            if pid in self.codes:
                killed = os.WIFSIGNALED(status)
                self.codes[pid] = 128 + os.WTERMSIG(status) if killed else os.WEXITSTATUS(status)

    def wait(self, pid: int) -> int:
        while True:
            code = self.codes[pid]
            if code is not None:
                return code
            self.reap(60.0)

    def end(self, pid: int) -> None:
        if pid and self.codes[pid] is None:
            os.kill(pid, _signal.SIGTERM)

    def sample(self) -> int:
        words = "-I", "-S", "-c", self.sampler, self.folder, str(os.getpid())
        return self.spawn(sys.executable, *words) if sys.executable else 0

    def helper(self, verb: str, argument: str) -> int:
        words = "-c", self.helpers, "sh", self.folder, self.port, self.tag, self.grace
        return self.spawn("/bin/sh", *words, str(os.getpid()), verb, argument)

    def spawn(self, program: str, *words: str) -> int:
        pid = os.fork()
        if not pid:
            try:
                _signal.set_wakeup_fd(-1)
                _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
                os.execve(program, (program, *words), self.environment)
            finally:
                os._exit(127)
        self.codes[pid] = None  # also if an orphan had this number
        return pid

    def bound(self) -> None:
        """Once the log takes more than its limit of the disk, free what lies between its first
        sixteenth of that and its last half. Offsets stay as they are."""
        try:
            facts = os.stat(self.log)
        except OSError:
            return
        if facts.st_blocks * 512 > self.log_most:
            most = self.log_most >> 20
            cut = (facts.st_size >> 20) - most // 16 - most // 2
            if self.wait(self.helper("bound", f"{most // 16} {cut}")):
                self.log_most = sys.maxsize  # this disk cannot

    def tell_starved(self, record: str, kills: "int | None") -> None:
        """Record it if the kernel has killed the task because memory ran out.
        `Out of memory: Killed process 17640 (python3) total-vm:…kB, anon-rss:…kB, …`"""
        task = f"Killed process {record.split(':')[0]} (".encode()
        lines = [line for line in output("dmesg", of=self.environment).splitlines() if task in line]
        rss = lines[-1].rpartition(b"anon-rss:")[2].partition(b"kB")[0] if lines else b""
        now, limit, peak = memory()
        if lines or (kills is not None and now is not None and now > kills):
            its = str(int(rss) * 1024) if rss.isdigit() else ""
            mark(self.folder, "oom", f"{limit}:{peak}:{its}")


def adopt() -> None:
    """Get the orphans below this process as its children, which a shell cannot ask for itself:
    https://man7.org/linux/man-pages/man2/PR_SET_CHILD_SUBREAPER.2const.html (read)."""
    try:
        import _ctypes  # `ctypes` itself takes a quarter as long as the start of Python

        prctl = _ctypes.dlsym(_ctypes.dlopen(None, os.RTLD_NOW), "prctl")  # type: ignore[arg-type]
        _ctypes.call_function(prctl, (SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    except (ImportError, OSError, AttributeError):
        pass


def own_environment() -> "dict[bytes, bytes]":
    """The environment as it was before Python, which may set LC_CTYPE (PEP 538)."""
    with open("/proc/self/environ", "rb") as file:
        lines = file.read().split(b"\0")
    return dict(line.split(b"=", 1) for line in lines if b"=" in line)


def started() -> str:
    """Start of this process, in the kernel's ticks since the boot."""
    with open("/proc/self/stat") as file:
        return file.read().rpartition(")")[2].split()[19]


def mark(folder: str, name: str, text: str) -> bool:
    """Create a record. Returns whether there is one; of the task, whether this one is."""
    try:
        os.symlink(text, f"{folder}/{name}")
    except OSError:
        return name != "task" and os.path.islink(f"{folder}/{name}")
    return True


def link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def say(tells: int, answer: str) -> None:
    """Answer. If the starter is gone, that must not end the task."""
    _signal.signal(_signal.SIGPIPE, _signal.SIG_IGN)
    try:
        os.write(tells, os.fsencode(answer) + b"\n")
    except OSError:
        pass
    os.close(tells)
    _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)


def found(program: str) -> bytes:
    """Path of a program; empty if there is none."""
    for folder in os.get_exec_path():
        path = os.path.join(folder, program)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return os.fsencode(path)
    return b""


def output(*command: str, of: "dict[bytes, bytes]") -> bytes:
    """Output of a command; nothing if it cannot be run."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.dup2(write, 1)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os.execvpe(command[0], command, of)
        finally:
            os._exit(127)
    os.close(write)
    data = b"".join(iter(lambda: os.read(read, 1 << 16), b""))
    os.close(read)
    os.waitpid(pid, 0)
    return data


def is_left(tag: str, root: int) -> bool:
    """Look for a process of the task, as task_processes.sh finds them: by its tag, by its
    session, or as an orphan of this process. Those below one of these count there."""
    marked, own = os.fsencode("CLOUDTRAIN_TASK=" + tag), os.getsid(0)
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent, _, session = file.read().rpartition(b")")[2].split()[:4]
            if state in (b"Z", b"X"):
                continue
            if int(session) == root or (int(parent) == os.getpid() and int(session) != own):
                return True
            with open(f"/proc/{name}/environ", "rb") as file:
                if marked in file.read().split(b"\0"):
                    return True
        except (OSError, ValueError):
            continue
    return False


# ── memory ─────────────────────────────────────────────────────────────────────


def memory() -> "tuple[int | None, str, str]":
    """Count of kills by the kernel, limit and peak of the memory cgroup of this process and the
    task, or of the machine if that is unknown.
    https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files (memory.events counts
    processes that any kind of OOM killer ended); cgroup-v1/memory.html#oom-control"""
    first = second = ""
    for line in content("/proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if "memory" in names.split(","):
            first = "/sys/fs/cgroup/memory" + path
        elif not names:
            second = "/sys/fs/cgroup" + path
    # In a container the path may exist only on its host.
    if first and not os.path.isdir(first):
        first = "/sys/fs/cgroup/memory"
    if not os.path.isdir(second):
        second = "/sys/fs/cgroup"
    if first:
        kills = figure(first + "/memory.oom_control", "oom_kill")
        limit, peak = (content(f"{first}/memory.{of}") for of in _FIRST)
    else:
        kills = figure(second + "/memory.events", "oom_kill")
        limit, peak = (content(f"{second}/memory.{of}") for of in ("max", "peak"))
    limit, peak = limit.strip(), peak.strip()
    if limit in ("max", "") or len(limit) >= 19:
        whole = figure("/proc/meminfo", "MemTotal:")
        limit = "" if whole is None else str(whole * 1024)
    return kills, limit, peak


_FIRST = ("limit_in_bytes", "max_usage_in_bytes")


def figure(path: str, name: str) -> "int | None":
    for line in content(path).splitlines():
        words = line.split()
        if words[:1] == [name] and words[1].isdigit():
            return int(words[1])
    return None


def content(path: str) -> str:
    try:
        with open(path, errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""
