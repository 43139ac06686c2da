"""Nodes that nothing but a jump host reaches: all in a network namespace without a way out."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cloudtrain.ssh.keys import create_identity
from tests.support.sshd import SSHD, SshdNode, free_place, sshd_nodes

_CONFIG = """\
HostKey {folder}/host_keys/jump
AuthorizedKeysFile {folder}/key.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UseDNS no
LogLevel ERROR
"""


@dataclass
class JumpHost:
    """An sshd that starts in the namespace of the nodes, for each connection to its port here."""

    place: tuple[str, int]
    folder: Path
    within: tuple[str, ...]
    logins: int = 0
    """Connections so far."""
    at_once: int = 0
    """The most that were there at the same time."""
    options: tuple[str, ...] = ()
    """Further options of its sshd."""
    _servers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def name(self) -> str:
        """As `network.ssh_proxy.jump` has it."""
        return f"{getpass.getuser()}@{self.place[0]}:{self.place[1]}"

    def serve(self, door: socket.socket) -> None:
        while True:
            try:
                visitor, _ = door.accept()
            except OSError:
                return
            assert SSHD is not None
            config = self.folder / "sshd_config"
            with visitor, self._lock:
                self.logins += 1
                self._servers.append(
                    subprocess.Popen(
                        [*self.within, SSHD, "-i", "-e", "-f", str(config), *self.options],
                        stdin=visitor.fileno(),
                        stdout=visitor.fileno(),
                        stderr=(self.folder / "sshd.log").open("ab"),
                    )
                )
                self.at_once = max(self.at_once, len(self.alive()))

    def alive(self) -> list[subprocess.Popen[bytes]]:
        return [server for server in self._servers if server.poll() is None]

    def cut(self) -> None:
        """End every connection at once."""
        with self._lock:
            for server in self.alive():
                server.send_signal(signal.SIGKILL)
                server.wait()


@dataclass
class Behind:
    nodes: list[SshdNode]
    jump: JumpHost
    within: tuple[str, ...]
    programs: Path
    """Folder with the user's `ssh`, which has the keys for the jump host."""


@contextlib.contextmanager
def behind_jump_host(folder: Path, names: Sequence[str]) -> Iterator[Behind]:
    """Nodes of one cluster behind a jump host, and a user with a key for it.

    The folder `programs` must come first in PATH: OpenSSH reads ~/.ssh of the account, whatever
    HOME says, so that `ssh` there is the real one with a config of its own.
    """
    if SSHD is None:
        pytest.skip("would show it against OpenSSH's sshd, which is not on this machine")
    with _namespace() as within, sshd_nodes(folder / "nodes", names, within=within) as nodes:
        place = free_place()
        own = folder / "jump"
        identity = create_identity(own, ["jump"])
        (own / "sshd_config").write_text(_CONFIG.format(folder=own))
        (own / "key.pub").write_text(f"{identity.public_key}\n")
        known = f"[{place[0]}]:{place[1]} {identity.host_keys['jump'].public}\n"
        (own / "known").write_text(known)
        jump = JumpHost(place=place, folder=own, within=within)
        programs = folder / "programs"
        programs.mkdir()
        users_ssh(programs, own)
        with socket.create_server(place) as door:
            threading.Thread(target=jump.serve, args=(door,), daemon=True).start()
            try:
                yield Behind(nodes=nodes, jump=jump, within=within, programs=programs)
            finally:
                with contextlib.suppress(OSError):
                    door.shutdown(socket.SHUT_RDWR)
                jump.cut()


def users_ssh(programs: Path, keys: Path) -> None:
    """Write an `ssh` as the user of these keys has it."""
    config = programs / "ssh_config"
    config.write_text(
        f"UserKnownHostsFile {keys}/known\nGlobalKnownHostsFile /dev/null\n"
        f"StrictHostKeyChecking yes\nIdentityFile {keys}/key\nIdentitiesOnly yes\n"
    )
    ssh = programs / "ssh"
    # What has a config of its own, as `cloudtrain ssh`, is passed on as it is.
    ssh.write_text(
        f'#!/bin/sh\ncase "$1" in -F) exec {shutil.which("ssh")} "$@" ;; esac\n'
        f'exec {shutil.which("ssh")} -F {config} "$@"\n'
    )
    ssh.chmod(0o755)


@contextlib.contextmanager
def _namespace() -> Iterator[tuple[str, ...]]:
    """A network namespace of its own; yields the words that run a program in it."""
    if os.geteuid() != 0 or not (shutil.which("unshare") and shutil.which("nsenter")):
        pytest.skip("would show it in a network namespace, which only root can make")
    line = "ip link set lo up && echo up && exec cat"
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", line],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        if holder.stdout.readline() != "up\n":
            pytest.skip("would show it in a network namespace, which this machine refuses")
        yield ("nsenter", f"--net=/proc/{holder.pid}/ns/net", "--")
    finally:
        holder.stdin.close()
        holder.wait()
        holder.stdout.close()
