"""Replaces a node's host key with one that nobody else has seen, over a verified connection."""

from __future__ import annotations

import itertools
from pathlib import Path

from cloudtrain.core.errors import HostKeyMismatch, NodeUnreachable, StepFailed
from cloudtrain.core.model import HostKey, Node
from cloudtrain.core.protocols import HostKeys, Transport
from cloudtrain.core.retry import CLOCK, Clock, Retry
from cloudtrain.core.shell import Command, script
from cloudtrain.ssh import keys

HOST_KEY = "/etc/ssh/ssh_host_ed25519_key"
RELOADED = Retry(tries=9, pause=0.2, backoff=1.8, longest=10.0)
"""Checks whether sshd answers with the new key: 25 s in all."""

SECOND_WAY = 4
"""Index of the check, from 0, before which sshd is sent a signal because systemd did not
reload it.
"""


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
    NodeUnreachable, HostKeyMismatch.
    """
    new = keys.new_host_key()
    both = (*host_key.pins, new.public)
    keys.accept_host_key(folder, node.name, both)
    done = transport.run(
        node, _as_root(_INSTALL, place), stdin=new.private.reveal().encode(), timeout=60.0
    )
    if done.exit_code != 0:
        words = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        raise StepFailed(
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
    """Check that the node presents the last of the keys `both`; from then on the transport accepts
    no other.
    """
    looks = itertools.count()

    def look() -> None:
        if next(looks) == SECOND_WAY:
            host_keys.trust(node.name, both)
            _reload(node, transport, _SIGNAL)
        host_keys.trust(node.name, both[-1:])
        transport.ask(node, ":")

    try:
        RELOADED.call(look, on=(HostKeyMismatch, NodeUnreachable), clock=clock)
    except (HostKeyMismatch, NodeUnreachable):
        host_keys.trust(node.name, both)
        raise


def _reload(node: Node, transport: Transport, how: str) -> None:
    """Make sshd load the key. A failure, or a lost connection, shows in the key that sshd then
    presents.
    """
    try:
        transport.run(node, _as_root(how), timeout=30.0)
    except NodeUnreachable:
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
