"""Faults of a rehearsal on real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import cast

from cloudtrain.rehearsal.faults import LocalNodes, full_disk
from cloudtrain.run_record import Run, Task

WRITER = """
import pathlib, sys
sys.stdin.readline()
try:
    pathlib.Path(sys.argv[1]).write_text("x")
except OSError as error:
    print(error.strerror, flush=True)
sys.stdin.readline()
pathlib.Path(sys.argv[1]).write_text("x")
print("written", flush=True)
"""


def test_a_task_on_a_node_without_a_disk_of_its_own_cannot_make_a_file_longer(
    tmp_path: Path,
) -> None:
    class Shared:
        def fill_disk(self, cluster: str, node: str) -> None:
            return None

    words = [sys.executable, "-c", WRITER, str(tmp_path / "file")]
    with subprocess.Popen(words, stdin=PIPE, stdout=PIPE, text=True) as writer:
        assert writer.stdin
        assert writer.stdout
        record = Run(id="r", cluster="c", command="x", state="running", created=0.0, tasks=())
        task = Task(role="worker", index=0, node="n", port=1)
        with full_disk(cast(LocalNodes, Shared()), record, task, [writer.pid]):
            print(file=writer.stdin, flush=True)
            assert writer.stdout.readline() == "File too large\n"
        print(file=writer.stdin, flush=True)
        assert writer.stdout.readline() == "written\n"
