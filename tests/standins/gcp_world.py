"""What exists in the project, what goes on in it, and its clock."""

from __future__ import annotations

import base64
import heapq
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

from tests.standins import gcp_errors as errors
from tests.standins.gcp_errors import Failure

Body = dict[str, Any]
LINKS = "https://www.googleapis.com/compute/v1/"
"""Google's own, whatever the address that was asked: links are names, not addresses."""


@dataclass(eq=False)
class Thing:
    """One resource. `path`: `projects/p/zones/z/instances/n`."""

    path: str
    body: Body
    listed_from: float = 0.0
    """Lists leave it out before."""
    listed_widely_from: float = 0.0
    """Aggregated lists do."""
    busy_until: float = 0.0
    deleting: bool = False
    making: bool = False

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @cached_property
    def collection(self) -> str:
        return self.path.split("/")[-2]

    @cached_property
    def scope(self) -> str:
        """`zones/z`, `regions/r` or `global`."""
        return "/".join(self.path.split("/")[2:-2])


@dataclass(eq=False)
class Operation:
    body: Body
    path: str
    ends: float
    finish: Callable[[], Failure | None]
    waits_for: Callable[[], bool]
    """It ends once this holds."""

    @property
    def done(self) -> bool:
        return bool(self.body["status"] == "DONE")


@dataclass(eq=False)
class World:
    """All under one lock. What is due happens before the next call is answered.

    The first ones are for tests to turn, at any time.
    """

    project: str
    kms_keys: dict[str, bool] = field(default_factory=dict)
    """Keys of Cloud KMS by their name: whether Compute Engine's service agent may use them."""
    host_project: str = ""
    """Host project of a Shared VPC, of which this one is a service project."""
    host_granted: list[str] = field(default_factory=list)
    """Permissions of whoever calls in the host project; none besides."""
    required_labels: list[str] = field(default_factory=list)
    """Labels without which a constraint of the organization denies VMs and their disks."""
    delay: float = 0.03
    """Seconds that each operation takes."""
    serial_logs: dict[str, str] = field(default_factory=dict)
    """By VM, where no real node is behind it."""
    lag: float = 0.0
    """Seconds for which lists leave a new VM out."""
    wide_lag: float = 0.0
    """The same of aggregated lists, where that is longer."""
    quotas: dict[str, float] = field(default_factory=dict)
    """Limits instead of the generous ones: `{"us-east4/NVIDIA_T4_GPUS": 0}`, of one region, of
    all (`CPUS`), of the project (`GPUS_ALL_REGIONS`)."""
    refused_at_once: bool = False
    """A quota that is exceeded: 403 quotaExceeded; otherwise the operation fails."""
    capacity: dict[str, int] = field(default_factory=dict)
    """VMs that there is room for: `{"us-east4-c": 0, "us-*/nvidia-tesla-t4": 2}`."""
    capacity_code: str = "ZONE_RESOURCE_POOL_EXHAUSTED"
    """How a lack of room is told; `insufficientCapacity` is a 503 at once, any other is the code
    of the operation that fails."""
    capacity_elsewhere: list[str] = field(default_factory=list)
    """Zones of which a refusal says that they have room."""
    refuses: dict[str, str] = field(default_factory=dict)
    """Refusals of the corpus by call and place: `{"* *": "project-suspended"}`, or
    `{"instances.insert us-east4-*": "place-forbidden"}`."""
    unknown_fields: list[str] = field(default_factory=list)
    """Fields of VMs that this API lacks: `["preemptionNoticeDuration"]`."""
    at_once: int = 6
    """One of so many operations is done when it is told, as in recordings."""
    flex_start: dict[str, float] = field(default_factory=dict)
    """Seconds until there is capacity for a flex-start VM, by its name; "" for any other."""
    reservations: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By path (`projects/p/zones/z/reservations/r`): `{"machine": …, "count": 2}`, and where they
    differ "status", "assured", "specific", "ends" (Unix time), "dense", "accelerator"."""
    obtainability: dict[str, float] = field(default_factory=dict)
    """What Google's capacity advice says of a zone for spot VMs."""
    no_room_close: list[str] = field(default_factory=list)
    """Zones without room under a placement policy, while single VMs still find some."""
    service_accounts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By e-mail: `{"disabled": True}`, `{"act_as": False}` where the caller may not attach it,
    `{"project": "another"}`."""
    bucket_policies: dict[str, list[Body]] = field(default_factory=dict)
    """Bindings of a bucket's own IAM policy, by bucket."""
    unreachable: list[str] = field(default_factory=list)
    """Zones that do not answer."""
    nodes: Any = None
    """What runs behind the VMs: nodes.Nodes, or what has its methods."""
    things: dict[str, Thing] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)
    requests: dict[tuple[str, str, str], tuple[Body, Operation, float]] = field(
        default_factory=dict
    )
    """By method, scope and requestId: what was asked, and what came of it."""
    failures: list[Body] = field(default_factory=list)
    """Operations that a test wants to fail."""
    at_work: dict[str, threading.Thread] = field(default_factory=dict)
    """By path: what starts or stops the node behind a VM just now."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    _skew: float = 0.0
    _due: float | None = None
    _agenda: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _ids: int = 1_000_000_000_000

    # ── Time ─────────────────────────────────────────────────────────────────

    def now(self) -> float:
        """Unix time in this cloud; within an event, the moment that it was due."""
        return self._due if self._due is not None else time.time() + self._skew

    def advance(self, seconds: float) -> None:
        with self.changed:
            self._skew += seconds
            self.tick()
            self.changed.notify_all()

    def at(self, when: float, what: Callable[[], None]) -> None:
        self._ids += 1
        heapq.heappush(self._agenda, (when, self._ids, what))

    def tick(self) -> None:
        now = time.time() + self._skew
        while self._agenda and self._agenda[0][0] <= now:
            when, _, what = heapq.heappop(self._agenda)
            self._due = when
            try:
                what()
            finally:
                self._due = None

    def stamp(self, when: float | None = None) -> str:
        """RFC 3339 with milliseconds, in Google's time zone."""
        moment = datetime.fromtimestamp(self.now() if when is None else when, timezone.utc)
        return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}-00:00"

    # ── Things ───────────────────────────────────────────────────────────────

    def new_id(self) -> str:
        self._ids += 1
        return str(self._ids * 1009)

    def find(self, path: str) -> Thing:
        if path not in self.things:
            raise errors.real("resource-absent", path=path)
        return self.things[path]

    def free(self, path: str) -> Thing:
        """One that nothing is being done to."""
        thing = self.find(path)
        if thing.making or thing.deleting:
            raise errors.real("resource-not-ready", path=path)
        return thing

    def under(self, *collections: str) -> Iterator[Thing]:
        """Sorted by path."""
        found = [thing for thing in self.things.values() if thing.collection in collections]
        yield from sorted(found, key=lambda thing: thing.path)

    def add(self, path: str, kind: str, body: Body) -> Thing:
        """A new resource, with what all of them have."""
        if path in self.things:
            raise errors.real("resource-exists", path=path)
        thing = Thing(path, body)
        body |= {
            "kind": f"compute#{kind}",
            "id": self.new_id(),
            "creationTimestamp": self.stamp(),
            "selfLink": self.link(path),
        }
        where, _, place = thing.scope.partition("/")
        if place:
            body[where.removesuffix("s")] = self.link(f"projects/{self.project}/{thing.scope}")
        self.things[path] = thing
        return thing

    def remove(self, thing: Thing) -> None:
        if self.things.get(thing.path) is thing:
            del self.things[thing.path]

    def link(self, path: str) -> str:
        return LINKS + path

    def path_of(self, text: str, at: str, collection: str, scope: str = "") -> str:
        """What a whole or partial URL names: `global/networks/x` → `projects/p/global/…`."""
        path = text
        for prefix in ("https://", "http://"):
            if text.startswith(prefix):
                path = text.partition("/compute/v1/")[2]
        path = path.removeprefix("/")
        if not path.startswith("projects/"):
            if "/" not in path and scope:
                path = f"{scope}/{collection}/{path}"
            path = f"projects/{self.project}/{path}"
        parts = path.split("/")
        whole = len(parts) in (5, 6) and all(parts) and collection in parts[-3:]
        if not whole:
            raise errors.real("url-malformed", field=at, value=text)
        return path

    def external(self, internal: str) -> str:
        """A new public address: of those for documentation, or the node's own."""
        if self.nodes is not None:
            return internal
        self._ids += 1
        return f"198.18.{self._ids // 254 % 256}.{self._ids % 254 + 1}"

    # ── Operations ───────────────────────────────────────────────────────────

    def operate(
        self,
        kind: str,
        thing: Thing,
        user: str,
        *,
        finish: Callable[[], Failure | None],
        waits_for: Callable[[], bool] = lambda: True,
        request: str = "",
        takes: float | None = None,
    ) -> Operation:
        """PENDING, RUNNING, DONE; one after the other for each thing. `takes`: seconds."""
        begins = max(self.now(), thing.busy_until)
        ends = begins + (self.delay if takes is None else takes)
        thing.busy_until = ends
        name = f"operation-{int(begins * 1000)}-{secrets.token_hex(6)}-{secrets.token_hex(4)}"
        path = f"projects/{self.project}/{thing.scope}/operations/{name}"
        body = {
            "kind": "compute#operation",
            "id": self.new_id(),
            "name": name,
            "operationType": kind,
            "targetLink": thing.body["selfLink"],
            "targetId": thing.body["id"],
            "status": "PENDING",
            "progress": 0,
            "user": user,
            "insertTime": self.stamp(),
            "selfLink": self.link(path),
        }
        if request:
            body["clientOperationId"] = request
        where, _, place = thing.scope.partition("/")
        if place:
            body[where.removesuffix("s")] = self.link(f"projects/{self.project}/{thing.scope}")
        operation = Operation(body, path, ends, finish, waits_for)
        self.operations[path] = operation
        is_free = begins <= self.now() and takes is None and waits_for()
        if is_free and self.at_once and len(self.operations) % self.at_once == 0:
            thing.busy_until = begins
            self._end(operation)
            return operation
        self.at(begins + self.delay / 3, lambda: self._begin(operation))
        self.at(ends, lambda: self._end(operation))
        return operation

    def _begin(self, operation: Operation) -> None:
        operation.body |= {"status": "RUNNING", "startTime": self.stamp()}

    def _end(self, operation: Operation) -> None:
        if not operation.waits_for():
            self.at(time.time() + self._skew + 0.005, lambda: self._end(operation))
            return
        failure = operation.finish()
        operation.body |= {"status": "DONE", "progress": 100, "endTime": self.stamp()}
        operation.body.setdefault("startTime", operation.body["insertTime"])
        if failure:
            operation.body |= failure.fields()
        self.changed.notify_all()

    def wait(self, operation: Operation, seconds: float) -> None:
        """Until it is done; the lock is held before and after, and not while waiting."""
        deadline = time.monotonic() + seconds
        while not operation.done and time.monotonic() < deadline:
            soon = operation.ends - time.time() - self._skew
            self.changed.wait(min(max(0.005, soon), deadline - time.monotonic()))
            self.tick()

    def wanted_failure(self, method: str, name: str) -> Failure | None:
        """The one that a test asked for with `fail`, once each."""
        for wanted in self.failures:
            if wanted["action"] == method and wanted["name"] in ("", name):
                wanted["times"] -= 1
                if not wanted["times"]:
                    self.failures.remove(wanted)
                return errors.wanted_by_test(wanted)
        return None


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call that passed the document's checks."""

    world: World
    method: str
    given: Body
    """Parameters of path and query."""
    body: Body
    user: str

    @property
    def scope(self) -> str:
        if "zone" in self.given:
            return f"zones/{self.given['zone']}"
        return f"regions/{self.given['region']}" if "region" in self.given else "global"

    def path(self, name: str) -> str:
        """Of a resource of this call's collection."""
        return f"{self.base}/{self.scope}/{self.method.partition('.')[0]}/{name}"

    @property
    def base(self) -> str:
        """`projects/p`, of our project or the host project of its Shared VPC."""
        is_host = self.given["project"] == self.world.host_project
        return f"projects/{self.world.host_project if is_host else self.world.project}"

    def once(self, act: Callable[[], Operation]) -> Body:
        """The operation; the same one where a requestId comes again."""
        request = self.given.get("requestId", "")
        key = (self.method, self.scope, request)
        same = {**self.given, "body": self.body}
        if request and key in self.world.requests:
            asked, operation, when = self.world.requests[key]
            if self.world.now() - when < 3600:
                if asked != same:
                    raise errors.real("request-id-of-another", field="requestId", value=request)
                return operation.body
        operation = act()
        if request:
            operation.body["clientOperationId"] = request
            self.world.requests[key] = same, operation, self.world.now()
        return operation.body


Handler = Callable[[Call], Body]
HANDLERS: dict[str, Handler] = {}
"""What this stand-in acts out, by method."""


def acts(method: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        HANDLERS[method] = handler
        return handler

    return register


def name_given(call: Call) -> str:
    name = call.body.get("name")
    if not isinstance(name, str) or not name:
        raise errors.real("field-required", field="resource.name")
    check_name("resource.name", name)
    return name


def check_name(at: str, text: str) -> None:
    """RFC 1035."""
    if not re.fullmatch(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?", text):
        pattern = "(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)"
        raise errors.real("regex-not-matched", field=at, value=text, pattern=pattern)


def check_labels(at: str, labels: dict[str, str]) -> None:
    """https://cloud.google.com/compute/docs/labeling-resources#requirements, without the
    international characters."""
    if len(labels) > 64:
        raise errors.real("too-many-labels", field=at, value="")
    for key, value in labels.items():
        for what, text, pattern in (
            ("key", key, r"[a-z][a-z0-9_-]{0,62}"),
            ("value", value, r"[a-z0-9_-]{0,63}"),
        ):
            if not re.fullmatch(pattern, text):
                raise errors.real("label-malformed", field=at, value=text, what=what, text=text)


def fingerprint() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(8)).decode()


def deletion(
    call: Call, thing: Thing, removed: Callable[[], None] = lambda: None, kind: str = "delete"
) -> Operation:
    """Gone when the operation is done."""

    def finish() -> Failure | None:
        failure = call.world.wanted_failure(call.method, thing.name)
        if failure:
            thing.deleting = False
            return failure
        call.world.remove(thing)
        removed()
        return None

    thing.deleting = True
    return call.world.operate(kind, thing, call.user, finish=finish)


def insertion(call: Call, thing: Thing) -> Operation:
    """There from the first moment, ready when the operation is done."""

    def finish() -> Failure | None:
        thing.making = False
        failure = call.world.wanted_failure(call.method, thing.name)
        if failure:
            call.world.remove(thing)
        return failure

    thing.making = True
    return call.world.operate("insert", thing, call.user, finish=finish)
