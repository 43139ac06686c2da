"""SSH to a machine as its user: their key, known_hosts and ~/.ssh/config."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from pathlib import Path

import paramiko

from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CredentialsError, HostKeyMismatch, NodeError, NodeUnreachable
from cloudtrain.core.model import PROXY_PLACEHOLDERS, Host, SshProxy
from cloudtrain.core.retry import HOST_ANSWER, Retry
from cloudtrain.core.shell import AnswerMark, script
from cloudtrain.core.task_id import TaskId
from cloudtrain.ssh import sockets
from cloudtrain.ssh.ssh_proxy import ProxyFailed, anywhere, in_words, jump_command

# Without a handler Python prints what paramiko's thread logs of a connection that breaks, with its
# traceback: the error reaches the user as ours, once.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

_OF_ALL = Path("/etc/ssh/ssh_known_hosts")
SECONDS = 15.0
"""Timeout of each step of a login."""


@dataclass(frozen=True, kw_only=True)
class HostSlot(TaskId):
    """One node's slot on a machine; several slots may share a machine."""

    name: str
    host: Host
    proxy: SshProxy | None = None
    """What SSH goes through."""

    @property
    def machine(self) -> tuple[str, int, str | None]:
        """The same for the slots of one user on one machine."""
        return self.host.address, self.host.port, self.host.user

    def session(self) -> AbstractContextManager[UserSsh]:
        """Open a session; raises what `open_session` raises."""
        return open_session(self.name, self.host, self.proxy)


@dataclass(frozen=True, kw_only=True)
class HostAddress:
    """Address and login of a host, completed from ~/.ssh/config."""

    address: str
    port: int
    user: str
    keys: tuple[str, ...]
    """Paths of private keys; if empty, the agent's keys and the default files are used."""
    known_hosts: tuple[Path, ...]
    through: tuple[str, ...] = ()
    """Command that connects to it, for ProxyJump or ProxyCommand of ~/.ssh/config."""


def address_of(host: Host) -> HostAddress:
    """Address and login of a host, whose `address` may be an alias in ~/.ssh/config."""
    options, ssh = options_of(host.address), Path.home() / ".ssh"

    def option(name: str, default: str) -> str:
        return options.get(name, (default,))[0]

    address = option("hostname", host.address)
    port = host.port if host.port != 22 else int(option("port", "22"))
    user = host.user or option("user", os.environ.get("USER") or "root")
    through: tuple[str, ...] = ()
    if jump := option("proxyjump", ""):
        through = jump_command(jump, address, port)
    elif own := option("proxycommand", ""):
        values = {"h": address, "p": str(port), "r": user, "n": host.address, "%": "%"}
        own = re.sub("%([hprn%])", lambda found: values[found[1]], own)
        through = ("/bin/sh", "-c", f"exec {own}")
    named = (host.key,) if host.key else options.get("identityfile", ())
    listed = option("userknownhostsfile", str(ssh / "known_hosts")).split()
    return HostAddress(
        address=address,
        port=port,
        user=user,
        keys=tuple(str(Path(key).expanduser()) for key in named),
        known_hosts=(*(Path(file).expanduser() for file in listed), _OF_ALL),
        through=through,
    )


@dataclass(frozen=True, kw_only=True)
class UserSsh:
    """Open SSH session. `host_keys` are the machine's keys in known_hosts."""

    name: str
    way: HostAddress
    client: paramiko.SSHClient
    host_keys: tuple[str, ...]

    def run(self, text: str, *arguments: str) -> str:
        """Run an sh script and return its stdout. Raises NodeError with its last line of stderr, or
        for an answer over 1 MB; NodeUnreachable if there is none within a minute."""
        mark = AnswerMark()
        channel = self._session()
        channel.settimeout(HOST_ANSWER)
        channel.exec_command(mark.before(script(text, *arguments)).shell())
        out, err = channel.makefile("rb"), channel.makefile_stderr("rb")
        limit = threading.Timer(HOST_ANSWER, _close, [channel])
        limit.daemon = True
        limit.start()
        try:
            channel.shutdown_write()
            output = out.read(MOST + 1)
            words = err.read(MOST + 1) if len(output) <= MOST else b""  # else it has no end
            if max(len(output), len(words)) > MOST:
                _close(channel)
                raise NodeError(
                    self.name,
                    f"{self.way.address}: its answer exceeds {MOST >> 20} MB",
                    hint="log in there: has the shell or one of its tools been replaced?",
                )
            code = channel.recv_exit_status()
        finally:
            limit.cancel()
            _close(channel)  # a server may allow one session at a time (MaxSessions)
        if code == -1:
            raise NodeUnreachable(
                self.name,
                f"{_place(self.way)} ended the session unanswered",
                hint="run it again; if it fails again, log in there and find what ends the session",
            )
        output, words = mark.strip(output), mark.strip(words)
        if code != 0:
            last = words.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"exit {code}"]
            raise NodeError(self.name, f"{self.way.address}: {last[0]}")
        return bytes(output).decode("utf-8", "replace")

    def _session(self) -> paramiko.Channel:
        transport = self.client.get_transport()
        assert transport is not None  # as it is logged in
        try:
            return ENDING.call(transport.open_session, on=paramiko.ChannelException)
        except paramiko.ChannelException as error:
            raise NodeError(
                self.name,
                f"{_place(self.way)} opens no session: {error.text}",
                hint="its sshd may allow none (`MaxSessions`), or only file transfer",
            ) from error


ENDING = Retry(pause=0.05, backoff=2.0, tries=6)
"""Until the server has ended an earlier session."""


def _close(channel: paramiko.Channel) -> None:
    """Close a channel, whose connection may be lost. In a timer's thread an error would be printed
    with its traceback."""
    with suppress(paramiko.SSHException, EOFError, OSError):
        channel.close()


MOST = 1 << 20
"""Maximum bytes of an answer."""


@contextmanager
def open_session(name: str, host: Host, proxy: SshProxy | None = None) -> Iterator[UserSsh]:
    """Open a session. Raises HostKeyMismatch for a machine that known_hosts does not list,
    CredentialsError if it accepts no key, NodeUnreachable. `proxy`: what it goes through."""
    way = address_of(host)
    with paramiko.SSHClient() as client:
        for path in way.known_hosts:
            if path.is_file():
                client.load_system_host_keys(str(path))
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        listed = way.address if way.port == 22 else f"[{way.address}]:{way.port}"
        keys = client._system_host_keys.lookup(listed) or {}  # type: ignore[attr-defined]
        if not keys:
            raise HostKeyMismatch(
                name,
                f"the host key of {way.address} is not in your known_hosts",
                hint=f"run `ssh -p {way.port} {way.user}@{way.address}` once and check the "
                "fingerprint",
            )
        _connect(client, name, way, proxy_command(way, proxy))
        known = tuple(f"{kind} {key.get_base64()}" for kind, key in sorted(keys.items()))
        try:
            yield UserSsh(name=name, way=way, client=client, host_keys=known)
        except (paramiko.SSHException, OSError, EOFError) as error:
            what = f"lost the connection to {_place(way)}: {in_words(error)}"
            raise NodeUnreachable(name, what) from error


def proxy_command(way: HostAddress, proxy: SshProxy | None) -> tuple[str, ...]:
    """The command that connects to it, by `network.ssh_proxy` or ~/.ssh/config; or ()."""
    values = dict.fromkeys(PROXY_PLACEHOLDERS, "") | {"address": way.address, "port": str(way.port)}
    return anywhere(proxy, values) if proxy is not None else way.through


def _connect(
    client: paramiko.SSHClient, name: str, way: HostAddress, proxy: tuple[str, ...] = ()
) -> None:
    if way.keys:
        client._agent = NamedKeys(way.keys)  # type: ignore[attr-defined]  # else all that it has
    through = _through(name, proxy)
    try:
        client.connect(
            way.address,
            way.port,
            way.user,
            key_filename=list(way.keys) or None,  # type: ignore[arg-type]  # it takes several
            look_for_keys=not way.keys,
            timeout=SECONDS,
            banner_timeout=SECONDS,
            auth_timeout=SECONDS,
            sock=through,  # type: ignore[arg-type]  # what it calls of a socket
            transport_factory=UserTransport,  # type: ignore[arg-type]  # its arguments have defaults
        )
    except paramiko.BadHostKeyException as error:
        raise HostKeyMismatch(
            name,
            f"the host key of {way.address} does not match your known_hosts",
            hint="this may be an attack; if the key was changed, run `ssh-keygen -R`",
        ) from error
    except (paramiko.AuthenticationException, paramiko.PasswordRequiredException) as error:
        _raise_too_many_keys(client, name, way, error)
        if (transport := client.get_transport()) is None or not transport.is_active():
            # No answer to the login at all: https://github.com/paramiko/paramiko,
            # auth_handler.py, wait_for_response, makes an AuthenticationException of it (read).
            raise NodeUnreachable(
                name,
                f"{_place(way)} closed the connection at the login",
                hint="the machine may be restarting",
            ) from error
        raise CredentialsError(
            f"{_place(way)} accepts none of your keys: {error}",
            what=name,
            hint="set `user` and `key` in `hosts`; load a key with a passphrase into ssh-agent",
        ) from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        _raise_too_many_keys(client, name, way, error)
        raise NodeUnreachable(name, f"no answer from {_place(way)}: {in_words(error)}") from error


def _through(name: str, proxy: tuple[str, ...]) -> object:
    """The pipes of the command, in a socket's place; None without one."""
    try:
        return sockets.connect(proxy) if proxy else None
    except ProxyFailed as error:
        unreachable = NodeUnreachable(name, error.text, hint=error.hint)
        raise unreachable.copy_with(lasting=error.lasting) from error


def _raise_too_many_keys(
    client: paramiko.SSHClient, name: str, way: HostAddress, error: Exception
) -> None:
    """Raise CredentialsError if that is why the server has ended the login."""
    words = getattr(client.get_transport(), "farewell", "")
    if "authentication failures" not in words:
        return
    raise CredentialsError(
        f"{_place(way)} ended the login before it was offered the right key: {words}",
        what=name,
        hint="your ssh-agent has more keys than the server lets one try (`MaxAuthTries`): set "
        "`key` in `hosts` to the file of the one that opens it",
    ) from error


def _place(way: HostAddress) -> str:
    return f"{way.user}@{way.address}:{way.port}"


def options_of(address: str) -> Mapping[str, tuple[str, ...]]:
    """Options that the file sets for this address, by their names in lower case.

    OpenSSH itself is asked (`ssh -G`, https://man.openbsd.org/ssh#G), as it reads Include and Match
    too; without it, paramiko, which does not."""
    config = Path.home() / ".ssh" / "config"
    try:
        changed = config.stat().st_mtime_ns
    except OSError:
        return {}
    return _options(address, config, changed)


@cache
def _options(address: str, config: Path, changed: int) -> Mapping[str, tuple[str, ...]]:
    said, usual = _asked(address, str(config)), _asked(address, "none")
    if said is None or usual is None:
        found = paramiko.SSHConfig.from_path(str(config)).lookup(address)
        return {
            name: tuple(value) if isinstance(value, list) else (str(value),)
            for name, value in found.items()
            if value != "none"
        }
    options: dict[str, tuple[str, ...]] = {}
    for line in said:
        name, _, value = line.partition(" ")
        if line not in usual and value != "none":
            options[name] = (*options.get(name, ()), value)
    return options


def _asked(address: str, config: str) -> list[str] | None:
    ssh = shutil.which("ssh")
    if ssh is None or address.startswith("-"):
        return None
    try:
        asked = subprocess.run(
            [ssh, "-F", config, "-G", "--", address],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=10.0,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return asked.stdout.splitlines()


# Parts of a login that paramiko lacks: the named keys of ssh-agent, the server's last words


class NamedKeys:
    """The agent's keys that belong to the named files, by their public halves beside them; all of
    its keys if no public half is there.

    Each key that a server refuses counts, so that others must not come first; and a file with a
    passphrase is of use only by the agent."""

    def __init__(self, files: Sequence[str]) -> None:
        self._agent = paramiko.Agent()
        self._public: set[str] = set()
        for file in map(Path, files):
            with suppress(OSError, ValueError):
                half = file.with_name(f"{file.name.removesuffix('.pub')}.pub")
                self._public |= {*half.read_text().split()[1:2]}

    def get_keys(self) -> tuple[paramiko.AgentKey, ...]:
        keys = self._agent.get_keys()
        named = tuple(key for key in keys if key.get_base64() in self._public)
        return named if self._public else keys

    def close(self) -> None:
        self._agent.close()


class UserTransport(paramiko.Transport):
    """paramiko's, which also keeps why the server ended the connection."""

    farewell = ""
    """The server's words, such as "Too many authentication failures"; paramiko only logs them."""

    def _parse_disconnect(self, message: paramiko.Message) -> None:
        message.get_int()
        self.farewell = message.get_text()
