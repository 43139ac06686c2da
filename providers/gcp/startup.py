"""Startup script for images without cloud-init and for TPUs, run by Google's guest agent."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from cloudtrain.providers.base.boot import document_of

MARKER = "/var/lib/cloudtrain-first-boot"


def startup_script(user_data: str) -> str:
    """A POSIX sh script that applies the cloud-config `user_data` once.

    Google runs a startup script at each boot. The script does nothing if the image has cloud-init,
    and nothing after its first run: it must not restore a host key that has been rotated since.
    Like `user_data`, it contains the private half of the host key: never log it."""
    return "\n".join(
        ["#!/bin/sh", "command -v cloud-init >/dev/null 2>&1 && exit 0", *_first_boot(user_data)]
    )


WORKER = """\
import os, urllib.request
base = os.environ.get("CLOUDTRAIN_METADATA", "http://metadata.google.internal")
path = "/computeMetadata/v1/instance/attributes/agent-worker-number"
request = urllib.request.Request(base + path, headers={"Metadata-Flavor": "Google"})
print(int(urllib.request.urlopen(request, timeout=30).read()))
"""
"""Python that prints a host's number in its TPU, as JAX reads it (cloud_tpu_cluster.py)."""


def slice_script(user_data: Sequence[str]) -> str:
    """The startup script of a TPU: all its hosts have the same metadata, so it has the first-boot
    data of each host, by its number. It does not leave the work to cloud-init, which would read
    other metadata. Never log it."""
    if len(user_data) == 1:
        return "\n".join(["#!/bin/sh", *_first_boot(user_data[0])])
    lines = ["#!/bin/sh", f"worker=$(python3 -c {shlex.quote(WORKER)}) || exit 1"]
    lines.append('case "$worker" in')
    for number, each in enumerate(user_data):
        lines += [f"{number})", *_first_boot(each)[:-1], ";;"]
    return "\n".join([*lines, "*) exit 1 ;;", "esac", ""])


def _first_boot(user_data: str) -> list[str]:
    document = document_of(user_data)
    lines = [f"[ -e {MARKER} ] && exit 0", "set -eu", "umask 077"]
    for line in document.get("bootcmd", ()):
        lines.append(f"( {line if isinstance(line, str) else shlex.join(line)} ) || true")
    for user in document["users"]:
        lines += _user(user)
    keys, path = document["ssh_keys"], "/etc/ssh/ssh_host_ed25519_key"
    lines += [
        # Ours alone: sshd would offer the image's own host keys, too.
        "rm -f /etc/ssh/ssh_host_*_key /etc/ssh/ssh_host_*_key.pub",
        f"printf '%s' {shlex.quote(keys['ed25519_private'])} >{path}",
        f"printf '%s' {shlex.quote(keys['ed25519_public'])} >{path}.pub",
        f"chmod 0644 {path}.pub",
        "mkdir -p /etc/ssh/sshd_config.d",
        "printf '%s\\n' 'PasswordAuthentication no' 'PermitRootLogin no' "
        ">/etc/ssh/sshd_config.d/00-cloudtrain.conf",
        f": >{MARKER}",
        "systemctl restart ssh 2>/dev/null || systemctl restart sshd 2>/dev/null || "
        "service ssh restart",
        "",
    ]
    return lines


def _user(user: dict[str, Any]) -> list[str]:
    name, shell = shlex.quote(user["name"]), shlex.quote(user.get("shell", "/bin/sh"))
    keys = shlex.quote("\n".join(user["ssh_authorized_keys"]))
    sudo = shlex.quote(f"{user['name']} {user['sudo']}")
    return [
        f"id {name} >/dev/null 2>&1 || useradd --create-home --shell {shell} {name}",
        # Like cloud-init's lock_passwd, but with `*`: sshd without PAM refuses `!`.
        f"usermod --password '*' {name}",
        f"home=$(getent passwd {name} | cut -d: -f6)",
        'mkdir -p "$home/.ssh"',
        f"printf '%s\\n' {keys} >\"$home/.ssh/authorized_keys\"",
        f'chown -R {name}: "$home/.ssh"',
        f"printf '%s\\n' {sudo} >/etc/sudoers.d/90-cloudtrain",
        "chmod 0440 /etc/sudoers.d/90-cloudtrain",
    ]
