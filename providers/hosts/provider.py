"""`provider: hosts`: existing machines that are enrolled with a key and never switched off."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

from cloudtrain import ship
from cloudtrain.codec import decode
from cloudtrain.errors import (
    CloudtrainError,
    HostKeyMismatch,
    LeftoverError,
    NodeError,
    NodeUnreachable,
)
from cloudtrain.events import CleanupFailed, NodeDeletionBegun, NodeRequested
from cloudtrain.listing import Listing, NotAsked, Whereabouts
from cloudtrain.model import (
    ClusterConfig,
    Holding,
    Host,
    Identity,
    Node,
    NodeState,
    Owner,
    Plan,
    TaskId,
)
from cloudtrain.parallel import fan_out
from cloudtrain.protocols import Finding, Journal, Principal
from cloudtrain.providers.hosts import scripts
from cloudtrain.providers.hosts.user_ssh import UserSsh, address_of, open_session
from cloudtrain.retry import Retry

T = TypeVar("T")
LABEL = "cloudtrain"
"""The comment of our key in authorized_keys starts so, and goes on with `:` and the cluster."""

AWAY = Retry(pause=1.0, deadline=60.0)
"""A machine's sshd may just restart, or take no more logins for a moment (MaxStartups)."""


def provider(config: ClusterConfig) -> HostsProvider:
    return HostsProvider(config)


@dataclass(frozen=True, kw_only=True)
class HostSlot(TaskId):
    """One role on one machine; several may share a machine."""

    name: str
    host: Host


class HostsProvider:
    """Provider for existing machines. A node exists while its machine has the file
    `~/.cloudtrain/<cluster>/nodes/<node>`.
    """

    name = "hosts"
    whereabouts: Whereabouts | None = None

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config

    def principal(self) -> Principal | None:
        """None: there is no account beyond the user who is logged in."""
        return None

    def check(self, plan: Plan) -> tuple[Finding, ...]:
        return tuple(self._each(self._seats(plan.config.name), _found))

    def dry_run(self, plan: Plan) -> tuple[Finding, ...]:
        return ()  # Nothing is rented: `check` has tried all of it.

    def create(
        self,
        plan: Plan,
        identity: Identity,
        journal: Journal,
        expected: Mapping[str, float] | None = None,
    ) -> tuple[Node, ...]:
        cluster = plan.config.name
        names = [node.name for node in plan.nodes]
        key = f"{identity.public_key.strip()} {LABEL}:{cluster}"
        whose = json.dumps({**asdict(plan.owner), "folder": str(plan.config.folder)})
        seats = [seat for seat in self._seats(cluster) if seat.name in names]

        # One that cannot be asked may be a node of ours with work on it: nothing is begun then.
        def look(seat: HostSlot) -> Node | None:
            return AWAY.call(lambda: _look(cluster, seat), on=NodeUnreachable)

        looked = self._each(seats, look)
        there = {node.name: node for node in looked if node is not None}
        new = [seat for seat in seats if seat.name not in there]

        def lend(seat: HostSlot) -> Node:
            journal(NodeRequested(node=seat.name))
            with open_session(seat.name, seat.host) as door:
                door.run(scripts.LEND, cluster, seat.name, key, whose)
                node = _seen(door, cluster, seat)
            if node is None:
                raise NodeError(seat.name, "its file is not there after it was made")
            return node

        try:
            there |= {node.name: node for node in self._each(new, lend)}
        except BaseException:
            self._take_back(new, cluster, key, journal)
            raise
        return tuple(there[name] for name in names)

    def nodes(self, cluster: str) -> tuple[Node, ...]:
        """List nodes. A machine that does not answer is listed with the reason: its node may
        well run.
        """

        def ask(seat: HostSlot) -> Node | None:
            try:
                return _look(cluster, seat)
            except HostKeyMismatch as error:
                return replace(_node(seat, "untrusted", None), fault=error.message)
            except CloudtrainError as error:
                return replace(_node(seat, "unknown", None), fault=error.message)

        found = self._each(self._seats(cluster), ask)
        return tuple(sorted(filter(None, found), key=lambda node: node.rank))

    def find(self, cluster: str) -> Listing[Node]:
        return Listing(self.nodes(cluster))

    def destroy(
        self,
        cluster: str,
        journal: Journal,
        expected: Mapping[str, float] | None = None,
        *,
        spared: Collection[str] = (),
    ) -> tuple[NotAsked, ...]:
        """Delete everything of ours on the machines, running tasks included. The machines
        themselves run on.
        """
        left: dict[str, str] = {}
        silent: dict[str, str] = {}

        def clear(seats: Sequence[HostSlot]) -> None:
            first = seats[0]
            try:
                with open_session(first.name, first.host) as door:
                    if door.run(scripts.HOLDS, cluster).strip() != "yes":
                        return
                    for seat in seats:
                        if _lent(door, cluster, seat.name) is not None:
                            journal(NodeDeletionBegun(node=seat.name))
                    door.run(scripts.CLEAR, cluster, f"{LABEL}:{cluster}")
                    if door.run(scripts.HOLDS, cluster).strip() == "yes":
                        left[first.host.address] = "its folder is still there"
            except CloudtrainError as error:
                silent[first.host.address] = error.message

        self._each(self._by_machine(cluster), clear)
        if left or silent:
            lines = [
                f"{said}: {_folders(cluster, hosts)}"
                for said, hosts in (("still there", left), ("not known to be gone", silent))
                if hosts
            ]
            raise LeftoverError("\n".join(lines), hint="run it again once they answer")
        return ()

    def remove(
        self,
        cluster: str,
        names: Sequence[str],
        journal: Journal,
        expected: Mapping[str, float] | None = None,
    ) -> None:
        """Remove nodes. A machine without other nodes is cleared, as by `destroy`."""
        left: dict[str, str] = {}

        def clear(seats: Sequence[HostSlot]) -> None:
            going, first = [seat for seat in seats if seat.name in names], seats[0]
            try:
                with open_session(first.name, first.host) as door:
                    for seat in going:
                        journal(NodeDeletionBegun(node=seat.name))
                        label = f"{LABEL}:{cluster}"
                        door.run(scripts.TAKE_BACK, cluster, seat.name, label)
                    if len(going) == len(seats):
                        door.run(scripts.CLEAR, cluster, f"{LABEL}:{cluster}")
            except CloudtrainError as error:
                left[first.host.address] = error.message

        machines = [
            seats
            for seats in self._by_machine(cluster)
            if any(seat.name in names for seat in seats)
        ]
        self._each(machines, clear)
        if left:
            things = [f"~/.cloudtrain/{cluster} on {host}: {why}" for host, why in left.items()]
            raise LeftoverError(
                f"still there: {'; '.join(things)}", hint="run it again once they answer"
            )

    def move_ends(
        self,
        cluster: str,
        names: Sequence[str],
        expires: float | None,
        tell: Callable[[Node, str], None],
    ) -> None:
        """Nothing to move: only `limits.idle` and `down` end such nodes."""

    def console(self, cluster: str, node: str) -> str:
        return ""

    def sweep(self) -> Listing[Holding]:
        """Delete leftovers on the machines that this config names."""
        names: set[str] = set()

        def ask(seats: Sequence[HostSlot]) -> None:
            with open_session(seats[0].name, seats[0].host) as door:
                names.update(door.run(scripts.CLUSTERS).split())

        self._each(self._by_machine(self._config.name), ask)
        return Listing(
            Holding(cluster=name, provider=self.name, nodes=self.nodes(name))
            for name in sorted(names)
        )

    def _take_back(
        self, seats: Sequence[HostSlot], cluster: str, key: str, journal: Journal
    ) -> None:
        """Roll back a failed creation; errors while rolling back never hide that failure."""

        def back(seat: HostSlot) -> None:
            try:
                with open_session(seat.name, seat.host) as door:
                    journal(NodeDeletionBegun(node=seat.name))
                    door.run(scripts.TAKE_BACK, cluster, seat.name, key)
            except CloudtrainError as error:
                journal(CleanupFailed(text=error.message))

        self._each(seats, back)

    def _seats(self, cluster: str) -> list[HostSlot]:
        return _seats(self._config, cluster)

    def _by_machine(self, cluster: str) -> list[list[HostSlot]]:
        machines: dict[tuple[str, int, str | None], list[HostSlot]] = defaultdict(list)
        for seat in self._seats(cluster):
            machines[seat.host.address, seat.host.port, seat.host.user].append(seat)
        return list(machines.values())

    def _each(self, items: Sequence[T], work: Callable[[T], R]) -> list[R]:
        return fan_out(items, work, name=_label)


R = TypeVar("R")


def _label(item: object) -> str:
    seat = item[0] if isinstance(item, list) else item
    assert isinstance(seat, HostSlot)
    return seat.name


def _seats(config: ClusterConfig, cluster: str) -> list[HostSlot]:
    counts: dict[str, int] = defaultdict(int)
    seats = []
    for host in config.hosts:
        task = TaskId(role=host.role, index=counts[host.role])
        counts[host.role] += 1
        name = task.node_name(cluster)
        seats.append(HostSlot(name=name, role=task.role, index=task.index, host=host))
    return seats


def _look(cluster: str, seat: HostSlot) -> Node | None:
    """None where the machine has no such node. Raises what keeps it from being asked."""
    with open_session(seat.name, seat.host) as door:
        return _seen(door, cluster, seat)


def _seen(door: UserSsh, cluster: str, seat: HostSlot) -> Node | None:
    owner = _lent(door, cluster, seat.name)
    return None if owner is None else replace(_node(seat, "running", door), owner=owner)


def _folders(cluster: str, hosts: Mapping[str, str]) -> str:
    return "; ".join(f"~/.cloudtrain/{cluster} on {host}: {why}" for host, why in hosts.items())


def _lent(door: UserSsh, cluster: str, node: str) -> Owner | None:
    """Owner of that node; None if there is none."""
    answer, _, told = door.run(scripts.IS_LENT, cluster, node).partition("\n")
    if answer.strip() != "yes":
        return None
    try:
        return decode(Owner, json.loads(told))
    except ValueError:
        return Owner()


def _node(seat: HostSlot, state: NodeState, door: UserSsh | None) -> Node:
    way = door.way if door is not None else None
    return Node(
        name=seat.name,
        role=seat.role,
        index=seat.index,
        state=state,
        address=way.address if way else seat.host.address,
        internal=seat.host.address,
        ssh_port=way.port if way else seat.host.port,
        user=way.user if way else seat.host.user or "",
        host=seat.host.address,
        placement=seat.host.address,
        host_keys=door.host_keys if door is not None else (),
    )


def _found(seat: HostSlot) -> Finding:
    what = f"host {seat.host.address}"
    try:
        with open_session(seat.name, seat.host) as door:
            door.run(ship.START, ship.IS_NEW)
            told = " ".join(door.run(scripts.FACTS).split())
            way = address_of(seat.host)
            return Finding(what=what, ok=True, text=f"{seat.task} as {way.user}, {told}")
    except CloudtrainError as error:
        return Finding(what=what, ok=False, text=error.message, hint=error.hint, error=type(error))
