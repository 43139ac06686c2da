"""Real OpenSSH servers as ordinary processes: each its own address, port, host key and home."""

from __future__ import annotations

import contextlib
import getpass
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cloudtrain.core.model import Identity, Node
from cloudtrain.ssh.keys import create_identity, write_known_hosts
from tests.support.ports import free_ports
from tests.support.processes import environment, pids

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")

_CONFIG = """\
ListenAddress {address}:{port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys {home}/.ssh/authorized_keys
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxStartups 500
UseDNS no
PrintMotd no
PrintLastLog no
LogLevel ERROR
Subsystem sftp {sftp}
SetEnv "HOME={home}"
ForceCommand cd "$HOME" && exec /bin/sh -c "${{SSH_ORIGINAL_COMMAND:-exec /bin/sh -l}}"
"""


@dataclass
class SshdNode:
    """A node with its server; `stop` and `start` keep address, keys and home."""

    node: Node
    identity: Identity
    home: Path
    folder: Path
    within: tuple[str, ...] = ()
    """Words that run a program where the node is, if that is not here."""
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self, *options: str) -> None:
        assert SSHD is not None
        self._process = subprocess.Popen(
            [*self.within, SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config"), *options],
            stdin=subprocess.DEVNULL,
            stderr=(self.folder / "sshd.log").open("ab"),
        )

    def await_start(self) -> None:
        def answers() -> bool:
            assert self._process is not None
            if self._process.poll() is not None:
                raise AssertionError((self.folder / "sshd.log").read_text())
            return _is_open(self.within, self.place)

        eventually(answers)

    @property
    def place(self) -> tuple[str, int]:
        return self.node.address, self.node.ssh_port

    @property
    def runs(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def processes(self) -> list[int]:
        """The server's own processes and those of its sessions, parents first."""
        return [] if self._process is None else _tree(self._process.pid)

    def kill_sessions(self) -> None:
        """Like a crash of everything but the listening server."""
        for process in self.processes()[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGSTOP)  # no new session while we look
        for process in [*self.processes(), *_at_home(self.home)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait()
        self._process = None


@contextlib.contextmanager
def sshd_node(folder: Path, *, name: str = "test-chief0") -> Iterator[SshdNode]:
    with sshd_nodes(folder, [name]) as nodes:
        yield nodes[0]


@contextlib.contextmanager
def sshd_nodes(
    folder: Path,
    names: Sequence[str],
    *,
    within: tuple[str, ...] = (),
    home: Path | None = None,
) -> Iterator[list[SshdNode]]:
    """Nodes of one cluster with one identity, all answering; gone with all children at the end.
    `within`: words that run a program where they are. `home`: one that all of them share."""
    if SSHD is None:
        pytest.skip("would show it against OpenSSH's sshd, which is not on this machine")
    with contextlib.suppress(OSError):
        Path("/run/sshd").mkdir()  # sshd as root wants it
    identity = create_identity(folder / "identity", names)
    nodes = [_make(folder / name, name, identity, within, home) for name in names]
    write_known_hosts(identity, [each.node for each in nodes])
    try:
        for each in nodes:
            each.start()
        for each in nodes:
            each.await_start()
        yield nodes
    finally:
        for each in nodes:
            each.stop()


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
        time.sleep(0.01)


def free_place() -> tuple[str, int]:
    """An address in 127.0.0.0/8 that nothing else has, and a port that is free on all of them."""
    address = f"127.{random.randint(1, 250)}.{random.randint(1, 250)}.{random.randint(1, 250)}"
    return address, free_ports(1)


def _is_open(within: tuple[str, ...], place: tuple[str, int]) -> bool:
    if not within:
        with contextlib.suppress(OSError), socket.create_connection(place, 1):
            return True
        return False
    line = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1)"
    words = [*within, sys.executable, "-c", line, place[0], str(place[1])]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def _make(
    folder: Path, name: str, identity: Identity, within: tuple[str, ...], home: Path | None
) -> SshdNode:
    folder.mkdir(parents=True)
    home = home or folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    address, port = free_place()
    host_key = folder / "host_key"
    host_key.touch(mode=0o600)
    host_key.write_text(identity.host_keys[name].private.reveal())
    (folder / "authorized_keys").write_text(f"{identity.public_key}\n")
    (folder / "sshd_config").write_text(
        _CONFIG.format(address=address, port=port, folder=folder, home=home, sftp=_sftp_server())
    )
    node = Node(
        name=name,
        role="chief",
        index=0,
        state="running",
        address=address,
        internal=address,
        ssh_port=port,
        user=getpass.getuser(),
    )
    return SshdNode(node=node, identity=identity, home=home, folder=folder, within=within)


def _sftp_server() -> Path:
    """A program, as ForceCommand runs subsystems too; distributions put it in different places."""
    places = (Path("/usr/lib/openssh"), Path("/usr/libexec/openssh"), Path("/usr/lib/ssh"))
    return next((p / "sftp-server" for p in places if (p / "sftp-server").exists()), places[0])


def children_of_all() -> dict[int, list[int]]:
    """By parent, from one look at /proc."""
    children: dict[int, list[int]] = {}
    for process in pids():
        with contextlib.suppress(OSError):
            after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(after_name[1]), []).append(process)
    return children


def _at_home(home: Path) -> list[int]:
    """Processes that a session has started, also those that have outlived it."""
    return [pid for pid in pids() if f"HOME={home}".encode() in environment(pid)]


def _tree(root: int) -> list[int]:
    children = children_of_all()
    found = [root]
    for process in found:
        found.extend(children.get(process, []))
    return found
