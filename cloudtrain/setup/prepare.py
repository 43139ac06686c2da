"""Prepares nodes for a run: the playbooks on all of them side by side, then the code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Protocol, cast

from cloudtrain.cluster.session import Session
from cloudtrain.config import requirements
from cloudtrain.core.cloud import facts_of
from cloudtrain.core.errors import NodesError, StepFailed
from cloudtrain.core.model import Identity, Node, Plan
from cloudtrain.core.step import Step
from cloudtrain.playbooks import (
    base,
    code,
    code_packages,
    gpu_check,
    horovod,
    nvidia,
    python,
    tensorflow,
)
from cloudtrain.playbooks.apply import Sharing as Shared
from cloudtrain.playbooks.apply import apply
from cloudtrain.setup.sharing import Sharing


def prepare_nodes(session: Session, delivered: str | None = None) -> str:
    """Install what `setup:` and `code:` ask for on every node; returns the code's commit or digest.

    `delivered`: the code of an active run, used even if its branch or folder has changed since.
    """
    source = code.resolve(session.config, delivered)
    note = tensorflow.keras_note(session.config)
    for text in filter(None, (note, *requirements.left_out_notes(session.config))):
        session.console.say(text)
    said = code.keys_note(source)
    if said:
        session.console.warn(said)

    def steps(node: Node) -> tuple[Step, ...]:
        return (
            *base.steps(session.config, node),
            *python.steps(),
            *nvidia.steps(session.config, node),
            *tensorflow.steps(session.config, node),
            *horovod.steps(session.config, node),
            *gpu_check.steps(session.config, node),
            *code.steps(source, session.config.name),
            *code_packages.steps(session.config, node, source.digest),
        )

    with (
        session.console.stage("setup and code", len(session.nodes)) as stage,
        shared_environments(session) as sharing,
    ):
        say = session.console.say
        try:
            apply(steps, session.nodes, session.transport, stage, sharing=sharing, note=say)
        except (StepFailed, NodesError) as error:
            line = requirements.line_named(session.config, str(error))
            hint = "; ".join(filter(None, (line, error.hint)))
            raise error.copy_with(hint=hint or None) if line else error from None
    packed = code.keys_note(source)
    if packed != said:
        session.console.warn(packed)
    return source.digest


@contextmanager
def shared_environments(session: Session) -> Iterator[Shared | None]:
    """Let nodes get environments from each other and from the store, unless `setup.cache` is off.

    Nodes on this machine share them without it.
    """
    config = session.config
    if facts_of(config.provider).on_this_machine:
        yield _CreatedApart(session)
        return
    if config.setup.cache == "off":
        yield None
        return
    with_credentials = tensorflow.credentials_in_packages(config)
    if with_credentials:
        session.console.say(
            "setup.cache: each node creates its own environment, as packages are named by a URL "
            "with credentials"
        )
        yield None
        return
    sharing = Sharing(session)
    try:
        yield sharing
    finally:
        sharing.close()


class _LocalNodes(Protocol):
    """The part of `provider: local` that creating environments needs."""

    def builder(
        self, plan: Plan, identity: Identity, node: Node, folder: str
    ) -> AbstractContextManager[Node | None]: ...


@dataclass(frozen=True)
class _CreatedApart:
    """Has environments that clusters share created where no node can write."""

    session: Session

    def provide(
        self, node: Node, folder: str, create: Callable[[Node], None], say: Callable[[str], None]
    ) -> bool:
        for_all = PurePath(node.shared_cache, "venvs")
        if not node.shared_cache or not PurePath(folder).is_relative_to(for_all):
            create(node)
            return True
        provider: _LocalNodes = cast(Any, self.session.provider)
        with provider.builder(self.session.plan, self.session.identity, node, folder) as builder:
            if builder is not None:
                create(builder)
        return True

    def interrupt(self) -> None:
        """Nothing waits here but for a lock."""
