"""IAP, Session Manager and Bastion: the clouds' own programs in between, to a real sshd."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.checks.findings import access_findings
from cloudtrain.core.errors import NodeUnreachable
from cloudtrain.core.model import ClusterConfig, Network, Node, NodeGroup, SshProxy
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.shell import command
from cloudtrain.providers.aws import ssh_service as ssm
from cloudtrain.providers.azure import bastion_tunnel
from cloudtrain.providers.azure import ssh_service as bastion
from cloudtrain.providers.gcp import ssh_service as iap
from cloudtrain.ssh.keys import ssh_config
from cloudtrain.ssh.transport import SshTransport
from tests.support.cloud_clis import CloudClis, cloud_clis
from tests.support.processes import environment, pids, words
from tests.support.sshd import SshdNode, eventually

pytestmark = pytest.mark.openssh

BASTION = "/subscriptions/S/resourceGroups/net/providers/Microsoft.Network/bastionHosts/b"
VM = "/subscriptions/S/resourceGroups/c/providers/Microsoft.Compute/virtualMachines/test-chief0"
WORDS = {
    "gcloud": iap.command("p", "us-central1-a", "test-chief0"),
    "aws": ssm.command("i-0abc", "us-east-1", "work"),
    "az": bastion.command(BASTION, VM),
}
PROXIES = {
    "gcloud": ("gcp", SshProxy(iap=True)),
    "aws": ("aws", SshProxy(ssm=True)),
    "az": ("azure", SshProxy(bastion="net/b")),
}


@pytest.fixture
def clis(server: SshdNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudClis]:
    address, port = server.place
    with cloud_clis(tmp_path / "clis", lambda key: f"{address}:{port}") as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found
    eventually(lambda: not clis_running(tmp_path))


def clis_running(folder: Path) -> list[str]:
    lines = {pid: " ".join(words(pid)) for pid in pids()}
    clis = [pid for pid, line in lines.items() if "cloud_clis.py" in line]
    own = str(folder).encode()
    return [lines[pid] for pid in clis if any(own in one for one in environment(pid))]


def node_through(server: SshdNode, words: tuple[str, ...]) -> Node:
    """One whose own address leads nowhere."""
    return dataclasses.replace(
        server.node, address="192.0.2.1", internal="192.0.2.1", ssh_proxy=words
    )


@pytest.mark.parametrize("name", WORDS)
def test_commands_and_files_go_through_it(clis: CloudClis, server: SshdNode, name: str) -> None:
    node = node_through(server, WORDS[name])
    sent = os.urandom(3 << 20)
    with SshTransport(server.identity) as ssh:
        assert ssh.ask(node, "pwd").stdout.decode() == f"{server.home}\n"
        done = ssh.run(node, command("sha256sum"), stdin=sent)
        assert done.stdout.decode().split()[0] == hashlib.sha256(sent).hexdigest()
        assert [call[0] for call in clis.calls()] == [name], "one connection"


@pytest.mark.parametrize("name", WORDS)
def test_several_nodes_at_once_have_a_connection_each(
    clis: CloudClis, server: SshdNode, name: str
) -> None:
    nodes = [
        dataclasses.replace(node_through(server, WORDS[name]), user=server.node.user, name=each)
        for each in ("test-chief0", "test-worker0", "test-worker1")
    ]
    pins = server.identity.host_keys["test-chief0"]
    identity = dataclasses.replace(server.identity, host_keys={n.name: pins for n in nodes})
    with SshTransport(identity) as ssh:
        said = fan_out(nodes, lambda node: ssh.ask(node, "echo here").stdout, name=str)
    assert said == [b"here\n"] * 3


@pytest.mark.parametrize("name", WORDS)
def test_a_refusal_is_in_the_programs_own_words_and_names_the_right_that_lacks(
    clis: CloudClis, server: SshdNode, name: str
) -> None:
    clis.set("refused")
    with SshTransport(server.identity) as ssh, pytest.raises(NodeUnreachable) as refused:
        ssh.ask(node_through(server, WORDS[name]), ":")
    expected = {
        "gcloud": ("4033: 'not authorized'", "roles/iap.tunnelResourceAccessor"),
        "aws": ("not authorized to perform: ssm:StartSession", "allow ssm:StartSession"),
        "az": ("Native Client must be enabled", "--enable-tunneling true"),
    }
    words, hint = expected[name]
    assert words in refused.value.message
    assert hint in str(refused.value.hint)
    assert (refused.value.lasting, refused.value.exit_code) == (True, 4)


@pytest.mark.parametrize("name", ["gcloud", "aws"])
def test_a_node_that_is_still_booting_is_tried_again(
    clis: CloudClis, server: SshdNode, tmp_path: Path, name: str
) -> None:
    with cloud_clis(tmp_path / "clis", lambda key: "127.9.9.9:9"):
        with SshTransport(server.identity) as ssh, pytest.raises(NodeUnreachable) as refused:
            ssh.ask(node_through(server, WORDS[name]), ":")
        assert not refused.value.lasting


@pytest.mark.parametrize("name", WORDS)
def test_a_session_that_breaks_off_says_why(clis: CloudClis, server: SshdNode, name: str) -> None:
    clis.set("dies")
    node = node_through(server, WORDS[name])
    with SshTransport(server.identity) as ssh:
        with pytest.raises(NodeUnreachable, match="the network is down") as broken:
            ssh.run(node, command("head", "-c", "1000000", "/dev/zero"))
        assert broken.value.began
        clis.set("")
        assert ssh.ask(node, "echo again").stdout == b"again\n"


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", WORDS)
def test_a_program_that_hangs_is_ended_at_the_limit(
    clis: CloudClis, server: SshdNode, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    clis.set("hangs")
    monkeypatch.setattr("cloudtrain.ssh.sockets.ProxySocket.await_answer.__defaults__", (1.5,))
    with (
        SshTransport(server.identity) as ssh,
        pytest.raises(NodeUnreachable, match=r"gave no connection within 1.5 s"),
    ):
        ssh.ask(node_through(server, WORDS[name]), ":")


def test_the_plugin_of_session_manager_is_missing(clis: CloudClis, server: SshdNode) -> None:
    (clis.folder / "session-manager-plugin").unlink()
    with SshTransport(server.identity) as ssh, pytest.raises(NodeUnreachable) as refused:
        ssh.ask(node_through(server, WORDS["aws"]), ":")
    assert "SessionManagerPlugin is not found" in refused.value.message
    assert "install the Session Manager plugin" in str(refused.value.hint)
    config = config_of("aws")
    (finding,) = access_findings(config)
    assert not finding.ok
    assert finding.text == "session-manager-plugin is not installed"


@pytest.mark.parametrize("name", WORDS)
def test_plain_ssh_goes_through_it_by_the_written_config(
    clis: CloudClis, server: SshdNode, tmp_path: Path, name: str
) -> None:
    node = node_through(server, WORDS[name])
    known = tmp_path / "known_hosts"
    identity = dataclasses.replace(server.identity, known_hosts=known)
    port = server.node.ssh_port
    known.write_text(f"[192.0.2.1]:{port} {identity.host_keys['test-chief0'].public}\n")
    config = tmp_path / "config"
    config.write_text(ssh_config(identity, [node]))
    done = subprocess.run(
        ["ssh", "-F", str(config), "-o", "BatchMode=yes", node.name, "pwd"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == f"{server.home}\n", done.stderr


# ── What `check` says ────────────────────────────────────────────────────────


def config_of(name: str) -> ClusterConfig:
    provider, proxy = PROXIES[name]
    return ClusterConfig(
        name="mnist",
        provider=provider,
        strategy="mirrored",
        nodes={"chief": NodeGroup()},
        network=Network(private=True, ssh_proxy=proxy),
    )


@pytest.mark.parametrize("name", WORDS)
def test_check_names_the_program_and_its_version(clis: CloudClis, name: str) -> None:
    (finding,) = access_findings(config_of(name))
    expected = {
        "gcloud": "iap by gcloud: Google Cloud SDK 502.0.0",
        "aws": "ssm by aws session-manager-plugin: aws-cli/2.22.0 Python/3.12.6 Linux/6.1.0 "
        "exe/x86_64.debian.12",
        "az": 'bastion by az: "1.4.0"',
    }
    assert (finding.ok, finding.told, finding.text) == (True, True, expected[name])


@pytest.mark.parametrize("name", WORDS)
def test_check_refuses_a_machine_without_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    first = access_findings(config_of(name))[0]
    assert not first.ok
    assert first.text == f"{name} is not installed"
    assert "https://" in str(first.hint)


def test_the_wrapper_of_bastion_ends_az_with_its_connection(
    clis: CloudClis, server: SshdNode
) -> None:
    """Also when it is ended itself, as ssh ends its ProxyCommand by SIGHUP."""
    process = subprocess.Popen(WORDS["az"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"SSH-2.0")
    process.send_signal(1)
    assert process.wait(60) == 128 + 1
    process.stdout.close()
    assert bastion_tunnel.OPEN_SECONDS < 60, "it says so itself before PROXY_ANSWER"
