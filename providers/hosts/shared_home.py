"""Tells which machines share a home, as on NFS: what is done there once is done for all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.protocols import Finding
from cloudtrain.providers.hosts import scripts
from cloudtrain.providers.hosts.slot import HostSlot
from cloudtrain.providers.hosts.user_ssh import open_session


def shared_homes(slots: Sequence[HostSlot], numbers: Mapping[str, str]) -> tuple[Finding, ...]:
    """A finding for each home that several machines have.

    `numbers`: of their homes' folders, by slot. Where these are equal, a file is made in one home
    for a moment, and looked for in the others.
    """
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
            with open_session(slot.name, slot.host, slot.proxy) as ssh:
                return ssh.run(scripts.IS_MARKED, mark).strip() == "yes"
        except CloudtrainError:
            return False

    try:
        with open_session(first.name, first.host, first.proxy) as ssh:
            mark = ssh.run(scripts.MARK_HOME).strip()
            try:
                marked = fan_out(others, is_marked, name=lambda slot: slot.name)
            finally:
                ssh.run(scripts.UNMARK_HOME, mark)
    except CloudtrainError:
        return [first]
    return [first, *(slot for slot, same in zip(others, marked, strict=True) if same)]
