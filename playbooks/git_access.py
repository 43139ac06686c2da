"""Runs git on this machine: anonymously, with the user's settings, or with a token as well."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from cloudtrain.config.env_file import environment_of
from cloudtrain.core.errors import ConfigError, UsageError
from cloudtrain.core.model import ClusterConfig, Problem
from cloudtrain.core.shell import Secret

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
    token = _token(config)
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


def _token(config: ClusterConfig) -> Secret | None:
    name = config.code.token
    if name is None:
        return None
    variable = config.secrets[name]
    value = environment_of(config).get(variable, "").strip()
    if not value:
        raise refused(
            config,
            "token",
            f"the environment variable {variable} is not set here",
            hint="export it in the shell that runs cloudtrain",
        )
    if not value.isprintable():
        raise refused(config, "token", f"the value of {variable} is not one line of text")
    return Secret(value)


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
