"""Configs of the `tensorflow` playbook, and a pip in its place."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

from cloudtrain.core.model import Accelerator, ClusterConfig, NodeGroup, Setup
from cloudtrain.core.shell import Step


def config(
    strategy: Any = "multi_worker_mirrored",
    provider: Any = "gcp",
    accelerator: Accelerator | None = None,
    source: str = "/x/mnist.yaml",
    **setup: Any,
) -> ClusterConfig:
    return ClusterConfig(
        name="mnist",
        provider=provider,
        strategy=strategy,
        nodes={"chief": NodeGroup(accelerator=accelerator), "worker": NodeGroup(count=2)},
        setup=Setup(**setup),
        source=source,
    )


def files(step: Step) -> dict[str, list[str]]:
    """What pip is given."""
    assert step.stdin
    with tarfile.open(fileobj=io.BytesIO(b"".join(step.stdin()))) as tar:
        return {
            member.name.removesuffix(".txt"): (tar.extractfile(member) or io.BytesIO())
            .read()
            .decode()
            .splitlines()
            for member in tar
        }


STAND_IN = """#!/bin/sh
# A Python of version VERSION whose venv and pip only leave traces.
case "$1 $2 $3" in
    "-c import ensurepip"*) exit ENSUREPIP;;
    "-c import sys; print"*) echo VERSION;;
    "-c import sys"*) exec REAL -c "import sys; sys.version_info = (VERSIONS, 4)
$2" "$3" "$4";;
    "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python";;
    "-m pip install")
        case "$*" in *" uv>="*) cp UV_STAND_IN "$(dirname "$0")/uv"; exit;; esac
        echo "pip $*" >>"$(dirname "$0")/../log";;
    "-I -c import pip") exit 0;;
    *) exit 99;;
esac
"""


def python(folder: Path, name: str, version: str, *, ensurepip: bool = True) -> Path:
    real = Path("/proc/self/exe").resolve()
    text = (
        STAND_IN.replace("ENSUREPIP", "0" if ensurepip else "1")
        .replace("VERSIONS", version.replace(".", ", "))
        .replace("VERSION", version)
    )
    folder.mkdir(parents=True, exist_ok=True)
    text = text.replace("REAL", str(real)).replace("UV_STAND_IN", str(folder / "uv-stand-in"))
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return folder / name
