"""Decides which files of a cluster's runs land, from where and to where."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from posixpath import normpath

from cloudtrain.artifacts.checkpoint_parts import PartSource
from cloudtrain.artifacts.inventory import Wanted
from cloudtrain.artifacts.manifest import OwnManifests
from cloudtrain.artifacts.sync import SyncSource
from cloudtrain.core import paths
from cloudtrain.core.errors import UsageError
from cloudtrain.core.model import AUTO, ArtifactRules, Node
from cloudtrain.core.paths import is_inside
from cloudtrain.core.protocols import ArtifactStore, Console, Transport
from cloudtrain.core.run_record import Run
from cloudtrain.node.listing import literal
from cloudtrain.state import Records

OUTPUT = "output/**"


@dataclass(frozen=True, kw_only=True)
class Landing:
    """Everything that landing needs to know about one cluster."""

    cluster: str
    rules: ArtifactRules
    checkpoints: str | None
    """`train.checkpoints`; it lands from a run's first task."""
    transport: Transport
    store: ArtifactStore
    console: Console
    logs: Callable[[str, str, int], Path] | None = None
    """Path of a local log, by run, task and attempt: a spool archive may have more of it."""
    home: bool = False
    """True if a node's home is its own, so that what a task makes or changes there lands too."""
    own: OwnManifests | None = None
    """The manifests that this machine has written."""

    def sources(self, run: Run, nodes: Mapping[str, Node]) -> list[SyncSource]:
        """Sync sources of a run; `nodes`: existing nodes by task."""
        first = run.tasks[0].name
        parts = self.parts(run.id, nodes)
        return [self.source(run.id, task, node, first, parts) for task, node in nodes.items()]

    def parts(self, run: str, nodes: Mapping[str, Node]) -> tuple[PartSource, ...]:
        """Tasks that write parts of a checkpoint; `nodes` by task."""
        return tuple(
            PartSource(task=task, node=node, folder=paths.work_folder(self.cluster, run, task))
            for task, node in nodes.items()
            if node.role == "ps"
        )

    def source(
        self, run: str, task: str, node: Node, first: str, parts: tuple[PartSource, ...] = ()
    ) -> SyncSource:
        """Sync source of one task; `first`: name of the run's first task."""
        folder = self.checkpoint_folder if task == first else None
        checkpoint = (f"{literal(folder)}/**",) if folder else ()
        return SyncSource(
            task=task,
            node=node,
            folder=paths.work_folder(self.cluster, run, task),
            wanted=wanted(self.rules, checkpoint, home=self.home),
            checkpoint=folder,
            parts=parts if folder else (),
        )

    def checkpoint_source(self, run: Run, nodes: Mapping[str, Node]) -> SyncSource | None:
        """The first task's checkpoint folder alone; None if its node is not among `nodes`."""
        first, folder = run.tasks[0].name, self.checkpoint_folder
        assert folder is not None, "only called if train.checkpoints is set"
        if first not in nodes:
            return None
        whole = self.source(run.id, first, nodes[first], first, self.parts(run.id, nodes))
        return replace(whole, wanted=Wanted(patterns=(f"{literal(folder)}/**",)))

    @property
    def checkpoint_folder(self) -> str | None:
        folder = normpath(self.checkpoints) if self.checkpoints else None
        if folder is not None and not is_inside(folder):
            raise UsageError(
                f"train.checkpoints: {self.checkpoints} is not a folder inside the work folder"
            )
        return folder


def own_manifests(records: Records) -> OwnManifests:
    return OwnManifests(folder=records.folder / "manifests")


def wanted(rules: ArtifactRules, more: tuple[str, ...] = (), *, home: bool = False) -> Wanted:
    """Files that land by these rules; a task's output folder always does."""
    is_auto = AUTO in rules.paths
    named = (path for path in rules.paths if path != AUTO)
    return Wanted(
        patterns=tuple(dict.fromkeys((*named, OUTPUT, *more))),
        limit=rules.limit if is_auto else None,
        sums=not is_auto,
        home=home,
    )
