"""`provider: hosts`: existing machines that are enrolled by a key and never shut down."""

from __future__ import annotations

import json
import re
import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from cloudtrain.catalog import cuda
from cloudtrain.core import errors, ship
from cloudtrain.core.codec import decode
from cloudtrain.core.events import CleanupFailed, NodeDeletionBegun, NodeRequested
from cloudtrain.core.model import ClusterConfig, Holding, Identity, Node, NodeState, Owner, Plan
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.partial_list import NotAsked, PartialList
from cloudtrain.core.paths import shown, some
from cloudtrain.core.protocols import Expected, Finding, Journal
from cloudtrain.core.retry import AWAY, Retry
from cloudtrain.core.task_id import TaskId
from cloudtrain.providers.base.own_machines import OwnMachines
from cloudtrain.providers.hosts.machine_scripts import (
    CLEAR,
    CLUSTERS,
    END_TASKS,
    ENROLL,
    FACTS,
    HOLDS,
    HOME_NUMBER,
    IS_ENROLLED,
    IS_MARKED,
    MARK_HOME,
    REMOVE,
    UNKNOWN_NAMES,
    UNMARK_HOME,
    editing,
)
from cloudtrain.providers.hosts.user_ssh import HostSlot, UserSsh, address_of, proxy_command

LABEL = "cloudtrain"
"""Prefix of our key's comment in authorized_keys, before `:` and the cluster."""


def provider(config: ClusterConfig) -> HostsProvider:
    return HostsProvider(config)


class HostsProvider(OwnMachines):
    """Provider for existing machines. A node exists while its machine has the file
    `~/.cloudtrain/<cluster>/nodes/<node>`."""

    name = "hosts"

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config

    def check(self, plan: Plan) -> tuple[Finding, ...]:
        slots = self._slots(plan.config.name)
        numbers: dict[str, str] = {}
        addresses = sorted({address_of(slot.host).address for slot in slots})
        findings = fan_out(slots, lambda slot: _check_host(slot, addresses, numbers), name=_label)
        told = {slot.task: each.text for slot, each in zip(slots, findings, strict=True)}
        homes = shared_homes([slot for slot in slots if slot.name in numbers], numbers)
        return (*findings, *homes, *old_drivers(plan, told))

    def ask_machines(
        self, program: str, arguments: Callable[[Node], Sequence[str]]
    ) -> dict[str, str | errors.CloudtrainError]:
        def ask(slots: list[HostSlot]) -> str | errors.CloudtrainError:
            try:
                with slots[0].session() as ssh:
                    node = _node(slots[0], "running", ssh)
                    return ssh.run(ship.START, program, *arguments(node))
            except errors.CloudtrainError as error:
                return error

        machines = self._by_machine(self._config.name)
        answers = fan_out(machines, ask, name=_label)
        return {str(slots[0].task): said for slots, said in zip(machines, answers, strict=True)}

    def create(
        self, plan: Plan, identity: Identity, journal: Journal, expected: Expected = None
    ) -> tuple[Node, ...]:
        cluster = plan.config.name
        names = [node.name for node in plan.nodes]
        key = f"{identity.public_key.strip()} {LABEL}:{cluster}"
        whose = json.dumps({**asdict(plan.owner), "folder": str(plan.config.folder)})
        slots = [slot for slot in self._slots(cluster) if slot.name in names]

        # A machine that does not answer may be a node of ours at work: then nothing is changed.
        def look(slot: HostSlot) -> Node | None:
            return AWAY.call(lambda: _find_node(cluster, slot), on=errors.NodeUnreachable)

        looked = fan_out(slots, look, name=_label)
        there = {node.name: node for node in looked if node is not None}
        new = [slot for slot in slots if slot.name not in there]

        def enroll(slot: HostSlot) -> Node:
            journal(NodeRequested(node=slot.name))
            with slot.session() as ssh:
                ssh.run(editing(ENROLL), cluster, slot.name, key, whose, secrets.token_hex(8))
                node = _enrolled(ssh, cluster, slot)
            if node is None:
                raise errors.NodeError(slot.name, "its file was created but does not exist")
            return node

        try:
            there |= {node.name: node for node in fan_out(new, enroll, name=_label)}
        except BaseException:
            self._roll_back(new, cluster, journal)
            raise
        return tuple(there[name] for name in names)

    def nodes(self, cluster: str) -> tuple[Node, ...]:
        """List nodes, also those of machines that do not answer: they may be running."""

        def ask(slot: HostSlot) -> Node | None:
            try:
                return _find_node(cluster, slot)
            except errors.CloudtrainError as error:
                why = errors.text_of(slot.name, error)
                state: NodeState = (
                    "untrusted" if isinstance(error, errors.HostKeyMismatch) else "unknown"
                )
                return replace(_node(slot, state, None), fault=why)

        found = fan_out(self._slots(cluster), ask, name=_label)
        return tuple(sorted(filter(None, found), key=lambda node: node.rank))

    def destroy(
        self,
        cluster: str,
        journal: Journal,
        expected: Expected = None,
        *,
        spared: Collection[str] = (),
        claimed: Collection[str] = (),
    ) -> tuple[NotAsked, ...]:
        """Delete all that is ours on the machines, and end tasks; the machines keep running."""
        left: dict[str, str] = {}
        homes: dict[str, list[HostSlot]] = {}
        """One machine of each home, since machines may share it."""

        def end_tasks(slots: list[HostSlot], ssh: UserSsh) -> None:
            if ssh.run(HOLDS, cluster).strip() != "yes":
                return
            for slot in slots:
                if _enrolled(ssh, cluster, slot) is not None:
                    journal(NodeDeletionBegun(node=slot.name))
            home = ssh.run(END_TASKS, cluster).strip()
            homes.setdefault(home or slots[0].name, slots)

        def clear(slots: list[HostSlot], ssh: UserSsh) -> None:
            ssh.run(editing(CLEAR), cluster, f"{LABEL}:{cluster}")
            if ssh.run(HOLDS, cluster).strip() == "yes":
                left[slots[0].host.address] = "its folder still exists"

        silent = self._on_machines(self._by_machine(cluster), end_tasks, AWAY)
        silent |= self._on_machines(list(homes.values()), clear, AWAY)
        if left or silent:
            lines = [
                f"{state}: {_folders(cluster, hosts)}"
                for state, hosts in (("not deleted", left), ("not known to be deleted", silent))
                if hosts
            ]
            raise errors.LeftoverError("\n".join(lines), hint="run it again once they answer")
        return ()

    def remove(
        self, cluster: str, names: Sequence[str], journal: Journal, expected: Expected = None
    ) -> None:
        """Remove nodes. A home without other nodes is cleared, as by `destroy`."""

        def remove(slots: list[HostSlot], ssh: UserSsh) -> None:
            going = [slot for slot in slots if slot.name in names]
            if len(going) == len(slots):
                ssh.run(END_TASKS, cluster)
            for slot in going:
                journal(NodeDeletionBegun(node=slot.name))
                _remove(ssh, cluster, slot, everything="yes")

        machines = [each for each in self._by_machine(cluster) if {s.name for s in each} & {*names}]
        left = self._on_machines(machines, remove, Retry(pause=0.0, tries=1))
        if left:
            text = f"not deleted: {_folders(cluster, left)}"
            raise errors.LeftoverError(text, hint="run it again once they answer")

    def sweep(self) -> PartialList[Holding]:
        """List clusters on the machines that this config names."""
        names: set[str] = set()

        def ask(slots: list[HostSlot]) -> None:
            with slots[0].session() as ssh:
                names.update(ssh.run(CLUSTERS).split())

        fan_out(self._by_machine(self._config.name), ask, name=_label)
        return PartialList(
            Holding(cluster=name, provider=self.name, nodes=self.nodes(name))
            for name in sorted(names)
        )

    def _roll_back(self, slots: Sequence[HostSlot], cluster: str, journal: Journal) -> None:
        """Roll back a failed creation; errors of the rollback never hide that failure."""

        def remove(slot: HostSlot) -> None:
            try:
                with slot.session() as ssh:
                    journal(NodeDeletionBegun(node=slot.name))
                    _remove(ssh, cluster, slot)
            except errors.CloudtrainError as error:
                journal(CleanupFailed(text=error.message))

        fan_out(slots, remove, name=_label)

    def _slots(self, cluster: str) -> list[HostSlot]:
        slots: list[HostSlot] = []
        for host in self._config.hosts:
            index = sum(slot.role == host.role for slot in slots)
            name = TaskId(role=host.role, index=index).node_name(cluster)
            proxy = self._config.network.ssh_proxy
            slots.append(HostSlot(name=name, role=host.role, index=index, host=host, proxy=proxy))
        return slots

    def _by_machine(self, cluster: str) -> list[list[HostSlot]]:
        machines: dict[object, list[HostSlot]] = defaultdict(list)
        for slot in self._slots(cluster):
            machines[slot.machine].append(slot)
        return list(machines.values())

    def _on_machines(
        self,
        machines: list[list[HostSlot]],
        work: Callable[[list[HostSlot], UserSsh], None],
        tries: Retry,
    ) -> dict[str, str]:
        """Work on each machine; returns why it could not be done, by address."""
        failures: dict[str, str] = {}

        def in_session(slots: list[HostSlot]) -> None:
            with slots[0].session() as ssh:
                work(slots, ssh)

        def once_it_answers(slots: list[HostSlot]) -> None:
            try:
                tries.call(lambda: in_session(slots), on=errors.NodeUnreachable)
            except errors.CloudtrainError as error:
                failures[slots[0].host.address] = error.message

        fan_out(machines, once_it_answers, name=_label)
        return failures


def _remove(ssh: UserSsh, cluster: str, slot: HostSlot, *, everything: str = "") -> None:
    ssh.run(editing(REMOVE), cluster, slot.name, f"{LABEL}:{cluster}", everything)


def _label(item: HostSlot | list[HostSlot]) -> str:
    return (item[0] if isinstance(item, list) else item).name


def _find_node(cluster: str, slot: HostSlot) -> Node | None:
    """The slot's node; None if there is none. Raises an error for a silent machine."""
    with slot.session() as ssh:
        return _enrolled(ssh, cluster, slot)


def _enrolled(ssh: UserSsh, cluster: str, slot: HostSlot) -> Node | None:
    """The slot's node; None if the machine has no such node."""
    answer, _, text = ssh.run(IS_ENROLLED, cluster, slot.name).partition("\n")
    enrolled, _, home = answer.strip().partition(" ")
    if enrolled != "yes":
        return None
    try:
        owner = decode(Owner, json.loads(text))
    except ValueError:
        owner = Owner()
    return replace(_node(slot, "running", ssh), owner=owner, home=home)


def _folders(cluster: str, hosts: Mapping[str, str]) -> str:
    return "; ".join(f"~/.cloudtrain/{cluster} on {host}: {why}" for host, why in hosts.items())


def _node(slot: HostSlot, state: NodeState, ssh: UserSsh | None) -> Node:
    way = ssh.way if ssh is not None else None
    return Node(
        name=slot.name,
        role=slot.role,
        index=slot.index,
        state=state,
        address=way.address if way else slot.host.address,
        internal=way.address if way else address_of(slot.host).address,
        ssh_port=way.port if way else slot.host.port,
        user=way.user if way else slot.host.user or "",
        host=slot.host.address,
        placement=slot.host.address,
        host_keys=ssh.host_keys if ssh is not None else (),
        ssh_proxy=proxy_command(way, slot.proxy) if way else (),
    )


def _check_host(slot: HostSlot, addresses: Sequence[str], homes: dict[str, str]) -> Finding:
    """`addresses`: by which the machines are to reach each other. Also puts the number of the
    home's folder in `homes`, by slot."""
    what = f"host {slot.host.address}"
    try:
        with slot.session() as ssh:
            ssh.run(ship.START, ship.IS_NEW)
            facts = _host_facts(slot.name, ssh.run(FACTS))
            homes[slot.name] = ssh.run(HOME_NUMBER).strip()
            unknown = ssh.run(ship.START, UNKNOWN_NAMES, *addresses).split()
            if unknown and len(addresses) > 1:
                return Finding(
                    what=what,
                    ok=False,
                    text=f"{slot.task} cannot resolve {some(unknown)}, the address of another host",
                    hint="write as `address` in `hosts` one by which the machines know each other;"
                    " an alias in ~/.ssh/config needs a HostName that they know",
                    error=errors.NodeError,
                )
            return Finding(what=what, ok=True, text=f"{slot.task} as {ssh.way.user}, {facts}")
    except errors.CloudtrainError as error:
        return Finding.of(what, error)


def old_drivers(plan: Plan, told: Mapping[str, str]) -> Iterator[Finding]:
    """A finding for each machine whose driver is too old for the release on its GPUs. `told`: text
    on each task's machine."""
    version = plan.config.setup.tensorflow
    for node in plan.nodes:
        driver = re.search(r" driver ([\d.]+)", told.get(node.task, ""))
        kind = node.accelerator.kind if node.accelerator else None
        if driver and kind and version and (old := cuda.too_old(version, kind, driver[1])):
            text, hint = f"{node.task}: {old[0]}", f"{old[1]}; `check --gpu` says more"
            yield Finding(what="gpus", ok=False, text=text, hint=hint, error=errors.NodeError)


def _host_facts(name: str, answer: str) -> str:
    """`Linux x86_64, Python 3.11.2, 48 GB free`. Raises errors.NodeError for another answer."""
    facts = " ".join(answer.split())
    if re.fullmatch(r"\S+ \S+, Python 3\.\d+\S*, (.* )?\d+ GB free", facts) is None:
        raise errors.NodeError(
            name,
            f"uname, python3 and df answer {shown(facts)[:80]!r}",
            hint="log in there: has the shell or one of its tools been replaced?",
        )
    return facts


def shared_homes(slots: Sequence[HostSlot], numbers: Mapping[str, str]) -> tuple[Finding, ...]:
    """A finding for each home that several machines have.

    `numbers`: of their homes' folders, by slot. Where these are equal, a file is made in one home
    for a moment, and looked for in the others."""
    alike: dict[str, dict[object, HostSlot]] = defaultdict(dict)
    for slot in slots:
        alike[numbers[slot.name]].setdefault(slot.machine, slot)
    findings = []
    for machines in alike.values():
        left = list(machines.values())
        while len(left) > 1:
            sharing = _with_the_home_of(left[0], left[1:])
            if len(sharing) > 1:
                tasks = ", ".join(str(slot.task) for slot in sharing)
                text = f"{tasks} have the same one: what is installed there is for all of them"
                findings.append(Finding(what="shared home", ok=True, text=text))
            left = [slot for slot in left if slot not in sharing]
    return tuple(findings)


def _with_the_home_of(first: HostSlot, others: Sequence[HostSlot]) -> list[HostSlot]:
    """The first one and those of the others that have its home; none that does not answer."""

    def is_marked(slot: HostSlot) -> bool:
        try:
            with slot.session() as ssh:
                return ssh.run(IS_MARKED, mark).strip() == "yes"
        except errors.CloudtrainError:
            return False

    try:
        with first.session() as ssh:
            mark = ssh.run(MARK_HOME).strip()
            try:
                marked = fan_out(others, is_marked, name=_label)
            finally:
                ssh.run(UNMARK_HOME, mark)
    except errors.CloudtrainError:
        return [first]
    return [first, *(slot for slot, same in zip(others, marked, strict=True) if same)]
