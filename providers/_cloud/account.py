"""The narrow door to one cloud's account: its file answers these, `provider.py` does the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from cloudtrain.errors import CloudError
from cloudtrain.listing import Listing
from cloudtrain.model import Node, NodePlan, Owner, Plan, ProviderName
from cloudtrain.protocols import Finding, Journal, MachineFacts, Principal

GroundT = TypeVar("GroundT")


@dataclass(frozen=True, kw_only=True, order=True)
class Place:
    """Where all nodes of a cluster are: a zone, or a region where it has no zones."""

    region: str
    zone: str = ""

    def __str__(self) -> str:
        return self.zone or self.region


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A VM of ours as the cloud tells it now. `node.state` is "gone" once nothing is billed."""

    cluster: str
    node: Node
    place: Place
    id: str
    """The cloud's own; two VMs of one name have two ids."""
    error: CloudError | None = None
    """Why the cloud gave it up, or never made it."""

    @property
    def owner(self) -> Owner:
        return self.node.owner


@dataclass(frozen=True, kw_only=True)
class Resource:
    """Anything else of ours: a network, a firewall, an address, a disk, a resource group."""

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
class Order(Generic[GroundT]):
    """One VM to be made."""

    plan: Plan
    node: NodePlan
    place: Place
    ground: GroundT
    """What `ground` returned for this place."""
    user_data: str = field(repr=False)
    """For cloud-init; it holds the node's first host key, so it is never logged."""
    public_key: str = ""
    """The user's, OpenSSH: it is in `user_data` too, but Azure makes no VM without one."""
    token: str
    """The same for the same wish, so that asking twice makes one VM; 32 hex digits."""
    expires: float | None
    """Unix time at which the cloud ends it by itself."""
    asked: float | None = None
    """When an earlier `up` asked for this node, Unix time, where no answer to it is on record."""
    labels: dict[str, str]
    """On the VM, and on all that is made with it, from its first second."""


Tell = Callable[[Node, str], None]


class Account(Protocol[GroundT]):
    """One account at one cloud. Safe to use from many threads; what exists is asked, never kept.

    Every exception that leaves it is a CloudError (or of `errors`): the cloud's own are mapped at
    this seam, and TransientError and RateError are raised only after many tries.
    """

    name: ProviderName
    ends_by_shutdown: bool
    """Whether a VM that shuts itself down is deleted, so that its user data can end it in time."""
    soonest_end: float
    """Seconds: an end that is nearer than this cannot be armed so that it comes in time."""

    def principal(self) -> Principal | None:
        """Who these credentials are; None where that is not told."""

    def check(self, plan: Plan) -> tuple[Finding, ...]:
        """Credentials, permissions, machine, accelerator, image, quota against the need of all
        roles summed. Changes nothing; what this endpoint does not tell is a finding that says so.
        """

    def rehearse(self, plan: Plan) -> tuple[Finding, ...]:
        """As Provider.rehearse; `not_rehearsed` where this cloud has nothing of the kind."""

    def machine_facts(self, plan: Plan, names: Sequence[str]) -> tuple[MachineFacts, ...]:
        """As TellsMachines.machine_facts."""

    def places(self, plan: Plan) -> tuple[Place, ...]:
        """The config's placement in its order, each region as its zones that have the machines.

        Raises CloudConfigError for a zone or region that does not exist.
        """

    def machines(
        self,
        cluster: str | None = None,
        place: Place | None = None,
        places: Sequence[str] = (),
    ) -> Listing[Machine]:
        """VMs under our label: of one cluster or all, in one place or everywhere.

        Also one that failed or ended (state "gone") where the cloud still tells of it. `places`
        are the zones and regions that count: others may be left out where that is cheaper. A
        zone or region that does not answer is in `not_asked`, one that this account may not use
        too, unless it counts: that is a PermissionsError.
        """

    def resources(
        self, cluster: str | None = None, places: Sequence[str] = ()
    ) -> Listing[Resource]:
        """All else under our label or name, also what lost its VM; `places` as for machines."""

    def ground(self, plan: Plan, place: Place, caller: str, journal: Journal) -> GroundT:
        """Network, firewall (SSH from `caller`, a CIDR; all between the cluster's nodes; nothing
        else), placement group: made or adopted, and mended where the caller's address changed.

        `journal("make", what="firewall", name=…)` stands before each thing that is made.
        """

    def is_close(self, ground: GroundT) -> bool:
        """Whether nodes on this ground are put in a placement group."""

    def launch(self, order: Order[GroundT]) -> Machine:
        """One VM, accepted by the cloud; adopts one that an earlier call with this token made.

        It need not be running or listed yet. Raises CapacityError, QuotaError, …
        """

    def start(self, machine: Machine, expires: float | None) -> None:
        """A stopped one, with its disk as it was. It ends at `expires` (Unix time), with the rest
        of its cluster, and not a lifetime after this start."""

    def move_ends(
        self, machines: Sequence[Machine], expires: float | None, tell: Tell | None = None
    ) -> bool:
        """These end at `expires` (Unix time; None: not by themselves) from now on, as their labels
        then say. False, and nothing is changed, where this cloud cannot move the end of a VM.

        `tell` runs a line of sh on a node that runs, for ends that are held there.
        """

    def console(self, machine: Machine) -> str:
        """The end of its serial log, which needs no key; "" where there is none yet."""

    def erase(self, machines: Sequence[Machine], resources: Sequence[Resource]) -> None:
        """Delete all of these in the order that the cloud needs, side by side where it can.

        Returns when each is gone as far as the cloud tells; what is gone already is fine. The
        known dependency errors are retried. One failure does not keep the others from being
        deleted; it is raised at the end.
        """


def not_rehearsed(cloud: str) -> tuple[Finding, ...]:
    """For an account that `check --deep` asks nothing more of than `check`."""
    text = f"{cloud} is asked nothing beyond what `check` asks"
    return (Finding(what="rehearsal", ok=True, text=text, told=False),)
