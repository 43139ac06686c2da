"""The end of a stopped node is moved by its user data, which its next boot reads."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cloudtrain.core.model import HostKey
from cloudtrain.core.shell import Secret
from cloudtrain.providers.base import boot

HOST_KEY = HostKey(public="ssh-ed25519 AAAA", private=Secret("a key of tests"))
BEFORE = boot.user_data(public_key="ssh-ed25519 AAAA", host_key=HOST_KEY, expires=1000.0)


def booted(user_data: str, folder: Path) -> str:
    """Run what a boot runs before the timer; returns the content of its END file."""
    (once,) = [
        line
        for line in boot.document_of(user_data)["bootcmd"]
        if f"{boot.END}.moved" in line and "shutdown" not in line
    ]
    here = once.replace(boot.END.rpartition("/")[0], str(folder))
    subprocess.run(["sh", "-ec", here], check=True)
    end = folder / "end"
    return end.read_text().strip() if end.exists() else ""


def test_a_moved_end_wins_over_the_one_in_the_file_at_the_next_boot(tmp_path: Path) -> None:
    (tmp_path / "end").write_text("1000\n")
    moved = boot.with_end(BEFORE, 5000.0, moved="4000-5000")
    assert booted(moved, tmp_path) == "5000"
    (tmp_path / "end").write_text("9000\n")  # moved again, while it runs
    assert booted(moved, tmp_path) == "9000"


def test_an_end_that_is_moved_again_while_stopped_wins_again(tmp_path: Path) -> None:
    once = boot.with_end(BEFORE, 5000.0, moved="4000-5000")
    twice = boot.with_end(once, 3000.0, moved="4500-3000")
    booted(once, tmp_path)
    assert booted(twice, tmp_path) == "3000"
    lines = boot.document_of(twice)["bootcmd"]
    assert len(lines) == len(boot.document_of(once)["bootcmd"])
    assert sum("end=3000" in line for line in lines) == 1


def test_a_file_that_cannot_be_written_does_not_keep_the_old_end(tmp_path: Path) -> None:
    (tmp_path / "end").write_text("1000\n")
    (tmp_path / "end.new").mkdir()
    assert booted(boot.with_end(BEFORE, 5000.0, moved="4000-5000"), tmp_path) == ""


def test_a_node_says_whether_its_timer_ends_it_then(tmp_path: Path) -> None:
    def says(expires: float) -> bool:
        line = boot.has_end_command(expires).replace(boot.END, str(tmp_path / "end"))
        return subprocess.run(["sh", "-c", line], check=False).returncode == 0

    timer = subprocess.Popen(["sh", "-c", "read line; : shutdown -P now"], stdin=subprocess.PIPE)
    try:
        assert says(5000.0), "by the user data"
        (tmp_path / "end").write_text("5000\n")
        assert says(5000.0)
        assert not says(6000.0)
    finally:
        timer.kill()
        timer.communicate()


def test_all_else_in_the_user_data_stays() -> None:
    before, after = (
        boot.document_of(text) for text in (BEFORE, boot.with_end(BEFORE, 5000.0, moved="4-5"))
    )
    assert {**before, "bootcmd": None} == {**after, "bootcmd": None}
    assert before["bootcmd"][:-1] == after["bootcmd"][:-2]


@pytest.mark.parametrize("text", ["#cloud-config\n{}\n", "#!/bin/sh\nexit\n"])
def test_user_data_of_others_is_not_touched(text: str) -> None:
    with pytest.raises(ValueError, match="no bootcmd"):
        boot.with_end(text, 5000.0, moved="4-5")
