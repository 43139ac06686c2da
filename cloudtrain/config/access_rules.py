"""Rules on how SSH reaches the nodes: `network.ssh_proxy`, `network.ssh_from`, OS Login."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.config.sections import ConfigFile, NetworkSection
from cloudtrain.config.yaml_source import Path
from cloudtrain.core.cloud import Cloud, cloud_of, clouds, facts_of
from cloudtrain.training.strategies import STRATEGIES

Found = Iterator[tuple[Path, str]]

OWN = ("iap", "ssm", "bastion")
"""Ways by a cloud's own service, `Cloud.ssh_proxy`."""
ANYWHERE = ("jump", "command")
PROXY: Path = ("network", "ssh_proxy")
FROM: Path = ("network", "ssh_from")


def broken_access_rules(file: ConfigFile) -> Found:
    network = file.network
    if network is None or file.provider is None:
        return
    cloud = cloud_of(file.provider)
    if network.os_login and not (cloud and cloud.os_login):
        having = ", ".join(each.title for each in clouds() if each.os_login)
        yield ("network", "os_login"), f"is only for {having}"
    if network.ssh_proxy is None:
        if network.ssh_from == "none" and network.firewall is None:
            yield FROM, "is none, and without `ssh_proxy` nothing reaches the nodes"
        return
    ways = [way for way in (*ANYWHERE, *OWN) if getattr(network.ssh_proxy, way)]
    if len(ways) != 1:
        found = ", ".join(ways) or "none"
        yield PROXY, f"takes one of {', '.join((*ANYWHERE, *OWN))}, not {found}"
    elif ways[0] in OWN:
        yield from _own(file, cloud, network, ways[0])
    else:
        yield from _anywhere(file, cloud, network, ways[0])


def _own(file: ConfigFile, cloud: Cloud | None, network: NetworkSection, way: str) -> Found:
    if cloud is None or _service(cloud) != way:
        having = next(each.title for each in clouds() if _service(each) == way)
        yield (*PROXY, way), f"is only for {having}"
        return
    if network.ssh_from not in (None, "auto"):
        yield FROM, f"conflicts with `ssh_proxy: {way}`, which decides it: leave it out"
    strategy = STRATEGIES.get(file.strategy or "")
    if strategy is not None and strategy.tpus:
        yield (*PROXY, way), "is not for TPUs, whose hosts are no VMs: use `jump`"
    if way == "bastion" and network.subnet is None and network.vpc is None:
        yield (
            (*PROXY, way),
            "requires `subnet`: a Bastion reaches the nodes of its own and of peered networks",
        )


def _anywhere(file: ConfigFile, cloud: Cloud | None, network: NetworkSection, way: str) -> Found:
    if facts_of(file.provider or "").on_this_machine:
        yield (*PROXY, way), f"is not for provider {file.provider}: its nodes are on this machine"
    elif cloud is None or network.firewall is not None:
        return
    elif network.ssh_from in (None, "auto"):
        yield (
            FROM,
            f"is missing: with `ssh_proxy.{way}` it is the address from which the nodes see "
            "connections come, such as 10.0.0.5/32, or none",
        )


def _service(cloud: Cloud) -> str:
    return cloud.ssh_proxy.field if cloud.ssh_proxy else ""
