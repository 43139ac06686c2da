"""The `code` playbook: delivers the user's code, at one commit or digest, to every node."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from cloudtrain.core import layout
from cloudtrain.core.cloud import facts_of
from cloudtrain.core.errors import UsageError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.shell import script
from cloudtrain.core.step import Step
from cloudtrain.playbooks import checkout, folder, folder_archive, git, git_access, scripts
from cloudtrain.playbooks.archive import Archive


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
    """Code in a git repository that nodes cannot read by themselves. `digest` is the full
    commit.
    """

    url: str
    digest: str
    archive: Archive = field(repr=False, compare=False)


CodeSource = NoCode | GitCode | FolderCode | PrivateCode
"""`digest` identifies what runs; it is recorded in the run and names the folder on the nodes."""


def resolve(config: ClusterConfig, delivered: str | None = None) -> CodeSource:
    """Resolve `code:` as of now, or as it was when `delivered`.

    Queries the git server, or reads the folder. Raises ConfigError. If the folder changes later,
    delivery to the first node without the code fails.
    """
    if config.code.git is not None:
        if delivered is not None:
            config = replace(config, code=replace(config.code, ref=delivered))
        url = git.url(config)
        found = git.find(config, url)
        pointers = git_access.lfs_pointers()
        if found.access is not None:
            archive = checkout.archive(found.access, url, found.commit, pointers)
            return PrivateCode(url=url, digest=found.commit, archive=archive)
        package = "" if facts_of(config.provider).on_this_machine else "git"
        return GitCode(url=url, digest=found.commit, debian_package=package, pointers=pointers)
    if config.code.path is not None:
        root = config.folder / Path(config.code.path).expanduser()
        listing = folder.listing(config, root)
        entries = listing.entries
        digest = folder_archive.digest(root, entries)
        if delivered not in (None, digest):
            return FolderCode(root=root, digest=delivered, archive=Archive(partial(_changed, root)))
        archive = folder_archive.archive(root, entries, digest)
        return FolderCode(root=root, digest=digest, archive=archive, keys=listing.keys)
    return NoCode()


def _changed(root: Path, tar: tarfile.TarFile) -> None:
    raise UsageError(
        f"{root} has changed since the run began, but a new node needs the old state",
        hint="restore it and run `cloudtrain train` again, or start a new run with the changes",
    )


def keys_note(source: CodeSource) -> str:
    """A line on files of keys that are not delivered; those of a repository are known once it has
    been packed.
    """
    if isinstance(source, FolderCode):
        return folder.keys_note(source.keys)
    return folder.keys_note(source.archive.keys) if isinstance(source, PrivateCode) else ""


def steps(source: CodeSource, cluster: str) -> tuple[Step, ...]:
    """Deliver to `layout.code_folder(cluster, source.digest)`, with a marker of its completeness
    beside it.
    """
    target = layout.code_folder(cluster, source.digest)
    there = script(scripts.CODE_THERE, target)
    if isinstance(source, GitCode):
        run = script(
            scripts.GIT, target, source.url, source.digest, source.debian_package, source.pointers
        )
        return (Step(name=f"code {source.digest[:10]}", run=run, unless=there),)
    if isinstance(source, FolderCode | PrivateCode):
        return (
            Step(
                name=f"code {source.digest[:10]}",
                run=script(scripts.FOLDER, target),
                unless=there,
                stdin=source.archive.chunks,
            ),
        )
    return ()
