"""A note on who reaches TensorFlow's servers on machines that have no firewall of ours."""

from __future__ import annotations

from cloudtrain.cluster.plan import make_plan
from cloudtrain.core.cloud import facts_of
from cloudtrain.core.model import ClusterConfig
from cloudtrain.training.strategies import strategy_of


def open_ports_note(config: ClusterConfig) -> str | None:
    """Say which ports are open to whom; None on clouds, whose nodes reach only each other, and
    where TensorFlow serves nothing.

    TensorFlow binds `0.0.0.0` whatever address TF_CONFIG names, with no credentials: there is no
    option for either (`AddListeningPort(StrCat("0.0.0.0:", requested_port_),
    GetServerCredentials(server_def_), …)` in tensorflow/core/distributed_runtime/rpc/
    grpc_server_lib.cc, read 2026-11-26; its SECURITY.md says the same).
    """
    facts, roles = facts_of(config.provider), strategy_of(config).serves
    if not (facts.takes_hosts or facts.on_this_machine):
        return None
    serving = [node for node in make_plan(config).nodes if node.role in roles]
    if len(serving) < 2:
        return None
    if facts.on_this_machine:
        return (
            "during a run, everyone who reaches this machine's ports of TensorFlow can run code "
            "in the nodes: it listens on every address and asks for no password "
            "(docs/local.md has a firewall line)"
        )
    of_role = {role: [host for host in config.hosts if host.role == role] for role in roles}
    hosts = [of_role[node.role][node.index] for node in serving]
    places = [f"{host.address}:{node.port}" for host, node in zip(hosts, serving, strict=True)]
    shown = places if len(places) <= 4 else [*places[:3], f"{len(places) - 3} more"]
    user = {host.user for host in hosts}
    whose = user.pop() if len(user) == 1 and None not in user else "the user there"
    return (
        f"during a run, everyone who reaches {', '.join(shown)} can run code as {whose}: "
        "TensorFlow listens on every address and asks for no password; let only these machines "
        "in (docs/hosts.md has a firewall line)"
    )
