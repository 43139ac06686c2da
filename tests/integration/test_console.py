"""The console with and without a real terminal."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fakes import eventually

ROOT = Path(__file__).parents[2]


# ── which console ────────────────────────────────────────────────────────────


def test_without_a_terminal_the_console_is_plain_and_rich_is_not_loaded() -> None:
    code = (
        "import sys; from cloudtrain.console import Style, console\n"
        "c = console(Style(json=len(sys.argv) > 1)); "
        "c.task_output('chief0', b'line\\n'); c.say('said')\n"
        "print(type(c).__name__, [m for m in sys.modules if m.startswith('rich')], file=sys.stderr)"
    )
    run = [sys.executable, "-c", code]
    text = subprocess.run(run, capture_output=True, text=True, check=True)
    assert text.stdout == "chief0 │ line\n"
    assert text.stderr.splitlines()[-1] == "PlainConsole []"
    json = subprocess.run([*run, "json"], capture_output=True, text=True, check=True)
    assert json.stdout == ""
    assert "chief0 │ line" in json.stderr


# ── terminal ─────────────────────────────────────────────────────────────────

DRAW = """
import pathlib
import sys
from cloudtrain.console import Style, console

def wait():
    pathlib.Path(sys.argv[1]).read_text()  # until the other end of the pipe is opened and closed

screen = console(Style())
screen.say("before")
with screen.stage("nodes on local", 3) as stage:
    stage.node("mnist-worker0", "waiting for ssh")
    stage.done("mnist-chief0", "ready")
    screen.task_output("chief0", b"\\x1b[2JEpoch 1/2\\n")
    wait()
    stage.done("mnist-worker0")
    stage.done("mnist-worker1")
screen.say("after")
wait()
"""


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not on this machine")
def test_what_a_real_terminal_shows(tmp_path: Path) -> None:
    script = tmp_path / "draw.py"
    script.write_text(DRAW)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    tmux = ["tmux", "-S", str(tmp_path / "socket"), "-f", os.devnull]
    environment = {k: v for k, v in os.environ.items() if k not in ("TMUX", "NO_COLOR")}
    environment |= {"PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}

    def screen() -> list[str]:
        shown = subprocess.run(
            [*tmux, "capture-pane", "-p"], capture_output=True, text=True, check=True
        )
        return [line.rstrip() for line in shown.stdout.splitlines() if line.strip()]

    draw = [sys.executable, str(script), str(pipe)]
    subprocess.run(
        [*tmux, "-u", "new-session", "-d", "-x", "80", "-y", "20", *draw],
        env=environment,
        check=True,
    )
    try:
        eventually(lambda: "    mnist-worker0  waiting for ssh" in screen())
        live = screen()
        assert live[:2] == ["before", "chief0 │ Epoch 1/2"]
        assert "nodes on local" in live[2]
        assert "1 of 3" in live[2]
        pipe.write_text("")
        eventually(lambda: screen()[-1] == "after")
        before, log, stage, after = screen()
        assert (before, log, after) == ("before", "chief0 │ Epoch 1/2", "after")
        assert re.fullmatch(r"✓ nodes on local  3 of 3  \d+\.\ds", stage)
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
