"""Access to the VMs by SSH: directly, or through what `network.ssh_proxy` names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cloudtrain.core.model import Network
from cloudtrain.core.partial_list import PartialList
from cloudtrain.providers.base.driver import Vm
from cloudtrain.ssh.ssh_proxy import anywhere


def with_proxies(
    machines: PartialList[Vm],
    network: Network,
    *,
    project: str,
    service: Callable[[Vm], tuple[str, ...]],
) -> PartialList[Vm]:
    """The VMs with the command that connects to each. `service`: that of the cloud's own
    service.
    """
    proxy = network.ssh_proxy
    if proxy is None:
        return machines

    def proxied(machine: Vm) -> Vm:
        node = machine.node
        if not node.address:
            return machine
        values = {
            "address": node.address,
            "port": str(node.ssh_port),
            "name": node.name,
            "id": machine.id,
            "zone": machine.place.zone,
            "region": machine.place.region,
            "project": project,
        }
        words = anywhere(proxy, values) or service(machine)
        return replace(machine, node=replace(node, ssh_proxy=words))

    return PartialList(map(proxied, machines), machines.not_asked)
