"""Interface of a cloud driver; `provider.py` does everything that is the same in all clouds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from cloudtrain.errors import CloudError
from cloudtrain.model import Node, NodePlan, Owner, Plan
from cloudtrain.partial_list import PartialList
from cloudtrain.protocols import Finding, Journal, MachineFacts, Principal

NetworkT = TypeVar("NetworkT")


@dataclass(frozen=True, kw_only=True, order=True)
class Location:
    """Location of all nodes of a cluster: a zone, or a region without zones."""

    region: str
    zone: str = ""

    def __str__(self) -> str:
        return self.zone or self.region


@dataclass(frozen=True, kw_only=True)
class Vm:
    """A VM of ours as its cloud lists it now. `node.state` is "gone" once nothing is billed."""

    cluster: str
    node: Node
    place: Location
    id: str
    """The cloud's id; two VMs of one name have different ids."""
    error: CloudError | None = None
    """Why the cloud stopped or never created it."""

    @property
    def owner(self) -> Owner:
        return self.node.owner


@dataclass(frozen=True, kw_only=True)
class Resource:
    """Any other resource of ours: a network, firewall, address, disk or resource group."""

    cluster: str
    kind: str
    """In the cloud's own words: `security group`."""
    name: str
    id: str
    region: str = ""
    owner: Owner = field(default_factory=Owner)

    def __str__(self) -> str:
        words = f"{self.kind} {self.name}"
        words += f" ({self.id})" if self.id != self.name else ""
        return f"{words} in {self.region}" if self.region else words


@dataclass(frozen=True, kw_only=True)
class LaunchRequest(Generic[NetworkT]):
    """Request to launch one VM."""

    plan: Plan
    node: NodePlan
    place: Location
    network: NetworkT
    """What `create_network` returned for this place."""
    user_data: str = field(repr=False)
    """For cloud-init. Holds the node's first host key: never log it."""
    public_key: str = ""
    """The user's, in OpenSSH's format. It is in `user_data` too, but Azure creates no VM without
    one.
    """
    token: str
    """32 hex digits, the same for the same request, so that repeating it creates one VM."""
    expires: float | None
    """Unix time at which the cloud ends the VM."""
    asked: float | None = None
    """Unix time at which an earlier `up` requested this node, if its answer is not on record."""
    labels: dict[str, str]
    """Set by the request itself on the VM and on everything created with it."""


Tell = Callable[[Node, str], None]


class CloudDriver(Protocol[NetworkT]):
    """Driver for one account at one cloud. Safe to use from many threads.

    What exists is always queried, never cached. Every exception that leaves a driver is a
    CloudError (or another of `errors`): drivers map the cloud's own. TransientError and RateError
    are raised only after many retries.
    """

    name: str
    ends_by_shutdown: bool
    """True if a VM that shuts itself down is no longer billed, so that its user data can end it."""
    soonest_end: float
    """Seconds. A nearer end cannot be set in time."""

    def principal(self) -> Principal | None:
        """Identity of these credentials; None if not reported."""

    def check(self, plan: Plan) -> tuple[Finding, ...]:
        """Findings on credentials, permissions, machines, accelerators, images, and the quota that
        all roles need.

        Changes nothing. What this endpoint does not report is a finding that says so.
        """

    def dry_run(self, plan: Plan) -> tuple[Finding, ...]:
        """As Provider.dry_run; `no_dry_run` if this cloud has no dry run."""

    def machine_facts(self, plan: Plan, names: Sequence[str]) -> tuple[MachineFacts, ...]:
        """As TellsMachines.machine_facts."""

    def places(self, plan: Plan) -> tuple[Location, ...]:
        """The placement in its order, each region as its zones that have the machines.

        Raises CloudConfigError for a zone or region that does not exist.
        """

    def machines(
        self,
        cluster: str | None = None,
        place: Location | None = None,
        places: Sequence[str] = (),
    ) -> PartialList[Vm]:
        """List VMs with our label: of one cluster or all, in one place or everywhere.

        Includes failed and ended VMs (state "gone") that the cloud still lists. `places` are the
        zones and regions that must be listed: others may be skipped if that is cheaper. `not_asked`
        has zones and regions that do not answer, and those that this account may not use. If one
        of those is among `places`, raises PermissionsError.
        """

    def resources(
        self, cluster: str | None = None, places: Sequence[str] = ()
    ) -> PartialList[Resource]:
        """List all other resources with our label or name, also without a VM; `places` as for
        machines.
        """

    def create_network(
        self, plan: Plan, place: Location, caller: str, journal: Journal
    ) -> NetworkT:
        """Create or adopt network, firewall and placement group.

        The firewall allows SSH from `caller` (a CIDR) and all traffic between the cluster's nodes;
        it is updated if the caller's address has changed. ResourceRequested is written
        before each creation.
        """

    def is_close(self, network: NetworkT) -> bool:
        """True if nodes on these network resources go into a placement group."""

    def launch(self, order: LaunchRequest[NetworkT]) -> Vm:
        """Launch one VM, or adopt the one that an earlier call with this token created.

        Returns once the cloud has accepted it: it need not be running or listed yet. Raises
        CapacityError, QuotaError, …
        """

    def start(self, machine: Vm, expires: float | None) -> None:
        """Start a stopped VM with its disk as it was.

        It ends at `expires` (Unix time), with the rest of its cluster, and not a lifetime after
        this start.
        """

    def move_ends(
        self, machines: Sequence[Vm], expires: float | None, tell: Tell | None = None
    ) -> bool:
        """Move the end of these VMs and their labels to `expires` (Unix time; None: no end).

        False, and nothing is changed, if this cloud cannot move the end of a VM. `tell` runs a line
        of sh on a running node, for ends that are held there.
        """

    def serial_log(self, machine: Vm) -> str:
        """End of the VM's serial log; "" if there is none yet. Needs no SSH key."""

    def delete(self, machines: Sequence[Vm], resources: Sequence[Resource]) -> None:
        """Delete all of these in the order that the cloud needs, in parallel where possible.

        Returns once the cloud reports each as gone; one that is gone already is no error. Known
        dependency errors are retried. A failure does not keep the others from being deleted; it is
        raised at the end.
        """


def no_dry_run(cloud: str) -> tuple[Finding, ...]:
    """Finding for a driver whose `check --deep` checks no more than `check`."""
    text = f"{cloud} has no dry run: nothing is checked beyond `check`"
    return (Finding(what="rehearsal", ok=True, text=text, told=False),)
