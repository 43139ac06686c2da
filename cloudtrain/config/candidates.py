"""`any_of:` and `ordered:`: the file as each candidate reads it, and the rules on candidates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from cloudtrain.config.fields import is_null
from cloudtrain.config.rules import broken_rules
from cloudtrain.config.sections import CandidateEntry, ConfigFile
from cloudtrain.config.validation import problem, validate
from cloudtrain.config.yaml_source import Block, Items, Path, Tree, value_at
from cloudtrain.core.cloud import clouds, is_cloud
from cloudtrain.core.model import Problem

LISTS: tuple[Literal["any_of", "ordered"], ...] = ("any_of", "ordered")
"""Fields with candidates: tried by price, or as written."""
OF_EACH = ("provider", "placement", "hosts")
"""Fields that a file with candidates has in each of them, if at all."""
OF_ONE_CLOUD: tuple[Path, ...] = (
    ("project",),
    ("identity",),
    ("resource_group",),
    ("disk_key",),
    ("network", "subnet"),
    ("network", "vpc"),
    ("network", "firewall"),
    ("endpoints", "compute"),
    ("endpoints", "auth"),
)
"""Fields beside the list that hold for every candidate, and so only if all are of one cloud."""
CHOSEN_TOGETHER = (("machine", "accelerator"), ("spot", "provisioning"))
"""Fields of a role: a candidate that gives one of them drops the other's value in `nodes`."""


class Reading(NamedTuple):
    """The file as one candidate reads it."""

    path: Path
    """Of the candidate: `("any_of", 0)`."""
    tree: Block
    file: ConfigFile


def list_of(tree: Block) -> Literal["", "any_of", "ordered"]:
    """The field with candidates, "" for none."""
    return next((name for name in LISTS if name in tree and not is_null(tree[name])), "")


def readings(tree: Block, file: str) -> list[Reading]:
    """The file as each candidate reads it, without the candidates that are no mapping."""
    name = list_of(tree)
    items = tree.get(name)
    found = []
    for number, item in enumerate(items if isinstance(items, Items) else ()):
        if isinstance(item, Block):
            merged = _merged(without_candidates(tree), item)
            found.append(Reading((name, number), merged, validate(merged, file).file))
    return found


def problems_between(tree: Block, file: str, checked: ConfigFile) -> Iterator[Problem]:
    """Broken rules on the list itself, and those between fields as each candidate reads them."""
    for at, text in _broken(tree, checked):
        yield problem(tree, file, at, text)
    for path, merged, read in readings(tree, file):
        shadows = validate(merged, file).shadows
        for at, text in broken_rules(read):
            own = value_at(tree, (*path, *at)) is not None or str(at[0]) in OF_EACH
            if not shadows(at):
                yield problem(tree, file, (*path, *at) if own else at, text)


def _broken(tree: Block, file: ConfigFile) -> Iterator[tuple[Path, str]]:
    name = list_of(tree)
    if name != LISTS[-1] and LISTS[-1] in tree and not is_null(tree[LISTS[-1]]):
        yield ("ordered",), "conflicts with `any_of`: use one of the two"
    entries: tuple[CandidateEntry, ...] = getattr(file, name) or ()
    if not entries and isinstance(tree[name], Items) and not tree[name]:
        yield (name,), "lists no candidates: `- {provider: gcp, placement: [us-central1]}`"
    for field in OF_EACH:
        if field in tree:
            own = "is not for candidates, which are rented" if field == "hosts" else "is in each"
            yield (field,), f"conflicts with `{name}`: it {own}"
    names = {entry.provider for entry in entries if entry.provider}
    for number, entry in enumerate(entries):
        if entry.provider and not is_cloud(entry.provider):
            known = ", ".join(cloud.name for cloud in clouds())
            yield (name, number, "provider"), f"must be a cloud: {known}"
        for role in entry.nodes or {}:
            if role not in (file.nodes or {}):
                yield (name, number, "nodes", role), "is not a role of `nodes`"
    if len(names) > 1 and file.away is not None:
        clause = f"these are of {', '.join(sorted(names))}"
        yield ("away",), f"needs candidates of one cloud, in which its identity is: {clause}"
    if len(names) > 1:
        for at in OF_ONE_CLOUD:
            if value_at(tree, at) is not None:
                clause = f"the candidates are of {', '.join(sorted(names))}"
                yield at, f"means something in one cloud only, and {clause}: put it into each"


def without_candidates(tree: Block) -> Block:
    for name in LISTS:
        tree = tree.without(name)
    return tree


def _merged(tree: Block, candidate: Block) -> Block:
    """The tree with the candidate's values, mappings merged."""
    for name, value in candidate.items():
        there = tree.get(name)
        merged: Tree = value
        if isinstance(there, Block) and isinstance(value, Block):
            for keys in CHOSEN_TOGETHER:
                if any(key in value for key in keys):
                    for key in keys:
                        there = there.without(key)
            merged = _merged(there, value)
        tree = tree.having((name,), merged, candidate.keys_at[name])
    return tree
