"""Resource providers of the subscription: their registration and the regions that offer their
types."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import CloudError, PermissionsError
from cloudtrain.core.events import ResourceRequested
from cloudtrain.core.protocols import Journal
from cloudtrain.providers.azure.client import OPERATION, ArmClient, ask_or_none
from cloudtrain.providers.azure.listing import plain

COMPUTE, NETWORK = "Microsoft.Compute", "Microsoft.Network"
SCHEDULES = "Microsoft.DevTestLab"
"""Resource provider of daily VM shutdowns."""
DEADLINES = "Microsoft.ComputeSchedule"
"""Resource provider of deallocations at a date and time:
https://learn.microsoft.com/rest/api/computeschedule/"""
SUBMITTING = "locations/virtualMachinesSubmitDeallocate"
NOT_REGISTERED = frozenset({"notregistered", "unregistered", "unregistering"})


@dataclass(frozen=True, kw_only=True)
class ResourceProvider:
    """State of one resource provider in a subscription."""

    state: str
    """Registration state in lower case; "" if not reported."""
    locations: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Resource type in lower case → regions that offer it."""

    @property
    def missing(self) -> bool:
        return self.state in NOT_REGISTERED

    def serves(self, type: str, region: str) -> bool:
        """True if the type is available in the region, or if its regions are not reported."""
        known = self.locations.get(type.lower())
        return not known or region in known

    def is_far(self, region: str) -> bool:
        """True if Microsoft.ComputeSchedule is available in the region."""
        return self.serves(SUBMITTING, region) and self.serves("locations", region)


def needed(lifetime: float | None) -> tuple[str, ...]:
    """The namespaces that a plan needs; SCHEDULES only if there is a lifetime."""
    return (COMPUTE, NETWORK) if lifetime is None else (COMPUTE, NETWORK, SCHEDULES)


class ResourceProviders:
    """Resource providers of a subscription, each queried once. Thread-safe."""

    def __init__(self, arm: ArmClient) -> None:
        self._arm = arm
        self._known: dict[str, ResourceProvider | None] = {}
        self._lock = threading.Lock()

    def of(self, namespace: str) -> ResourceProvider | None:
        """A resource provider; None if this endpoint does not report it."""
        with self._lock:
            if namespace not in self._known:
                self._known[namespace] = self._ask(namespace)
            return self._known[namespace]

    def missing(self, *namespaces: str) -> tuple[str, ...]:
        return tuple(n for n in namespaces if (found := self.of(n)) is not None and found.missing)

    def reach_far(self, region: str) -> bool:
        """True if Azure can deallocate at a date and time in that region."""
        found = self.of(DEADLINES)
        return found is not None and not found.missing and found.is_far(region)

    def register(self, namespace: str, journal: Journal) -> None:
        """Register a namespace. This is free and needed once per subscription; `down` does not undo
        it. Raises PermissionsError."""
        journal(ResourceRequested(what="registration", name=namespace))
        path = f"{self._arm.path}/providers/{namespace}"
        try:
            self._arm.call("POST", f"{path}/register")
        except CloudError as error:
            raise PermissionsError(
                f"{namespace} is not registered in this subscription: {error.message}",
                hint="have someone with permission run `az provider register --namespace "
                f"{namespace}`",
                code="MissingSubscriptionRegistration",
            ) from error

        def is_registered() -> bool | None:
            with self._lock:
                self._known[namespace] = found = self._ask(namespace)
            return True if found is None or found.state == "registered" else None

        self._arm.timing.until(is_registered, within=OPERATION)

    def _ask(self, namespace: str) -> ResourceProvider | None:
        answer = ask_or_none(lambda: self._arm.get(f"{self._arm.path}/providers/{namespace}"))
        if answer is None:
            return None
        return ResourceProvider(
            state=str(answer.get("registrationState", "")).lower(),
            locations={
                str(each.get("resourceType", "")).lower(): frozenset(
                    plain(str(place)) for place in each.get("locations") or ()
                )
                for each in answer.get("resourceTypes") or ()
            },
        )
