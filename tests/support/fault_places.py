"""Places where faults come: local nodes, lent machines with OpenSSH, the stand-ins of clouds."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.standins.cloud import running
from tests.standins.nodes import Nodes
from tests.standins.stores import KINDS as STORES
from tests.standins.stores import Store
from tests.support.cloud_user import Account
from tests.support.lent import lent_home
from tests.support.processes import environment, pids, words
from tests.support.project import Project
from tests.support.sshd import SshdNode, _at_home, sshd_nodes

TASKS = ("chief0", "worker0")
DISK = "8g"
"""Of memory, if it were used."""
REBOOT = 3.0
"""Seconds until a lent machine whose power was cut answers again."""


class Place:
    """Local nodes; what is different elsewhere is in the subclasses."""

    kinds: frozenset[str] = frozenset(
        {"kill task", "kill watcher", "kill client", "kill node", "freeze task", "freeze server"}
        | {"freeze client", "cut"}
        | ({"full disk", "full store"} if os.geteuid() == 0 else set())
    )
    slow = 1.0

    def __init__(self, folder: Path) -> None:
        self.project = Project(folder / "project")
        self._mounts: list[Path] = []
        self._own_mount(self.project.folder / "disk")
        self.project.store = self.project.folder / "disk" / "store"
        self._own_mount(self.disk_top())

    def config(self, **sections: Any) -> Path:
        return self.project.config(**sections)

    def disk_top(self) -> Path:
        """Where all nodes have their files."""
        return self.project.home / "local"

    def disk(self, task: str) -> Path:
        """Where one node has its files."""
        return self.disk_top() / self.project.name / f"{self.project.name}-{task}"

    def processes(self, task: str) -> list[int]:
        """All of the node, its server and its task."""
        return tagged(rf"CLOUDTRAIN_NODE=.*/{self.project.name}-{task}")

    def server(self, task: str) -> list[int]:
        """The node's server and its sessions, not its task."""
        return [pid for pid in self.processes(task) if pid not in task_processes(self, task)]

    def kill_node(self, task: str) -> int:
        return send(self.processes(task), signal.SIGKILL)

    def cut(self, task: str, seconds: float) -> int:
        silent = self.processes(task)
        count = send(silent, signal.SIGSTOP)
        time.sleep(seconds)
        send(silent, signal.SIGCONT)
        return count

    def fill(self, what: str) -> int:
        top = self.disk_top() if what == "full disk" else self.project.folder / "disk"
        for _ in range(50):  # more may be written in between
            used = os.statvfs(top)
            blocks = used.f_blocks - used.f_bfree
            if _resize(top, str(max(1, blocks) * used.f_frsize)):
                return 1
        return 0

    def free(self) -> None:
        """What was full has space again."""
        for top in self._mounts:
            _resize(top, DISK)

    def left(self) -> list[str]:
        """What `down` should have deleted."""
        found = [f"process {pid}: {words}" for pid, words in self.project.processes().items()]
        found += [str(path) for path in self.disk_top().glob("*") if path.is_dir()]
        for path in self.project.home.glob("clusters/**/*"):
            if path.is_file() and b"PRIVATE KEY" in path.read_bytes():
                found.append(f"key {path}")
        files = {_inode(path) for path in self.project.home.rglob("*") if path.is_file()}
        locks = Path("/proc/locks").read_text().splitlines()
        found += [f"lock {one}" for one in locks if one.split()[-3] in files]
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        ours = {str(path).replace(" ", "\\040") for path in self._mounts}
        top = str(self.project.folder).replace(" ", "\\040")
        return found + [
            f"mount {each}" for each in mounts if each.startswith(top) and each not in ours
        ]

    def close(self) -> None:
        for task in TASKS:
            send(self.processes(task), signal.SIGCONT)
        self.free()
        self.project.end()
        for path in self._mounts:
            subprocess.run(["umount", "-l", str(path)], check=False)

    def _own_mount(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            options = ["-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(path)]
            subprocess.run(["mount", *options], check=True)
            self._mounts.append(path)


class Lent(Place):
    """`hosts` with OpenSSH."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._machines_at = folder / "machines"
        super().__init__(folder)
        machines = stack.enter_context(sshd_nodes(self._machines_at, TASKS))
        self.machines = dict(zip(TASKS, machines, strict=True))
        self.project.environment["HOME"] = str(lent_home(folder / "home", machines))

    def config(self, **sections: Any) -> Path:
        hosts = [
            {
                "address": machine.node.address,
                "port": machine.node.ssh_port,
                "user": machine.node.user,
                "role": task.rstrip("0"),
            }
            for task, machine in self.machines.items()
        ]
        path = self.project.config(provider="hosts", hosts=hosts, **sections)
        values = yaml.safe_load(path.read_text())
        del values["nodes"]
        path.write_text(yaml.safe_dump(values))
        return path

    def disk_top(self) -> Path:
        return self._machines_at

    def disk(self, task: str) -> Path:
        return self.machines[task].home

    def processes(self, task: str) -> list[int]:
        machine = self.machines[task]
        return sorted({*machine.processes(), *_at_home(machine.home)})

    def kill_node(self, task: str) -> int:
        """Its power is cut; it boots again."""
        count = len(self.processes(task))
        self.machines[task].stop()
        time.sleep(REBOOT)
        self.machines[task].start()
        return count

    def cut(self, task: str, seconds: float) -> int:
        """No connection, old or new; what runs there goes on."""
        machine = self.machines[task]
        found = machine.processes()
        tasks = task_processes(self, task)
        send([pid for pid in found if pid not in tasks], signal.SIGKILL)
        time.sleep(seconds)
        machine.start()
        return len(found)

    def left(self) -> list[str]:
        found = [one for one in super().left() if str(self._machines_at) not in one]
        for machine in self.machines.values():
            listed = set(_at_home(machine.home)) - set(machine.processes())
            found += [f"process {pid}: {' '.join(words(pid))}" for pid in listed]
            found += self._on(machine)
        return found

    def _on(self, machine: SshdNode) -> list[str]:
        keys = machine.home / ".ssh" / "authorized_keys"
        found = keys.read_text().splitlines() if keys.exists() else []
        folder = machine.home / ".cloudtrain" / self.project.name
        return found + ([str(folder)] if folder.exists() else [])


class Rented(Place):
    """The stand-in of a cloud with booted nodes, and a store that they reach."""

    kinds = frozenset(
        {"kill task", "kill watcher", "kill agent", "kill client", "kill node", "freeze task"}
        | {"freeze server", "freeze client", "cut"}
    )
    slow = 6.0

    def __init__(self, folder: Path, name: str, stack: contextlib.ExitStack) -> None:
        self.project = Project(folder / "project")
        self._mounts = []
        nodes = stack.enter_context(Nodes())
        cloud = stack.enter_context(running(name, nodes=nodes))
        self.store: Store = stack.enter_context(STORES["gs" if name == "aws" else "s3"]())
        self.project.environment.update({**cloud.environment, **self.store.environment})
        self.account = Account(self.project, cloud, nodes)

    def config(self, **sections: Any) -> Path:
        uri = f"{self.store.uri}/{self.project.name}"
        return self.account.config(artifacts={"store": uri}, **sections)

    def disk_top(self) -> Path:
        return self.account.nodes.disks()

    def disk(self, task: str) -> Path:
        return self.account.nodes._nodes[self._name(task)].folder / "upper"

    def processes(self, task: str) -> list[int]:
        try:
            return self.account.nodes.pids(self._name(task))
        except (KeyError, OSError, ValueError):
            return []  # not there yet, or no longer

    def kill_node(self, task: str) -> int:
        """Its power is cut, and its cloud lists it as stopped."""
        count = len(self.processes(task))
        if count:
            self.account.nodes.halt(self._name(task))
            self.account.cloud.app.shut_down(self._name(task))
        return count

    def left(self) -> list[str]:
        self.account.cloud.quiet()
        return [*super().left(), *self.account.cloud.holdings(), *self.account.nodes.running()]

    def free(self) -> None:
        return

    def close(self) -> None:
        for task in TASKS:
            send(self.processes(task), signal.SIGCONT)
        self.project.end()

    def _name(self, task: str) -> str:
        return f"{self.project.name}-{task}"


@contextlib.contextmanager
def place(where: str, folder: Path) -> Iterator[Place]:
    """`where`: local, hosts, gcp, aws or azure."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.ExitStack() as stack:
        if where == "local":
            made = Place(folder)
        elif where == "hosts":
            made = Lent(folder, stack)
        else:
            made = Rented(folder, where, stack)
        stack.callback(made.close)
        yield made


def _resize(mount: Path, size: str) -> bool:
    done = subprocess.run(
        ["mount", "-o", f"remount,size={size}", str(mount)], capture_output=True, check=False
    )
    return done.returncode == 0


# ── Processes ────────────────────────────────────────────────────────────────


def task_processes(place: Place, task: str) -> list[int]:
    """The user's own and their children, of any attempt."""
    found = tagged(rf"CLOUDTRAIN_TASK={place.project.name}/[^/]+/{task}/.*")
    return [pid for pid in found if pid not in watchers(place, task)]


def tagged(pattern: str) -> list[int]:
    """Processes with a variable that matches the whole pattern."""
    wanted = re.compile(pattern.encode())
    return [pid for pid in pids() if any(map(wanted.fullmatch, environment(pid)))]


def watchers(place: Place, task: str) -> list[int]:
    """The process that records the task's end, by what the task's lock says."""
    numbers = set()
    for folder in _in_task_folders(place, task):
        try:
            fields = str((folder / "task").readlink()).split(":")
        except OSError:
            continue  # it has not begun
        if len(fields) > 3:
            numbers.add(fields[3])
    return [pid for pid in place.processes(task) if _own_number(pid) in numbers]


def agents(place: Place, task: str) -> list[int]:
    """Whoever holds the lock of the task's agent."""
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    found = []
    for file in _in_task_folders(place, task, "keeping"):
        inode = str(file.stat().st_ino)  # a node's own file system has another device
        found += [int(one[-4]) for one in locks if one[-3].split(":")[-1] == inode]
    return sorted({*found} & {*place.processes(task)})  # and what the same number is elsewhere


def _in_task_folders(place: Place, task: str, name: str = "attempt-*") -> list[Path]:
    """In the home of the node's user, which each place has elsewhere."""
    try:
        below = f".cloudtrain/{place.project.name}/runs/*/{task}/{name}"
        tops = ("", "home/", "home/*/", "root/")
        return [path for top in tops for path in place.disk(task).glob(top + below)]
    except (KeyError, OSError):
        return []


def _inode(path: Path) -> str:
    """As /proc/locks has it."""
    stat = path.stat()
    return f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"


def _own_number(pid: int) -> str:
    """Its number in its own namespace."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return line.split()[-1]
    return ""


def send(processes: Sequence[int], number: signal.Signals) -> int:
    count = 0
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            count += 1
    return count
