"""Events of a cluster's journal: their JSON lines, and what they mean.

A line of events.jsonl is `{"time": …, "pid": …, "event": WORD, …facts}`. Events are written by
their classes; only the functions below read the lines. Lines of another version with an unknown
event or unknown facts are ignored, and stay in the file.

All functions start after the last `ClusterGone`: earlier events are about a cluster that no longer
exists. Within one cluster, the meaning of a milestone depends on the question:

  event           may hold work   is being destroyed  is used
  UpBegun         as before       no                  yes
  UpCompleted     yes             no                  yes
  AttemptBegun    yes             no                  yes
  AttemptStarted,
  RunEnded        as before       as before           yes
  RemovalBegun    no, if whole    as before           as before
  DownBegun       no              yes                 as before"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, TypeGuard

from cloudtrain.core.codec import UNIX_TIME, InvalidRecord, decode
from cloudtrain.core.dataclass import dataclass, field

Line = Mapping[str, Any]
"""One line of events.jsonl."""
Made = Mapping[str, Any]
"""What a node was created with: drift.made_with."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base class. `time`: when it was written, Unix time; None before that."""

    word: ClassVar[str] = ""
    """Name of the event in the line."""
    time: float | None = field(default=None, compare=False, repr=False)

    def __init_subclass__(cls, word: str) -> None:
        cls.word = word
        KINDS[word] = cls


KINDS: dict[str, type[Event]] = {}


# ── The cluster ──────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class ClusterGone(Event, word="gone"):
    """Nothing of the cluster exists any more; a later one of the same name begins after this."""


@dataclass(frozen=True, kw_only=True)
class BudgetContinued(Event, word="budget continued"):
    """The next candidate is tried: what earlier ones cost counts against one `limits.budget`."""

    since: float
    """Unix time."""


@dataclass(frozen=True, kw_only=True)
class UpBegun(Event, word="up"):
    """`up` is about to create these nodes."""

    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class UpCompleted(Event, word="ready"):
    """Every node exists and has what `setup:` and `code:` name."""


@dataclass(frozen=True, kw_only=True)
class DownBegun(Event, word="down"):
    """Everything on these nodes has landed or is discarded; they are about to be deleted."""

    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RemovalBegun(Event, word="exchange"):
    """Everything on some nodes (`up --shrink`, `up --replace`) has landed or is discarded; they are
    about to be deleted. `whole`: True if these are all nodes."""

    nodes: tuple[str, ...]
    whole: bool = False


@dataclass(frozen=True, kw_only=True)
class DownFailed(Event, word="idle failed"):
    """Failure of an unattended process to land a run or to delete the cluster."""

    why: str
    again: float | None = field(default=None, metadata=UNIX_TIME)
    """When it is tried again."""


@dataclass(frozen=True, kw_only=True)
class DownOrdered(Event, word="down ordered"):
    """A command could not land or delete the cluster, and leaves that to the idle process."""

    why: str


@dataclass(frozen=True, kw_only=True)
class ClusterEnd:
    """New expiry of the whole cluster, and the limits that set it; None for no limit."""

    lifetime: float | None
    expires: float | None
    """Unix time."""
    budget: float | None = None
    """`limits.budget`, if it is set."""


@dataclass(frozen=True, kw_only=True)
class EndMoveBegun(ClusterEnd, Event, word="move end"):
    """The expiry of every node is about to be changed."""


@dataclass(frozen=True, kw_only=True)
class EndMoved(ClusterEnd, Event, word="end moved"):
    """Every node has that expiry."""


@dataclass(frozen=True, kw_only=True)
class OwnEndsArmed(Event, word="own ends"):
    """The nodes' agents end them after so many seconds, each may be None: without use, or without
    work of their GPUs. Both are None once they do not any more."""

    idle: float | None = None
    gpu: float | None = None

    @property
    def is_on(self) -> bool:
        return self.idle is not None or self.gpu is not None


# ── Creation and deletion, written by providers ──────────────────────────────


@dataclass(frozen=True, kw_only=True)
class CreationBegun(Event, word="generation"):
    """Something of the cluster is about to be created, and labelled with this generation."""

    id: str


@dataclass(frozen=True, kw_only=True)
class PlacementTried(Event, word="place"):
    """Nodes are about to be requested in this placement."""

    placement: str
    region: str = ""


@dataclass(frozen=True, kw_only=True)
class SpotOrderChosen(Event, word="spot order"):
    """The zones of a region are tried in another order, by what the cloud says of spot there."""

    places: tuple[str, ...]
    text: str
    """The evidence, with its source."""


@dataclass(frozen=True, kw_only=True)
class PlacementRefused(Event, word="refused"):
    """The placement refuses the nodes; its requests were rolled back, unless CleanupFailed."""

    placement: str
    error: str = ""
    """Class of the error."""
    text: str = ""
    """Empty if the error ends the command, which then shows it."""


@dataclass(frozen=True, kw_only=True)
class TriedApart(Event, word="apart"):
    """The placement is retried without a placement group."""

    placement: str


@dataclass(frozen=True, kw_only=True)
class ImageChosen(Event, word="image"):
    """The provider chose an image for its `key`; the choice holds until the cluster is gone."""

    key: str
    id: str


@dataclass(frozen=True, kw_only=True)
class ResourceRequested(Event, word="make"):
    """A resource other than a node is about to be created; `what` is its kind."""

    what: str
    name: str


@dataclass(frozen=True, kw_only=True)
class NodeRequested(Event, word="create"):
    """A node is about to be created. Earlier versions did not write `made`."""

    node: str
    made: Made | None = None


@dataclass(frozen=True, kw_only=True)
class NodeCreated(Event, word="made"):
    """The cloud has accepted the request; `id` is the cloud's id of the node."""

    node: str
    id: str
    placement: str


@dataclass(frozen=True, kw_only=True)
class NodesShareFiles(Event, word="shared"):
    """Local nodes share this machine's files, as it allows them no view of their own."""

    why: str


@dataclass(frozen=True, kw_only=True)
class NodesPlaced(Event, word="placed"):
    """Every node runs; places by node name, and prices in $/hour as known then, null if not.
    Earlier versions wrote no prices, or only those of the machines."""

    places: Mapping[str, str]
    prices: Mapping[str, float | None] = field(default_factory=dict)
    """Of the machines."""
    ceilings: Mapping[str, float | None] = field(default_factory=dict)
    """Upper bounds of the prices."""
    disks: Mapping[str, float | None] = field(default_factory=dict)
    addresses: Mapping[str, float] = field(default_factory=dict)
    kept: bool = False
    """Whether disks and addresses are billed after the nodes' end."""
    expires: Mapping[str, float | None] = field(default_factory=dict)
    """When the cloud ends each node, Unix time; None: never."""


@dataclass(frozen=True, kw_only=True)
class NodeDeletionBegun(Event, word="destroy"):
    """A node exists and is about to be deleted."""

    node: str


@dataclass(frozen=True, kw_only=True)
class CleanupFailed(Event, word="left over"):
    """A rollback failed."""

    text: str = ""


@dataclass(frozen=True, kw_only=True)
class RequestDenied(Event, word="denied"):
    """Details of a refusal for an administrator."""

    text: str
    detail: str


# ── Runs ─────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class AttemptBegun(Event, word="start"):
    """Tasks are about to be started."""

    run: str = ""
    attempt: int = 0


@dataclass(frozen=True, kw_only=True)
class AttemptStarted(Event, word="started"):
    """All tasks of the attempt were started."""

    run: str = ""
    attempt: int = 0


@dataclass(frozen=True, kw_only=True)
class TaskRestartBegun(Event, word="restart"):
    """One task is about to be restarted alone, in this attempt of its own."""

    run: str
    task: str
    attempt: int


@dataclass(frozen=True, kw_only=True)
class TasksJoined(Event, word="formed"):
    """The tasks formed one cluster after `after` seconds."""

    run: str
    after: float


@dataclass(frozen=True, kw_only=True)
class NothingMoves(Event, word="still"):
    """No task of the run has written, nor computed, since then: the run goes on."""

    run: str
    since: float = field(metadata=UNIX_TIME)
    text: str
    """Where each task waits."""


@dataclass(frozen=True, kw_only=True)
class MovesAgain(Event, word="moves"):
    """A task of the run has moved again, or its attempt is over."""

    run: str


@dataclass(frozen=True, kw_only=True)
class RunEnded(Event, word="ended"):
    """The run has ended and its artifacts have landed."""

    run: str = ""
    state: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, kw_only=True)
class LandingFailed(Event, word="not landed"):
    """A run's artifacts are only on its nodes."""

    run: str
    why: str


@dataclass(frozen=True, kw_only=True)
class NoticeSent(Event, word="notice"):
    """`notify` is told, by a process of its own. `of`: the run, or when the cluster went down."""

    kind: str
    of: str

    def is_in(self, lines: Iterable[Line]) -> bool:
        return any(event == self for event in _of_this_cluster(lines))


# ── Lines ────────────────────────────────────────────────────────────────────


def to_line(event: Event, *, time: float, pid: int) -> dict[str, Any]:
    """Encode an event as a line. Facts that older versions did not write are omitted if unset."""
    facts = asdict(event)
    del facts["time"]
    if isinstance(event, NodeRequested) and event.made is None:
        del facts["made"]
    if isinstance(event, NodesPlaced):
        for name in ("prices", "ceilings", "disks", "addresses", "kept", "expires"):
            if not facts[name]:
                del facts[name]
    if isinstance(event, EndMoveBegun | EndMoved) and event.budget is None:
        del facts["budget"]
    return {"time": time, "pid": pid, "event": event.word, **facts}


def from_line(line: Line) -> Event | None:
    """Decode a line; None for an unknown event of another version."""
    kind = KINDS.get(str(line.get("event")))
    if kind is None:
        return None
    time = line.get("time")
    is_time = _is_number(time) and 0 <= time < UNIX_TIME["lt"]
    try:
        return decode(kind, {**line, "time": time if is_time else None})
    except InvalidRecord:
        return None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: object) -> float | None:
    return float(value) if _is_number(value) else None


def _of_this_cluster(lines: Iterable[Line]) -> list[Event]:
    """Known events after the last ClusterGone."""
    events: list[Event] = []
    for line in lines:
        event = from_line(line)
        if isinstance(event, ClusterGone):
            events.clear()
        elif event is not None:
            events.append(event)
    return events


def _last(lines: Iterable[Line], *kinds: type[Event]) -> Event | None:
    """The last event of these kinds."""
    events = (event for event in reversed(_of_this_cluster(lines)) if isinstance(event, kinds))
    return next(events, None)


# ── What they mean ───────────────────────────────────────────────────────────


def was_ready(lines: Iterable[Line]) -> bool:
    """True if existing nodes may hold work: `up` completed or a run was started, and no deletion,
    which lands everything first, has begun since."""
    ready = False
    for event in _of_this_cluster(lines):
        if isinstance(event, UpCompleted | AttemptBegun):
            ready = True
        elif _empties(event):
            ready = False
    return ready


def runs_begun(lines: Iterable[Line]) -> frozenset[str]:
    """Ids of the runs of which an attempt began on the existing nodes."""
    events = _of_this_cluster(lines)
    return frozenset(event.run for event in events if isinstance(event, AttemptBegun) and event.run)


def being_destroyed(lines: Iterable[Line]) -> bool:
    """True if an interrupted `down` had landed everything, or was to discard it. A completed `down`
    says nothing about a later cluster, perhaps created on another machine. That is why ClusterGone
    counts, which `up` writes even if it then refuses to touch that cluster."""
    return isinstance(_last(lines, UpBegun, UpCompleted, AttemptBegun, DownBegun), DownBegun)


def nodes_leaving(lines: Iterable[Line]) -> frozenset[str]:
    """Nodes whose deletion (`up --shrink`, `up --replace`) was interrupted after everything had
    landed, with nothing started since."""
    leaving: frozenset[str] = frozenset()
    for event in _of_this_cluster(lines):
        if isinstance(event, RemovalBegun):
            leaving |= frozenset(event.nodes)
        elif isinstance(event, UpBegun | AttemptBegun | DownBegun):
            leaving = frozenset()
    return leaving


def pending_nodes(lines: Iterable[Line]) -> dict[str, float]:
    """The nodes that were requested but not seen since, with the Unix time of the request: a
    cloud may list them late. Requests in a refused placement were rolled back before
    PlacementRefused was written, unless the rollback failed too (CleanupFailed)."""
    pending: dict[str, float] = {}
    uncertain = False
    for event in _of_this_cluster(lines):
        if isinstance(event, NodeRequested):
            pending[event.node] = event.time or 0.0
        elif isinstance(event, NodeDeletionBegun):
            pending.pop(event.node, None)
        elif isinstance(event, CleanupFailed):
            uncertain = True
        elif isinstance(event, PlacementRefused) and not uncertain:
            pending.clear()
    return pending


def nodes_requested(lines: Iterable[Line]) -> dict[str, Made]:
    """Every node ever requested, with its latest creation facts; {} if these were not recorded."""
    requests = [event for event in _of_this_cluster(lines) if isinstance(event, NodeRequested)]
    return {event.node: event.made or {} for event in requests}


def nodes_standing(lines: Iterable[Line]) -> dict[str, Made]:
    """The nodes that exist according to the record, with their creation facts."""
    found: dict[str, Made] = {}
    requested: set[str] = set()
    for event in _of_this_cluster(lines):
        if isinstance(event, NodeRequested):
            found[event.node] = event.made or {}
            requested.add(event.node)
        elif isinstance(event, NodeDeletionBegun):
            found.pop(event.node, None)
        elif isinstance(event, PlacementRefused):
            found = {name: made for name, made in found.items() if name not in requested}
        elif isinstance(event, NodesPlaced):
            for name in event.places.keys() & found.keys():
                found[name] = {**found[name], "placement": event.places[name]}
        elif isinstance(event, DownBegun):
            found.clear()
        if isinstance(event, UpBegun | UpCompleted | PlacementRefused):
            requested.clear()
    return found


def not_given_back(lines: Iterable[Line]) -> tuple[str, ...]:
    """Nodes that were created, and not deleted by the record: `a-chief0 (i-1) in east-a`."""
    made: dict[str, str] = {}
    for event in _of_this_cluster(lines):
        if isinstance(event, NodeCreated):
            made[event.node] = f"{event.node} ({event.id}) in {event.placement}"
        elif isinstance(event, NodeDeletionBegun):
            made.pop(event.node, None)
    return tuple(made.values())


def lacks_room(lines: Iterable[Line]) -> bool:
    """True if a placement has refused the nodes and none has taken them since."""
    last = _last(lines, PlacementRefused, NodesPlaced)
    return isinstance(last, PlacementRefused) and last.error in _NO_ROOM


_NO_ROOM = ("", "CapacityError", "QuotaError")
"""Classes of `PlacementRefused.error`; earlier versions recorded none."""


def made_here(lines: Iterable[Line]) -> bool:
    """True if anything of the cluster was created from this record since the last `down`."""
    last = _last(lines, ResourceRequested, NodeRequested, DownBegun)
    return isinstance(last, ResourceRequested | NodeRequested)


def generations(lines: Iterable[Line]) -> tuple[str, ...]:
    """Generations created from this record, last first. Earlier versions recorded none."""
    found = [event.id for event in _of_this_cluster(lines) if isinstance(event, CreationBegun)]
    return tuple(dict.fromkeys(reversed(found)))


def places_tried(lines: Iterable[Line]) -> tuple[tuple[str, ...], bool]:
    """Places in which anything of the cluster was requested, last first; and whether the list is
    complete. Earlier versions did not record them."""
    places: list[str] = []
    begun = incomplete = False
    for event in _of_this_cluster(lines):
        if isinstance(event, UpBegun):
            begun = True
        elif isinstance(event, PlacementTried | PlacementRefused):
            places.insert(0, event.placement)
        elif isinstance(event, NodeRequested):
            incomplete = incomplete or not places
    return tuple(dict.fromkeys(places)), begun and not incomplete


def images(lines: Iterable[Line]) -> dict[str, str]:
    """Images of the existing nodes, as the provider recorded them."""
    found: dict[str, str] = {}
    for event in _of_this_cluster(lines):
        if isinstance(event, ImageChosen):
            found[event.key] = event.id
        elif _empties(event):
            found.clear()
    return found


@dataclass(frozen=True, kw_only=True)
class Lifetime:
    """Expiry of the existing nodes according to the journal."""

    lifetime: float | None
    """`limits.max_lifetime` at their creation, or as changed since."""
    born: float
    """When the first of them was requested, Unix time."""
    budget: float | None = None
    """`limits.budget` at their creation, or as changed since."""
    moving: ClusterEnd | None = None
    """A change that was begun and not completed."""


def known_end(lines: Iterable[Line]) -> Lifetime | None:
    """Lifetime of the nodes; None if not recorded: by an earlier version, or without nodes."""
    lifetimes: list[tuple[float | None, float | None]] = []
    born: float | None = None
    moving: ClusterEnd | None = None
    for event in _of_this_cluster(lines):
        if isinstance(event, NodeRequested) and "lifetime" in (event.made or {}):
            lifetime, budget = (event.made or {})["lifetime"], (event.made or {}).get("budget")
            lifetimes.append((_number(lifetime), _number(budget)))
            born = event.time if born is None else born
        elif isinstance(event, EndMoveBegun):
            moving = ClusterEnd(lifetime=event.lifetime, expires=event.expires, budget=event.budget)
        elif isinstance(event, EndMoved):
            lifetimes.append((event.lifetime, event.budget))
            moving = None
        elif _empties(event):
            lifetimes, born, moving = [], None, None
    if born is None:
        return None
    lifetime, budget = lifetimes[-1]
    return Lifetime(lifetime=lifetime, budget=budget, born=born, moving=moving)


def _empties(event: Event) -> bool:
    """True if all nodes are about to be deleted, with everything landed."""
    return isinstance(event, DownBegun) or (isinstance(event, RemovalBegun) and event.whole)


def nothing_moves(lines: Iterable[Line], run: str) -> NothingMoves | None:
    """Since when, and where, nothing of the run moves, if that was its last word."""
    of_run = [line for line in lines if line.get("run") == run or line.get("event") == "gone"]
    last = _last(of_run, NothingMoves, MovesAgain, AttemptBegun, RunEnded)
    return last if isinstance(last, NothingMoves) else None


def own_ends(lines: Iterable[Line]) -> OwnEndsArmed | None:
    """The way in which existing nodes end themselves; None if they do not."""
    last = _last(lines, OwnEndsArmed)
    return last if isinstance(last, OwnEndsArmed) and last.is_on else None


def last_started(lines: Iterable[Line]) -> float:
    """Unix time at which a node was last started, or a task on one; 0 if never."""
    last = _last(lines, NodesPlaced, AttemptBegun, TaskRestartBegun)
    return (last.time or 0.0) if last is not None else 0.0


_USES: Sequence[type[Event]] = (UpBegun, UpCompleted, AttemptBegun, AttemptStarted, RunEnded)
USES = frozenset(kind.word for kind in _USES)
"""Events that begin or end the use of a cluster; its deletion, and failures of that, do not."""


def last_use(lines: Iterable[Line]) -> float:
    """Unix time of the last use; 0 if never."""
    events = _of_this_cluster(lines)
    return max((event.time or 0.0 for event in events if event.word in USES), default=0.0)


def down_fault(lines: Iterable[Line]) -> DownFailed | None:
    """The last failure to land or delete the cluster, if it was not used since."""
    last = _last(lines, DownFailed, *_USES)
    return last if isinstance(last, DownFailed) else None


def is_down_ordered(lines: Iterable[Line]) -> bool:
    """True if the idle process is to delete the cluster, which nobody used since it was told."""
    last = _last(lines, DownOrdered, *(kind for kind in _USES if kind is not RunEnded))
    return isinstance(last, DownOrdered)
