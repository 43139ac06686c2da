"""Reads the Bastion of `network.ssh_proxy`: whether tunnels are possible, and where they come from.

Properties: `BastionHost` of azure-mgmt-network; what a tunnel needs:
https://learn.microsoft.com/azure/bastion/native-client, read 2026-11-24, not tried.
"""

from __future__ import annotations

from cloudtrain.core.errors import CloudConfigError
from cloudtrain.core.model import Network
from cloudtrain.providers.azure import network as networks
from cloudtrain.providers.azure import paths
from cloudtrain.providers.azure.client import ArmClient
from cloudtrain.providers.base.http import Tree

FIT = ("standard", "premium")
"""SKUs with native client support."""


def ranges(arm: ArmClient, network: Network) -> tuple[str, ...]:
    """The address ranges from which the Bastion connects: those of its AzureBastionSubnet.

    Raises CloudConfigError for a Bastion that cannot open tunnels.
    """
    bastion = _fit(arm, network)
    found = (bastion.get("properties") or {}).get("ipConfigurations") or ()
    subnets = [(each.get("properties") or {}).get("subnet") or {} for each in found]
    return tuple(p for subnet in subnets for p in networks.ranges(arm, str(subnet.get("id"))))


def callers(arm: ArmClient, network: Network, caller: str) -> tuple[str, ...]:
    """The sources that the firewall lets in: `caller`, or the Bastion's ranges."""
    if network.ssh_proxy is not None and network.ssh_proxy.bastion:
        return ranges(arm, network)
    return (caller,) if caller else ()


def described(arm: ArmClient, network: Network) -> str:
    """Text on the Bastion. Raises CloudConfigError as `ranges` does."""
    bastion, sources = _fit(arm, network), ranges(arm, network)
    sku = str((bastion.get("sku") or {}).get("name"))
    return f"{bastion.get('name')} ({sku}) opens tunnels from {', '.join(sources)}"


def _fit(arm: ArmClient, network: Network) -> Tree:
    proxy = network.ssh_proxy
    id = paths.bastion(arm.subscription, (proxy and proxy.bastion) or "")
    found = arm.find(id)
    if found is None:
        raise CloudConfigError(f"no Bastion {id}", hint="check network.ssh_proxy.bastion")
    sku = str((found.get("sku") or {}).get("name"))
    tunnels = (found.get("properties") or {}).get("enableTunneling") is True
    if sku.lower() not in FIT or not tunnels:
        raise CloudConfigError(
            f"the Bastion {paths.last(id)} ({sku}) has no native client support",
            hint="it needs the Standard or Premium SKU, and `az network bastion update "
            "--enable-tunneling true`",
        )
    return found
