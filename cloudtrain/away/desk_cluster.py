"""The desk as a cluster of its own: one small machine that runs this program."""

from __future__ import annotations

import math
import re
import shutil
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from cloudtrain.cluster.plan import make_plan
from cloudtrain.config.location import place_in_file
from cloudtrain.core.cloud import cloud_of, clouds
from cloudtrain.core.errors import UsageError
from cloudtrain.core.model import (
    ArtifactRules,
    Away,
    ClusterConfig,
    Code,
    Limits,
    NodeGroup,
    Setup,
    Train,
)
from cloudtrain.core.store_kinds import scheme_of
from cloudtrain.core.task_id import CLUSTER_NAME
from cloudtrain.money.estimate import estimate
from cloudtrain.money.node_hours import KEPT_FOR
from cloudtrain.money.prices import per_hour
from cloudtrain.training.strategies import CUSTOM

ROLE = "desk"
MARGIN = 3600.0
"""Seconds of the desk's life beyond that of the nodes: to be made ready, to land, to delete."""


def desk_name(cluster: str) -> str:
    """Name of the desk's own cluster. Raises UsageError if it would be too long."""
    name = f"{cluster}-{ROLE}"
    if not CLUSTER_NAME.match(name):
        raise UsageError(
            f"{cluster} is too long a name for `run --away`: its controller is {name}",
            hint=f"use a `name:` of at most {30 - len(ROLE) - 1} characters",
        )
    return name


def desk_config(config: ClusterConfig, program: Path, wait: float | None = None) -> ClusterConfig:
    """Config of the desk for a cluster: in its cloud, account, places and network, with
    `away.identity`, and with nothing else of it. `program`: folder of `write_program`. `wait`:
    seconds that the run may wait for capacity."""
    cloud = cloud_of(config.provider)
    assert cloud is not None
    python = "{}.{}".format(*sys.version_info)
    uris = {f"DATA_{number}": data.source for number, data in enumerate(config.data.values())}
    return replace(
        config,
        name=desk_name(config.name),
        strategy=CUSTOM.name,
        nodes={ROLE: NodeGroup(machine=config.away.machine or cloud.desk_machine)},
        identity=config.away.identity,
        image="auto",
        # From the package index alone: what other machines have packed is not for this one.
        setup=Setup(python=python, requirements=str(program / REQUIREMENTS), cache="off"),
        code=Code(path=str(program)),
        # Not a task: `check` looks at the rights of `identity` in the buckets that are named here.
        train=Train(env={"STORE": config.artifacts.store or "", **uris}),
        artifacts=ArtifactRules(store=config.artifacts.store),
        data={},
        limits=Limits(max_lifetime=lifetime(config, wait)),
        away=Away(),
        secrets={},
        overrides=(),
        defaults={},
        env_file="",
        candidates=(),
        candidate_order="",
    )


def lifetime(config: ClusterConfig, wait: float | None) -> float:
    """Seconds after which the cloud ends the desk. Raises UsageError if nothing ends the nodes."""
    nodes = config.limits.max_lifetime
    if nodes is None:
        raise UsageError(
            "`run --away` needs limits.max_lifetime: nobody is there to end what runs on",
            hint=f"{place_in_file(config, 'limits.max_lifetime')}: set it to a time such as 24h",
        )
    return nodes + (wait or 0.0) + (config.limits.wait or 0.0) + MARGIN


def desk_extras(config: ClusterConfig) -> tuple[str, ...]:
    """This program's extras that the desk needs: its cloud's, whose store it uses."""
    return (config.provider,)


def desk_price(config: ClusterConfig) -> str:
    """`e2-standard-2, 0.067 $/hour`"""
    plan = make_plan(desk_config(config, Path()))
    return f"{plan.nodes[0].machine}, {per_hour(estimate(plan))}"


def away_notes(config: ClusterConfig) -> tuple[str, ...]:
    """Note on what `run --away` adds to the bill; none without `away:`."""
    if config.away.identity is None or config.limits.max_lifetime is None:
        return ()
    counted = ", for which limits.budget pays too" if config.limits.budget is not None else ""
    return (f"`run --away` adds its controller: {desk_price(config)}{counted}",)


def without_desks_share(config: ClusterConfig, desk: ClusterConfig) -> ClusterConfig:
    """The cluster's config with `limits.budget` less what this desk costs at most: by its lifetime,
    with what it leaves behind. Raises UsageError if that is not known, or more than the budget."""
    limits, cloud, bill = config.limits, cloud_of(desk.provider), estimate(make_plan(desk))
    life = desk.limits.max_lifetime
    if limits.budget is None:
        return config
    assert cloud is not None
    assert bill is not None
    assert life is not None
    if bill.most is None or bill.after_end is None:
        raise UsageError(
            f"limits.budget cannot be enforced: the price of the controller is not known "
            f"({', '.join(bill.unknown)})",
            hint="`cloudtrain plan FILE --refresh-prices` fetches today's prices; or set "
            "away.machine",
        )
    cost = (bill.most * (life + cloud.end_takes) + bill.after_end * KEPT_FOR) / 3600
    if cost >= limits.budget:
        raise UsageError(
            f"limits.budget of {limits.budget:g} $: the controller alone costs up to {cost:.2f} $ "
            f"in its {life / 3600:.0f} h",
            hint="use a shorter limits.max_lifetime or --wait, or a larger budget",
        )
    left = math.floor(100 * (limits.budget - cost)) / 100
    return replace(config, limits=replace(limits, budget=left))


def refuse_unfit(config: ClusterConfig) -> None:
    """Raise UsageError with everything in the config that a desk could not do."""
    cloud = cloud_of(config.provider)
    if cloud is None:
        raise UsageError(
            f"`run --away` rents a machine, and provider {config.provider} rents none",
            hint=f"it works with {', '.join(each.name for each in clouds())}",
        )
    own, title = cloud.store_scheme, cloud.title
    found: list[tuple[str, str]] = []
    if config.away.identity is None:
        word = cloud.identity.word if cloud.identity else "an identity"
        found.append(("away", f"`run --away` needs `away: {{identity: …}}`, {word}"))
    network = config.network
    if network.private and network.subnet is None and network.vpc is None:
        text = "with `private` the controller must be in the nodes' network: set `subnet` or `vpc`"
        found.append(("network.private", text))
    store = config.artifacts.store
    if store is None or scheme_of(store) != own:
        found.append(
            (
                "artifacts.store",
                f"must be {own}://…: the controller has an identity of {title} alone, and the run "
                "is followed through the store",
            )
        )
    found += [
        (
            f"data.{name}",
            f"the controller cannot read {data.source}: it has an identity of {title} alone",
        )
        for name, data in config.data.items()
        if scheme_of(data.source) not in (own, "https")
    ]
    if found:
        lines = (f"{place_in_file(config, field)}: {field}: {text}" for field, text in found)
        raise UsageError("\n".join(lines), hint="docs/away.md lists what a controller can do")


# ── this program, for the desk ─────────────────────────────────────────────────


NAME = "cloudtrain"
REQUIREMENTS = "requirements.txt"
_LINE = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


def write_program(folder: Path, extras: Collection[str]) -> None:
    """Write the package and its requirements to `folder`, which then holds nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    left_out = shutil.ignore_patterns("__pycache__", "*.pyc", ".gitignore", ".cloudtrainignore")
    shutil.copytree(Path(__file__).parents[1], folder / NAME, ignore=left_out)
    lines = pinned_requirements(extras)
    (folder / REQUIREMENTS).write_text("".join(f"{line}\n" for line in lines), "ascii")


def pinned_requirements(extras: Collection[str]) -> list[str]:
    """`name==version` of every package that this program needs with these extras, in the versions
    that are installed here: those have been used with it. A requirement that is not installed here
    is for other systems, by its marker."""
    import importlib.metadata  # slow to import

    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    todo = [(NAME, extra) for extra in ("", *extras)]
    while todo:
        name, extra = todo.pop()
        if (_key(name), extra) in seen:
            continue
        seen.add((_key(name), extra))
        try:
            there = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if _key(name) != NAME:
            found[_key(name)] = there.version.partition("+")[0]  # without a build of one's own
        for line in there.requires or ():
            requirement, _, marker = line.partition(";")
            wanted = _EXTRA.findall(marker)
            parsed = _LINE.match(requirement)
            if parsed and (extra in wanted if wanted else not extra):
                extras_of_it = {each.strip() for each in (parsed[2] or "").split(",")}
                todo += [(parsed[1], each) for each in sorted({"", *extras_of_it})]
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
