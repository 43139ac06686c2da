"""`cloudtrain check --deep` on clouds without a thorough dry run: one small machine, for about a
minute.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace

from cloudtrain.catalog.estimate import estimate
from cloudtrain.cloud import cloud_of
from cloudtrain.cluster.provision import ensure_nodes
from cloudtrain.cluster.session import Handle, open_session, record_cluster
from cloudtrain.errors import CloudtrainError, NodesError
from cloudtrain.events import DownBegun, UpBegun, pending_nodes
from cloudtrain.model import (
    ArtifactRules,
    ClusterConfig,
    Code,
    Limits,
    Node,
    NodeGroup,
    Plan,
    Setup,
    Train,
)
from cloudtrain.protocols import Console, Finding
from cloudtrain.strategies.one_device import ONE_DEVICE

LIFETIME = 900.0
"""Seconds after which the cloud ends the machine if this program does not."""


def try_machine(config: ClusterConfig, console: Console) -> Finding:
    """Create one CPU machine in the config's placement, network and image, log in, and delete
    everything again.

    Tests policies, image, firewall, first boot and SSH, not GPUs. It is a cluster of its own:
    killed anywhere, `cloudtrain down NAME` or `gc` finds it, and the cloud ends it after LIFETIME.
    """
    handle, begun = Handle(trial_config(config)), time.monotonic()
    with handle.records.lock("check --deep"):
        record_cluster(handle.config, handle.records)
        try:
            node = first_login_to(handle, console)
        except CloudtrainError as error:
            return Finding(
                what="trial", ok=False, text=error.message, hint=error.hint, error=type(error)
            )
    took = time.monotonic() - begun
    text = f"{node.machine} in {node.placement} created, logged in to and deleted in {took:.0f} s"
    return Finding(what="trial", ok=True, text=f"{text}, {cost(handle.plan, took)}")


def first_login_to(handle: Handle, console: Console) -> Node:
    """The machine, deleted on return. Errors of the deletion are raised with the earlier error."""
    try:
        with open_session(handle, console) as session:
            session.records.journal(UpBegun(nodes=session.plan.names))
            (node,) = ensure_nodes(session).nodes
    except BaseException as failure:
        try:
            clear(handle)
        except CloudtrainError as second:
            if isinstance(failure, CloudtrainError):
                raise NodesError({"up": failure, "down": second}) from failure
            raise second from failure
        raise
    clear(handle)
    return node


def trial_config(config: ClusterConfig) -> ClusterConfig:
    """Config of one machine of the default size, with nothing to install."""
    cloud = cloud_of(config.provider)
    return replace(
        config,
        name=f"{config.name[:19].rstrip('-')}-trial-{secrets.token_hex(2)}",
        strategy=ONE_DEVICE.name,
        nodes={"chief": NodeGroup(machine=cloud.default_machine if cloud else None)},
        setup=Setup(),
        code=Code(),
        train=Train(),
        artifacts=ArtifactRules(),
        limits=Limits(max_lifetime=LIFETIME),
        secrets={},
    )


def clear(handle: Handle) -> None:
    """Delete what the trial created, and its record once the cloud lists nothing."""
    records = handle.records
    expected = pending_nodes(records.events())
    records.journal(DownBegun())
    handle.provider.destroy(handle.config.name, records.journal, expected)
    records.close()
    records.remove()


def cost(plan: Plan, seconds: float) -> str:
    """Cost in words; clouds bill at least a minute."""
    billed = estimate(plan)
    if billed is None or billed.most is None:
        return "at an unknown price"
    return f"about {max(0.01, billed.most * max(seconds, 60.0) / 3600):.2f} $"
