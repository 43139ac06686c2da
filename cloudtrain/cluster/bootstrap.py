"""First login to new nodes: waits while they boot, and verifies the host key."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from cloudtrain.core import errors
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.model import HostKey, Identity, Node
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.protocols import HostKeys, Stage, Transport
from cloudtrain.core.retry import (
    CLOCK,
    CLOUD_INIT,
    FIRST_LOGIN,
    Clock,
    Retry,
    poll_until,
    report_wait,
)
from cloudtrain.core.shell import Command, script
from cloudtrain.ssh import keys

# ── a host key that nobody else has seen ───────────────────────────────────────


HOST_KEY = "/etc/ssh/ssh_host_ed25519_key"
RELOADED = Retry(tries=9, pause=0.2, backoff=1.8, longest=10.0)
"""Checks whether sshd answers with the new key: 25 s in all."""

SECOND_WAY = 4
"""Number of the check, from 0, before which sshd gets a signal, as systemd did not reload it."""


def rotate_host_key(
    node: Node,
    host_key: HostKey,
    folder: Path,
    transport: Transport,
    host_keys: HostKeys,
    *,
    place: str = HOST_KEY,
    clock: Clock = CLOCK,
) -> None:
    """Install a new host key on `node` and accept no other; its private half is never on a local
    disk.

    `folder` is the cluster's, `host_keys` those that `transport` accepts. If killed at any point,
    the keys that the node may have are on disk, and a second call completes it. Raises StepFailed,
    NodeUnreachable, HostKeyMismatch."""
    new = keys.new_host_key()
    both = (*host_key.pins, new.public)
    keys.accept_host_key(folder, node.name, both)
    done = transport.run(
        node, _as_root(_INSTALL, place), stdin=new.private.reveal().encode(), timeout=60.0
    )
    if done.exit_code != 0:
        words = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        raise errors.StepFailed(
            node.name,
            f"its host key could not be changed: exit {done.exit_code}: {words}",
            hint="the image must let the user `cloudtrain` use sudo without a password",
            step="host key",
            step_exit_code=done.exit_code,
        )
    host_keys.trust(node.name, both)
    _reload(node, transport, _RESTART)
    _verify(node, both, transport, host_keys, clock)
    keys.accept_host_key(folder, node.name, (new.public,))


def _verify(
    node: Node, both: tuple[str, ...], transport: Transport, host_keys: HostKeys, clock: Clock
) -> None:
    """Check that the node presents the last of the keys `both`, then accept no other."""
    looks = itertools.count()

    def look() -> None:
        if next(looks) == SECOND_WAY:
            host_keys.trust(node.name, both)
            _reload(node, transport, _SIGNAL)
        host_keys.trust(node.name, both[-1:])
        transport.ask(node, ":")

    try:
        RELOADED.call(look, on=(errors.HostKeyMismatch, errors.NodeUnreachable), clock=clock)
    except (errors.HostKeyMismatch, errors.NodeUnreachable):
        host_keys.trust(node.name, both)
        raise


def _reload(node: Node, transport: Transport, how: str) -> None:
    """Make sshd load the key; a failure or a lost connection shows in the key it presents."""
    try:
        transport.run(node, _as_root(how), timeout=30.0)
    except errors.NodeUnreachable:
        return


def _as_root(text: str, place: str = HOST_KEY) -> Command:
    """Return a command that runs as root, or as the user who owns the keys."""
    return script(
        '[ -w "${1%/*}" ] || exec sudo -n /bin/sh -c "$2" sh "$1"; exec /bin/sh -c "$2" sh "$1"',
        place,
        text,
    )


# The key comes on stdin. It is installed completely or not at all: ssh-keygen rejects a torn one.
_INSTALL = """\
set -eu
umask 077
PATH=$PATH:/usr/sbin:/sbin
new=$(mktemp "$1.XXXXXX")
trap 'rm -f "$new" "$new.pub"' EXIT
cat >"$new"
ssh-keygen -y -f "$new" >"$new.pub"
chmod 644 "$new.pub"
sync
mv -f "$new" "$1"
mv -f "$new.pub" "$1.pub"
for kind in rsa ecdsa dsa; do rm -f "${1%ed25519_key}${kind}_key" "${1%ed25519_key}${kind}_key.pub"; done
sync
"""  # noqa: E501

# The listening sshd is the topmost one among this shell's ancestors.
_LISTENER = """\
PATH=$PATH:/usr/sbin:/sbin
pid=$$ listener=
while [ "${pid:-0}" -gt 0 ]; do
  read -r name <"/proc/$pid/comm" || break
  case $name in
    sshd*) listener=$pid ;;
    *) [ -z "$listener" ] || break ;;
  esac
  pid=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status")
done
[ -n "$listener" ] || exit 1
"""

_SIGNAL = f"""{_LISTENER}
kill -HUP "$listener"
"""

# Under systemd by a restart, which keeps sessions (KillMode=process) and works with socket
# activation; the unit of another sshd is never touched.
_RESTART = f"""{_LISTENER}
for unit in ssh.service sshd.service; do
  if [ "$(systemctl show -p MainPID "$unit" 2>/dev/null)" = "MainPID=$listener" ] && sshd -t; then
    systemctl restart "$unit" && exit 0
  fi
done
kill -HUP "$listener"
"""


# ── first login ────────────────────────────────────────────────────────────────


BOOT = Retry(pause=0.5, backoff=1.5, longest=10.0, within=FIRST_LOGIN)
"""Login attempts until a new node accepts one."""

SETTLE = Retry(pause=0.5, backoff=1.5, longest=10.0, within=CLOUD_INIT)
"""Checks for a cloud-init that is still running then: it could interfere with a playbook."""

ASKED_EVERY = 20.0
"""Seconds between two questions whether the cloud still has the nodes."""


def await_first_login(
    nodes: Sequence[Node],
    identity: Identity,
    folder: Path,
    transport: Transport,
    host_keys: HostKeys,
    stage: Stage,
    *,
    clock: Clock | None = None,
    place: str = HOST_KEY,
    listed: Callable[[], Iterable[Node]] | None = None,
) -> None:
    """Wait until every node accepts our login, and give it a host key that was never in its user
    data.

    `folder` is the cluster's, `host_keys` those that `transport` accepts. No other machine is ever
    accepted for a node: while it boots, another host key means only that it is not ready yet.
    `listed` lists the nodes that the cloud has now: it may take a spot node while that boots.
    Raises NodeUnreachable, NodeGone, HostKeyMismatch, StepFailed, or NodesError with every node's
    failure. Ctrl-C ends the wait at once."""
    interrupted = threading.Event()
    clock = clock or Clock(sleep=interrupted.wait)
    wait = _Wait(transport, stage, clock, _Presence(listed, clock) if listed else None)

    def enter(node: Node) -> None:
        began = clock.monotonic()
        wait.for_login(node)
        host_key = identity.host_keys[node.name]
        if not host_key.rotated:
            wait.for_cloud_init(node)
            stage.node(node.name, "changing its host key")
            rotate_host_key(node, host_key, folder, transport, host_keys, place=place, clock=clock)
        stage.done(node.name, f"answers at {node.address} after {clock.monotonic() - began:.0f} s")

    def interrupt() -> None:
        interrupted.set()
        transport.close()

    workers = max(1, len(nodes))
    fan_out(nodes, enter, name=lambda one: one.name, workers=workers, on_interrupt=interrupt)


class _Presence:
    """Lists of the nodes that the cloud still has, asked for once for all that wait. One list that
    lacks a node may be late, two are not."""

    def __init__(self, listed: Callable[[], Iterable[Node]], clock: Clock) -> None:
        self._listed, self._clock = listed, clock
        self._asked = clock.monotonic()
        self._seen: deque[frozenset[str]] = deque(maxlen=2)
        self._lock = threading.Lock()

    def refuse_gone(self, node: Node) -> None:
        """Raise NodeGone if the last two lists lack the node."""
        with self._lock:
            if self._clock.monotonic() - self._asked >= ASKED_EVERY:
                self._asked = self._clock.monotonic()
                with suppress(errors.CloudError):
                    self._seen.append(
                        frozenset(
                            each.name
                            for each in self._listed()
                            if each.state in ("starting", "running")
                        )
                    )
            gone = len(self._seen) == 2 and not any(node.name in names for names in self._seen)
        if gone:
            raise errors.NodeGone(node.name, "its cloud took it while it booted")


@dataclass(frozen=True)
class _Wait:
    transport: Transport
    stage: Stage
    clock: Clock
    presence: _Presence | None

    def for_login(self, node: Node) -> None:
        """Wait for a login: a boot refuses, is silent, or has another host key or no user key."""

        def show(error: errors.NodeError, *_: float) -> None:
            self.stage.node(node.name, f"booting: {error.text}")

        def login() -> None:
            if self.presence is not None:
                self.presence.refuse_gone(node)
            self.transport.ask(node, ":")

        closed = (errors.NodeUnreachable, errors.HostKeyMismatch)
        try:
            BOOT.call(login, on=closed, unless=_is_lasting, before_pause=show, clock=self.clock)
        except closed as error:
            if _is_lasting(error):
                raise
            raise _never(node, error) from error

    def for_cloud_init(self, node: Node) -> None:
        """Wait for cloud-init, by its processes: `cloud-init status` does not work without systemd.
        What still runs at the limit is reported, and left running."""

        def is_done() -> bool | None:
            if self.transport.ask(node, _CLOUD_INIT_WORKS).exit_code != 0:
                return True
            self.stage.node(node.name, "cloud-init is running")
            return None

        if poll_until(is_done, SETTLE, clock=self.clock) is None:
            text = f"{node.name}: its cloud-init still runs after {CLOUD_INIT:.0f} s; continuing"
            report_wait(text, taken=CLOUD_INIT)


_CLOUD_INIT_WORKS = "pgrep -f '/usr/bin/cloud-init( |$)' >/dev/null"


def _is_lasting(error: errors.NodeError) -> bool:
    """True for what no boot ends: the command of `network.ssh_proxy` is missing, or refused."""
    return isinstance(error, errors.NodeUnreachable) and error.lasting


def _never(node: Node, last: errors.NodeError) -> errors.NodeError:
    if isinstance(last, errors.HostKeyMismatch):
        return errors.HostKeyMismatch(
            node.name,
            f"no login within {BOOT.within:.0f} s: {last.text}",
            hint="cloud-init installs the host key: an image without it, or that creates its own "
            "keys, cannot be used; check the node's boot log in the cloud's console",
        )
    return errors.NodeUnreachable(
        node.name,
        f"no login within {BOOT.within:.0f} s: {last.text}",
        hint=(last.hint if node.ssh_proxy else None)
        or "check the node's boot log in the cloud's console, and whether your address, "
        "`network.ssh_from` and the network's routes allow SSH; `cloudtrain up` continues",
    )
