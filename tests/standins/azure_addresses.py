"""Whether a network interface gets the private address that it asks for.

Codes and words: PrivateIPAddressMissing as hashicorp/terraform-provider-azurerm#15265 quotes it,
PrivateIPAddressInReservedRange as #4225 there, PrivateIPAddressIsAllocated as
daniel-rhoades/acs-engine-terraform#10; PrivateIPAddressNotInSubnet is in
https://learn.microsoft.com/azure/azure-resource-manager/troubleshooting/common-deployment-errors
(its words are suspected).
"""

from __future__ import annotations

import ipaddress

from tests.standins.azure_errors import Body, Refusal, real
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
        raise real("private-address-missing", configuration=configuration)
    if not asked:
        return
    _check_range(world, inner["subnet"]["id"], asked)
    for other in world.of_type(INTERFACES):
        if other.made.get("address") == asked and not same(other.id, id):
            raise real(
                "private-address-taken", configuration=configuration, asked=asked, other=other.id
            )


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
        raise real("private-address-reserved", asked=asked, range=range)


def _outside(asked: str, subnet: str) -> Refusal:
    return real("private-address-outside-subnet", asked=asked, subnet=subnet)
