"""What exists in the subscription, what goes on in it, and its clock."""

from __future__ import annotations

import heapq
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

from tests.standins.azure_errors import Body, Refusal, wanted_by_test

SUBSCRIPTION = "00000000-0000-4000-8000-000000000001"
GROUPS = "Microsoft.Resources/resourceGroups"
WORKING = ("Creating", "Updating", "Deleting")


@dataclass(eq=False)
class Thing:
    """One resource, or one resource group."""

    id: str
    """As it was first written; ids are compared without regard to case."""
    type: str
    given: Body
    """The body that asked for it, checked; also what is never told again, such as customData."""
    born: float
    made: Body = field(default_factory=dict)
    """What the cloud adds to `given`; each type has its own."""
    state: str = "Creating"
    operation: Operation | None = None
    """The one that works on it."""

    @property
    def name(self) -> str:
        return self.id.rpartition("/")[2]

    @cached_property
    def group(self) -> str:
        return self.id.split("/")[4]

    @cached_property
    def place(self) -> tuple[str, str]:
        """Its type and its group, to be compared."""
        return self.type.lower(), self.group.lower()

    @property
    def region(self) -> str:
        return str(self.given["location"])

    @property
    def properties(self) -> Body:
        found: Body = self.given.setdefault("properties", {})
        return found

    @property
    def tags(self) -> dict[str, str]:
        return dict(self.given.get("tags") or {})


@dataclass(eq=False)
class Operation:
    id: str
    begun: float
    finish: Callable[[], Refusal | None]
    thing: Thing
    namespace: str
    status: str = "InProgress"
    ended: float | None = None
    error: Refusal | None = None


def _people() -> dict[str, str]:
    from tests.standins.azure_auth import CLIENT, OBJECT

    return {CLIENT: OBJECT}


@dataclass(eq=False)
class World:
    """All under one lock. What is due happens before the next call is answered.

    The first ones are for tests to turn, at any time.
    """

    delay: float = 0.03
    """Seconds that each operation takes."""
    delays: dict[str, float] = field(default_factory=dict)
    """The same of one type: `{"virtualMachines": 20}`."""
    lag: float = 0.0
    """Seconds for which lists leave a new VM out, and `/resources` anything new."""
    wide_lag: float = 0.0
    """The same of lists of the whole subscription, where that is longer."""
    capacity: dict[str, int] = field(default_factory=dict)
    """VMs that there is room for: `{"eastus": 0, "eastus-1": 2, "*/Standard_NC*": 0}`, by region or
    zone, with a size after the slash. The first one that is exceeded refuses."""
    no_room_close: list[str] = field(default_factory=list)
    """Regions and zones whose proximity groups are full, while single VMs still find room."""
    capacity_code: str = ""
    """How a lack of room is told: SkuNotAvailable at once, any other when the operation fails; by
    default AllocationFailed, or ZonalAllocationFailed where a zone was asked for."""
    quotas: dict[str, int] = field(default_factory=dict)
    """Limits instead of the generous ones: `{"cores": 8, "westeurope/lowPriorityCores": 0}`."""
    untold_quotas: list[str] = field(default_factory=list)
    """Quotas that usages leave out, though they hold: `*T4*`."""
    lacking: dict[str, list[str]] = field(default_factory=dict)
    """Regions without a type: `{"Microsoft.DevTestLab/schedules": ["westus"]}`."""
    api_versions: dict[str, list[str]] = field(default_factory=dict)
    """The only API versions of a namespace, or of a type: `{"microsoft.compute": ["2024-07-01"]}`,
    as in a cloud that lags behind the public one."""
    restricted: list[str] = field(default_factory=list)
    """Not for this subscription: `eastus/Standard_NC*`, `eastus-2/*`."""
    failures: dict[str, str] = field(default_factory=dict)
    """Operations on the thing of that name fail, and leave it: "
    "`{"mnist-worker0": "OSProvisioningTimedOut"}`."""
    stuck: dict[str, int] = field(default_factory=dict)
    """VMs that stay in the state Creating, and how many times: `{"mnist-worker0": 1}`."""
    page_size: int = 100
    expand_needs_filter: bool = False
    """Lists of VMs have instance views only with a $filter, as their documentation says."""
    nic_reserved: float = 0.0
    """Seconds for which the NIC of a VM that was deleted is kept for it; 180 in reality."""
    retry_after: int | None = None
    """What calls that start or follow an operation tell; azure-mgmt's own default is 30 s."""
    subscription_state: str = "Enabled"
    locks: list[str] = field(default_factory=list)
    """Resource groups with a lock CanNotDelete: nothing in them is deleted, all else is done."""
    policies: list[str] = field(default_factory=list)
    """Types that a policy denies: `Microsoft.Network/publicIPAddresses`."""
    allowed_locations: list[str] = field(default_factory=list)
    """The only regions that a policy allows; none: all."""
    best_regions: list[str] = field(default_factory=list)
    """The same of Azure itself, for students."""
    refuses: dict[str, str] = field(default_factory=dict)
    """Refusals of the corpus, by method and path: `{"PUT */virtualMachines/*": "mfa-required"}`."""
    required_tags: list[str] = field(default_factory=list)
    """Tags without which a policy denies that a group or resource is created."""
    serial_logs: dict[str, str] = field(default_factory=dict)
    """Of VMs without a node behind them, by name."""
    forced: list[str] = field(default_factory=list)
    """What groups were deleted with by force."""
    features: list[str] = field(default_factory=list)
    """Registered in the subscription: `Microsoft.Compute/TrustedLaunchByDefaultPreview`."""
    storage_accounts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By name, what their blobServices/default says: `{"mine": {"isVersioningEnabled": True}}`."""
    terms_accepted: list[str] = field(default_factory=list)
    """Purchase plans whose terms are accepted, by name."""
    disk_encryption_sets: dict[str, str] = field(default_factory=dict)
    """Their regions, by group and name: `{"keys/disks": "eastus"}`."""
    keys_denied: list[str] = field(default_factory=list)
    """Sets whose identity may not use its key."""
    identities: list[str] = field(default_factory=list)
    """User-assigned identities: `["identities/trainer"]`, by group and name."""
    reservation_groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`{"capacity/t4": {"region": "eastus", "reservations": {"one": {"size": "Standard_…", "zone":
    "1", "count": 2, "taken": 1}}}}`: by resource group and name; no zone: regional; `taken` by VMs
    of others, `type`: Block or Open."""
    eviction_rates: dict[str, str] = field(default_factory=dict)
    """`{"eastus/Standard_NC4as_T4_v3": "5-10"}`, as Resource Graph tells them."""
    absent: list[str] = field(default_factory=list)
    """Namespaces that this cloud has not at all."""
    unregistered: list[str] = field(default_factory=list)
    """Namespaces, such as `Microsoft.DevTestLab`."""
    granted: list[str] | None = None
    """The only actions that the caller may do: those of a role; None: all."""
    granted_at: dict[str, list[str]] | None = None
    """What roles allow, by the scope that they are assigned at: `{"/subscriptions/…": ["*/read"]}`;
    None: `granted` holds everywhere. Operations are read at the subscription's scope, too: whether
    the real one asks there for more than the link itself is not known."""
    used: set[str] = field(default_factory=set)
    """Actions that calls needed, those of what their bodies refer to too."""
    not_permitted: list[str] = field(default_factory=list)
    """Actions that the caller may not do: `Microsoft.Compute/virtualMachines/write`, `*/delete`."""
    deadlines_need_finished: bool = False
    """Microsoft.ComputeSchedule takes no VM that is still being created."""
    deadlines: dict[str, Any] = field(default_factory=dict)
    """Operations of Microsoft.ComputeSchedule, by id."""
    token_lifetime: float = 3600.0
    nodes: Any = None
    """What runs behind the VMs: `start(name, user_data, address)`, `halt(name)`, `stop(name)`,
    `address()`."""

    changes: int = 0
    """Goes up before anything in `things` is seen to have changed."""
    holders: tuple[int, Mapping[str, Thing]] | None = None
    """Who has which public address, as of so many changes: see azure_references."""
    things: dict[str, Thing] = field(default_factory=dict)
    """By id in lower case."""
    operations: dict[str, Operation] = field(default_factory=dict)
    tokens: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Until when, and for which audience."""
    version: str = ""
    """The API version of the call that is answered."""
    people: dict[str, str] = field(default_factory=_people)
    """Client id → object id of those who may sign in, all with one secret."""
    lock: Any = field(default_factory=threading.RLock)
    _skew: float = 0.0
    _due: float | None = None
    _agenda: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: int = 0
    _at_work: dict[str, threading.Thread] = field(default_factory=dict)

    # ── Time ─────────────────────────────────────────────────────────────────

    def now(self) -> float:
        """Unix time in this cloud; within an event, the moment that it was due."""
        return self._due if self._due is not None else time.time() + self._skew

    def advance(self, seconds: float) -> None:
        with self.lock:
            self._skew += seconds
            self.tick()

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (when, self.number(), what))

    def tick(self) -> None:
        now = time.time() + self._skew
        while self._agenda and self._agenda[0][0] <= now:
            self._due, _, what = heapq.heappop(self._agenda)
            try:
                what()
            finally:
                self._due = None

    def number(self) -> int:
        self._number += 1
        return self._number

    # ── Things ───────────────────────────────────────────────────────────────

    def find(self, id: str) -> Thing | None:
        return self.things.get(id.lower())

    def add(self, thing: Thing) -> Thing:
        self.things[thing.id.lower()] = thing
        self.changes += 1
        return thing

    def remove(self, thing: Thing) -> None:
        self.things.pop(thing.id.lower(), None)
        self.changes += 1

    def of_type(self, type: str, group: str | None = None) -> Iterator[Thing]:
        wanted = type.lower()
        for thing in list(self.things.values()):
            here, its_group = thing.place
            if here == wanted and group in (None, its_group):
                yield thing

    def in_group(self, group: str) -> list[Thing]:
        prefix = f"/subscriptions/{SUBSCRIPTION}/resourcegroups/{group}/".lower()
        return [one for id, one in self.things.items() if id.startswith(prefix)]

    # ── Operations ───────────────────────────────────────────────────────────

    def operate(self, thing: Thing, state: str, finish: Callable[[], Refusal | None]) -> Operation:
        """`finish` is called when the time is over, unless another operation has taken its place;
        then the thing is `Succeeded`, or `Failed` with what it returns."""
        namespace, _, kind = thing.type.partition("/")
        operation = Operation(str(uuid.uuid4()), self.now(), finish, thing, namespace)
        self.changes += 1
        if thing.operation is not None:
            self._end(thing.operation, "Canceled")
        thing.state, thing.operation = state, operation
        self.operations[operation.id] = operation
        took = self.delays.get(kind, self.delay)
        if kind == "virtualMachines" and state == "Creating" and self.stuck.get(thing.name):
            self.stuck[thing.name] -= 1
        else:
            self.at(self.now() + took, lambda: self._finish(operation))
        return operation

    def _finish(self, operation: Operation) -> None:
        thing = operation.thing
        if operation.ended is not None:
            return
        code = self.failures.get(thing.name)
        if code is not None and thing.state != "Deleting":
            operation.error = wanted_by_test(thing.name, code)
        else:
            operation.error = operation.finish()
        thing.operation = None
        thing.state = "Failed" if operation.error else "Succeeded"
        self._end(operation, thing.state)

    def _end(self, operation: Operation, status: str) -> None:
        operation.status, operation.ended = status, self.now()

    # ── Nodes ────────────────────────────────────────────────────────────────

    def elsewhere(self, name: str, work: Callable[[], None]) -> None:
        """In a thread, after what was asked for that name before: a node takes seconds to start."""
        before = self._at_work.get(name)

        def run() -> None:
            if before is not None:
                before.join()
            work()

        self._at_work[name] = threading.Thread(target=run, daemon=True)
        self._at_work[name].start()

    def await_nodes(self) -> None:
        """Until what was begun elsewhere is done: on a busy machine a thread starts late."""
        with self.lock:
            threads = tuple(self._at_work.values())
        for thread in threads:
            thread.join()

    # ── Words ────────────────────────────────────────────────────────────────

    def stamp(self, when: float | None = None) -> str:
        moment = datetime.fromtimestamp(self.now() if when is None else when, timezone.utc)
        return moment.isoformat().replace("+00:00", "Z")


def resource_id(group: str, type: str, name: str) -> str:
    return f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{group}/providers/{type}/{name}"


def group_id(group: str) -> str:
    return f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{group}"


def same(one: str, other: str) -> bool:
    """Two ids, or two names."""
    return one.lower() == other.lower()


def ids_in(value: Any) -> Iterator[str]:
    """Every id of a resource that a body refers to, in lower case."""
    if isinstance(value, dict):
        for one in value.values():
            yield from ids_in(one)
    elif isinstance(value, list):
        for one in value:
            yield from ids_in(one)
    elif isinstance(value, str) and re.match(r"/subscriptions/[^/]+/resourcegroups/", value, re.I):
        yield value.lower()
