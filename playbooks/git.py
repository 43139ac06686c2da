"""Resolves a git repository as code: the commit of a ref, and who can read it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urljoin

from cloudtrain.core.cloud import facts_of
from cloudtrain.core.errors import ConfigError
from cloudtrain.core.model import ClusterConfig, Problem
from cloudtrain.playbooks import git_access
from cloudtrain.playbooks.git_access import Access, refused

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_ABBREVIATED = re.compile(r"[0-9a-f]{4,63}")
_PROBE_SECONDS = 20.0
"""Seconds to wait for a server, which may be reachable only by this user's proxy or mirror."""


class _Unreadable(Exception):
    pass


def find(config: ClusterConfig, url: str) -> tuple[str, Access | None]:
    """The full commit of `code.ref` (default: the remote's HEAD), and the access by which this
    machine reads it; None if it is public. Raises ConfigError."""
    ref = config.code.ref
    if ref is not None and (ref.startswith("-") or not ref.strip() or "\0" in ref):
        raise refused(config, "ref", f"{ref!r} is not a valid branch, tag or commit")
    # Nodes have no keys and no files of this machine.
    only_here = config.code.token or config.network.private or git_access.is_ssh(url)
    if not only_here and not git_access.is_local(url):
        anybody = git_access.as_anybody()
        with suppress(_Unreadable):
            refs = _remote_refs(anybody, url, ref, timeout=_PROBE_SECONDS)
            return _commit(config, url, anybody, refs), None
    user = git_access.as_user(config, url)
    try:
        refs = _remote_refs(user, url, ref)
    except _Unreadable as error:
        text = f"{url} cannot be read: {error}"
        raise refused(config, "git", text, hint=_hint(config, url)) from None
    return _commit(config, url, user, refs), user


def url(config: ClusterConfig) -> str:
    """`code.git` as git takes it. Raises ConfigError for URLs that are not allowed."""
    url = config.code.git or ""
    if url.startswith("-") or not url.isprintable() or re.match(r"[A-Za-z0-9+.-]*::", url):
        raise refused(config, "git", f"{url!r} is not a repository URL")
    if re.match(r"[A-Za-z0-9+.-]+://[^/@]*:[^/]*@", url):
        raise refused(
            config,
            "git",
            "the URL has a password, which would be in records and process lists",
            hint=_TOKEN_HINT,
        )
    if url.startswith(("./", "../", "~/")):
        return str((config.folder / Path(url).expanduser()).resolve())
    return url


def _remote_refs(
    access: Access, url: str, ref: str | None, *, timeout: float = 300.0
) -> Mapping[str, str]:
    """Commits by ref name."""
    wanted = ref or "HEAD"
    command = ("git", "ls-remote", "--quiet", "--", url, wanted, f"{wanted}^{{}}")
    try:
        done = git_access.run(access, *command, timeout=timeout)
    except TimeoutError as error:
        raise _Unreadable(str(error)) from None
    if done.returncode != 0:
        words = access.words(done.stderr)
        raise _Unreadable(words[0] if words else f"git exit {done.returncode}")
    lines = (line.split("\t", 1) for line in done.stdout.splitlines() if "\t" in line)
    return {name: commit for commit, name in lines}


def _commit(config: ClusterConfig, url: str, access: Access, refs: Mapping[str, str]) -> str:
    ref = config.code.ref
    if ref is not None and _COMMIT.fullmatch(ref):
        return ref
    # In git's own order; an annotated tag's commit is listed with `^{}`.
    tags = (f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}")
    names = (*tags, f"refs/heads/{ref}", f"{ref}^{{}}", ref) if ref else ("HEAD",)
    found = next((refs[name] for name in names if name in refs), None)
    if found is None and ref is not None and _ABBREVIATED.fullmatch(ref):
        found = _whole(access, url, ref)
    if found is None:
        what = f"no branch, tag or commit {ref}" if ref else "no commit"
        raise refused(config, "ref", f"{url} has {what}")
    return found


def _whole(access: Access, url: str, abbreviated: str) -> str | None:
    """Complete a short commit by the history, without files: servers list only what refs have."""
    with tempfile.TemporaryDirectory() as folder:
        clone = ("git", "clone", "--quiet", "--bare", "--filter=tree:0", "--", url, folder)
        if git_access.run(access, *clone).returncode != 0:
            return None
        named = ("rev-parse", "--verify", "--quiet", f"{abbreviated}^{{commit}}")
        return git_access.run(access, "git", "-C", folder, *named).stdout.strip() or None


def _hint(config: ClusterConfig, url: str) -> str:
    if config.code.token:
        return f"check that the token in {config.secrets[config.code.token]} can read it"
    if git_access.is_ssh(url):
        return (
            f"`git ls-remote {url}` must work here without a prompt: with the key in your agent, or"
            " without a passphrase, and the host in known_hosts"
        )
    if git_access.is_local(url):
        return "check that it is a git repository on this machine"
    return f"check the URL; if the repository is private, {_TOKEN_HINT}"


_TOKEN_HINT = (
    'set `secrets: {GIT_TOKEN: "${GIT_TOKEN}"}` and `token: GIT_TOKEN` under `code`,'
    " or add it to your git's credential helper"
)


# ── Needs of a public repository beside itself: submodules that nodes can read, and git-lfs ───


_SECONDS = 20.0
_SUBMODULE = "160000"
"""Mode of a submodule in a tree: https://git-scm.com/docs/git-ls-tree"""


def refuse_unreadable(config: ClusterConfig, url: str, commit: str) -> None:
    """Raise ConfigError for what a node could not fetch with the commit. Fetches its trees alone. A
    server that does not offer that is not asked further."""
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
        for argv in (
            ("init", "--quiet", "--bare"),
            ("config", "remote.origin.url", self.url),
            ("config", "remote.origin.promisor", "true"),
            ("config", "remote.origin.partialclonefilter", "blob:none"),
            ("fetch", "--quiet", *filtered, "origin", self.commit),
        ):
            if self._git(*argv) is None:
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

    def _git(self, *argv: str) -> str | None:
        done = git_access.run(self.access, "git", "-C", self.folder, *argv, timeout=_SECONDS)
        return done.stdout if done.returncode == 0 else None


def _submodules(repository: _Trees) -> Iterator[str]:
    paths = {path for mode, path in repository.paths() if mode == _SUBMODULE}
    if not paths:
        return
    named = dict(_settings(repository.setting(r"^submodule\..*\.path$")))
    urls = dict(_settings(repository.setting(r"^submodule\..*\.url$")))
    for name, path in named.items():
        if path not in paths or name not in urls:
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
            lines = repository.access.words(done.stderr)
            why = lines[0] if lines else f"git exit {done.returncode}"
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
