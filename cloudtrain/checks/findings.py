"""Findings of `check`, `up`, `run` and `train` on this machine, before anything is created."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from cloudtrain.checks.commands import command_problems
from cloudtrain.checks.fill_in import unfilled
from cloudtrain.checks.setup import setup
from cloudtrain.config import read_secrets
from cloudtrain.config.location import placed
from cloudtrain.core.errors import CloudtrainError, ConfigError, UsageError
from cloudtrain.core.model import ClusterConfig, Problem
from cloudtrain.core.protocols import Finding
from cloudtrain.playbooks import code as code_playbook
from cloudtrain.playbooks import git


def found_ahead(config: ClusterConfig) -> tuple[Finding, ...]:
    """Every finding, good ones included: on `setup:`, with the requirements read; the code, read as
    far as delivery does; command lines, values to fill in, secrets.

    What playbooks would refuse on the nodes is refused here, before they cost anything; a test
    compares them.
    """
    return (
        *_of("setup", setup, config),
        *_of("code", code, config),
        *_refused("command", config, command_problems(config)),
        *_refused("fill in", config, unfilled(config)),
        *_of("secrets", secrets, config),
    )


def secrets(config: ClusterConfig) -> str:
    """Names of the secrets. Raises CloudtrainError if one is not set."""
    read_secrets(config)
    return ", ".join(config.secrets) or "none"


def _of(what: str, ask: Callable[[ClusterConfig], str], config: ClusterConfig) -> Iterator[Finding]:
    try:
        yield Finding(what=what, ok=True, text=ask(config))
    except ConfigError as error:
        yield from _refused(what, config, error.problems, error.hint)
    except CloudtrainError as error:
        yield Finding.of(what, error)


def _refused(
    what: str, config: ClusterConfig, problems: Sequence[Problem], hint: str | None = None
) -> Iterator[Finding]:
    if problems:
        text = "\n".join(str(placed(config, problem)) for problem in problems)
        yield Finding(what=what, ok=False, text=text, hint=hint, error=UsageError)


# ── the code ───────────────────────────────────────────────────────────────────
# Read as delivery does: a folder to its last byte, a private repository with its submodules and
# files in Git LFS.


def code(config: ClusterConfig) -> str:
    """Text on the code that is delivered. Raises CloudtrainError for code that cannot be."""
    source = code_playbook.resolve(config)
    if isinstance(source, code_playbook.FolderCode):
        return str(source.root)
    if isinstance(source, code_playbook.PrivateCode):
        source.archive.make()
        return f"{config.code.git} at {source.digest[:10]}, fetched by this machine"
    if isinstance(source, code_playbook.GitCode):
        git.refuse_unreadable(config, source.url, source.digest)
        return f"{config.code.git} at {source.digest[:10]}, fetched by each node"
    return "none"
