"""The SSH server of a local node, seen by OpenSSH's programs, rsync and git."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.core.model import Node
from tests.support.fakes import key_pair
from tests.support.local_cluster import LocalCluster, local_cluster

needs = {
    name: pytest.mark.skipif(not shutil.which(name), reason=f"{name} is not on this machine")
    for name in ("ssh", "scp", "sftp", "rsync", "git")
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with pytest.MonkeyPatch.context() as patch:
        cluster = local_cluster(tmp_path_factory.mktemp("openssh"), patch)
        cluster.create()
        yield cluster
        cluster.destroy()


@pytest.fixture
def node(cluster: LocalCluster) -> Node:
    return cluster.nodes[0]


@needs["ssh"]
def test_openssh_runs_commands(cluster: LocalCluster, node: Node) -> None:
    done = cluster.ssh(node, "cat; echo oops >&2; exit 42", input=b"through ssh")
    assert (done.returncode, done.stdout, done.stderr) == (42, b"through ssh", b"oops\n")


@needs["ssh"]
def test_openssh_learns_which_signal_ended_a_command(cluster: LocalCluster, node: Node) -> None:
    done = cluster.ssh(node, "kill -KILL $$", "-v")
    assert done.returncode == 255
    assert b"exit-signal" in done.stderr


@needs["ssh"]
def test_openssh_gets_a_terminal_of_the_size_that_it_asks_for(
    cluster: LocalCluster, node: Node
) -> None:
    script = "test -t 0 && test -t 1 && test -t 2 && tty && stty size && echo terminal"
    done = cluster.ssh(node, script, "-tt")
    assert done.returncode == 0, done
    assert done.stdout.split(b"\r\n")[-2] == b"terminal"


@needs["ssh"]
def test_openssh_logs_in_to_a_shell(cluster: LocalCluster, node: Node) -> None:
    arguments = ["ssh", *cluster.options(), *cluster.place(node, "-p")]
    done = subprocess.run(
        arguments, input=b"cd / && pwd; exit 5\n", capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (5, b"/\n")


@needs["ssh"]
def test_openssh_accepts_no_other_host_key(
    cluster: LocalCluster, node: Node, tmp_path: Path
) -> None:
    wrong = tmp_path / "known_hosts"
    wrong.write_text(f"[{node.address}]:{node.ssh_port} {key_pair()[1]}\n")
    words = ["ssh", *cluster.options(), *cluster.place(node, "-p"), "true"]
    arguments = [word.replace(str(cluster.identity.known_hosts), str(wrong)) for word in words]
    done = subprocess.run(arguments, capture_output=True, timeout=60, check=False)
    assert done.returncode == 255
    assert b"REMOTE HOST IDENTIFICATION HAS CHANGED" in done.stderr


@needs["ssh"]
def test_openssh_passes_its_locale_and_no_other_variable(cluster: LocalCluster, node: Node) -> None:
    sent = ["-o", "SetEnv=LC_TEST=yes LD_PRELOAD=evil FOO=bar"]
    done = cluster.ssh(node, 'echo "$LC_TEST-$LD_PRELOAD-$FOO"', *sent)
    assert done.stdout == b"yes--\n"


@needs["scp"]
def test_scp_copies_both_ways(cluster: LocalCluster, node: Node, tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(os.urandom(300_000))
    port, host = cluster.place(node, "-P")[1:]
    base = ["scp", "-p", "-r", *cluster.options(), "-P", port]
    subprocess.run([*base, str(tmp_path / "there"), f"{host}:by-scp"], check=True, timeout=60)
    subprocess.run([*base, f"{host}:by-scp", str(tmp_path / "back")], check=True, timeout=60)
    assert (tmp_path / "back").read_bytes() == (tmp_path / "there").read_bytes()


@needs["sftp"]
def test_openssh_sftp_lists_and_copies(cluster: LocalCluster, node: Node, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"by sftp")
    port, host = cluster.place(node, "-P")[1:]
    batch = f"mkdir box\nput {tmp_path}/file box/file\nls -l box\nget box/file {tmp_path}/back\n"
    done = subprocess.run(
        ["sftp", *cluster.options(), "-P", port, "-b", "-", host],
        input=batch.encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done
    assert (tmp_path / "back").read_bytes() == b"by sftp"


@needs["rsync"]
@needs["ssh"]
def test_rsync_copies_a_folder(cluster: LocalCluster, node: Node, tmp_path: Path) -> None:
    for number in range(50):
        path = tmp_path / "tree" / str(number % 5) / f"file {number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(number * 1000))
    port, host = cluster.place(node, "-p")[1:]
    shell = " ".join(f"'{word}'" for word in ["ssh", *cluster.options(), "-p", port])
    subprocess.run(
        ["rsync", "-a", "-e", shell, f"{tmp_path}/tree/", f"{host}:tree"], check=True, timeout=60
    )
    copied = cluster.folder(node) / "home" / "tree"
    for path in (tmp_path / "tree").rglob("file *"):
        assert (copied / path.relative_to(tmp_path / "tree")).read_bytes() == path.read_bytes()


@needs["git"]
@needs["ssh"]
def test_git_clones_and_pushes(cluster: LocalCluster, node: Node, tmp_path: Path) -> None:
    port, host = cluster.place(node, "-p")[1:]
    words = " ".join(f"'{word}'" for word in ["ssh", *cluster.options()])
    environment = {**os.environ, "GIT_SSH_COMMAND": words, "GIT_CONFIG_GLOBAL": "/dev/null"}

    def git(*arguments: str) -> None:
        who = ["-c", "user.name=T", "-c", "user.email=t@example.org"]
        subprocess.run(["git", *who, *arguments], check=True, timeout=60, env=environment)

    done = cluster.ssh(node, "git init -q --bare repo.git")
    assert done.returncode == 0, done
    git("init", "-q", "-b", "main", str(tmp_path / "a"))
    git("-C", str(tmp_path / "a"), "commit", "-q", "--allow-empty", "-m", "first")
    url = f"ssh://{host}:{port}/~/repo.git"
    git("-C", str(tmp_path / "a"), "push", "-q", url, "main")
    git("clone", "-q", "-b", "main", url, str(tmp_path / "b"))
    assert (tmp_path / "b" / ".git").is_dir()


@needs["ssh"]
def test_openssh_forwards_to_a_port_of_the_node(cluster: LocalCluster, node: Node) -> None:
    with socket.create_server(("127.0.0.1", 0)) as service:

        def echo() -> None:
            connection, _ = service.accept()
            with connection:
                while data := connection.recv(1000):
                    connection.sendall(data.upper())

        thread = threading.Thread(target=echo)
        thread.start()
        place = f"127.0.0.1:{service.getsockname()[1]}"
        arguments = ["ssh", *cluster.options(), "-W", place, *cluster.place(node, "-p")]
        done = subprocess.run(
            arguments, input=b"through", capture_output=True, timeout=60, check=False
        )
        thread.join()
    assert (done.returncode, done.stdout) == (0, b"THROUGH")
