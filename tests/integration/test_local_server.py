"""The SSH server of a local node, seen by paramiko's client."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from cloudtrain.core.model import Node
from cloudtrain.core.shell import script
from cloudtrain.ssh.transport import SshTransport
from tests.support.fakes import eventually, key_pair
from tests.support.local_cluster import LocalCluster, local_cluster
from tests.support.processes import words


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "planted")
        patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/planted.json")
        patch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
        patch.setenv("https_proxy", "http://proxy.example:3128")
        cluster = local_cluster(tmp_path_factory.mktemp("server"), patch)
        cluster.create()
        yield cluster
        cluster.destroy()


@pytest.fixture
def node(cluster: LocalCluster) -> Node:
    return cluster.nodes[0]


@pytest.fixture
def client(cluster: LocalCluster, node: Node) -> Iterator[paramiko.SSHClient]:
    with cluster.connect(node) as client:
        yield client


def run(client: paramiko.SSHClient, command: str, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    transport = client.get_transport()
    assert transport
    with transport.open_session() as channel:
        channel.exec_command(command)
        writer = threading.Thread(target=_send, args=(channel, stdin))
        writer.start()
        out = b"".join(iter(lambda: channel.recv(1 << 20), b""))
        error = b"".join(iter(lambda: channel.recv_stderr(1 << 20), b""))
        writer.join()
        return channel.recv_exit_status(), out, error


def _send(channel: paramiko.Channel, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the command ended without reading it all
        for start in range(0, len(data), 1 << 16):  # sendall copies the whole rest each time
            channel.sendall(data[start : start + (1 << 16)])
        channel.shutdown_write()


def test_a_command_has_its_own_streams_and_exit_code(client: paramiko.SSHClient) -> None:
    result = run(client, "cat; echo problem >&2; exit 7", b"from stdin\n")
    assert result == (7, b"from stdin\n", b"problem\n")


def test_commands_start_in_the_home_of_the_node(
    client: paramiko.SSHClient, cluster: LocalCluster, node: Node
) -> None:
    home = f"{cluster.folder(node)}/home\n"
    assert run(client, 'pwd; echo "$HOME"')[1].decode() == home + home


def test_the_environment_has_no_credentials_and_what_installing_needs(
    client: paramiko.SSHClient, node: Node
) -> None:
    lines = run(client, "env -0")[1].decode().split("\0")
    environment = dict(line.split("=", 1) for line in lines if line)
    assert "planted" not in str(environment)
    assert environment["PIP_INDEX_URL"] == "https://mirror.example/simple"
    assert environment["https_proxy"] == "http://proxy.example:3128"
    assert environment["CLOUDTRAIN_NODE"].endswith("/mnist/mnist-chief0")
    assert environment["USER"] == environment["LOGNAME"] == node.user
    assert environment["NCCL_HOSTID"] == node.name
    allowed = (
        "NCCL_HOSTID",
        "PIP_",
        "UV_",
        "LC_",
        "SSL_CERT",
        "REQUESTS_CA",
        "CURL_CA",
        "CLOUDTRAIN_NODE",
    )
    usual = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR", "TZ", "PWD", "OLDPWD"}
    others = {
        name
        for name in environment
        if not name.startswith(allowed) and not name.lower().endswith("_proxy")
    }
    assert others <= usual | {"SHLVL", "_"}


def test_the_server_process_itself_holds_no_credentials(cluster: LocalCluster) -> None:
    (server,) = servers(cluster)
    assert b"planted" not in Path(f"/proc/{server}/environ").read_bytes()
    command = Path(f"/proc/{server}/cmdline").read_bytes()
    assert b"PRIVATE" not in command
    assert b"AAAA" not in command


def test_the_host_key_is_on_no_disk(cluster: LocalCluster, node: Node) -> None:
    found = [p for p in cluster.folder(node).rglob("*") if p.is_file()]
    assert found
    assert not any(b"PRIVATE KEY" in path.read_bytes() for path in found)


def servers(cluster: LocalCluster) -> list[int]:
    from cloudtrain.providers.local import processes

    tags = processes.tags(lambda tag: tag == cluster.tag(cluster.nodes[0].name))
    return [pid for pid in tags if any("fork_server" in word for word in words(pid))]


def test_a_command_that_is_faster_than_its_answer_is_not_lost(client: paramiko.SSHClient) -> None:
    """paramiko answers an exec request after its callback: the child must start after that."""
    assert [run(client, f"exit {n % 5}")[0] for n in range(100)] == [n % 5 for n in range(100)]


def test_fifty_megabytes_go_through_a_command_unchanged(client: paramiko.SSHClient) -> None:
    data = os.urandom(1 << 20) * 50
    code, out, _ = run(client, "cat", data)
    assert code == 0
    assert hashlib.sha256(out).digest() == hashlib.sha256(data).digest()


def test_streams_survive_a_change_of_keys(
    cluster: LocalCluster, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paramiko.Packetizer, "REKEY_BYTES", 1 << 20)
    with SshTransport(cluster.identity) as ssh:
        for _ in range(20):
            done = ssh.run(node, script("head -c 3000000 /dev/zero"), timeout=20)
            assert len(done.stdout) == 3_000_000


def test_a_command_that_does_not_read_takes_no_client_hostage(client: paramiko.SSHClient) -> None:
    assert run(client, "exec <&-; exit 3", b"x" * (8 << 20))[0] == 3


def test_output_and_errors_together_fill_no_pipe(client: paramiko.SSHClient) -> None:
    script = "head -c 3000000 /dev/zero >&2 & head -c 3000000 /dev/zero; wait"
    code, out, error = run_reading_both(client, script)
    assert (code, len(out), len(error)) == (0, 3_000_000, 3_000_000)


def run_reading_both(client: paramiko.SSHClient, command: str) -> tuple[int, bytes, bytes]:
    _, out, error = client.exec_command(command)
    errors: list[bytes] = []
    reader = threading.Thread(target=lambda: errors.append(error.read()))
    reader.start()
    data = out.read()
    reader.join()
    return out.channel.recv_exit_status(), data, errors[0]


def test_a_hundred_commands_run_at_the_same_time_on_one_connection(
    client: paramiko.SSHClient,
) -> None:
    transport = client.get_transport()
    assert transport
    channels = [transport.open_session() for _ in range(100)]
    for number, channel in enumerate(channels):
        channel.exec_command(f"read line; echo {number} $line")
    for channel in channels:
        channel.sendall(b"go\n")
    answers = [channel.makefile().read() for channel in channels]
    assert answers == [f"{number} go\n".encode() for number in range(100)]
    assert [channel.recv_exit_status() for channel in channels] == [0] * 100


def test_many_connections_at_the_same_time(cluster: LocalCluster, node: Node) -> None:
    clients = [cluster.connect(node) for _ in range(20)]
    assert [run(client, "echo here")[1] for client in clients] == [b"here\n"] * 20
    for client in clients:
        client.close()


def test_a_detached_process_outlives_its_session(cluster: LocalCluster, node: Node) -> None:
    fifo = cluster.folder(node) / "home" / "fifo"
    os.mkfifo(fifo)
    with cluster.connect(node) as client:
        script = "setsid sh -c 'echo $$ > pid; read x < fifo; echo $x > late' >/dev/null 2>&1 &"
        assert run(client, script) == (0, b"", b"")
    known = cluster.folder(node) / "home" / "pid"
    eventually(lambda: known.exists() and known.read_text() != "")
    pid = cluster.pid(node, int(known.read_text()))
    fifo.write_text("alive\n")
    late = cluster.folder(node) / "home" / "late"
    eventually(lambda: late.exists() and late.read_text() == "alive\n")
    eventually(lambda: not Path(f"/proc/{pid}").exists())  # reaped, as nothing else would


def test_a_process_whose_client_went_away_loses_its_pipes(
    cluster: LocalCluster, node: Node
) -> None:
    with cluster.connect(node) as client:
        transport = client.get_transport()
        assert transport
        channel = transport.open_session()
        channel.exec_command("echo $$; exec cat")
        pid = cluster.pid(node, int(channel.recv(100)))
    eventually(lambda: not Path(f"/proc/{pid}").exists())


def test_only_the_key_of_the_cluster_is_accepted(
    cluster: LocalCluster, node: Node, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.touch(mode=0o600)
    other.write_text(key_pair()[0])
    with pytest.raises(paramiko.AuthenticationException):
        cluster.connect(node, key_filename=str(other))
    with pytest.raises(paramiko.AuthenticationException):
        cluster.connect(node, username=f"not-{node.user}")
    with pytest.raises(paramiko.BadAuthenticationType, match="publickey"):
        cluster.connect(node, key_filename=None, password="guess")


def test_the_server_listens_on_its_own_loopback_address_only(node: Node) -> None:
    assert node.address.startswith("127.")
    addresses = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    everywhere = f"00000000:{node.ssh_port:04X}"
    assert everywhere not in addresses


def test_a_tunnel_leads_to_loopback_and_nowhere_else(client: paramiko.SSHClient) -> None:
    transport = client.get_transport()
    assert transport
    with socket.create_server(("127.0.0.1", 0)) as service:
        port = service.getsockname()[1]
        channel = transport.open_channel("direct-tcpip", ("localhost", port), ("127.0.0.1", 1))
        answering, _ = service.accept()
        with answering:
            channel.sendall(b"question")
            assert answering.recv(100) == b"question"
            answering.sendall(b"answer")
            assert channel.recv(100) == b"answer"
        assert channel.recv(100) == b""
    for destination in (("192.0.2.1", 80), ("0.0.0.0", port), ("example.org", 80)):
        with pytest.raises(paramiko.ChannelException, match="dministratively"):
            transport.open_channel("direct-tcpip", destination, ("127.0.0.1", 1))
    with pytest.raises(paramiko.ChannelException, match="onnect"):
        transport.open_channel("direct-tcpip", ("127.0.0.1", port), ("127.0.0.1", 1))


def test_sftp_does_what_a_folder_needs(client: paramiko.SSHClient) -> None:
    with client.open_sftp() as sftp:
        assert sftp.normalize(".") == run(client, "pwd -P")[1].decode().strip()
        sftp.mkdir("döcs")
        with sftp.open("döcs/a", "wb") as file:
            file.write(b"0123456789" * 10_000)
            file.chmod(0o640)
            file.utime((1_000_000_000, 1_000_000_000))
        sftp.truncate("döcs/a", 25)
        facts = sftp.stat("döcs/a")
        assert (facts.st_size, (facts.st_mode or 0) & 0o777) == (25, 0o640)
        sftp.symlink("a", "döcs/link")
        assert sftp.readlink("döcs/link") == "a"
        sftp.posix_rename("döcs/a", "döcs/b")
        assert sorted(sftp.listdir("döcs")) == ["b", "link"]
        with sftp.open("döcs/b") as file:
            assert file.read() == (b"0123456789" * 3)[:25]
        with pytest.raises(FileNotFoundError):
            sftp.stat("döcs/link")
        for name in ("b", "link"):
            sftp.remove(f"döcs/{name}")
        sftp.rmdir("döcs")
        assert "döcs" not in sftp.listdir(".")


def test_a_terminal_that_goes_away_hangs_up_on_its_program(
    cluster: LocalCluster, node: Node
) -> None:
    with cluster.connect(node) as client:
        transport = client.get_transport()
        assert transport
        channel = transport.open_session()
        channel.get_pty("xterm", 100, 30)
        channel.exec_command("stty size; echo $TERM $$; sleep 1000")
        lines = b""
        while lines.count(b"\n") < 2:
            lines += channel.recv(100)
        size, line = lines.splitlines()[:2]
        assert size == b"30 100"
        assert line.split()[0] == b"xterm"
        pid = cluster.pid(node, int(line.split()[1]))
    eventually(lambda: not Path(f"/proc/{pid}").exists())
