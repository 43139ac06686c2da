"""A config of two nodes, written and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from cloudtrain.config import load
from cloudtrain.core.model import ClusterConfig

DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
TWO = {"chief": {}, "worker": {"count": 1}}


def written(folder: Path, **values: Any) -> ClusterConfig:
    given = {
        "name": "t",
        "provider": "local",
        "strategy": "multi_worker_mirrored",
        "nodes": TWO,
        **values,
    }
    path = folder / "t.yaml"
    path.write_text(yaml.dump(given, Dumper=DUMPER))
    return load(path)
