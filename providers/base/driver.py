"""Interface of a cloud driver; `provider.py` implements what is the same on all clouds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar, runtime_checkable

from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import CloudError
from cloudtrain.core.model import MachineType, Node, NodePlan, Owner, Plan
from cloudtrain.core.partial_list import PartialList, SpotEvidence
from cloudtrain.core.protocols import Allowance, Finding, Journal, MachineFacts, Principal

NetworkT = TypeVar("NetworkT")


@dataclass(frozen=True, kw_only=True, order=True)
class Location:
    """Place of all nodes of a cluster: a zone, or a region if it has no zones."""

    region: str
    zone: str = ""

    def __str__(self) -> str:
        return self.zone or self.region


@dataclass(frozen=True, kw_only=True)
class Vm:
    """One of our VMs as its cloud lists it now. `node.state` is "gone" once nothing is billed."""

    cluster: str
    node: Node
    place: Location
    id: str
    """ID assigned by the cloud; VMs that reuse a name have different ids."""
    error: CloudError | None = None
    """Why the cloud stopped the VM or failed to create it."""

    @property
    def owner(self) -> Owner:
        return self.node.owner

    @property
    def generation(self) -> str:
        return self.node.generation

    def __str__(self) -> str:
        return f"instance {self.node.name} ({self.id}) in {self.place}"


@dataclass(frozen=True, kw_only=True)
class Resource:
    """Resource of ours other than a VM: network, firewall, address, disk or resource group."""

    cluster: str
    kind: str
    """Kind in the cloud's own terms, such as `security group`."""
    name: str
    id: str
    region: str = ""
    owner: Owner = field(default_factory=Owner)
    generation: str = ""
    creating_until: float | None = None
    desk: str = ""

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
    """Result of `create_network` for this place."""
    user_data: str = field(repr=False)
    """User data for cloud-init. Contains the node's first private host key: never log it."""
    user_data_of: Callable[[NodePlan], str] = field(default=lambda node: "", repr=False)
    """User data of any node of the plan, for a resource with several hosts that is created by one
    request. As secret as `user_data`."""
    public_key: str = ""
    """The user's public key in OpenSSH format, also in `user_data`: Azure requires it apart."""
    token: str
    """Idempotency token of 32 hex digits: a repeated request has the same, and makes no new VM."""
    expires: float | None
    """Unix time at which the cloud ends the VM."""
    asked: float | None = None
    """Unix time at which an earlier `up` requested this node and did not record the answer."""
    queue: float = 0.0
    """Seconds for which the cloud may let the request wait for capacity, on a market where it does
    (flex-start)."""
    labels: dict[str, str]
    """Labels that the request sets on the VM and on everything created with it."""

    def accepted(self, id: str) -> Vm:
        """The VM of a request that the cloud has accepted and need not list yet."""
        node = Node(
            name=self.node.name,
            role=self.node.role,
            index=self.node.index,
            state="starting",
            address="",
            internal="",
            placement=str(self.place),
            machine=self.node.machine or "",
            provisioning=self.node.provisioning,
            expires=self.expires,
            owner=self.plan.owner,
            generation=self.plan.generation,
        )
        return Vm(cluster=self.plan.config.name, node=node, place=self.place, id=id)


Tell = Callable[[Node, str], None]


@runtime_checkable
class ConfirmsEnds(Protocol):
    """A driver whose cloud can be asked whether it will end a VM, besides listing it."""

    def missing_ends(self, machines: Sequence[Vm]) -> dict[str, str]:
        """Reasons for which the cloud does not end some of these running VMs at their end, by ID.
        One call or two for all of them. Raises CloudError."""

    def repair_ends(self, machines: Sequence[Vm]) -> None:
        """Have the cloud end those of these VMs that it says it does not. Raises CloudError."""


class CloudDriver(Protocol[NetworkT]):
    """Driver for one account in one cloud. Thread-safe.

    Existing resources are always queried, never cached. Drivers map all of the cloud's exceptions
    to CloudError or another class of `errors`. TransientError and RateError are raised only after
    many retries. A method with a body here is one that a cloud need not have."""

    name: str
    ends_by_shutdown: bool
    """True if a VM that shuts itself down is not billed: a timer in its user data ends it."""
    at_once: int
    """Maximum number of nodes requested in parallel: each holds a connection while its operation
    goes on, or shares a rate of requests with the others."""
    soonest_end: float
    """Minimum lead time in seconds: an end nearer than this cannot be set in time."""

    def principal(self) -> Principal | None:
        """Identity of these credentials; None if not reported."""

    def check(self, plan: Plan) -> tuple[Finding, ...]:
        """Check credentials, permissions, machines, images, and the quota that all roles need.
        Changes nothing. If this endpoint does not report something, a finding says so."""

    def dry_run(self, plan: Plan) -> tuple[Finding, ...]:
        """Same as Provider.dry_run."""
        return ()

    def machine_facts(self, plan: Plan, names: Sequence[str]) -> tuple[MachineFacts, ...]:
        """Same as RentsMachines.machine_facts."""
        return ()

    def allowances(
        self, machines: Sequence[MachineType], regions: Sequence[str]
    ) -> PartialList[Allowance]:
        """Same as RentsMachines.allowances."""
        return PartialList()

    def places(self, plan: Plan) -> tuple[Location, ...]:
        """The places of the placement, in its order: of a region, its zones with the machines.
        Raises CloudConfigError for a zone or region that does not exist."""

    def spot_evidence(self, plan: Plan, places: Sequence[Location]) -> tuple[SpotEvidence, ...]:
        """The cloud's evidence on spot capacity for the plan's spot nodes (`node.spot`), at most
        once for each of these places; empty if it says nothing.

        Nodes of several machine types: the lowest score counts. A few calls with few retries at
        most, which change nothing. Raises CloudError, which stops nothing."""
        return ()

    def latest_end(self, plan: Plan) -> float | None:
        """The Unix time by which the plan's nodes must end, as what they are bought from ends then;
        None if nothing does. Asks only if the plan names such a reservation."""
        return None

    def machines(
        self, cluster: str | None = None, place: Location | None = None, places: Sequence[str] = ()
    ) -> PartialList[Vm]:
        """List VMs with our label: of one cluster or all, in one place or everywhere.

        Includes failed and ended VMs (state "gone") that the cloud still lists. `places`: zones and
        regions that must be listed; others may be skipped if that is cheaper. `not_asked` of the
        result names the zones and regions that did not answer or that this account may not use.
        Raises PermissionsError if the account may not use one of `places`."""

    def resources(
        self, cluster: str | None = None, places: Sequence[str] = ()
    ) -> PartialList[Resource]:
        """List other resources with our label or name, also without a VM; `places` as above."""

    def create_network(
        self, plan: Plan, place: Location, caller: str, journal: Journal
    ) -> NetworkT:
        """Create or adopt the network, firewall and placement group.

        The firewall allows SSH from `caller` (a CIDR, or "" for nobody) and all traffic between the
        cluster's nodes; it is updated if the caller's address has changed. ResourceRequested is
        written before each creation."""

    def is_close(self, network: NetworkT) -> bool:
        """True if nodes that use these network resources are placed in a placement group."""
        return False

    def launch(self, order: LaunchRequest[NetworkT]) -> Vm:
        """Launch one VM, or adopt the one that an earlier call with this token created. Returns
        once the cloud has accepted the request: the VM may not be running or listed yet. Raises
        CapacityError, QuotaError, …"""

    def refusal(self, machine: Vm) -> CloudError | None:
        """Error that says why the cloud did not create a VM whose request it had accepted and let
        wait for capacity; None if it does not say."""
        return None

    def start(self, machine: Vm, expires: float | None) -> None:
        """Start a stopped VM; its disk is unchanged. The VM ends at `expires` (Unix time), together
        with the rest of its cluster: starting it does not begin a new lifetime."""

    def move_ends(
        self, machines: Sequence[Vm], expires: float | None, tell: Tell | None = None
    ) -> bool:
        """Move the end of these VMs and their labels to `expires` (Unix time; None: no end).
        Returns False and changes nothing if this cloud cannot move the end of a VM. `tell` runs a
        line of sh on a running node, for ends that are stored on the node."""
        return False

    def serial_log(self, machine: Vm) -> str:
        """The end of the VM's serial log; "" if there is none yet. Needs no SSH key."""
        return ""

    def delete(self, machines: Sequence[Vm], resources: Sequence[Resource]) -> None:
        """Delete the VMs and resources in the cloud's order, in parallel where possible.

        Returns once the cloud reports that each is gone; deleting one that no longer exists is not
        an error. Retries known dependency errors. If one deletion fails, the others still proceed;
        the failure is raised at the end."""

    def delete_from_inside(self, machines: Sequence[Vm], resources: Sequence[Resource]) -> None:
        """Delete the VM that runs this program, in one last call, and before it those resources
        that can be deleted while it runs. The call must not wait for a step of ours after it, as no
        later one may happen."""
