"""Records docs/session.svg, the terminal session of the README: `python tools/record_session.py`.

The commands are run for real, on local nodes, in an empty folder; their output is drawn as it came,
on 100 columns. TensorFlow's log about itself is left out, as it is on a terminal.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import platformdirs
from rich.console import Console
from rich.text import Text

from cloudtrain.console.folding import is_own_log

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "session.svg"
WIDTH = 100

COMMANDS = (
    "cloudtrain init local --output first.yaml",
    "cloudtrain up first.yaml",
    "cloudtrain train first.yaml",
    "cloudtrain fetch first.yaml results",
    "cloudtrain down first.yaml --yes",
)


def output(command: str, folder: Path) -> list[str]:
    """What the command prints, with its real exit code checked."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("CLOUDTRAIN_")},
        "CLOUDTRAIN_HOME": str(folder / "state"),
        "CLOUDTRAIN_CACHE": os.environ.get("CLOUDTRAIN_CACHE")
        or platformdirs.user_cache_dir("cloudtrain"),
        "HOME": str(folder / "home"),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": str(WIDTH),
    }
    done = subprocess.run(
        [sys.executable, "-m", *command.split()],
        cwd=folder / "first",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    lines = done.stdout.replace(str(folder), "").splitlines()
    return [line for line in lines if not is_own_log(line.partition("│ ")[2]) and is_shown(line)]


def is_shown(line: str) -> bool:
    """Leave out warnings of TensorFlow's Python, which a terminal shows as well, for the space."""
    noise = (
        "UserWarning",
        "saving_api",
        "INFO:tensorflow",
        "WARNING",
        "To enable",
        "site-packages",
        "dataset.cc",
    )
    return not any(word in line for word in noise)


def main() -> None:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory(prefix="session-") as name:
        folder = Path(name)
        for part in ("first", "home"):
            (folder / part).mkdir()
        for command in COMMANDS:
            console.print(Text(f"$ {command}", style="bold"))
            for line in output(command, folder):
                console.print(Text(line, no_wrap=True, overflow="ellipsis"))
            console.print()
    picture = console.export_svg(title="cloudtrain")
    # rich names fonts of another host; without them the reader's own monospace is used
    picture = re.sub(r"@font-face\s*\{[^}]*\}", "", picture)
    PICTURE.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
