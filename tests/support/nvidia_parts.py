"""A node with a GPU, and its driver's packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloudtrain.core.model import Accelerator, ClusterConfig, NodeGroup, Setup
from tests.support.fake_machine import FakeMachine, fake_machine

EXACT = "linux-modules-nvidia-580-server-open-6.8.0-1015-gcp"
OPEN = ["nvidia-headless-no-dkms-580-server-open", "nvidia-utils-580-server"]


def config(
    kind: str | None = "T4",
    count: int = 1,
    provider: Any = "gcp",
    strategy: Any = "mirrored",
    tensorflow: str | None = "2.21",
    machine: str | None = None,
) -> ClusterConfig:
    gpus = Accelerator(kind=kind, count=count) if kind else None
    return ClusterConfig(
        name="mnist",
        provider=provider,
        strategy=strategy,
        nodes={"chief": NodeGroup(accelerator=gpus, machine=machine)},
        setup=Setup(tensorflow=tensorflow),
    )


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """With one GPU, and 580 in the archive for its kernel."""
    made = fake_machine(tmp_path, monkeypatch)
    made.device("0000:00:04.0", "0x030200")
    made.device("0000:00:03.0", "0x020000", vendor="0x1ae0")
    made.put("gpus", "0")
    made.put("driver", "580.178.04")
    made.put("archive", EXACT, *OPEN)
    return made
