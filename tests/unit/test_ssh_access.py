"""How SSH reaches the nodes: `network.ssh_proxy` and `ssh_from` in the file, and what is run."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from cloudtrain.checks.notes import access_note
from cloudtrain.cluster.drift import creation_facts_of
from cloudtrain.cluster.plan import make_plan
from cloudtrain.config import from_json, load, to_json
from cloudtrain.core.errors import ConfigError, UsageError
from cloudtrain.core.model import ClusterConfig, Network, Node, SshProxy
from cloudtrain.core.partial_list import NotAsked, PartialList
from cloudtrain.providers.aws import ssh_service as ssm
from cloudtrain.providers.azure import paths
from cloudtrain.providers.azure import requests as azure
from cloudtrain.providers.azure import ssh_service as bastion
from cloudtrain.providers.base.driver import Location, Vm
from cloudtrain.providers.base.ssh_access import caller_cidr, with_proxies
from cloudtrain.providers.gcp import faults
from cloudtrain.providers.gcp import ssh_service as iap
from cloudtrain.providers.gcp.requests import os_login
from cloudtrain.ssh.keys import create_identity, ssh_config
from cloudtrain.ssh.ssh_proxy import described, jump_command, own_command, program_of

SUBNET = "subnet: /subscriptions/S/virtualNetworks/N/subnets/N, "
GCP = "provider: gcp\nproject: p\nplacement: [us-central1-a]"
AWS = "provider: aws\nplacement: [us-east-1a]"
AZURE = "provider: azure\nplacement: [eastus]"
HOSTS = "provider: hosts\nhosts: [{address: 192.0.2.1, role: chief}]"


def read(folder: Path, network: str, provider: str = GCP, strategy: str = "mirrored") -> Network:
    return config(folder, network, provider, strategy).network


def config(
    folder: Path, network: str, provider: str = GCP, strategy: str = "mirrored"
) -> ClusterConfig:
    path = folder / "c.yaml"
    path.write_text(f"{provider}\nstrategy: {strategy}\nnetwork: {network}\n")
    return load(path, {})


def refused(
    folder: Path, network: str, provider: str = GCP, strategy: str = "mirrored"
) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(folder, network, provider, strategy)
    return [line.removeprefix(f"{folder}/") for line in str(caught.value).splitlines()]


# ── The file ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("provider", "network", "expected"),
    [
        (GCP, "{ssh_proxy: iap}", SshProxy(iap=True)),
        (GCP, "{ssh_proxy: {iap: true}}", SshProxy(iap=True)),
        (AWS, "{ssh_proxy: ssm}", SshProxy(ssm=True)),
        (AZURE, f"{{{SUBNET}ssh_proxy: {{bastion: rg/b}}}}", SshProxy(bastion="rg/b")),
        (
            AWS,
            "{ssh_from: 10.0.0.5, ssh_proxy: {jump: 'me@b.example.com:2222'}}",
            SshProxy(jump="me@b.example.com:2222"),
        ),
        (HOSTS, "{ssh_proxy: {jump: 'a,me@[fe80::1]:22'}}", SshProxy(jump="a,me@[fe80::1]:22")),
        (
            GCP,
            "{ssh_from: none, ssh_proxy: {command: 'tsh proxy ssh {name}:{port}'}}",
            SshProxy(command="tsh proxy ssh {name}:{port}"),
        ),
    ],
)
def test_each_way_is_read_and_recorded(
    tmp_path: Path, provider: str, network: str, expected: SshProxy
) -> None:
    found = config(tmp_path, network, provider)
    assert found.network.ssh_proxy == expected
    assert from_json(json.loads(json.dumps(to_json(found)))) == found


def test_a_way_can_be_set_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"{GCP}\nstrategy: mirrored\n")
    found = load(path, {}, overrides=["network.ssh_proxy=iap", "network.private=true"])
    assert found.network == Network(private=True, ssh_proxy=SshProxy(iap=True))


@pytest.mark.parametrize(
    ("provider", "network", "expected"),
    [
        (
            GCP,
            "{ssh_proxy: tunnel}",
            "network.ssh_proxy: must be iap, ssm, or a mapping such as {jump: user@host}, "
            "not 'tunnel'",
        ),
        (
            GCP,
            "{ssh_proxy: {}}",
            "network.ssh_proxy: takes one of jump, command, iap, ssm, bastion, not none",
        ),
        (
            GCP,
            "{ssh_from: none, ssh_proxy: {iap: true, jump: b}}",
            "network.ssh_proxy: takes one of jump, command, iap, ssm, bastion, not jump, iap",
        ),
        (GCP, "{ssh_proxy: ssm}", "network.ssh_proxy.ssm: is only for AWS"),
        (HOSTS, "{ssh_proxy: iap}", "network.ssh_proxy.iap: is only for GCP"),
        (AWS, f"{{{SUBNET}ssh_proxy: {{bastion: rg/b}}}}", "is only for Azure"),
        (
            GCP,
            "{ssh_from: 192.0.2.0/24, ssh_proxy: iap}",
            "network.ssh_from: conflicts with `ssh_proxy: iap`, which decides it: leave it out",
        ),
        (AZURE, "{ssh_proxy: {bastion: rg/b}}", "network.ssh_proxy.bastion: requires `subnet`"),
        (
            AWS,
            "{ssh_proxy: {jump: b}}",
            "network.ssh_from: is missing: with `ssh_proxy.jump` it is the address from which",
        ),
        (
            "provider: local",
            "{ssh_proxy: {jump: b}}",
            "network.ssh_proxy.jump: is not for provider local: its nodes are on this machine",
        ),
        (GCP, "{ssh_from: none}", "network.ssh_from: is none, and without `ssh_proxy` nothing"),
        (AWS, "{os_login: true}", "network.os_login: is only for GCP"),
        (
            HOSTS,
            "{ssh_proxy: {jump: 'b -oProxyCommand=id'}}",
            "network.ssh_proxy.jump: must be [user@]host[:port], several separated by commas",
        ),
        (HOSTS, "{ssh_proxy: {jump: -b}}", "network.ssh_proxy.jump: must not begin with a dash"),
        (
            AZURE,
            f"{{{SUBNET}ssh_proxy: {{bastion: b}}}}",
            "network.ssh_proxy.bastion: must be GROUP/NAME of a Bastion, or its resource ID",
        ),
        (
            HOSTS,
            "{ssh_proxy: {command: 'nc {host} {port}'}}",
            "network.ssh_proxy.command: has an unknown placeholder {host}: known: {address}, ",
        ),
        (HOSTS, '{ssh_proxy: {command: "nc \'x"}}', "is not a command line: No closing quotation"),
    ],
)
def test_what_cannot_work_is_refused_at_its_line(
    tmp_path: Path, provider: str, network: str, expected: str
) -> None:
    (line,) = refused(tmp_path, network, provider)
    assert expected in line
    assert line.startswith("c.yaml:")


def test_with_an_existing_firewall_nobody_is_asked_where_ssh_comes_from(tmp_path: Path) -> None:
    """It decides that, and is never changed."""
    given = "subnet: default, firewall: [ssh-from-bastion], "
    found = read(tmp_path, f"{{{given}ssh_proxy: {{jump: b}}}}")
    assert found.ssh_proxy == SshProxy(jump="b")
    assert read(tmp_path, f"{{{given}ssh_from: none}}").ssh_from == "none"


def test_a_tpus_hosts_are_not_reached_by_iap(tmp_path: Path) -> None:
    tpu = f"{GCP}\nnodes: {{worker: {{machine: v5p-8}}}}"
    lines = refused(tmp_path, "{ssh_proxy: iap}", tpu, "tpu")
    assert any("is not for TPUs, whose hosts are no VMs: use `jump`" in line for line in lines)


def test_private_nodes_without_a_way_to_them_get_a_note(tmp_path: Path) -> None:
    note = access_note(config(tmp_path, "{private: true, ssh_from: 10.0.0.0/8}"))
    assert note is not None
    assert "must be in their network, by a VPN for example" in note
    assert access_note(config(tmp_path, "{private: true, ssh_proxy: iap}")) is None
    assert access_note(config(tmp_path, "{}")) is None


# ── Who is let in ────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("network", "opened"),
    [
        (Network(ssh_proxy=SshProxy(iap=True)), "35.235.240.0/20"),
        (Network(ssh_proxy=SshProxy(jump="b"), ssh_from="10.0.0.5/32"), "10.0.0.5/32"),
        (Network(ssh_proxy=SshProxy(command="x"), ssh_from="none"), ""),
        (Network(ssh_from="192.0.2.7/32"), "192.0.2.7/32"),
    ],
)
def test_port_22_is_opened_for_what_the_proxy_comes_from_alone(
    tmp_path: Path, network: Network, opened: str
) -> None:
    found = dataclasses.replace(config(tmp_path, "{}"), network=network)
    assert caller_cidr(found, None, proxy=iap.RANGE, services=()) == opened


def test_private_nodes_with_no_way_to_them_are_refused_with_both_ways(tmp_path: Path) -> None:
    found = config(tmp_path, "{private: true}")
    with pytest.raises(UsageError, match="cannot tell from which address") as refusal:
        caller_cidr(found, None, services=())
    assert "network.ssh_proxy" in str(refusal.value.hint)


def test_azures_firewall_has_no_rule_for_ssh_without_a_caller() -> None:
    assert azure.firewall("eastus", {}, (), ())["properties"]["securityRules"] == []
    rules = azure.firewall("eastus", {}, (), ("10.0.1.0/24",))["properties"]["securityRules"]
    assert [rule["name"] for rule in rules] == ["cluster", "nothing-else"]


# ── What is run ──────────────────────────────────────────────────────────────


def test_a_jump_host_is_the_users_own_ssh_without_a_prompt_and_without_their_agent() -> None:
    words = jump_command("hop,me@b.example.com:2222", "10.0.0.4", 22)
    assert words[:3] == ("ssh", "-o", "BatchMode=yes")
    assert {"-a", "-x"} <= set(words)
    assert words[-10:] == (
        *("-J", "hop", "-l", "me", "-p", "2222"),
        *("-W", "[10.0.0.4]:22", "--", "b.example.com"),
    )
    assert jump_command("[fe80::1]", "10.0.0.4", 22)[-4:] == (
        *("-W", "[10.0.0.4]:22", "--", "fe80::1"),
    )


def test_each_cloud_has_the_words_of_its_own_documentation() -> None:
    assert " ".join(iap.command("p", "us-central1-a", "mnist-chief0")) == (
        "gcloud compute start-iap-tunnel mnist-chief0 22 --listen-on-stdin --project=p "
        "--zone=us-central1-a --verbosity=warning --quiet"
    )
    assert " ".join(ssm.command("i-0abc", "us-east-1", "work")) == (
        "aws ssm start-session --target i-0abc --document-name AWS-StartSSHSession "
        "--parameters portNumber=22 --region us-east-1 --profile work"
    )
    assert "--profile" not in ssm.command("i-0abc", "us-east-1", None)
    group = "/subscriptions/S/resourceGroups/net"
    named = paths.bastion("S", "net/b")
    assert named == f"{group}/providers/Microsoft.Network/bastionHosts/b"
    vm = "/subscriptions/S/resourceGroups/c/providers/Microsoft.Compute/virtualMachines/v"
    python, isolated, wrapper, *words = bastion.command(named, vm)
    assert (python, isolated) == (sys.executable, "-I")
    assert Path(wrapper).is_file()
    assert " ".join(words) == (
        "-- az network bastion tunnel --name b --resource-group net "
        f"--target-resource-id {vm} --resource-port 22 --port {{port}} --subscription S"
    )


def test_a_command_of_ones_own_gets_values_as_words_and_no_shell() -> None:
    words = own_command("nc -x 'a b' {name} {address}:{port}", {"name": "$(id) x", "port": "22"})
    assert words == ("nc", "-x", "a b", "$(id) x", "{address}:22")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (iap.command("p", "z", "n"), "gcloud compute start-iap-tunnel n"),
        (ssm.command("i-1", "r", None), "aws ssm start-session"),
        (("/opt/bin/tunnel", "-v"), "tunnel"),
        ((sys.executable, "x.py", "--", "az", "network", "bastion", "tunnel", "--n"), "az network"),
        (jump_command("b", "h", 22), "ssh"),
    ],
)
def test_a_program_is_named_as_people_know_it(words: tuple[str, ...], named: str) -> None:
    assert program_of(words).startswith(named)


@pytest.mark.parametrize(
    ("written", "hint", "lasting"),
    [
        (
            "ERROR: (gcloud.compute.start-iap-tunnel) Error while connecting [4033: 'not "
            "authorized'].",
            "grant roles/iap.tunnelResourceAccessor",
            True,
        ),
        ("Error while connecting [4003: 'failed to connect to backend']", "35.235.240.0/20", False),
        (
            "SessionManagerPlugin is not found. Please refer to SessionManager Documentation",
            "install the Session Manager plugin",
            True,
        ),
        (
            "An error occurred (TargetNotConnected) when calling the StartSession operation: i-1 "
            "is not connected.",
            "AmazonSSMManagedInstanceCore",
            False,
        ),
        (
            "An error occurred (AccessDeniedException) when calling the StartSession operation",
            "ssm:StartSession",
            True,
        ),
        (
            "Bastion Host SKU must be Standard or Premium and Native Client must be enabled.",
            "--enable-tunneling true",
            True,
        ),
        ("ERROR: Please run 'az login' to setup account.", "run `az login`", True),
    ],
)
def test_what_a_program_says_has_its_way_out(written: str, hint: str, lasting: bool) -> None:
    found = described("x ended with exit code 1", written)
    assert hint in str(found.hint)
    assert found.lasting == lasting


def test_what_nobody_knows_is_tried_again_without_a_hint() -> None:
    found = described("x ended with exit code 1", "out of cheese")
    assert (found.hint, found.lasting) == (None, False)


def vm(address: str = "10.0.0.4") -> Vm:
    node = Node(
        name="mnist-chief0",
        role="chief",
        index=0,
        state="running",
        address=address,
        internal=address,
    )
    place = Location(region="us-central1", zone="us-central1-a")
    return Vm(cluster="mnist", node=node, place=place, id="77")


def test_every_listed_node_has_its_command() -> None:
    listed = PartialList([vm()], [NotAsked(place="x", why="y")])
    own = Network(ssh_proxy=SshProxy(command="t {project}/{zone}/{region}/{name}/{id} {address}"))
    (found,) = seen = with_proxies(listed, own, project="p", service=lambda vm: ("never",))
    assert found.node.ssh_proxy == (
        "t",
        "p/us-central1-a/us-central1/mnist-chief0/77",
        "10.0.0.4",
    )
    assert seen.not_asked == listed.not_asked
    by_service = Network(ssh_proxy=SshProxy(iap=True))
    (found,) = with_proxies(listed, by_service, project="p", service=lambda vm: ("iap", vm.id))
    assert found.node.ssh_proxy == ("iap", "77")
    assert with_proxies(listed, Network(), project="p", service=lambda vm: ()) is listed


def test_a_node_without_an_address_yet_has_no_command() -> None:
    network = Network(ssh_proxy=SshProxy(jump="b"))
    (found,) = with_proxies(PartialList([vm("")]), network, project="", service=lambda vm: ())
    assert found.node.ssh_proxy == ()


def test_the_written_ssh_config_quotes_the_command_for_its_shell(tmp_path: Path) -> None:
    identity = create_identity(tmp_path, ["mnist-chief0"])
    node = dataclasses.replace(vm().node, ssh_proxy=("nc", "a b", "100%", "$(id)"))
    line = next(line for line in ssh_config(identity, [node]).splitlines() if "ProxyC" in line)
    assert line == "    ProxyCommand nc 'a b' 100%% '$(id)'"
    broken = dataclasses.replace(node, ssh_proxy=("nc", "a\nProxyCommand id"))
    with pytest.raises(UsageError, match="is not allowed in an ssh_config"):
        ssh_config(identity, [broken])


# ── OS Login ─────────────────────────────────────────────────────────────────


def test_os_login_is_off_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    assert os_login(read(tmp_path, "{}")) == "FALSE"
    assert os_login(read(tmp_path, "{os_login: true}")) == "TRUE"


def test_os_login_is_fixed_when_a_node_is_made(tmp_path: Path) -> None:
    plan = make_plan(config(tmp_path, "{os_login: true}"))
    assert creation_facts_of(plan.config, plan.nodes[0])["os_login"] is True


@pytest.mark.parametrize(
    ("constraint", "hint"),
    [
        ("compute.requireOsLogin", "network.os_login: true"),
        ("compute.vmExternalIpAccess", "network.ssh_proxy: iap"),
    ],
)
def test_what_an_organization_forbids_names_the_field_that_obeys_it(
    constraint: str, hint: str
) -> None:
    words = f"Constraint constraints/{constraint} violated for project 123."
    told = {"code": 412, "message": words, "errors": []}
    error = faults.of_error("creating x", told, status=412)
    assert hint in str(error.hint)
    assert error.exit_code == 4
