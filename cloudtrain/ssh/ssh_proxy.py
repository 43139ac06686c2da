"""Commands whose stdin and stdout are a connection to a node's SSH port (OpenSSH's ProxyCommand).

They are lists of words: no shell takes part, so that no value has to be quoted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cloudtrain.core.shell import PLACEHOLDER

if TYPE_CHECKING:
    from cloudtrain.core.model import SshProxy

JUMP_OPTIONS = (
    # No prompt: connections to many nodes are opened side by side, without a terminal.
    *("-o", "BatchMode=yes"),
    *("-o", "ConnectTimeout=15"),
    # A dead jump host ends the connection, which TCP alone does not notice.
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
    *("-a", "-x"),  # neither the agent nor a display is forwarded to the jump host
)


def jump_command(jump: str, address: str, port: int) -> tuple[str, ...]:
    """`ssh -W` through the jump hosts, by the user's own OpenSSH config and agent. ProxyJump would
    pass on the config file in which it stands (`-F`), and so hide the user's own:
    https://github.com/openssh/openssh-portable/blob/V_9_2_P1/ssh.c#L1301 (read)."""
    *before, last = jump.split(",")
    user, _, target = last.rpartition("@")
    host, colon, given = target.rpartition(":")
    if not colon or given.endswith("]"):
        host, given = target, ""
    argv = ["ssh", *JUMP_OPTIONS]
    argv += ["-J", ",".join(before)] if before else []
    argv += ["-l", user] if user else []
    argv += ["-p", given] if given else []
    return (*argv, "-W", f"[{address}]:{port}", "--", host.strip("[]"))


def own_command(template: str, values: Mapping[str, str]) -> tuple[str, ...]:
    """The words of the user's command, with placeholders filled in each word by itself."""
    return tuple(
        PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), word)
        for word in shlex.split(template)
    )


def anywhere(proxy: SshProxy, values: Mapping[str, str]) -> tuple[str, ...]:
    """The command of `jump` or `command`; () for a cloud's own service. `values`: of each name in
    `core/model.PROXY_PLACEHOLDERS`."""
    if proxy.jump:
        return jump_command(proxy.jump, values["address"], int(values["port"]))
    return own_command(proxy.command, values) if proxy.command else ()


class ProxyFailed(Exception):
    """A command gave no connection. `lasting`: it will not without somebody's help."""

    def __init__(self, text: str, *, hint: str | None = None, lasting: bool = False) -> None:
        super().__init__(text)
        self.text, self.hint, self.lasting = text, hint, lasting


def program_of(argv: Sequence[str]) -> str:
    """Name of the program and what it was asked to do, such as `gcloud compute start-iap-tunnel`. A
    wrapper of ours is passed over: the words after its `--` count."""
    argv = argv[argv.index("--") + 1 :] if "--" in argv and argv[0] != "ssh" else argv
    named = [argv[0].rpartition("/")[2]]
    for word in argv[1:]:
        if not re.fullmatch(r"[a-z][a-z-]*", word):
            break
        named.append(word)
    return " ".join(named)


def not_started(argv: Sequence[str], error: OSError) -> ProxyFailed:
    name = argv[0]
    if isinstance(error, FileNotFoundError):
        return ProxyFailed(f"{name}: command not found", hint=where_to_get(name), lasting=True)
    return ProxyFailed(f"{name} cannot be started: {error.strerror or error}", lasting=True)


def where_to_get(program: str) -> str:
    from cloudtrain.core.cloud import clouds  # slow to import

    for cloud in clouds():
        if cloud.ssh_proxy is not None and program in cloud.ssh_proxy.programs:
            return cloud.ssh_proxy.programs[program]
    return "install the OpenSSH client" if program == "ssh" else f"install {program}"


def described(text: str, written: str) -> ProxyFailed:
    """The failure, with the hint for what the program has written to stderr."""
    from cloudtrain.core.cloud import clouds

    proxies = [cloud.ssh_proxy for cloud in clouds() if cloud.ssh_proxy is not None]
    of_clouds = [(each.written, each.hint, each.lasting) for own in proxies for each in own.faults]
    for pattern, hint, lasting in (*of_clouds, *_OF_SSH):
        if re.search(pattern, written, re.IGNORECASE):
            return ProxyFailed(text, hint=hint, lasting=lasting)
    return ProxyFailed(text)


_OF_SSH = (
    # Messages of OpenSSH 9.2: channels.c, clientloop.c, sshconnect2.c (tests/integration)
    (
        r"administratively prohibited",
        "the jump host does not allow forwarding to the node (AllowTcpForwarding, PermitOpen)",
        True,
    ),
    (
        r"open failed: connect failed|stdio forwarding failed",
        "the jump host does not reach the node: it may be starting, or its firewall may not "
        "have the jump host's address (`network.ssh_from`)",
        False,
    ),
    (
        r"Host key verification failed",
        "log in to the jump host once by `ssh`, to accept its host key",
        True,
    ),
    (
        r"Permission denied|Too many authentication failures",
        "the jump host accepts none of your keys: `ssh` to it must work without a prompt (an "
        "agent with your key, or ControlMaster in ~/.ssh/config)",
        True,
    ),
    (
        r"Could not resolve hostname",
        "check the jump host's name in `network.ssh_proxy`",
        False,
    ),
    (
        r"kex_exchange_identification|Connection reset by|Connection closed by",
        "the jump host accepts no more logins for now: raise its MaxStartups, or share one "
        "connection by ControlMaster in ~/.ssh/config",
        False,
    ),
)
"""What ssh writes, the hint, and whether it lasts until somebody helps."""


# ── paramiko's errors, for somebody who reads about SSH and not about its library ─────────────

_WORDS = (
    (r"SSH protocol banner|Invalid SSH banner", "what listens there is no SSH server, or busy"),
    (r"No existing session|SSH session not active", "the server closed the connection"),
    (r"Incompatible ssh (?:peer|server)", "it shares no algorithm with this program"),
    (r"Key-exchange timed out|Negotiation failed|Timeout opening channel", "no answer in time"),
    (r"Unable to connect to", "nothing listens for SSH there, or it cannot be reached"),
    (r"No authentication methods available", "it takes no login by a key"),
    (r"Unable to open channel", "it opens no further channel (MaxSessions)"),
    (r"Illegal info|Bad host key|Signature verification", "the server breaks the SSH protocol"),
)
"""Messages of paramiko 5.0 (transport.py, client.py, auth_handler.py; read)."""


def in_words(error: BaseException) -> str:
    """Plain text of an error. An unknown message stays as it is; an error without one, such as
    EOFError, reads as a closed connection."""
    text = str(error).partition("\n")[0]
    found = next((words for pattern, words in _WORDS if re.search(pattern, text)), None)
    if found is not None:
        return found
    return str(getattr(error, "strerror", None) or text or "the connection was closed")
