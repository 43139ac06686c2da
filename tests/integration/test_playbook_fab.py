"""The playbooks from the `fab` command, against a real sshd."""

import subprocess
import sys
from pathlib import Path

import pytest

from cloudtrain import playbooks
from tests.support.sshd import SshdNode, sshd_node

pytestmark = pytest.mark.openssh

CONFIG = """\
name: mnist
provider: local
strategy: mirrored
nodes: {chief: {}}
setup: {run: ["echo it is done; touch own"]}
code: {path: src}
train: {command: python train.py}
"""


def fab(node: SshdNode, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As a user with an SSH config that names the cluster's own key and known hosts."""
    (folder / "ssh_config").write_text(
        f"Host chief\n  HostName {node.node.address}\n  Port {node.node.ssh_port}\n"
        f"  User {node.node.user}\n  IdentityFile {node.identity.private_key}\n"
        f"  UserKnownHostsFile {node.identity.known_hosts}\n"
    )
    searched = ["-r", playbooks.__path__[0], "-S", str(folder / "ssh_config")]
    command = [str(Path(sys.executable).parent / "fab"), *searched, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_bytes(b"\0\xff print()")
    (tmp_path / "mnist.yaml").write_text(CONFIG)
    return tmp_path / "mnist.yaml"


def test_fab_delivers_code_and_sets_up_and_the_second_time_does_nothing(
    tmp_path: Path, written: Path
) -> None:
    with sshd_node(tmp_path / "node") as node:
        first = fab(node, tmp_path, "-H", "chief", "code", "--file", str(written))
        assert first.returncode == 0, first.stderr
        (file,) = node.home.glob(".cloudtrain/mnist/code/*/train.py")
        assert file.read_bytes() == b"\0\xff print()"
        assert first.stdout.splitlines()[-1].startswith("chief: done: 1 of 1 steps")
        setup = fab(node, tmp_path, "-H", "chief", "tensorflow", "--file", str(written))
        assert "setup.run: echo it is done; touch own: it is done" in setup.stdout
        assert (node.home / "own").exists()
        again = fab(node, tmp_path, "-H", "chief", "code", "--file", str(written))
        assert again.stdout == "chief: done: nothing to do\n"


def test_fab_accepts_no_unknown_host_key(tmp_path: Path, written: Path) -> None:
    with sshd_node(tmp_path / "node") as node:
        node.identity.known_hosts.write_text("")
        done = fab(node, tmp_path, "-H", "chief", "code", "--file", str(written))
    assert done.returncode == 1
    assert "not found in known_hosts" in done.stderr
    assert "Traceback" not in done.stderr


def test_fab_says_what_is_wrong_in_the_file(tmp_path: Path, written: Path) -> None:
    written.write_text(CONFIG.replace("src", "nowhere"))
    with sshd_node(tmp_path / "node") as node:
        done = fab(node, tmp_path, "-H", "chief", "code", "--file", str(written))
    assert done.returncode == 2
    assert "nowhere is not a folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_fab_lists_the_playbooks_and_asks_for_a_machine(tmp_path: Path, written: Path) -> None:
    search = [str(Path(sys.executable).parent / "fab"), "-r", playbooks.__path__[0]]
    listed = subprocess.run([*search, "--list"], capture_output=True, text=True)
    names = [line.split()[0] for line in listed.stdout.splitlines() if line.startswith("  ")]
    assert names == ["base", "code", "gpus", "horovod", "nvidia", "packages", "tensorflow"]
    code = [*search, "code", "--file", str(written)]
    nowhere = subprocess.run(code, capture_output=True, text=True)
    assert (nowhere.returncode, nowhere.stderr) == (2, "name a machine: fab -H HOST …\n")
