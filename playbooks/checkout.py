"""Fetches a commit on this machine with the user's own rights, for delivery to every node."""

from __future__ import annotations

import stat
import tarfile
import tempfile
from pathlib import Path

from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.shell import script
from cloudtrain.node.key_shapes import file_reason
from cloudtrain.playbooks import git_access, ignore, scripts
from cloudtrain.playbooks.archive import Archive
from cloudtrain.playbooks.folder import OWN_IGNORE_FILE, LeftOut, key_file
from cloudtrain.playbooks.git_access import Access

_FETCH_SECONDS = 3600.0


_fetched: dict[tuple[str, str, str], Archive] = {}
"""The last one: it is fetched before a node exists, and then delivered. A commit never changes."""


def archive(access: Access, url: str, commit: str, pointers: str) -> Archive:
    """Archive of the commit as a node would have fetched it. Its chunks raise CloudtrainError."""
    key = (url, commit, pointers)
    if key in _fetched:
        return _fetched[key]

    def pack(tar: tarfile.TarFile) -> None:
        with tempfile.TemporaryDirectory(prefix="cloudtrain-code-") as folder:
            checkout = Path(folder, "code")
            fetch = script(scripts.GIT, str(checkout), url, commit, "", pointers)
            try:
                done = git_access.run(access, *fetch.arguments, timeout=_FETCH_SECONDS)
            except TimeoutError as error:
                raise _failed(access, url, str(error)) from None
            if done.returncode != 0:
                raise _failed(access, url, done.stdout + done.stderr)
            _add(tar, checkout, made.keys)

    made = Archive(pack)

    def packed(tar: tarfile.TarFile) -> None:
        pack(tar)
        _fetched.clear()
        _fetched[key] = made

    made.pack = packed
    return made


def _add(tar: tarfile.TarFile, checkout: Path, keys: list[LeftOut]) -> None:
    """Pack all files but those of keys, which `keys` then has."""
    rules = ignore.rules(checkout, (OWN_IGNORE_FILE,))
    keys.clear()

    def wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        inner = member.name.partition("/")[2]
        path = checkout / inner
        why = file_reason(bytes(path), member.size) if member.isreg() else ""
        found = key_file(path, inner, why, rules)
        if found is None:
            return _plain(member)
        keys.append(found)
        return None

    tar.add(checkout, "code", filter=wanted)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove the owner, and use one mode for all non-executable files, as with a folder."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    if not member.issym():
        executable = member.isdir() or member.mode & stat.S_IXUSR
        member.mode = 0o755 if executable else 0o644
    return member


def _failed(access: Access, url: str, text: str) -> CloudtrainError:
    lines = access.words(text)
    hints = [line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")]
    words = [line for line in lines if not line.startswith("hint: ")]
    last = "\n  ".join(words[-4:]) or "git exited without a message"
    return CloudtrainError(
        f"cannot fetch {url} on this machine:\n  {last}", hint=hints[-1] if hints else None
    )
