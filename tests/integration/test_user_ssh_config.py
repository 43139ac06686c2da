"""One line of ours in ~/.ssh/config, which OpenSSH reads as it is meant."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cloudtrain.core.errors import UsageError
from cloudtrain.ssh.user_config import include_line, install

OWN = "# mine\nHost *.example.com\n  User ann\n  Port 2200"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "home" / ".ssh" / "config"


@pytest.fixture(params=["state", "my own state"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder: Path = tmp_path / request.param
    return folder


@pytest.fixture
def line(state: Path) -> str:
    cluster = state / "clusters" / "mnist"
    cluster.mkdir(parents=True)
    (cluster / "ssh_config").write_text("Host mnist-chief0\n  HostName 192.0.2.7\n  Port 2222\n")
    return include_line(state)


def resolved(config: Path, host: str) -> dict[str, str]:
    """What ssh makes of a host with this file: `ssh -G` connects to nothing."""
    words = ["ssh", "-F", str(config), "-G", host]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return dict(each.split(" ", 1) for each in printed.splitlines() if " " in each)


def test_ssh_knows_the_nodes_and_the_users_own_hosts(config: Path, line: str) -> None:
    config.parent.mkdir(parents=True, mode=0o700)
    config.write_text(OWN)
    config.chmod(0o640)
    assert install(config, line)
    assert not install(config, line)
    assert config.read_text() == f"{line}\n{OWN}"
    assert config.stat().st_mode & 0o777 == 0o640
    assert [*config.parent.iterdir()] == [config]
    node, own = resolved(config, "mnist-chief0"), resolved(config, "a.example.com")
    assert (node["hostname"], node["port"]) == ("192.0.2.7", "2222")
    assert (own["user"], own["port"]) == ("ann", "2200")


def test_a_cluster_of_later_is_known_without_another_line(
    config: Path, line: str, state: Path
) -> None:
    config.parent.parent.mkdir()
    install(config, line)
    assert resolved(config, "later-worker0")["hostname"] == "later-worker0"
    later = state / "clusters" / "later"
    later.mkdir()
    (later / "ssh_config").write_text("Host later-worker0\n  HostName 192.0.2.9\n")
    assert resolved(config, "later-worker0")["hostname"] == "192.0.2.9"


def test_a_file_that_is_a_link_stays_one(config: Path, line: str, tmp_path: Path) -> None:
    config.parent.mkdir(parents=True)
    kept = tmp_path / "dotfiles"
    kept.write_text(OWN)
    config.symlink_to(kept)
    install(config, line)
    assert config.is_symlink()
    assert kept.read_text() == f"{line}\n{OWN}"


def test_a_line_below_a_host_is_named_as_it_counts_for_that_alone(config: Path, line: str) -> None:
    config.parent.mkdir(parents=True)
    config.write_text(f"{OWN}\n{line}\n")
    with pytest.raises(UsageError, match=r"below `Host \*\.example\.com` and counts for") as caught:
        install(config, line)
    assert caught.value.hint == "move it to the top of the file"
    assert config.read_text() == f"{OWN}\n{line}\n"


def test_a_file_that_cannot_be_changed_is_left_and_the_line_is_said(
    config: Path, line: str
) -> None:
    config.mkdir(parents=True)
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        install(config, line)
    config.rmdir()
    config.symlink_to(config)
    with pytest.raises(UsageError) as caught:
        install(config, line)
    assert "config" in str(caught.value)


@pytest.mark.parametrize("name", ["a\nb", "a*", "100%", 'a"b', "$HOME", "a'b", "[x]"])
def test_a_folder_that_no_include_can_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="no `Include` of ssh can name"):
        include_line(tmp_path / name)


def test_a_machine_without_gnu_tools_is_told_the_line(
    config: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(UsageError, match="was not changed: the script that edits it") as caught:
        install(config, line)
    assert caught.value.hint == f"make this its first line yourself: {line}"
    assert not config.exists()
