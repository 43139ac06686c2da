"""Resolves a git repository as code: the commit of a ref, and who can read it; runs git here."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from cloudtrain.config.env_file import secret_of
from cloudtrain.core.cloud import facts_of
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import ConfigError, UsageError
from cloudtrain.core.model import ClusterConfig, Problem
from cloudtrain.core.shell import Secret

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
    only_here = config.code.token or config.network.private or is_ssh(url)
    if not only_here and not is_local(url):
        anybody = as_anybody()
        with suppress(_Unreadable):
            refs = _remote_refs(anybody, url, ref, timeout=_PROBE_SECONDS)
            return _commit(config, url, anybody, refs), None
    user = as_user(config, url)
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
        done = run(access, *command, timeout=timeout)
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
        if run(access, *clone).returncode != 0:
            return None
        named = ("rev-parse", "--verify", "--quiet", f"{abbreviated}^{{commit}}")
        return run(access, "git", "-C", folder, *named).stdout.strip() or None


def _hint(config: ClusterConfig, url: str) -> str:
    if config.code.token:
        return f"check that the token in {config.secrets[config.code.token]} can read it"
    if is_ssh(url):
        return (
            f"`git ls-remote {url}` must work here without a prompt: with the key in your agent, or"
            " without a passphrase, and the host in known_hosts"
        )
    if is_local(url):
        return "check that it is a git repository on this machine"
    return f"check the URL; if the repository is private, {_TOKEN_HINT}"


_TOKEN_HINT = (
    'set `secrets: {GIT_TOKEN: "${GIT_TOKEN}"}` and `token: GIT_TOKEN` under `code`,'
    " or add it to your git's credential helper"
)


# ── needs of a public repository beside itself: submodules that nodes can read, and git-lfs ───


_SUBMODULE = "160000"
"""Mode of a submodule in a tree: https://git-scm.com/docs/git-ls-tree"""


def refuse_unreadable(config: ClusterConfig, url: str, commit: str) -> None:
    """Raise ConfigError for what a node could not fetch with the commit. Fetches its trees alone. A
    server that does not offer that is not asked further."""
    access = as_anybody()
    with tempfile.TemporaryDirectory(prefix="cloudtrain-git-") as folder:
        repository = _Trees(access, folder, url, commit)
        try:
            if not repository.fetch():
                return
            texts = [*_submodules(repository)]
            if facts_of(config.provider).on_this_machine:
                texts += _large_files(repository)
        except TimeoutError:
            return
    if texts:
        problems = [refused(config, "git", text).problems[0] for text in texts]
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

    def settings(self, key: str) -> dict[str, str]:
        """Values of `submodule.NAME.KEY` in its .gitmodules, by name."""
        pattern = rf"^submodule\..*\.{key}$"
        blob = ("config", "--blob", f"{self.commit}:.gitmodules", "--get-regexp", pattern)
        lines = (line.partition(" ") for line in (self._git(*blob) or "").splitlines())
        return {name.partition(".")[2].rpartition(".")[0]: value for name, _, value in lines}

    def _git(self, *argv: str) -> str | None:
        done = run(self.access, "git", "-C", self.folder, *argv, timeout=_PROBE_SECONDS)
        return done.stdout if done.returncode == 0 else None


def _submodules(repository: _Trees) -> Iterator[str]:
    paths = {path for mode, path in repository.paths() if mode == _SUBMODULE}
    if not paths:
        return
    urls = repository.settings("url")
    for name, path in repository.settings("path").items():
        if path not in paths or name not in urls:
            continue
        url = urls[name]
        if url.startswith(("./", "../")):
            url = urljoin(f"{repository.url.rstrip('/')}/", url)
        if is_ssh(url):
            yield f"its submodule {path} is at {url}, but nodes have no key of yours"
            continue
        ask = ("git", "ls-remote", "--quiet", "--exit-code", "--", url, "HEAD")
        done = run(repository.access, *ask, timeout=_PROBE_SECONDS)
        if done.returncode not in (0, 2):
            lines = repository.access.words(done.stderr)
            why = lines[0] if lines else f"git exit {done.returncode}"
            yield f"its submodule {path} at {url} cannot be read without an account: {why}"


def _large_files(repository: _Trees) -> Iterator[str]:
    if lfs_pointers():
        return
    named = [path for _, path in repository.paths() if path.rpartition("/")[2] == ".gitattributes"]
    if not any(re.search(r"filter=lfs\b", repository.text(path)) for path in named):
        return
    if run(repository.access, "git", "lfs", "version", timeout=_PROBE_SECONDS).returncode:
        yield "some of its files are in Git LFS, but git-lfs is not installed here"


# ── git on this machine: anonymous, with the user's settings, or with a token as well ─────────


_TRANSPORTS = "https:http:ssh:git"
"""Allowed transports: `ext::…` would run a command from the URL."""

_WITHOUT_CREDENTIALS = {"HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
_ASKING_NOBODY = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "",
    "SSH_ASKPASS_REQUIRE": "never",
    "LC_ALL": "C",
}
_OF_A_REPOSITORY = re.compile(
    r"GIT_(DIR|WORK_TREE|INDEX_FILE|COMMON_DIR|NAMESPACE|PREFIX|.*OBJECT_DIRECTORIES"
    r"|OBJECT_DIRECTORY|CONFIG|TRACE.*|CURL_VERBOSE)"
)
"""Variables to unset: git sets some in hooks, and traces would be mistaken for error messages."""

_HELPER = """!f() {
    [ "$1" = get ] || exit 0
    [ -n "$CLOUDTRAIN_GIT_USER" ] || echo username=x-access-token
    printf 'password=%s\\n' "$CLOUDTRAIN_GIT_TOKEN"
}
f"""
"""GitHub, GitLab, Gitea and Azure DevOps accept any user name with a token; for others it comes
from the URL. https://git-scm.com/docs/gitcredentials"""


@dataclass(frozen=True)
class Access:
    """Environment of git on this machine; nothing of it reaches a node."""

    environment: Mapping[str, str | Secret]
    token: Secret | None = None

    def revealed(self) -> dict[str, str]:
        return {
            name: value.reveal() if isinstance(value, Secret) else value
            for name, value in self.environment.items()
        }

    def words(self, text: str) -> list[str]:
        """git's output by line, with the token masked in what a server may have repeated."""
        if self.token is not None:
            text = text.replace(self.token.reveal(), "***")
        return [
            line
            for line in re.sub(r"(https?://)[^/@\s]*@", r"\1", text).splitlines()
            if line.strip()
        ]


def as_anybody() -> Access:
    """Anonymous access, as on a node: without configuration, helpers, `.netrc` and keys."""
    plain = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GIT_", "SSH_")) and name != "XDG_CONFIG_HOME"
    }
    return Access(
        {
            **plain,
            **_WITHOUT_CREDENTIALS,
            **_ASKING_NOBODY,
            "GIT_ALLOW_PROTOCOL": "https:http:git:file",
        }
    )


def of_a_folder() -> Access:
    """For reading a repository on this machine, whose own configuration may be anybody's: of what
    that can start, nothing is, nor what a partial clone has left out."""
    settings = {"core.fsmonitor": "false", "core.hooksPath": "/dev/null"}
    environment = {**as_anybody().environment, "GIT_ALLOW_PROTOCOL": "none"}
    environment["GIT_NO_LAZY_FETCH"] = "1"  # git 2.45
    environment["GIT_CONFIG_COUNT"] = str(len(settings))
    for number, (name, value) in enumerate(settings.items()):
        environment |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return Access(environment)


def as_user(config: ClusterConfig, url: str) -> Access:
    """The user's access: their credential helpers, SSH keys, agent and known hosts, and
    `code.token`. Submodules use it too, so a local folder is allowed only if the URL is one."""
    own = {
        name: value for name, value in os.environ.items() if not _OF_A_REPOSITORY.fullmatch(name)
    }
    allowed = f"{_TRANSPORTS}:file" if is_local(url) else _TRANSPORTS
    environment = {**own, **_ASKING_NOBODY, "GIT_ALLOW_PROTOCOL": allowed}
    if "GIT_SSH" not in own and "GIT_SSH_COMMAND" not in own:
        configured = run(Access(environment), "git", "config", "--get", "core.sshCommand").stdout
        environment["GIT_SSH_COMMAND"] = configured.strip() or "ssh -o BatchMode=yes"
    token = secret_of(config, name, "code.token") if (name := config.code.token) else None
    if token is None:
        return Access(environment)
    return Access(
        {**environment, **_only_there(url, environment), "CLOUDTRAIN_GIT_TOKEN": token}, token
    )


def run(access: Access, *command: str, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
    """Run a git command without prompts, outside any repository. Raises UsageError if git is not
    installed, TimeoutError after `timeout` seconds."""
    try:
        return subprocess.run(
            command,
            env=access.revealed(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout,
        )
    except FileNotFoundError:
        raise UsageError(
            "git is not installed here", hint="install it, or set code.path to a folder"
        ) from None
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"no answer within {timeout:g} s") from None


def lfs_pointers() -> str:
    """Not empty if the user disables Git LFS downloads, in git-lfs's own variable."""
    wish = os.environ.get("GIT_LFS_SKIP_SMUDGE", "")
    return "" if wish.lower() in ("", "0", "false", "no", "off") else wish


def is_local(url: str) -> bool:
    return url.startswith(("/", "file://"))


def is_ssh(url: str) -> bool:
    """True for `ssh://…`, or `user@host:path` as scp writes it."""
    return re.match(r"(ssh|git\+ssh|ssh\+git)://|[^/:]+:(?!//)", url) is not None


def refused(
    config: ClusterConfig, field: str, text: str, *, hint: str | None = None
) -> ConfigError:
    problem = Problem(file=config.source, line=None, field=f"code.{field}", text=text)
    return ConfigError([problem], hint=hint)


def _only_there(url: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Restrict the token to the server of `code.git`. No submodule elsewhere and no redirect gets
    it. The user's stored credentials for that server are left alone."""
    parts = urlsplit(url)
    key = f"credential.{parts.scheme}://{parts.netloc.rpartition('@')[2]}.helper"
    first = int(environment.get("GIT_CONFIG_COUNT") or 0)
    settings = {"GIT_CONFIG_COUNT": str(first + 2)}
    for number, value in enumerate(("", _HELPER), start=first):
        settings[f"GIT_CONFIG_KEY_{number}"] = key
        settings[f"GIT_CONFIG_VALUE_{number}"] = value
    return {**settings, "CLOUDTRAIN_GIT_USER": parts.username or ""}
