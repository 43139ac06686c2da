"""Stand-ins behind the doors, and the keys and plans that tests of real nodes begin with."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cloudtrain.core.errors import LeftoverError
from cloudtrain.core.events import Event, NodeDeletionBegun, NodeRequested, to_line
from cloudtrain.core.model import (
    ClusterConfig,
    Holding,
    HostKey,
    Identity,
    Node,
    NodePlan,
    Plan,
)
from cloudtrain.core.partial_list import NotAsked, PartialList, Whereabouts
from cloudtrain.core.protocols import Expected, Finding, Journal, Principal
from cloudtrain.core.shell import Secret


@dataclass
class FakeProvider:
    """A cloud in memory. Several providers that share one `cloud` see the same nodes.

    Faults: `create_fails` raises its error for that node, `cannot_destroy` are nodes that stay.
    """

    name: str = "fake"
    cloud: dict[str, dict[str, Node]] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    rehearsed: tuple[Finding, ...] = ()
    create_fails: Mapping[str, Exception] = field(default_factory=dict)
    cannot_destroy: frozenset[str] = frozenset()
    not_asked: tuple[NotAsked, ...] = ()
    whereabouts: Whereabouts | None = None
    who: Principal | None = None
    deeds: list[tuple[str, str]] = field(default_factory=list)
    place: str = ""
    """Where its nodes are."""

    def principal(self) -> Principal | None:
        return self.who

    def check(self, plan: Plan) -> tuple[Finding, ...]:
        return self.findings

    def dry_run(self, plan: Plan) -> tuple[Finding, ...]:
        return self.rehearsed

    def create(
        self, plan: Plan, identity: Identity, journal: Journal, expected: Expected = None
    ) -> tuple[Node, ...]:
        cluster = self.cloud.setdefault(plan.config.name, {})
        made = []
        try:
            for number, planned in enumerate(plan.nodes):
                there = cluster.get(planned.name)
                if there and there.state == "running":
                    continue
                journal(NodeRequested(node=planned.name))
                self._make(cluster, planned, number)
                if not there:
                    made.append(planned.name)
        except Exception:
            for name in made:
                journal(NodeDeletionBegun(node=name))
                self._unmake(cluster, name)
            raise
        return tuple(cluster[planned.name] for planned in plan.nodes)

    def nodes(self, cluster: str) -> tuple[Node, ...]:
        return tuple(sorted(self.cloud.get(cluster, {}).values(), key=lambda node: node.rank))

    def find(self, cluster: str) -> PartialList[Node]:
        return PartialList(self.nodes(cluster), self.not_asked)

    def destroy(
        self,
        cluster: str,
        journal: Journal,
        expected: Expected = None,
        *,
        spared: Collection[str] = (),
        claimed: Collection[str] = (),
    ) -> tuple[NotAsked, ...]:
        for node in self.nodes(cluster):
            journal(NodeDeletionBegun(node=node.name))
            if node.name not in self.cannot_destroy:
                self._unmake(self.cloud[cluster], node.name)
        if left := self.nodes(cluster):
            raise LeftoverError(f"not deleted: {', '.join(node.name for node in left)}")
        self.cloud.pop(cluster, None)
        return self.not_asked

    def remove(
        self, cluster: str, names: Sequence[str], journal: Journal, expected: Expected = None
    ) -> None:
        for node in self.nodes(cluster):
            if node.name in names:
                journal(NodeDeletionBegun(node=node.name))
                if node.name not in self.cannot_destroy:
                    self._unmake(self.cloud[cluster], node.name)
        if left := [node.name for node in self.nodes(cluster) if node.name in names]:
            raise LeftoverError(f"not deleted: {', '.join(left)}")

    def move_ends(
        self,
        cluster: str,
        names: Sequence[str],
        expires: float | None,
        tell: Callable[[Node, str], None],
    ) -> None:
        for name in names:
            node = self.cloud[cluster][name]
            tell(node, f"end {expires}")
            self.cloud[cluster][name] = replace(node, expires=expires)

    def serial_log(self, cluster: str, node: str) -> str:
        return ""

    def sweep(self) -> PartialList[Holding]:
        held = (self._holding(cluster) for cluster in sorted(self.cloud) if self.cloud[cluster])
        return PartialList(held, self.not_asked)

    def _holding(self, cluster: str) -> Holding:
        nodes = self.nodes(cluster)
        return Holding(
            cluster=cluster,
            provider=self.name,
            nodes=nodes,
            generations=tuple(sorted({node.generation for node in nodes} - {""})),
            creating_until=max((node.creating_until or 0.0 for node in nodes), default=None),
        )

    def stop(self, cluster: str, node: str) -> None:
        """As a cloud does that takes a machine away and keeps its disk."""
        self.cloud[cluster][node] = replace(self.cloud[cluster][node], state="stopped")

    def _make(self, cluster: dict[str, Node], planned: NodePlan, number: int) -> None:
        if planned.name in self.create_fails:
            raise self.create_fails[planned.name]
        self.deeds.append(("create", planned.name))
        address = planned.internal or f"10.0.0.{number + 1}"
        cluster[planned.name] = Node(
            name=planned.name,
            role=planned.role,
            index=planned.index,
            state="running",
            address=address,
            internal=address,
            machine=planned.machine or "",
            provisioning=planned.provisioning,
            placement=self.place,
        )

    def _unmake(self, cluster: dict[str, Node], name: str) -> None:
        self.deeds.append(("destroy", name))
        del cluster[name]


def make_plan(cluster: str = "mnist", *, workers: int = 1, ps: int = 0) -> Plan:
    roles = [("chief", 0)]
    roles += [("worker", index) for index in range(workers)]
    roles += [("ps", index) for index in range(ps)]
    return Plan(
        config=ClusterConfig(name=cluster, provider="local", strategy="custom", nodes={}),
        nodes=tuple(
            NodePlan(name=f"{cluster}-{role}{index}", role=role, index=index, port=8900 + number)
            for number, (role, index) in enumerate(roles)
        ),
    )


def make_identity(folder: Path, plan: Plan) -> Identity:
    """Real keys for every node of the plan. known_hosts is written when addresses are known."""
    private, public = key_pair()
    path = folder / "id_ed25519"
    path.touch(mode=0o600)
    path.write_text(private)
    host_keys = {}
    for node in plan.nodes:
        host_private, host_public = key_pair()
        host_keys[node.name] = HostKey(public=host_public, private=Secret(host_private))
    return Identity(
        private_key=path,
        public_key=public,
        host_keys=host_keys,
        known_hosts=folder / "known_hosts",
    )


def know_hosts(identity: Identity, nodes: Sequence[Node]) -> None:
    lines = [f"[{n.address}]:{n.ssh_port} {identity.host_keys[n.name].public}\n" for n in nodes]
    identity.known_hosts.write_text("".join(lines))


def key_pair() -> tuple[str, str]:
    """A private and its public key, in OpenSSH's formats."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return private.decode(), public.decode()


def eventually(condition: Callable[[], object], *, within: float = 60.0) -> None:
    """Poll until `condition` holds; for what another process does at its own pace."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not within {within:g} s"
        time.sleep(0.01)


def no_journal(event: Event, /) -> None:
    """For tests that do not look at the journal."""


def line_of(event: Event, time: float = 0.0) -> dict[str, Any]:
    """As it stands on disk, but for the process that wrote it."""
    line = to_line(event, time=time, pid=0)
    del line["pid"]
    return line


def facts_of(event: Event) -> dict[str, Any]:
    """The same without the word and the time."""
    return {key: value for key, value in line_of(event).items() if key not in ("event", "time")}
