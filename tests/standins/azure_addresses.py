"""Whether a network interface gets the private address that it asks for.

Codes and words: PrivateIPAddressMissing as hashicorp/terraform-provider-azurerm#15265 quotes it,
PrivateIPAddressInReservedRange as #4225 there, PrivateIPAddressIsAllocated as
daniel-rhoades/acs-engine-terraform#10; PrivateIPAddressNotInSubnet is in
https://learn.microsoft.com/azure/azure-resource-manager/troubleshooting/common-deployment-errors
(its words are suspected).
"""

from __future__ import annotations

import ipaddress

from tests.standins.azure_errors import Body, Refusal
from tests.standins.azure_references import FIRST_FREE, INTERFACES, range_of
from tests.standins.azure_world import World, same


def asked_address(inner: Body) -> str:
    """The address of a static IP configuration; "" for a dynamic one."""
    static = same(inner.get("privateIPAllocationMethod", "Dynamic"), "Static")
    return str(inner.get("privateIPAddress") or "") if static else ""


def check_private_address(world: World, id: str, name: str, inner: Body) -> None:
    method = inner.get("privateIPAllocationMethod", "Dynamic")
    configuration, asked = f"{id}/ipConfigurations/{name}", asked_address(inner)
    if same(method, "Static") and not asked:
        text = (
            "Private IP address is required when privateIPAllocationMethod is Static in IP "
            f"configuration {configuration}."
        )
        raise Refusal(400, "PrivateIPAddressMissing", text)
    if not asked:
        return
    _check_range(world, inner["subnet"]["id"], asked)
    for other in world.of_type(INTERFACES):
        if other.made.get("address") == asked and not same(other.id, id):
            text = (
                f"IP configuration {configuration} is using the private IP address {asked} which "
                f"is already allocated to resource {other.id}."
            )
            raise Refusal(400, "PrivateIPAddressIsAllocated", text)


def _check_range(world: World, subnet: str, asked: str) -> None:
    if world.nodes is not None:  # its nodes have addresses of this machine
        if not world.nodes.gave(asked):
            raise _outside(asked, subnet)
        return
    range = range_of(world, subnet)
    number = int(ipaddress.ip_address(asked)) - int(range.network_address)
    if not 0 <= number < range.num_addresses:
        raise _outside(asked, subnet)
    if number < FIRST_FREE or number == range.num_addresses - 1:
        text = (
            f"Private static IP address {asked} falls within reserved IP range of subnet prefix "
            f"{range}."
        )
        raise Refusal(400, "PrivateIPAddressInReservedRange", text)


def _outside(asked: str, subnet: str) -> Refusal:
    text = f"Private static IP address {asked} does not belong to the range of subnet {subnet}."
    return Refusal(400, "PrivateIPAddressNotInSubnet", text)
