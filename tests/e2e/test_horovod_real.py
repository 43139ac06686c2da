"""A real Horovod over two nodes, as a user types it.

Its build takes seven to eight minutes of CPU time, unless one is in the cache: only `make sweeps`
runs these tests.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.test_training import losses
from tests.support.project import ROOT, Project, until

CONFIG = yaml.safe_load((ROOT / "configs" / "horovod.yaml").read_text(encoding="utf-8"))
LIMIT = 1200.0

pytestmark = [pytest.mark.sweep(0), pytest.mark.timeout(3 * LIMIT)]


def config(project: Project, *, workers: int = 2, arguments: str = "", **train: Any) -> Path:
    """configs/horovod.yaml with its code in the project."""
    shutil.copytree(ROOT / "examples", project.code, dirs_exist_ok=True)
    return project.config(
        strategy="horovod",
        nodes={"worker": {"count": workers}},
        setup=CONFIG["setup"],
        train={**CONFIG["train"], "grace": "5s", **train}
        | {"command": f"{CONFIG['train']['command']} {arguments}"},
    )


def pid_of_rank(project: Project, rank: int) -> int:
    for pid, words in project.processes().items():
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if words.startswith("python ") and f"HOROVOD_RANK={rank}".encode() in variables:
            return pid
    raise ValueError(f"rank {rank} does not run")


def test_two_nodes_print_the_loss_of_one_and_the_model_is_that_of_rank_0(project: Project) -> None:
    done = project.cloudtrain("run", config(project), timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert project.processes() == {}
    assert list(project.store.glob("*/worker0/output/model/saved_model.pb"))
    assert not list(project.store.glob("*/worker1/output/*"))
    said = [line.split(" │ ")[0] for line in done.stdout.splitlines() if "final loss" in line]
    assert sorted(said) == ["worker0", "worker1"]

    alone = project.cloudtrain("run", config(project, workers=1), timeout=LIMIT)
    assert alone.returncode == 0, alone.stderr
    assert len(losses(done.stdout)) == 1
    assert losses(alone.stdout) == losses(done.stdout)


def test_a_job_whose_worker_is_killed_resumes_from_rank_0s_checkpoint(project: Project) -> None:
    unbroken = project.cloudtrain("run", config(project, arguments="--epochs 40"), timeout=LIMIT)
    assert unbroken.returncode == 0, unbroken.stderr

    run = project.start("run", config(project, arguments="--epochs 40", max_restarts=1))
    until(lambda: re.search(r"Epoch [3-9]/40", project.stdout), LIMIT)
    os.kill(pid_of_rank(project, 1), signal.SIGKILL)
    assert run.wait(LIMIT) == 0, project.stderr
    assert "attempt 1 failed: worker1 on " in project.stderr
    assert "killed by SIGKILL" in project.stderr
    assert "resumes from" in project.stderr
    assert project.stdout.count("Epoch 1/40") == 1
    assert losses(project.stdout) == losses(unbroken.stdout)


def test_a_secret_is_on_no_command_line_of_any_rank(project: Project) -> None:
    project.environment["TOKEN_HERE"] = "s3cr3t-" + "x" * 20
    (project.code / "look.py").write_text(
        "import os, pathlib\n"
        "import horovod.tensorflow as hvd\n"
        "hvd.init()\n"
        "words = b''\n"
        "for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):\n"
        "    try:\n"
        "        words += path.read_bytes()\n"
        "    except OSError:\n"
        "        continue\n"
        "assert os.environ['TOKEN'].encode() not in words\n"
        "print('rank', hvd.rank(), 'of', hvd.size(), 'has', len(os.environ['TOKEN']), flush=True)\n"
    )
    wanted = project.config(
        strategy="horovod",
        nodes={"worker": {"count": 2}},
        setup=CONFIG["setup"],
        secrets={"TOKEN": "${TOKEN_HERE}"},
        train={"command": "python look.py"},
    )
    done = project.cloudtrain("run", wanted, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2 has 27" in done.stdout
    assert "rank 1 of 2 has 27" in done.stdout
    for path in project.folder.rglob("*"):
        if path.is_file():
            assert project.environment["TOKEN_HERE"].encode() not in path.read_bytes(), path
