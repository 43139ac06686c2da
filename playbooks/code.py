"""The `code` playbook: delivers the user's code, at one commit or digest, to every node."""

from __future__ import annotations

import stat
import tarfile
import tempfile
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from cloudtrain.core import paths
from cloudtrain.core.cloud import facts_of
from cloudtrain.core.errors import CloudtrainError, UsageError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.shell import Step, script
from cloudtrain.node.key_shapes import file_reason
from cloudtrain.playbooks import folder, git, git_access, ignore, scripts
from cloudtrain.playbooks.archive import Archive, folder_archive, folder_digest
from cloudtrain.playbooks.folder import OWN_IGNORE_FILE, LeftOut, key_file
from cloudtrain.playbooks.git_access import Access


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
    archive: Archive = field(repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class PrivateCode:
    """Code in a repository that nodes cannot read by themselves. `digest` is the full commit."""

    url: str
    digest: str
    archive: Archive = field(repr=False, compare=False)


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
        pointers = git_access.lfs_pointers()
        if access is not None:
            packed = archive(access, url, commit, pointers)
            return PrivateCode(url=url, digest=commit, archive=packed)
        package = "" if facts_of(config.provider).on_this_machine else "git"
        return GitCode(url=url, digest=commit, debian_package=package, pointers=pointers)
    if config.code.path is not None:
        root = config.folder / Path(config.code.path).expanduser()
        listing = folder.listing(config, root)
        entries = listing.entries
        digest = folder_digest(root, entries)
        if delivered not in (None, digest):
            return FolderCode(root=root, digest=delivered, archive=Archive(partial(_changed, root)))
        packed = folder_archive(root, entries, digest)
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
        _fetched.clear()
        _fetched[key] = made

    made = Archive(pack)
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
    messages = [line for line in lines if not line.startswith("hint: ")]
    last = "\n  ".join(messages[-4:]) or "git exited without a message"
    return CloudtrainError(
        f"cannot fetch {url} on this machine:\n  {last}", hint=hints[-1] if hints else None
    )
