"""SSH to a machine as its user: their key, ssh config and known_hosts."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain import proxy_process
from cloudtrain.errors import CredentialsError, HostKeyMismatch, NodeError, NodeUnreachable
from cloudtrain.model import Host, SshProxy
from cloudtrain.shell import script
from cloudtrain.ssh_proxy import PLACEHOLDERS, ProxyFailed, anywhere
from cloudtrain.wait_limits import HOST_ANSWER

if TYPE_CHECKING:
    import paramiko

# Without a handler Python prints what paramiko's thread logs of a connection that breaks, with its
# traceback: the error reaches the user as ours, once.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

SECONDS = 15.0
"""Timeout of each step of a login."""


@dataclass(frozen=True, kw_only=True)
class HostAddress:
    """Address and login of a host, completed from ~/.ssh/config."""

    address: str
    port: int
    user: str
    keys: tuple[str, ...]
    """Paths of private keys; if empty, the agent's keys and the default files are used."""
    known_hosts: tuple[Path, ...]


def address_of(host: Host) -> HostAddress:
    """Address and login of a host. Raises CredentialsError for one behind a jump host of
    ~/.ssh/config, as the other nodes must reach it by that name, too.
    """
    import paramiko

    home = Path.home()
    options: dict[str, object] = {}
    if (home / ".ssh" / "config").is_file():
        config = paramiko.SSHConfig.from_path(str(home / ".ssh" / "config"))
        options = dict(config.lookup(host.address))
    if options.get("proxyjump") or options.get("proxycommand"):
        raise CredentialsError(
            f"{host.address}: ~/.ssh/config connects to it through another machine",
            hint="use the address by which the other hosts reach it, and for this machine "
            "`network.ssh_proxy: {jump: …}`",
        )
    identities = options.get("identityfile")
    named = [host.key] if host.key else list(identities if isinstance(identities, list) else ())
    return HostAddress(
        address=str(options.get("hostname", host.address)),
        port=host.port if host.port != 22 else int(str(options.get("port", 22))),
        user=host.user or str(options.get("user") or os.environ.get("USER") or "root"),
        keys=tuple(str(Path(key).expanduser()) for key in named),
        known_hosts=(home / ".ssh" / "known_hosts", Path("/etc/ssh/ssh_known_hosts")),
    )


@dataclass(frozen=True, kw_only=True)
class UserSsh:
    """Open SSH session. `host_keys` are the machine's keys in known_hosts."""

    name: str
    way: HostAddress
    client: paramiko.SSHClient
    host_keys: tuple[str, ...]

    def run(self, text: str, *arguments: str, stdin: bytes = b"") -> str:
        """Run an sh script and return its stdout. Raises NodeError with its last line of stderr, or
        for an answer over 1 MB; NodeUnreachable if there is none within a minute.
        """
        line = script(text, *arguments).shell()
        sent, out, err = self.client.exec_command(line, timeout=HOST_ANSWER)
        channel = sent.channel
        limit = threading.Timer(HOST_ANSWER, _close, [channel])
        limit.daemon = True
        limit.start()
        try:
            if stdin:
                sent.write(stdin)
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
        if code == -1:
            raise NodeUnreachable(
                self.name,
                f"{_place(self.way)} ended the session unanswered",
                hint="run it again; if it fails again, log in there and find what ends the session",
            )
        if code != 0:
            last = words.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"exit {code}"]
            raise NodeError(self.name, f"{self.way.address}: {last[0]}")
        return bytes(output).decode("utf-8", "replace")


def _close(channel: paramiko.Channel) -> None:
    """Close a channel, whose connection may be lost. In a timer's thread an error would be printed
    with its traceback.
    """
    import paramiko

    with suppress(paramiko.SSHException, EOFError, OSError):
        channel.close()


MOST = 1 << 20
"""Maximum bytes of an answer."""


@contextmanager
def open_session(name: str, host: Host, proxy: SshProxy | None = None) -> Iterator[UserSsh]:
    """Open a session. Raises HostKeyMismatch for a machine that known_hosts does not list,
    CredentialsError if it accepts no key, NodeUnreachable. `proxy`: what it goes through.
    """
    import paramiko

    way = address_of(host)
    with paramiko.SSHClient() as client:
        for path in way.known_hosts:
            if path.is_file():
                client.load_system_host_keys(str(path))
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        known = _known(client, way)
        if not known:
            raise HostKeyMismatch(
                name,
                f"the host key of {way.address} is not in your known_hosts",
                hint=f"run `ssh -p {way.port} {way.user}@{way.address}` once and check the "
                "fingerprint",
            )
        _connect(client, name, way, proxy_command(way, proxy))
        try:
            yield UserSsh(name=name, way=way, client=client, host_keys=known)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise NodeUnreachable(name, f"lost the connection to {_place(way)}: {error}") from error


def proxy_command(way: HostAddress, proxy: SshProxy | None) -> tuple[str, ...]:
    """Return the command that connects to the host through `network.ssh_proxy`; () for none."""
    values = dict.fromkeys(PLACEHOLDERS, "") | {"address": way.address, "port": str(way.port)}
    return anywhere(proxy, values) if proxy is not None else ()


def _connect(
    client: paramiko.SSHClient, name: str, way: HostAddress, proxy: tuple[str, ...] = ()
) -> None:
    import paramiko

    try:
        through = proxy_process.connect(proxy) if proxy else None
    except ProxyFailed as error:
        unreachable = NodeUnreachable(name, error.text, hint=error.hint)
        raise unreachable.copy_with(lasting=error.lasting) from error
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
        )
    except paramiko.BadHostKeyException as error:
        raise HostKeyMismatch(
            name,
            f"the host key of {way.address} does not match your known_hosts",
            hint="this may be an attack; if the key was changed, run `ssh-keygen -R`",
        ) from error
    except (paramiko.AuthenticationException, paramiko.PasswordRequiredException) as error:
        if (transport := client.get_transport()) is None or not transport.is_active():
            # No answer to the login at all: https://github.com/paramiko/paramiko,
            # auth_handler.py, wait_for_response, makes an AuthenticationException of it (read).
            raise NodeUnreachable(
                name,
                f"{_place(way)} closed the connection at the login",
                hint="the machine may be restarting; a server also closes it after too many keys: "
                "set `key` in `hosts` if your ssh-agent has many",
            ) from error
        raise CredentialsError(
            f"{name}: {_place(way)} accepts none of your keys: {error}",
            hint="set `user` and `key` in `hosts`; load a key with a passphrase into ssh-agent",
        ) from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise NodeUnreachable(name, f"no answer from {_place(way)}: {error}") from error


def _place(way: HostAddress) -> str:
    return f"{way.user}@{way.address}:{way.port}"


def _known(client: paramiko.SSHClient, way: HostAddress) -> tuple[str, ...]:
    name = way.address if way.port == 22 else f"[{way.address}]:{way.port}"
    keys = client._system_host_keys.lookup(name) or {}  # type: ignore[attr-defined]
    return tuple(f"{kind} {key.get_base64()}" for kind, key in sorted(keys.items()))
