"""Needs of a public repository beside itself: submodules that nodes can read, and git-lfs."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from urllib.parse import urljoin

from cloudtrain.core.cloud import facts_of
from cloudtrain.core.errors import ConfigError
from cloudtrain.core.model import ClusterConfig, Problem
from cloudtrain.playbooks import git_access
from cloudtrain.playbooks.git_access import Access, refused

_SECONDS = 20.0
_SUBMODULE = "160000"
"""Mode of a submodule in a tree: https://git-scm.com/docs/git-ls-tree"""


def refuse_unreadable(config: ClusterConfig, url: str, commit: str) -> None:
    """Raise ConfigError for what a node could not fetch with the commit.

    Fetches its trees alone. A server that does not offer that is not asked further.
    """
    access = git_access.as_anybody()
    with tempfile.TemporaryDirectory(prefix="cloudtrain-git-") as folder:
        repository = _Trees(access, folder, url, commit)
        try:
            if not repository.fetch():
                return
            problems = [_problem(config, text) for text in _submodules(repository)]
            if facts_of(config.provider).on_this_machine:
                problems += [_problem(config, text) for text in _large_files(repository)]
        except TimeoutError:
            return
    if problems:
        hint = "set code.path to a checkout of yours, which is delivered as it is"
        raise ConfigError(problems, hint=hint)


class _Trees:
    """The commit without its files, which are fetched when they are read."""

    def __init__(self, access: Access, folder: str, url: str, commit: str) -> None:
        self.access, self.folder, self.url, self.commit = access, folder, url, commit

    def fetch(self) -> bool:
        filtered = ("--depth=1", "--no-tags", "--filter=blob:none")
        for words in (
            ("init", "--quiet", "--bare"),
            ("config", "remote.origin.url", self.url),
            ("config", "remote.origin.promisor", "true"),
            ("config", "remote.origin.partialclonefilter", "blob:none"),
            ("fetch", "--quiet", *filtered, "origin", self.commit),
        ):
            if self._git(*words) is None:
                return False
        return True

    def paths(self) -> Iterator[tuple[str, str]]:
        """Mode and path of every file and submodule."""
        for line in (self._git("ls-tree", "-r", "-z", self.commit) or "").split("\0"):
            facts, _, path = line.partition("\t")
            if path:
                yield facts.split()[0], path

    def text(self, path: str) -> str:
        return self._git("show", f"{self.commit}:{path}") or ""

    def setting(self, key: str) -> str:
        blob = ("config", "--blob", f"{self.commit}:.gitmodules", "--get-regexp", key)
        return self._git(*blob) or ""

    def _git(self, *words: str) -> str | None:
        done = git_access.run(self.access, "git", "-C", self.folder, *words, timeout=_SECONDS)
        return done.stdout if done.returncode == 0 else None


def _submodules(repository: _Trees) -> Iterator[str]:
    there = {path for mode, path in repository.paths() if mode == _SUBMODULE}
    if not there:
        return
    named = dict(_settings(repository.setting(r"^submodule\..*\.path$")))
    urls = dict(_settings(repository.setting(r"^submodule\..*\.url$")))
    for name, path in named.items():
        if path not in there or name not in urls:
            continue
        url = urls[name]
        if url.startswith(("./", "../")):
            url = urljoin(f"{repository.url.rstrip('/')}/", url)
        if git_access.is_ssh(url):
            yield f"its submodule {path} is at {url}, but nodes have no key of yours"
            continue
        ask = ("git", "ls-remote", "--quiet", "--exit-code", "--", url, "HEAD")
        done = git_access.run(repository.access, *ask, timeout=_SECONDS)
        if done.returncode not in (0, 2):
            words = repository.access.words(done.stderr)
            why = words[0] if words else f"git exit {done.returncode}"
            yield f"its submodule {path} at {url} cannot be read without an account: {why}"


def _settings(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        yield key.partition(".")[2].rpartition(".")[0], value


def _large_files(repository: _Trees) -> Iterator[str]:
    if git_access.lfs_pointers():
        return
    named = [path for _, path in repository.paths() if path.rpartition("/")[2] == ".gitattributes"]
    if not any(re.search(r"filter=lfs\b", repository.text(path)) for path in named):
        return
    if git_access.run(repository.access, "git", "lfs", "version", timeout=_SECONDS).returncode:
        yield "some of its files are in Git LFS, but git-lfs is not installed here"


def _problem(config: ClusterConfig, text: str) -> Problem:
    return refused(config, "git", text).problems[0]
