"""A git repository as code to deliver: which commit a ref is now, and how nodes get it."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

from cloudtrain.errors import ConfigError, UsageError
from cloudtrain.model import ClusterConfig, Problem

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_ABBREVIATED = re.compile(r"[0-9a-f]{4,63}")
_NO_TRANSPORT_HELPERS = "https:http:ssh:git:file"
"""`ext::…` would run a command of the URL's choice."""


def commit(config: ClusterConfig, url: str) -> str:
    """The full commit that `code.ref` (default: the remote's HEAD) is now. Raises ConfigError."""
    ref = config.code.ref
    if ref is not None and _COMMIT.fullmatch(ref):
        return ref
    if ref is not None and (ref.startswith("-") or not ref.strip() or "\0" in ref):
        raise _refused(config, "ref", f"{ref!r} cannot be a branch, tag or commit")
    refs = _remote_refs(config, url, ref or "HEAD")
    wanted = _names(ref) if ref else ("HEAD",)
    found = next((refs[name] for name in wanted if name in refs), None)
    if found is None and ref is not None and _ABBREVIATED.fullmatch(ref):
        found = _whole(url, ref)
    if found is None:
        what = f"no branch, tag or commit {ref}" if ref else "no commit"
        raise _refused(config, "ref", f"{url} has {what}")
    return found


def url(config: ClusterConfig) -> str:
    """`code.git` as nodes are given it. Raises ConfigError for what git must not be given."""
    url = config.code.git or ""
    if url.startswith("-") or not url.isprintable() or re.match(r"[A-Za-z0-9+.-]*::", url):
        raise _refused(config, "git", f"{url!r} is not the URL of a repository")
    if re.match(r"[a-z+]+://[^/@]*:[^/@]*@", url):
        raise _refused(
            config,
            "git",
            "a URL with a password would be on the nodes' disks and in their process lists",
            hint="check the code out here and name its folder in code.path",
        )
    if url.startswith(("./", "../", "~/")):
        return str((config.folder / Path(url).expanduser()).resolve())
    return url


def _names(ref: str) -> tuple[str, ...]:
    """In git's own order; an annotated tag's commit is listed with `^{}`."""
    return (
        f"refs/tags/{ref}^{{}}",
        f"refs/tags/{ref}",
        f"refs/heads/{ref}",
        f"{ref}^{{}}",
        ref,
    )


def _remote_refs(config: ClusterConfig, url: str, ref: str) -> dict[str, str]:
    done = _git("ls-remote", "--quiet", "--", url, ref, f"{ref}^{{}}")
    if done.returncode != 0:
        words = [line for line in done.stderr.strip().splitlines() if line.strip()]
        raise _refused(
            config,
            "git",
            f"{url} cannot be read: {words[0] if words else f'git exit {done.returncode}'}",
            hint="nodes fetch it without your credentials; for private code use code.path",
        )
    lines = (line.split("\t", 1) for line in done.stdout.splitlines() if "\t" in line)
    return {name: commit for commit, name in lines}


def _whole(url: str, abbreviated: str) -> str | None:
    """Servers tell only whole names of what refs point to: the history is needed, not its files."""
    with tempfile.TemporaryDirectory() as folder:
        cloned = _git("clone", "--quiet", "--bare", "--filter=tree:0", "--", url, folder)
        if cloned.returncode != 0:
            return None
        asked = _git("-C", folder, "rev-parse", "--verify", "--quiet", f"{abbreviated}^{{commit}}")
        return asked.stdout.strip() or None


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "",
        "GIT_ALLOW_PROTOCOL": _NO_TRANSPORT_HELPERS,
        "GIT_SSH_COMMAND": os.environ.get("GIT_SSH_COMMAND", "ssh -o BatchMode=yes"),
        "LC_ALL": "C",
    }
    try:
        return subprocess.run(
            ["git", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=300,
        )
    except FileNotFoundError:
        raise UsageError(
            "git is not installed here", hint="install it, or name a folder in code.path"
        ) from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"git {arguments[0]} did not answer within 300 s") from None


def _refused(
    config: ClusterConfig, field: str, text: str, *, hint: str | None = None
) -> ConfigError:
    problem = Problem(file=config.source, line=None, field=f"code.{field}", text=text)
    return ConfigError([problem], hint=hint)
