"""A user's machine with credentials in some state, and what is typed there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from click.testing import CliRunner, Result

from cloudtrain.cli.app import cli
from cloudtrain.cluster.plan import make_plan, tasks
from cloudtrain.cluster.session import record_cluster
from cloudtrain.config import load
from cloudtrain.core.events import CreationBegun
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.run_record import Run
from cloudtrain.state import Records
from tests.standins.cloud import Cloud


@dataclass(frozen=True, kw_only=True)
class State:
    """What is said of the credentials (a pattern), and the command that cures them."""

    refuses: Mapping[str, str] = field(default_factory=dict)
    """What the cloud's own API refuses, of the corpus; a store does not."""
    says: str
    cure: str


@dataclass
class Desk(ABC):
    """A user's machine: home, programs, files, environment. One subclass per cloud."""

    folder: Path
    cloud: Cloud
    patch: pytest.MonkeyPatch
    project: str | None = field(init=False)
    STATES: ClassVar[Mapping[str, State]]
    SECRETS: ClassVar[tuple[str, ...]]
    """What is never shown."""
    sections: ClassVar[Mapping[str, Any]]
    """Of the config file, what differs by cloud."""
    bucket: ClassVar[str]
    sample: ClassVar[int] = 1
    """How many commands `make test` draws for each state, beside `down`."""

    @staticmethod
    @abstractmethod
    def account() -> AbstractContextManager[Cloud]:
        """Its stand-in."""

    @abstractmethod
    def be_in(self, state: Any) -> Mapping[str, object]:
        """Names in `cure` and what they stand for."""

    def file(self, name: str = "job.yaml", **sections: Any) -> Path:
        told = {
            "provider": self.cloud.name,
            **({"project": self.project} if self.project else {}),
            "strategy": "custom",
            "network": {"ssh_from": "203.0.113.7/32"},
            "train": {"command": "true"},
            **self.sections,
            **sections,
        }
        path = self.folder / name
        path.write_text(yaml.safe_dump({"name": path.stem, **told}))
        return path


def prepare(patch: pytest.MonkeyPatch, folder: Path, cloud: str) -> None:
    """Have this cloud's extra installed alone, and never wait for a network."""
    patch.setenv("CLOUDTRAIN_CACHE", str(folder / "cache"))
    patch.setattr(
        "cloudtrain.commands.accounts.missing_extra",
        lambda name: None if name in (cloud, "local") else "libcloud",
    )
    for place in ("providers.base.timing", "stores.objects"):
        patch.setattr(f"cloudtrain.{place}.no_network", lambda *_, **__: None)


def record(file: Path) -> None:
    """A creation that began, and a run, as if `up` and `train` had been typed."""
    config = load(file)
    records = Records(config.name)
    record_cluster(config, records)
    records.journal(CreationBegun(id="0123456789ab"))
    records.save_run(run_of(config))


def run_of(config: ClusterConfig) -> Run:
    return Run(
        id="20261126-100000-aaaa",
        cluster=config.name,
        command="true",
        state="succeeded",
        created=1.0,
        ended=2.0,
        exit_code=0,
        store=config.artifacts.store,
        tasks=tasks(make_plan(config)),
    )


def typed(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])
