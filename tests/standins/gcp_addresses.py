"""Whether a new VM gets the internal address that it asks for with `networkIP`.

The words of both refusals are those that users quote: cloudfoundry's for an address outside of the
subnetwork (400 invalid), hashicorp/terraform#18998 and kubernetes/kubernetes#66762 for one in use
(the operation fails with that code).
"""

from __future__ import annotations

import ipaddress

from tests.standins import gcp_errors as errors
from tests.standins.gcp_errors import Failure
from tests.standins.gcp_world import Body, Thing, World


def check_address(world: World, at: str, asked: str | None, subnet: Thing) -> None:
    if asked is None:
        return
    if world.nodes is not None:  # its nodes have addresses of this machine
        inside = bool(world.nodes.gave(asked))
    else:
        range = ipaddress.ip_network(subnet.body["ipCidrRange"])
        number = int(ipaddress.ip_address(asked)) - int(range.network_address)
        inside = 2 <= number < range.num_addresses - 2  # https://cloud.google.com/vpc/docs/subnets
    if not inside:
        raise errors.real("address-outside-subnetwork", field=f"{at}.networkIP", value=asked)


def addresses_in_use(world: World) -> set[str]:
    return {
        interface["networkIP"]
        for thing in world.under("instances")
        for interface in thing.body["networkInterfaces"]
    }


def taken_address(world: World, interfaces: list[Body]) -> Failure | None:
    taken = addresses_in_use(world)
    asked = [one["networkIP"] for one in interfaces if one.get("networkIP") in taken]
    if not asked:
        return None
    return errors.real_failure("address-in-use", address=asked[0], status=400)
