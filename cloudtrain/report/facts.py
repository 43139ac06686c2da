"""Values of a report: what the page shows, and `report --json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from cloudtrain.core.codec import UNIX_TIME
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.run_record import Run
from cloudtrain.money.node_hours import CostSoFar


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One phase of the whole cluster, from `begin` to `end` (Unix time)."""

    name: str
    begin: float = field(metadata=UNIX_TIME)
    end: float = field(metadata=UNIX_TIME)
    cost: CostSoFar
    node_hours: float = 0.0

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of a node's time; Unix time."""

    kind: Literal["create", "boot", "setup", "start", "train", "delete"]
    begin: float = field(metadata=UNIX_TIME)
    end: float = field(metadata=UNIX_TIME)
    text: str = ""
    """`attempt 1: exit code 0`"""


@dataclass(frozen=True, kw_only=True)
class NodeTimes:
    """Everything that is known of one node's time; its price in $/hour, None if not known."""

    node: str
    place: str = ""
    price: float | None = None
    segments: tuple[Segment, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Series:
    name: str
    attempt: int
    x: tuple[float, ...]
    y: tuple[float, ...]
    not_finite: int = 0
    """Values that are NaN or infinite, and are not among them."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    metric: str
    unit: str
    """What `x` counts: `step`, `epoch`, or a unit of the time since the run began."""
    series: tuple[Series, ...]


@dataclass(frozen=True, kw_only=True)
class TaskUse:
    """Means of one task's node over the last attempt, in percent; None without GPUs."""

    task: str
    role: str
    cpu: float
    memory: float
    gpu: float | None = None
    gpu_memory: float | None = None
    idle: float | None = None
    """Share of the time in which no GPU computed anything, in percent."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Pace of one task, by its own log."""

    task: str
    role: str
    unit: str
    reached: int
    seconds: float | None
    """Seconds for one step or epoch, by the times at which the lines arrived; None if unknown."""


@dataclass(frozen=True, kw_only=True)
class LostWork:
    """Work, time and money that the restarts of a run cost, apart from the failures themselves."""

    restarts: int
    unit: str = ""
    """`step` or `epoch`; "" if the log of the first task counts neither."""
    repeated: int | None = None
    """Steps or epochs that more than one attempt began, as far as that log shows each."""
    repeated_seconds: float | None = None
    """By that log's own pace."""
    repeated_cost: CostSoFar | None = None
    between_seconds: float = 0.0
    """From the end of each attempt to the start of the next one's tasks."""
    between_cost: CostSoFar | None = None


@dataclass(frozen=True, kw_only=True)
class LandedFile:
    path: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class LogTail:
    task: str
    attempt: int
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Report:
    format: Literal[1] = 1
    made: float = field(metadata=UNIX_TIME)
    cloudtrain: str
    """Its version."""
    run: Run
    verdict: str
    complete: bool
    """Whether everything has landed."""
    phases: tuple[Phase, ...] = ()
    nodes: tuple[NodeTimes, ...] = ()
    charts: tuple[Chart, ...] = ()
    charts_from: str = ""
    use_over_time: tuple[Chart, ...] = ()
    use: tuple[TaskUse, ...] = ()
    pace: tuple[Pace, ...] = ()
    stragglers: tuple[str, ...] = ()
    lost: LostWork | None = None
    """None for a run of one attempt."""
    cost: CostSoFar | None = None
    """Of all phases; None if no node is on record."""
    artifacts: tuple[LandedFile, ...] = ()
    artifacts_count: int = 0
    artifacts_bytes: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None
    """The resolved config; secrets have no values in it."""
    reproduce: tuple[str, ...] = ()
    """Shell lines."""
    tails: tuple[LogTail, ...] = ()
    notes: tuple[str, ...] = ()
    """What is missing from the report, and why."""
