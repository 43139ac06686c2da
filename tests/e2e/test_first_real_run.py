"""The script that somebody with an account runs first, on nodes of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project import ROOT, Project

SCRIPT = ROOT / "docs" / "first-real-run.sh"


@pytest.mark.sweep(0)
@pytest.mark.tensorflow
@pytest.mark.xdist_group("tensorflow")
def test_the_script_reports_each_step_and_masks_who_ran_it(
    project: Project, tensorflow_python: Path, tmp_path: Path
) -> None:
    store = (tmp_path / "store of someone@example.com").as_uri()
    done = subprocess.run(
        ["sh", SCRIPT, "local", "-", store, "cpu"],
        cwd=tmp_path,
        env={**os.environ, **project.environment, "GOOGLE_CLOUD_PROJECT": "secret-project-7"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    report = (tmp_path / "first-real-run-local-cpu.txt").read_text()
    assert done.returncode == 0, report + done.stderr
    assert report.count(": ok\n") == 11
    assert "all as expected\n" in report
    assert "final loss" in report
    assert '"event": "down"' in report
    assert "someone@" not in report
    assert project.processes() == {}


def test_a_part_that_does_not_exist_is_told(tmp_path: Path) -> None:
    for arguments in (["gcp"], ["gpc", "x", "gs://b", "cpu"], ["gcp", "x", "gs://b", "all"]):
        done = subprocess.run(
            ["sh", SCRIPT, *arguments],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert "gcp" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("line", "masked"),
    [
        ("made by ann.b@corp.example.org now", "made by <mail> now"),
        ("subscription 3f2504e0-4f89-11d3-9a0c-0305e82c3301", "subscription <guid>"),
        ("arn:aws:iam::123456789012:user/x", "arn:aws:iam::<account>:user/x"),
        ("answers at 34.86.7.101 after", "answers at <address> after"),
        ("between 10.0.0.2 and 127.0.0.1", "between 10.0.0.2 and 127.0.0.1"),
        ("1234567890123 bytes", "1234567890123 bytes"),
    ],
)
def test_what_is_sent_tells_nothing_of_the_account(line: str, masked: str) -> None:
    text = SCRIPT.read_text()
    function = text[text.index("masked() {") : text.index("say() {")]
    done = subprocess.run(
        ["sh", "-c", f"{function}\nmasked"],
        input=f"{line}\n",
        env={"PATH": os.environ["PATH"], "HOME": "/home/ann"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{masked}\n"


def test_its_config_is_trusted_and_checked(project: Project, tmp_path: Path) -> None:
    """With a `cloudtrain` that does nothing but `check`."""
    stub = tmp_path / "bin" / "cloudtrain"
    stub.parent.mkdir()
    stub.write_text(f'#!/bin/sh\n[ "$1" != check ] || exec {sys.executable} -m cloudtrain "$@"\n')
    stub.chmod(0o755)
    path = f"{stub.parent}:{project.environment['PATH']}"
    done = subprocess.run(
        ["sh", SCRIPT, "local", "-", (tmp_path / "store").as_uri(), "cpu"],
        cwd=tmp_path,
        env={**os.environ, **project.environment, "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(": ok\n") == 11
