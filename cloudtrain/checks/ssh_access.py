"""Findings of `check` and `plan` on how SSH reaches the nodes (`network.ssh_proxy`)."""

from __future__ import annotations

import subprocess
from pathlib import Path

from cloudtrain.core.cloud import SshService, cloud_of
from cloudtrain.core.errors import CredentialsError, UsageError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.own_python import NEUTRAL
from cloudtrain.core.protocols import Finding
from cloudtrain.ssh.proxy_process import connect, is_installed
from cloudtrain.ssh.ssh_proxy import ProxyFailed, jump_command, own_command, where_to_get

VERSION_SECONDS = 30.0


def access_findings(config: ClusterConfig) -> tuple[Finding, ...]:
    """Findings on the programs of `ssh_proxy`, and on the login to a jump host; none without it."""
    proxy = config.network.ssh_proxy
    if proxy is None:
        return ()
    if proxy.jump:
        return (_jump(proxy.jump),)
    if proxy.command:
        program = own_command(proxy.command, {})[0]
        return (_missing(program) or Finding(what="ssh", ok=True, text=proxy.command),)
    cloud = cloud_of(config.provider)
    service = cloud.ssh_proxy if cloud is not None else None
    if service is None:
        return ()
    missing = [finding for name in service.programs if (finding := _missing(name))]
    if missing:
        return tuple(missing)
    return (_installed(service),)


def _missing(program: str) -> Finding | None:
    if is_installed(program) or Path(program).is_file():
        return None
    text, hint = f"{program} is not installed", where_to_get(program)
    return Finding(what="ssh", ok=False, text=text, hint=hint, error=UsageError)


def _installed(service: SshService) -> Finding:
    """Ask for a version; a program that cannot tell it may lack a part of itself."""
    try:
        done = subprocess.run(
            service.versions,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            cwd=NEUTRAL,
            timeout=VERSION_SECONDS,
            check=False,
        )
        text, told = (done.stdout or done.stderr), done.returncode == 0
    except (OSError, subprocess.TimeoutExpired) as error:
        text, told = str(error), False
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    words = f"{service.field} by {' '.join(service.programs)}: {first}"
    return Finding(what="ssh", ok=True, text=words, told=told)


def _jump(jump: str) -> Finding:
    """Log in to the jump host as connections to nodes do, and ask it for its own SSH port.

    That it refuses this port proves the login, too.
    """
    missing = _missing("ssh")
    if missing is not None:
        return missing
    try:
        connect(jump_command(jump, "localhost", 22)).close()
    except ProxyFailed as error:
        if "open failed" not in error.text and "stdio forwarding failed" not in error.text:
            text, kind = error.text, CredentialsError if error.lasting else UsageError
            return Finding(what="ssh", ok=False, text=text, hint=error.hint, error=kind)
        if "administratively prohibited" in error.text:
            text = f"{jump} lets you in; it allows no forwarding to itself, perhaps to the nodes"
            return Finding(what="ssh", ok=True, text=text, told=False)
    return Finding(what="ssh", ok=True, text=f"{jump} lets you in")
