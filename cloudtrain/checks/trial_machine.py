"""`cloudtrain check --deep`: one machine for about a minute, created as the file's nodes are."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection
from dataclasses import replace

from cloudtrain.artifacts.sync import prove_upload
from cloudtrain.catalog.gpus import is_older
from cloudtrain.catalog.offers import plain_machines
from cloudtrain.checks.node_notes import without_end
from cloudtrain.checks.price import price
from cloudtrain.cluster.lifetime import confirm_own_ends, moment
from cloudtrain.cluster.provision import ensure_nodes
from cloudtrain.cluster.session import Handle, Session, open_session, record_cluster
from cloudtrain.core.cloud import cloud_of
from cloudtrain.core.errors import CloudtrainError, LeftoverError, NoBucketError, NodesError
from cloudtrain.core.events import DownBegun, UpBegun, images, pending_nodes
from cloudtrain.core.model import (
    ON_DEMAND,
    SPOT,
    ArtifactRules,
    Away,
    ClusterConfig,
    Code,
    Limits,
    NodeGroup,
    Plan,
    Setup,
    Train,
)
from cloudtrain.core.paths import work_folder
from cloudtrain.core.protocols import Console, Finding, RentsMachines
from cloudtrain.money.estimate import estimate
from cloudtrain.training.strategies import ONE_DEVICE

LIFETIME = 900.0
"""Seconds after which the cloud ends the machine if this program does not; a cloud that cannot set
such a near end (Azure) does so ENDS_LATER seconds after the nearest."""
ENDS_LATER = 600.0
TRIES = 8
"""Machine types that are checked at most until the account may have one."""
OF_MACHINE = ("machines", "account", "placement", "quota", "permissions")
"""Findings that another machine type may not have."""

Tell = Callable[[Finding], None]


def try_machine(plan: Plan, console: Console, ignore: Collection[str] = ()) -> tuple[Finding, ...]:
    """Create the cheapest machine in the config's placement, network and image, prove there what
    the nodes need, and delete everything again. One finding for each proof, then one for the whole.

    Not GPUs. It is a cluster of its own: killed anywhere, `cloudtrain down NAME` or `gc` finds it,
    and the cloud ends it at the end of its lifetime. Nothing is created above `limits.max_price`.
    """
    handle, refused = accepted(plan, ignore)
    if refused:
        return refused
    machine, begun = handle.plan.nodes[0].machine, time.monotonic()
    lifetime = handle.config.limits.max_lifetime or 0.0
    to = plan.config.artifacts.store or "this machine"
    console.say(
        f"check --deep creates one {machine} for about a minute, as cluster {handle.config.name}: "
        f"{cost(handle, 60)}; the cloud ends it after {lifetime / 60:.0f} min at the latest, "
        f"{cost(handle, lifetime)}; 64 bytes go to {to} and are deleted again"
    )
    found: list[Finding] = []
    with handle.records.lock("check --deep"):
        record_cluster(handle.config, handle.records)
        try:
            prove_and_delete(handle, console, found.append)
        except CloudtrainError as error:
            return (*found, Finding.of("trial", error))
    took = time.monotonic() - begun
    text = f"{machine} created, logged in to and deleted in {took:.0f} s, {cost(handle, took)}"
    return (*found, Finding(what="trial", ok=True, text=text))


def accepted(plan: Plan, ignore: Collection[str]) -> tuple[Handle, tuple[Finding, ...]]:
    """The cheapest machine that passes `check` in this account, such as those that AWS' Free plan
    may launch; with the findings on the very cheapest if none does."""
    config, cloud = plan.config, cloud_of(plan.config.provider)
    assert cloud is not None, "only called for clouds"
    bought = SPOT if all(node.spot for node in plan.nodes) else ON_DEMAND
    cheapest = plain_machines(cloud.name, market=bought.market, places=config.placement)
    first = None
    for image in images_of(plan):
        for machine in dict.fromkeys((*cheapest[: TRIES - 1], cloud.default_machine)):
            group = NodeGroup(machine=machine, provisioning=bought)
            handle = Handle(trial_config(replace(config, image=image), group))
            wrong = bad(price(handle.plan), ignore)
            wrong = wrong or bad(handle.provider.check(handle.plan), ignore)
            first = first or (handle, tuple(not_created(machine, finding) for finding in wrong))
            if not wrong:
                return handle, ()
            if not {finding.what for finding in wrong} <= {*OF_MACHINE}:
                break
    assert first is not None, "each cloud has a default machine"
    return first


def images_of(plan: Plan) -> tuple[str, ...]:
    """The image of the nodes: with GPUs, `auto` is another where the cloud has it, and a policy may
    allow images of some projects only."""
    kinds = [node.accelerator.kind for node in plan.nodes if node.accelerator]
    if plan.config.image != "auto" or all(is_older(kind, "Turing") for kind in kinds):
        return (plan.config.image,)
    return ("deeplearning", "auto")


def bad(findings: Collection[Finding], ignore: Collection[str]) -> list[Finding]:
    return [finding for finding in findings if not finding.ok and finding.what not in ignore]


def not_created(machine: str, found: Finding) -> Finding:
    text = f"{machine} was not created: {found.what}: {found.text}"
    return replace(found, what="trial", text=text, lines=())


def trial_config(config: ClusterConfig, group: NodeGroup) -> ClusterConfig:
    """Config of one such machine, with nothing to install."""
    artifacts = ArtifactRules(store=config.artifacts.store, encryption=config.artifacts.encryption)
    cloud = cloud_of(config.provider)
    soonest = cloud.soonest_end if cloud else 0.0
    return replace(
        config,
        name=f"{config.name[:19].rstrip('-')}-trial-{secrets.token_hex(2)}",
        strategy=ONE_DEVICE.name,
        nodes={"chief": group},
        setup=Setup(),
        code=Code(),
        train=Train(),
        artifacts=artifacts,
        data={},
        limits=Limits(
            max_lifetime=max(LIFETIME, soonest + ENDS_LATER), max_price=config.limits.max_price
        ),
        away=Away(),
        secrets={},
    )


def prove_and_delete(handle: Handle, console: Console, tell: Tell) -> None:
    """Delete the machine on return. Errors of the deletion are raised with the earlier error."""
    try:
        with open_session(handle, console) as session:
            session.records.journal(UpBegun(nodes=session.plan.names))
            prove(ensure_nodes(session), tell)
    except BaseException as failure:
        try:
            clear(handle)
        except CloudtrainError as second:
            if isinstance(failure, CloudtrainError):
                raise NodesError({"up": failure, "down": second}) from failure
            raise second from failure
        raise
    clear(handle)


def prove(session: Session, tell: Tell) -> None:
    """Tell what its existence proves, then what is asked of it and of the cloud."""
    (node,), config = session.nodes, session.config
    image = ", ".join(images(session.records.events()).values()) or config.image
    way = "network.ssh_proxy" if config.network.ssh_proxy else "the firewall"
    for what, text in (
        ("image", f"{image} boots; policies allow it, the network and the tags"),
        ("SSH", f"{way} lets this machine log in at {node.address}"),
        ("host key", "verified, and changed to one that was never in the user data"),
    ):
        tell(Finding(what=f"trial {what}", ok=True, text=text))
    for what, proof in (("end", end_of), ("upload", upload_of)):
        try:
            tell(proof(session))
        except CloudtrainError as error:
            tell(Finding.of(f"trial {what}", error))


def end_of(session: Session) -> Finding:
    """Finding on the machine's own end, as the cloud and the timer on the machine say."""
    provider = session.provider
    if isinstance(provider, RentsMachines):
        session = replace(session, nodes=provider.nodes_and_ends(session.config.name))
    nodes = confirm_own_ends(session).nodes
    if not nodes or nodes[0].state != "running":
        text = f"{session.provider.name} does not list the machine as running yet"
        return Finding(what="trial end", ok=True, text=text, told=False)
    lacking = without_end(nodes, session.clock.now())
    if lacking or nodes[0].expires is None:
        text = f"NO END: {lacking[0].no_end if lacking else 'the cloud says none'}"
        return Finding.of("trial end", LeftoverError(text))
    text = f"armed and confirmed: ends at {moment(nodes[0].expires)} if nobody deletes it"
    return Finding(what="trial end", ok=True, text=text)


def upload_of(session: Session) -> Finding:
    (node,), store, config = session.nodes, session.store, session.config
    folder = work_folder(config.name, "trial", "chief0")
    try:
        text = prove_upload(node, folder, store, f"{config.name}/proof", session.transport)
    except NoBucketError as error:  # of `artifacts.create`; any other is a finding by itself
        text = f"not tried: {error.message}"
        return Finding(what="trial upload", ok=True, text=text, hint=error.hint, told=False)
    to = config.artifacts.store or "no artifacts.store: to a folder of this machine"
    return Finding(what="trial upload", ok=True, text=f"{to}: {text}")


def clear(handle: Handle) -> None:
    """Delete what the trial created, and its record once the cloud lists nothing."""
    records = handle.records
    expected = pending_nodes(records.events())
    records.journal(DownBegun())
    handle.provider.destroy(handle.config.name, records.journal, expected)
    records.close()
    records.remove()


def cost(handle: Handle, seconds: float) -> str:
    """Cost in words; clouds bill at least a minute."""
    billed = estimate(handle.plan)
    if billed is None or billed.most is None:
        return "at an unknown price"
    return f"about {max(0.01, billed.most * max(seconds, 60.0) / 3600):.2f} $"
