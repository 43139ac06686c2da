"""A file of the user's that is edited: no line of theirs is lost, whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from cloudtrain.providers.hosts import machine_scripts

OWN = tuple(f"ssh-ed25519 AAAA{number} ann@laptop-{number}" for number in range(5))
OURS = "ssh-ed25519 AAAAours cloudtrain:mnist"
ADD = machine_scripts.editing('add_line "$1" "$2"')
REMOVE = machine_scripts.editing('remove_lines "$1" "$2"')
LABEL = "cloudtrain:mnist"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user, or mounts a disk")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "home" / "authorized_keys"
    path.parent.mkdir()
    path.write_text("\n".join(OWN))  # and no newline at its end
    path.chmod(0o640)
    return path


def edit(text: str, *arguments: object, within: tuple[str, ...] = ()) -> tuple[int, str]:
    words = [*within, "sh", "-c", text, "sh", *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr.strip()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_a_line_is_added_once_and_taken_away_again(keys: Path) -> None:
    for _ in range(2):
        assert edit(ADD, keys, OURS) == (0, "")
    assert lines(keys) == [*OWN, OURS]
    for _ in range(2):
        assert edit(REMOVE, keys, LABEL) == (0, "")
    assert lines(keys) == [*OWN]
    assert keys.stat().st_mode & 0o777 == 0o640
    assert [*keys.parent.iterdir()] == [keys]


@pytest.mark.parametrize("ending", ["", "\n", "\r\n", "\n\n# mine"])
def test_the_users_bytes_stay_as_they_are(keys: Path, ending: str) -> None:
    own = b"# K\xfcche \x00\xff\nssh-rsa AAAA a cloudtrain:mnist-2" + ending.encode()
    keys.write_bytes(own)
    assert edit(ADD, keys, OURS) == (0, "")
    assert edit(REMOVE, keys, LABEL) == (0, "")
    assert keys.read_bytes() == own if ending.endswith("\n") else own + b"\n"


def test_machines_that_share_a_home_edit_it_at_once(keys: Path) -> None:
    """Of each round one half of them come, the other half go."""
    names = [f"cloudtrain:c{number}" for number in range(8)]
    for turn in range(4):
        adding, removing = (names[:4], names[4:])[:: 1 if turn % 2 else -1]
        commands = [["sh", "-c", ADD, "sh", str(keys), f"ssh-rsa AAAA {name}"] for name in adding]
        commands += [["sh", "-c", REMOVE, "sh", str(keys), name] for name in removing]
        editors = [subprocess.Popen(command) for command in commands]
        assert {editor.wait() for editor in editors} == {0}
        assert sorted(lines(keys)) == sorted([*OWN, *(f"ssh-rsa AAAA {name}" for name in adding)])
    assert [*keys.parent.iterdir()] == [keys]


# The trap runs before each of the shell's commands, also in functions and subshells.
KILLED = "left=$3; set -T; trap '[ $((left--)) != 0 ] || kill -KILL 0' DEBUG\n"


@pytest.mark.parametrize("text", [ADD, REMOVE], ids=["added", "removed"])
def test_a_kill_before_any_command_loses_nothing_and_the_next_edit_succeeds(
    tmp_path: Path, text: str
) -> None:
    added = text is ADD
    what = OURS if added else LABEL
    patience = {**os.environ, "CLOUDTRAIN_LOCK_PATIENCE": "1"}
    killed = True
    for at in range(0, 500, 5):
        folder = tmp_path / str(at)
        folder.mkdir()
        keys = folder / "authorized_keys"
        keys.write_text("".join(f"{line}\n" for line in [*OWN, *([] if added else [OURS])]))
        words = ["bash", "-c", KILLED + text, "bash", str(keys), what, str(at)]
        done = subprocess.run(words, start_new_session=True, check=False)
        killed = done.returncode == -signal.SIGKILL
        assert lines(keys) in ([*OWN], [*OWN, OURS]), at
        if at % 25 == 0:
            subprocess.run(["sh", "-c", text, "sh", str(keys), what], check=True, env=patience)
            assert lines(keys) == [*OWN, *([OURS] if added else [])]
        if not killed:
            break
    assert not killed
    assert at > 50


def test_one_who_was_taken_for_dead_begins_again(keys: Path) -> None:
    """It is stopped in the middle: its lock is taken from it, and the other's edit stays."""
    stopped = ADD.replace('  sync "$work/new"', '  kill -STOP 0\n  sync "$work/new"')
    words = ["sh", "-c", stopped, "sh", str(keys), OURS]
    slow = subprocess.Popen(words, start_new_session=True)
    os.waitid(os.P_PID, slow.pid, os.WSTOPPED)
    patience = {**os.environ, "CLOUDTRAIN_LOCK_PATIENCE": "1"}
    other = "ssh-rsa AAAA cloudtrain:other"
    subprocess.run(["sh", "-c", ADD, "sh", str(keys), other], check=True, env=patience)
    assert lines(keys) == [*OWN, other]
    os.killpg(slow.pid, signal.SIGCONT)
    os.waitid(os.P_PID, slow.pid, os.WSTOPPED)
    os.killpg(slow.pid, signal.SIGCONT)
    assert slow.wait() == 0
    assert lines(keys) == [*OWN, other, OURS]


def test_what_another_program_appends_meanwhile_stays(keys: Path) -> None:
    """ssh-copy-id, or a person: before the content was compared, and after."""
    keys.write_text("".join(f"{line}\n" for line in OWN))
    early = """  ! [ ! -e "$1.early" ] || { : >"$1.early"; echo early >>"$file"; }\n"""
    text = ADD.replace('  same "$file"', early.replace("$1", "$file") + '  same "$file"')
    text = text.replace('  mv -f -- "$work/new"', '  echo late >>"$file"\n  mv -f -- "$work/new"')
    assert edit(text, keys, OURS) == (0, "")
    assert sorted(lines(keys)) == sorted([*OWN, OURS, "early", "late"])


def test_a_link_stays_one_and_its_file_is_edited(keys: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(keys)
    assert edit(ADD, link, OURS) == (0, "")
    assert link.is_symlink()
    assert lines(keys) == [*OWN, OURS]


def test_a_file_that_does_not_exist_is_made_for_the_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "authorized_keys"
    assert edit(REMOVE, path, LABEL) == (0, "")
    assert not path.exists()
    assert edit(ADD, path, OURS) == (0, "")
    assert lines(path) == [OURS]
    assert path.stat().st_mode & 0o777 == 0o600


@needs_root
@pytest.mark.parametrize(
    ("mode", "folder", "why"), [(0o440, 0o777, "it"), (0o666, 0o755, "folder")]
)
def test_what_is_read_only_is_named_and_untouched(
    keys: Path, mode: int, folder: int, why: str
) -> None:
    for parent in keys.parent.parents:
        if parent.owner() == "root" and not parent.stat().st_mode & 0o001:
            parent.chmod(0o755)
    keys.chmod(mode)
    keys.parent.chmod(folder)
    user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    if mode == 0o440:
        os.chown(keys, 65534, 65534)
    code, words = edit(ADD, keys, OURS, within=user)
    assert code == 1
    assert words.startswith(f"{keys} was not changed: ")
    assert words.endswith("read-only")
    assert why in words
    assert lines(keys) == [*OWN]


@needs_root
def test_a_full_disk_is_named_and_the_file_is_untouched(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    text = """
        mount -t tmpfs -o size=64k none "$1" || exit 77
        head -c 20000 /dev/zero | tr '\\0' x | fold -w 100 >"$1/keys"
        cksum <"$1/keys"
        cat /dev/zero >"$1/full" 2>/dev/null
        sh -c "$2" sh "$1/keys" "$3" || true
        cksum <"$1/keys"
    """
    words = ["unshare", "-m", "sh", "-c", text, "sh", str(disk), ADD, OURS]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("no disk can be mounted here")
    before, after = done.stdout.split("\n")[:2]
    assert before == after
    assert "was not changed: " in done.stderr
    assert "No space left on device" in done.stderr
