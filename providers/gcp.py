"""`provider: gcp`: nodes are instances of Google Compute Engine in one project."""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.listing import Listing
from cloudtrain.model import ClusterConfig, Plan
from cloudtrain.protocols import Finding, Journal, MachineFacts, Principal
from cloudtrain.providers._cloud.account import (
    Machine,
    Order,
    Place,
    Resource,
    Tell,
    not_rehearsed,
)
from cloudtrain.providers._cloud.caller import caller_cidr
from cloudtrain.providers._cloud.provider import CloudProvider
from cloudtrain.providers._cloud.timing import TIMING, Timing
from cloudtrain.providers._gcp import checks, clearing, listing, places, types
from cloudtrain.providers._gcp.api import Api
from cloudtrain.providers._gcp.bodies import Ground
from cloudtrain.providers._gcp.grounds import Maker
from cloudtrain.providers._gcp.launching import Launch, serial_log, start


def provider(config: ClusterConfig) -> CloudProvider[Ground]:
    account = GcpAccount(config)
    return CloudProvider(account, caller=lambda: caller_cidr(config, account.endpoint))


class GcpAccount:
    """Driver for one project. Sends no request before its first use."""

    name = "gcp"
    ends_by_shutdown = False
    """False: a VM that shuts itself down is stopped and its disk billed; `maxRunDuration` ends
    it.
    """
    soonest_end = 60.0

    def __init__(self, config: ClusterConfig, timing: Timing = TIMING) -> None:
        self._api = Api(config, timing)

    @property
    def endpoint(self) -> str | None:
        return self._api.endpoint

    def principal(self) -> Principal | None:
        return self._api.credentials.principal()

    def check(self, plan: Plan) -> tuple[Finding, ...]:
        return checks.check(self._api, plan)

    def rehearse(self, plan: Plan) -> tuple[Finding, ...]:
        return not_rehearsed(self.name)

    def machine_facts(self, plan: Plan, names: Sequence[str]) -> tuple[MachineFacts, ...]:
        zones = places.zones(self._api, plan).values()
        return types.facts(self._api, [zone for found in zones for zone in found], names)

    def places(self, plan: Plan) -> tuple[Place, ...]:
        return places.places(self._api, plan)

    def machines(
        self,
        cluster: str | None = None,
        place: Place | None = None,
        places: Sequence[str] = (),
    ) -> Listing[Machine]:
        return listing.machines(self._api, cluster, place, places)

    def resources(
        self, cluster: str | None = None, places: Sequence[str] = ()
    ) -> Listing[Resource]:
        return listing.resources(self._api, cluster)

    def ground(self, plan: Plan, place: Place, caller: str, journal: Journal) -> Ground:
        maker = Maker(api=self._api, plan=plan, place=place, caller=caller, journal=journal)
        return maker.ground()

    def is_close(self, ground: Ground) -> bool:
        return ground.policy is not None

    def launch(self, order: Order[Ground]) -> Machine:
        return Launch(api=self._api, order=order).run()

    def start(self, machine: Machine, expires: float | None) -> None:
        start(self._api, machine, expires)

    def move_ends(
        self, machines: Sequence[Machine], expires: float | None, tell: Tell | None = None
    ) -> bool:
        """Not supported: Google accepts setScheduling for stopped VMs only."""
        return False

    def console(self, machine: Machine) -> str:
        return serial_log(self._api, machine)

    def erase(self, machines: Sequence[Machine], resources: Sequence[Resource]) -> None:
        clearing.erase(self._api, machines, resources)
