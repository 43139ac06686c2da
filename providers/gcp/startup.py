"""Startup script for images without cloud-init, run by Google's guest agent."""

from __future__ import annotations

import shlex
from typing import Any

import yaml

MARKER = "/var/lib/cloudtrain-first-boot"


def startup_script(user_data: str) -> str:
    """Return a POSIX sh script that applies the cloud-config `user_data` once.

    Google runs a startup script at each boot. The script does nothing if the image has cloud-init,
    and nothing after its first run: it must not restore a host key that has been rotated since.
    Like `user_data`, it contains the private half of the host key: never log it.
    """
    document: dict[str, Any] = yaml.safe_load(user_data)
    lines = [
        "#!/bin/sh",
        "command -v cloud-init >/dev/null 2>&1 && exit 0",
        f"[ -e {MARKER} ] && exit 0",
        "set -eu",
        "umask 077",
    ]
    for line in document.get("bootcmd", ()):
        lines.append(f"( {_line(line)} ) || true")
    for user in document["users"]:
        lines += _user(user)
    lines += _host_key(document["ssh_keys"])
    lines += [
        "mkdir -p /etc/ssh/sshd_config.d",
        "printf '%s\\n' 'PasswordAuthentication no' 'PermitRootLogin no' "
        ">/etc/ssh/sshd_config.d/00-cloudtrain.conf",
        f": >{MARKER}",
        "systemctl restart ssh 2>/dev/null || systemctl restart sshd 2>/dev/null || "
        "service ssh restart",
    ]
    return "\n".join(lines) + "\n"


def _line(line: str | list[str]) -> str:
    return line if isinstance(line, str) else shlex.join(line)


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


def _host_key(keys: dict[str, str]) -> list[str]:
    """Install our host key and remove the others, which sshd would offer too."""
    path = "/etc/ssh/ssh_host_ed25519_key"
    return [
        "rm -f /etc/ssh/ssh_host_*_key /etc/ssh/ssh_host_*_key.pub",
        f"printf '%s' {shlex.quote(keys['ed25519_private'])} >{path}",
        f"printf '%s' {shlex.quote(keys['ed25519_public'])} >{path}.pub",
        f"chmod 0644 {path}.pub",
    ]
