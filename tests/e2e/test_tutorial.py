"""Every command of docs/tutorial.md is run as it stands there, and prints the words below it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import platformdirs
import pytest

from tests.support.project import ROOT

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.xdist_group("tensorflow"),
    pytest.mark.timeout(900),  # the first on a machine installs TensorFlow
]

PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def steps() -> Iterator[tuple[str, list[str]]]:
    """Each block of commands with the words that follow it."""
    blocks = BLOCK.findall(PAGE.read_text("utf-8"))
    for number, (kind, commands) in enumerate(blocks):
        if kind == "sh":
            follows = blocks[number + 1] if number + 1 < len(blocks) else ("", "")
            yield commands, follows[1].splitlines() if follows[0] == "text" else []


@pytest.mark.parametrize(
    "setup",
    [
        pytest.param('prove: "off"\n  packages: [scikit-learn]', id="quick"),
        pytest.param("", id="as it stands", marks=pytest.mark.sweep(0)),
    ],
)
def test_the_tutorial_prints_what_it_says(tmp_path: Path, setup: str) -> None:
    """Quick without the proof before each run. Its environment is that of the demo."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "cloudtrain").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m cloudtrain "$@"\n')
    (tools / "cloudtrain").chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("CLOUDTRAIN_")},
        "HOME": str(home),
        "CLOUDTRAIN_HOME": str(tmp_path / "state"),
        "CLOUDTRAIN_CACHE": os.environ.get("CLOUDTRAIN_CACHE")
        or platformdirs.user_cache_dir("cloudtrain"),
        "PYTHONPATH": str(ROOT),
        "PATH": f"{tools}:{os.environ['PATH']}",
        "COLUMNS": "200",
    }
    folder = tmp_path
    try:
        for commands, words in steps():
            done = subprocess.run(
                ["bash", "-euc", f"{commands}\npwd >'{tmp_path}/now'"],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            said = done.stdout + done.stderr
            assert done.returncode == 0, (commands, said)
            assert [line for line in words if line not in said] == [], (commands, said)
            folder = Path((tmp_path / "now").read_text().strip())
            written = folder / "local.yaml"
            if setup and written.exists():
                text = written.read_text()
                if setup not in text:
                    written.write_text(text.replace("packages: [scikit-learn]", setup))
                assert setup in written.read_text()
    finally:
        subprocess.run(
            ["cloudtrain", "down", "local.yaml", "--yes", "--discard"],
            cwd=tmp_path / "first",
            env=environment,
            capture_output=True,
            check=False,
        )
    assert len(list(steps())) >= 9


def test_the_readme_names_the_same_first_commands() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    for command in ("init local", "plan local.yaml", "run local.yaml"):
        assert f"cloudtrain {command}" in readme
        assert f"cloudtrain {command}" in PAGE.read_text("utf-8")
