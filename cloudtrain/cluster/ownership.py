"""Ownership of clusters: another owner's cluster is changed only on explicit request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from cloudtrain.console.times import clock, duration
from cloudtrain.core import moments
from cloudtrain.core.cloud import is_cloud
from cloudtrain.core.codec import decode
from cloudtrain.core.errors import UsageError, if_told
from cloudtrain.core.events import generations, made_here
from cloudtrain.core.model import Holding, Node, Owner
from cloudtrain.core.owner import login, machine_id, matches_owner, owner_of
from cloudtrain.core.protocols import Console, Provider
from cloudtrain.state import Records, home
from cloudtrain.state.files import make_folder, write_whole


def this_machine() -> str:
    return machine_id(home())


def act_for(owner: Owner) -> None:
    """Have all commands with this state folder act for that owner, as a desk's do."""
    make_folder(home())
    write_whole(_acting_path(), json.dumps(asdict(owner)).encode("ascii"))


def _acting_path() -> Path:
    return home() / "owner.json"


def current_owner(provider: Provider, console: Console | None = None) -> Owner:
    """Owner of what is created from here; warns and names this machine's user if unknown."""
    with suppress(FileNotFoundError):
        return decode(Owner, json.loads(_acting_path().read_bytes()))
    principal, why = if_told(
        lambda: (provider.principal(), ""), lambda error: (None, f": {error.message}")
    )
    owner = owner_of(principal, this_machine())
    if principal is None and console is not None and is_cloud(provider.name):
        console.warn(
            f"{provider.name} does not report your identity{why}\n"
            f"resources are labelled as owned by {owner.name} on {owner.machine}"
        )
    return owner


def is_mine(owner: Owner, provider: Provider, records: Records) -> bool:
    """True if `owner` is us, or nobody, or a principal under which this machine created the
    cluster. Queries our identity only if the answer depends on it."""
    if not owner.id:
        return True
    if owner.is_login:
        return owner.id == login()
    if owner.machine == this_machine() and records.has_keys():
        return True
    nobody, known = owner_of(None, this_machine()), current_owner(provider)
    if owner.id in {nobody.id, known.id}:
        return True
    # Without an identity only the login name is left to compare; the machine may have been renamed.
    return known.id == nobody.id and owner.name == nobody.name and records.has_keys()


def refuse_other_owners(
    records: Records, provider: Provider, nodes: Sequence[Node], *, owner: str | None = None
) -> None:
    """Raise UsageError if a node belongs to another owner than us, or than `owner`."""
    owners = {node.owner.id: node.owner for node in nodes if node.owner.id}
    _refuse(records, provider, owners, nodes, owner)


def refuse_other_owners_resources(
    records: Records, provider: Provider, *, owner: str | None
) -> tuple[Holding, ...]:
    """Refuse if another owner has resources but no node yet, as they may be creating their first
    node. Returns what the account holds. Not queried if the record shows that this machine created
    something: then the name was free."""
    if not is_cloud(provider.name) or (records.has_keys() and made_here(records.events())):
        return ()
    held = tuple(each for each in provider.sweep() if each.cluster == records.name)
    owners = {one.id: one for each in held for one in each.owners}
    _refuse(records, provider, owners, (), owner)
    return held


def is_recorded(records: Records, nodes: Sequence[Node]) -> bool:
    """True if the record here is about these nodes, not about others of the same name before them.
    Earlier versions did not tell them apart."""
    known, theirs = generations(records.events()), {node.generation for node in nodes} - {""}
    return not known or theirs <= set(known)


def _refuse(
    records: Records,
    provider: Provider,
    owners: Mapping[str, Owner],
    nodes: Sequence[Node],
    owner: str | None,
) -> None:
    if owner is None:
        others = [one for one in owners.values() if not is_mine(one, provider, records)]
    else:
        others = [one for one in owners.values() if not matches_owner(one, owner)]
    if not others:
        return
    raise UsageError(
        "\n".join(
            [
                f"{records.name} is not {f'owned by {owner}' if owner else 'yours'}",
                *(f"owned by {described(one)}" for one in others),
                ", ".join(facts(nodes)),
            ]
        ),
        hint="give yours another `name:`; `status`, `logs` and `fetch` work on this one too",
    )


def owner_lines(nodes: Sequence[Node]) -> list[str]:
    """Lines about a cluster that may be another owner's."""
    owners = sorted({described(node.owner) for node in nodes})
    return [*(f"owned by {owner}" for owner in owners), ", ".join(facts(nodes))]


def facts(nodes: Sequence[Node]) -> list[str]:
    """Running nodes, age and end of a cluster, in words."""
    now = moments.now()
    created = min((node.created for node in nodes if node.created is not None), default=None)
    expires = min((node.expires for node in nodes if node.expires is not None), default=None)
    running = sum(node.state == "running" for node in nodes)
    known = [f"{running} of {len(nodes)} nodes running"]
    if created is not None:
        known.append(f"created {duration(max(0.0, now - created))} ago")
    if expires is not None:
        word = "ends" if expires > now else "overdue since"
        known.append(f"{word} {clock(expires)}")
    return known


def described(owner: Owner) -> str:
    if not owner.id:
        return "an unknown owner"
    where = f", created on {owner.machine}" if owner.machine else ""
    return f"{owner.name}{where}" if owner.is_login else f"{owner.name} ({owner.id}){where}"
