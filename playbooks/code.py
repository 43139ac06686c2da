"""The `code` playbook: delivers the user's code, at one commit or digest, to every node."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO

from cloudtrain.core import paths
from cloudtrain.core.cloud import facts_of
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import CloudtrainError, UsageError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.shell import Step, script
from cloudtrain.node.key_shapes import file_reason
from cloudtrain.playbooks import folder, git, ignore, scripts
from cloudtrain.playbooks.folder import OWN_IGNORE_FILE, FolderEntry, LeftOut, key_file, shown
from cloudtrain.playbooks.git import Access


@dataclass(frozen=True, kw_only=True)
class NoCode:
    digest: str = "none"


@dataclass(frozen=True, kw_only=True)
class GitCode:
    """Code in a git repository that nodes can read. `digest` is the full commit."""

    url: str
    digest: str
    debian_package: str = ""
    """Package that installs git on a node without it; empty if we may not install it."""
    pointers: str = ""
    """Not empty if files in Git LFS are not downloaded."""


@dataclass(frozen=True, kw_only=True)
class FolderCode:
    root: Path
    digest: str
    keys: tuple[folder.LeftOut, ...] = field(default=(), compare=False)
    """Files of keys, which are not delivered."""
    archive: CodeArchive = field(repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class PrivateCode:
    """Code in a repository that nodes cannot read by themselves. `digest` is the full commit."""

    url: str
    digest: str
    archive: CodeArchive = field(repr=False, compare=False)


CodeSource = NoCode | GitCode | FolderCode | PrivateCode
"""`digest` identifies what runs; it is recorded in the run and names the folder on the nodes."""


def resolve(config: ClusterConfig, delivered: str | None = None) -> CodeSource:
    """Resolve `code:` as of now, or as it was when `delivered`. Queries the git server, or reads
    the folder. Raises ConfigError. If the folder changes later, delivery to the first node without
    the code fails."""
    if config.code.git is not None:
        if delivered is not None:
            config = replace(config, code=replace(config.code, ref=delivered))
        url = git.url(config)
        commit, access = git.find(config, url)
        pointers = git.lfs_pointers()
        if access is not None:
            packed = archive(access, url, commit, pointers)
            return PrivateCode(url=url, digest=commit, archive=packed)
        package = "" if facts_of(config.provider).on_this_machine else "git"
        return GitCode(url=url, digest=commit, debian_package=package, pointers=pointers)
    if config.code.path is not None:
        root = config.folder / Path(config.code.path).expanduser()
        listing = folder.listing(config, root)
        digest = folder_digest(root, listing.entries)
        if delivered not in (None, digest):
            return FolderCode(
                root=root, digest=delivered, archive=CodeArchive(partial(_changed, root))
            )
        packed = folder_archive(root, listing.entries, digest)
        return FolderCode(root=root, digest=digest, archive=packed, keys=listing.keys)
    return NoCode()


def _changed(root: Path, tar: tarfile.TarFile) -> None:
    raise UsageError(
        f"{root} has changed since the run began, but a new node needs the old state",
        hint="restore it and run `cloudtrain train` again, or start a new run with the changes",
    )


def keys_note(source: CodeSource) -> str:
    """A line on files of keys that are left out; of a repository, once it has been packed."""
    if isinstance(source, FolderCode):
        return folder.keys_note(source.keys)
    return folder.keys_note(source.archive.keys) if isinstance(source, PrivateCode) else ""


def steps(source: CodeSource, cluster: str) -> tuple[Step, ...]:
    """Deliver to `paths.code_folder`, with a marker of its completeness beside it."""
    target = paths.code_folder(cluster, source.digest)
    stdin = None
    if isinstance(source, NoCode):
        return ()
    if isinstance(source, GitCode):
        facts = (source.url, source.digest, source.debian_package, source.pointers)
        run = script(scripts.GIT, target, *facts)
    else:
        run, stdin = script(scripts.FOLDER, target), source.archive.chunks
    delivered = script(scripts.CODE_THERE, target)
    return (Step(name=f"code {source.digest[:10]}", run=run, unless=delivered, stdin=stdin),)


# ── a commit fetched on this machine ───────────────────────────────────────────


_FETCH_SECONDS = 3600.0


_fetched: dict[tuple[str, str, str], CodeArchive] = {}
"""The last one: it is fetched before a node exists, and then delivered. A commit never changes."""


def archive(access: Access, url: str, commit: str, pointers: str) -> CodeArchive:
    """Archive of the commit as a node would have fetched it. Its chunks raise CloudtrainError."""
    key = (url, commit, pointers)
    if key in _fetched:
        return _fetched[key]

    def pack(tar: tarfile.TarFile) -> None:
        with tempfile.TemporaryDirectory(prefix="cloudtrain-code-") as folder:
            checkout = Path(folder, "code")
            fetch = script(scripts.GIT, str(checkout), url, commit, "", pointers)
            try:
                done = git.run(access, *fetch.arguments, timeout=_FETCH_SECONDS)
            except TimeoutError as error:
                raise _failed(access, url, str(error)) from None
            if done.returncode != 0:
                raise _failed(access, url, done.stdout + done.stderr)
            _add(tar, checkout, made.keys)
        _fetched.clear()
        _fetched[key] = made

    made = CodeArchive(pack)
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
        if found is not None:
            keys.append(found)
            return None
        # Without the owner, and all non-executable files with one mode, as with a folder.
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        if not member.issym():
            member.mode = 0o755 if member.isdir() or member.mode & stat.S_IXUSR else 0o644
        return member

    tar.add(checkout, "code", filter=wanted)


def _failed(access: Access, url: str, text: str) -> CloudtrainError:
    lines = access.words(text)
    hints = [line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")]
    messages = [line for line in lines if not line.startswith("hint: ")]
    last = "\n  ".join(messages[-4:]) or "git exited without a message"
    return CloudtrainError(
        f"cannot fetch {url} on this machine:\n  {last}", hint=hints[-1] if hints else None
    )


# ── a tar that is packed once, when the first node lacks it, and streamed to every node ───────


CHUNK = 1 << 18


@dataclass
class CodeArchive:
    """Archive filled by `pack`, with the files to deliver in `code/`. It has no name on disk and
    disappears with the process; every reader gets an error that `pack` raises."""

    pack: Callable[[tarfile.TarFile], None]
    keys: list[LeftOut] = field(default_factory=list)
    """Files of keys that `pack` has left out."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _file: IO[bytes] | None = None
    _failure: Exception | None = None

    def chunks(self) -> Iterator[bytes]:
        number = self.make().fileno()
        offset = 0
        while chunk := os.pread(number, CHUNK, offset):
            offset += len(chunk)
            yield chunk

    def make(self) -> IO[bytes]:
        """Pack it now, unless it is packed: what fails does so before a node waits for it."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._file is None:
                try:
                    self._file = self._packed()
                except Exception as failure:
                    self._failure = failure
                    raise
            return self._file

    def _packed(self) -> IO[bytes]:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - kept open for all nodes
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
            tar.addfile(member("code", tarfile.DIRTYPE, 0o755))
            self.pack(tar)
            # Last, so that a truncated stream is never taken for a complete one.
            tar.addfile(member("complete", tarfile.REGTYPE, 0o644))
        file.flush()
        return file


def member(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = kind, mode
    return info


# ── digest and archive of a listed folder ─────────────────────────────────────────────────────


def folder_digest(root: Path, entries: Sequence[FolderEntry]) -> str:
    """Digest of paths, executable bits and contents, as long as they were when listed. Raises
    CloudtrainError if a file disappears or becomes shorter."""
    total = hashlib.sha256()
    for entry in entries:
        if entry.link is None:
            with _opened(root, entry) as file:
                reader = _Listed(file, entry.size)
                while reader.read(CHUNK):
                    pass
            if reader.left:
                raise _changed_file(root, entry.path)
            _hash_entry(total, entry, reader.sum.digest())
        else:
            _hash_entry(total, entry, os.fsencode(entry.link))
    return total.hexdigest()[:16]


def folder_archive(root: Path, entries: Sequence[FolderEntry], digest: str) -> CodeArchive:
    """Archive of the folder. Its chunks raise CloudtrainError if what was listed has changed since
    the digest was taken; what a file has gained at its end is left out."""

    def pack(tar: tarfile.TarFile) -> None:
        total = hashlib.sha256()
        for entry in entries:
            _hash_entry(total, entry, _pack(tar, root, entry))
        if total.hexdigest()[:16] != digest:
            raise _changed_file(root, _newest(root, entries))

    return CodeArchive(pack)


def _pack(tar: tarfile.TarFile, root: Path, entry: FolderEntry) -> bytes:
    name = f"code/{entry.path}"
    if entry.link is not None:
        link = member(name, tarfile.SYMTYPE, 0o777)
        link.linkname = entry.link
        tar.addfile(link)
        return os.fsencode(entry.link)
    info = member(name, tarfile.REGTYPE, 0o755 if entry.executable else 0o644)
    with _opened(root, entry) as file:
        info.size, info.mtime = entry.size, int(os.fstat(file.fileno()).st_mtime)
        reader = _Listed(file, entry.size)
        try:
            tar.addfile(info, reader)
        except OSError:  # raised by tarfile for a file that became shorter
            raise _changed_file(root, entry.path) from None
    return reader.sum.digest()


class _Listed(io.RawIOBase):
    """Reads and hashes the first `size` bytes of a file: a log may have grown since."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self.left = file, size
        self.sum = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(self.left if size < 0 else min(size, self.left))
        self.left -= len(data)
        self.sum.update(data)
        return data


def _opened(root: Path, entry: FolderEntry) -> IO[bytes]:
    try:
        return (root / entry.path).open("rb")
    except OSError:
        raise _changed_file(root, entry.path) from None


def _hash_entry(total: hashlib._Hash, entry: FolderEntry, content: bytes) -> None:
    kind = b"l" if entry.link is not None else b"x" if entry.executable else b"f"
    total.update(os.fsencode(entry.path) + b"\0" + kind + b"%d:" % len(content) + content)


def _changed_file(root: Path, path: str) -> CloudtrainError:
    return CloudtrainError(
        f"{root} changed while it was read: {shown(Path(path))}",
        hint="run the command again; list a file that is written again and again in "
        f"{root}/.cloudtrainignore",
    )


def _newest(root: Path, entries: Sequence[FolderEntry]) -> str:
    """Path of the file that was written last."""

    def written(entry: FolderEntry) -> float:
        try:
            return (root / entry.path).lstat().st_mtime
        except OSError:
            return 0.0

    return max(entries, key=written).path
