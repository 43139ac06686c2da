"""The config of a rehearsal: what of a config runs on local nodes, and what does not; pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cloudtrain.core.model import ON_DEMAND, ClusterConfig, Endpoints, Network, NodeGroup
from cloudtrain.training.strategies import strategy_of

ENDING = "-rehearsal"
LONGEST = 30
"""Characters of a cluster's name."""


def name_of_rehearsal(name: str) -> str:
    """Name of the rehearsal's cluster: never that of a cluster that a file of the user names."""
    return name[: LONGEST - len(ENDING)].rstrip("-") + ENDING


def local_config(config: ClusterConfig, store: str, *, setup_run: bool) -> ClusterConfig:
    """The same job on local nodes, with its artifacts in `store` (a `file://` URI).

    `setup_run`: whether the lines of `setup.run` are run, which change this machine.
    """
    return replace(
        config,
        name=name_of_rehearsal(config.name),
        provider="local",
        project=None,
        placement=(),
        network=Network(),
        identity=None,
        resource_group=None,
        disk_key=None,
        tags={},
        image="auto",
        nodes={role: _group(config, group) for role, group in config.nodes.items()},
        hosts=(),
        setup=config.setup if setup_run else replace(config.setup, run=()),
        artifacts=replace(config.artifacts, store=store, create=False),
        endpoints=Endpoints(storage=config.endpoints.storage),
        limits=replace(config.limits, idle=None, max_price=None, budget=None),
        candidates=(),
        candidate_order="",
    )


def _group(config: ClusterConfig, group: NodeGroup) -> NodeGroup:
    if strategy_of(config).tpus:
        # The type of a TPU says how many hosts it has.
        return replace(group, provisioning=ON_DEMAND)
    return NodeGroup(count=group.count)


def not_rehearsed(config: ClusterConfig, *, setup_run: bool) -> Iterator[str]:
    """Each part of the config that the rehearsal leaves out, in words."""
    if any(group.accelerator for group in config.nodes.values()) or strategy_of(config).tpus:
        yield "accelerators: TensorFlow's CPU build runs"
    if config.identity:
        yield f"identity: {config.identity}"
    if config.setup.run and not setup_run:
        yield (
            f"setup.run: {len(config.setup.run)} lines, which would change this machine "
            "(--setup-run runs them)"
        )
    if config.image != "auto":
        yield f"image: {config.image}"
    if config.artifacts.store:
        yield f"artifacts.store: nothing is written to {config.artifacts.store}"
