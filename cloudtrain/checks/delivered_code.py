"""Reads the code that a config would deliver: a folder, or a git repository on this machine."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.playbooks import folder
from cloudtrain.script.module import LARGEST

SECONDS = 5.0
"""Time for a git command on a local repository."""


class DeliveredCode:
    """Paths of all files that would be delivered, and their contents."""

    def __init__(self, shown: str, paths: frozenset[str]) -> None:
        self.shown, self.paths = shown, paths
        self._contents: dict[str, bytes | None] = {}

    def read(self, path: str) -> bytes | None:
        """At most LARGEST bytes and one more; None if it is not delivered or cannot be read."""
        if path in self.paths and path not in self._contents:
            self._contents[path] = self._content(path)
        return self._contents.get(path)

    def excluded(self, path: str) -> str | None:
        """Reason for which an existing file is not delivered; None if there is no such file."""
        raise NotImplementedError

    def executable(self, path: str) -> bool | None:
        """True if a file may be run as a program; None if that is not known."""
        return None

    def _content(self, path: str) -> bytes | None:
        raise NotImplementedError


class DeliveredFolder(DeliveredCode):
    """`code.path`, without files that are ignored. Raises CloudtrainError if it cannot be
    delivered.
    """

    def __init__(self, config: ClusterConfig, root: Path) -> None:
        self.listing = folder.listing(config, root)
        super().__init__(str(root), frozenset(each.path for each in self.listing.entries))
        self.root = root

    def excluded(self, path: str) -> str | None:
        if not (self.root / path).exists():
            return None
        left_out = self.listing.without(path)
        if left_out is None:
            return None
        way = f": {left_out.way}" if left_out.way else ""
        return f"left out ({left_out.why}){way}"

    def executable(self, path: str) -> bool | None:
        entry = next((each for each in self.listing.entries if each.path == path), None)
        return None if entry is None or entry.link is not None else entry.executable

    def _content(self, path: str) -> bytes | None:
        try:
            with (self.root / path).open("rb") as file:
                return file.read(LARGEST + 1)
        except OSError:
            return None


class DeliveredRepository(DeliveredCode):
    """`code.git` on this machine, at `code.ref`. Raises CloudtrainError if git cannot read it."""

    def __init__(self, root: str, ref: str) -> None:
        self.root, self.ref = root, ref
        listed = self._git("ls-tree", "-r", "-z", "-l", ref).split("\0")
        entries = (line.partition("\t") for line in listed if line)
        self.sizes = {path: entry.split()[-1] for entry, _, path in entries}
        super().__init__(f"{root} at {ref}", frozenset(self.sizes))

    def excluded(self, path: str) -> str | None:
        if (Path(self.root) / path).is_file():
            return f"it is not committed, or not in {self.ref}"
        return None

    def _content(self, path: str) -> bytes | None:
        size = self.sizes[path]
        if not size.isdecimal() or int(size) > LARGEST:
            return None  # a submodule, or hardly written by hand
        try:
            return self._git("cat-file", "blob", f"{self.ref}:{path}").encode()
        except CloudtrainError:
            return None

    def _git(self, *command: str) -> str:
        """Output of a git command. Raises CloudtrainError."""
        from cloudtrain.playbooks import git_access

        access = git_access.of_a_folder()
        try:
            done = git_access.run(access, "git", "-C", self.root, *command, timeout=SECONDS)
        except TimeoutError as error:
            raise CloudtrainError(f"{self.root}: {error}") from None
        if done.returncode:
            raise CloudtrainError(f"{self.root}: {done.stderr.strip()}")
        return done.stdout


def delivered_code(config: ClusterConfig) -> DeliveredCode | None:
    """None without `code:`, for a git server, and for what cannot be delivered, which the check of
    `code:` reports.
    """
    try:
        if config.code.git is not None:
            from cloudtrain.playbooks import git, git_access

            url = git.url(config)
            ref = config.code.ref or "HEAD"
            if not git_access.is_local(url) or ref.startswith("-"):
                return None
            path = unquote(urlsplit(url).path) if url.startswith("file://") else url
            return DeliveredRepository(path, ref)
        if config.code.path is not None:
            return DeliveredFolder(config, config.folder / Path(config.code.path).expanduser())
    except CloudtrainError:
        pass
    return None
