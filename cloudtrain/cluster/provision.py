"""Creates, restarts and rolls back nodes, for `up` and for a restarted run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from cloudtrain.cluster.bootstrap import await_first_login
from cloudtrain.cluster.drift import creation_facts_of
from cloudtrain.cluster.lifetime import charges, within_budget
from cloudtrain.cluster.ownership import current_owner
from cloudtrain.cluster.session import Session, in_order, write_ssh_config
from cloudtrain.core import errors
from cloudtrain.core.cloud import cloud_of, is_cloud
from cloudtrain.core.events import (
    Event,
    NodeDeletionBegun,
    NodeRequested,
    NodesPlaced,
    NodesShareFiles,
    PlacementRefused,
    ResourceRequested,
    SpotOrderChosen,
    images,
    nodes_leaving,
    nodes_requested,
    pending_nodes,
    was_ready,
)
from cloudtrain.core.model import ClusterConfig, Identity, Node, NodePlan, Plan
from cloudtrain.core.paths import some
from cloudtrain.core.protocols import Journal, Stage
from cloudtrain.core.retry import NODE_KNOWN, NODE_STARTS, NODE_TAKEN, Retry, poll_until
from cloudtrain.core.task_id import TaskId
from cloudtrain.money.estimate import price_of
from cloudtrain.ssh.keys import create_identity, load_identity, renew_host_key


def ensure_nodes(session: Session) -> Session:
    """Ensure that every node of the plan runs; recreate lost ones with their role and index."""
    return create_nodes(session, session.plan)


def start_stopped(session: Session, spared: Collection[str] = ()) -> Session:
    """Start stopped nodes, whose disks are unchanged; create nothing. Includes nodes that the
    config no longer names, but none whose deletion has begun, and none that is `spared`, which the
    session has no longer."""
    session = session.refreshed()
    there = tuple(node for node in session.nodes if node.name not in spared)
    session = plan_with_existing(replace(session, nodes=there))
    stopped = {node.name for node in session.nodes if node.state == "stopped"}
    plans = tuple(node for node in session.plan.nodes if node.name in stopped)
    if not plans:
        return session
    plan = replace(session.plan, nodes=plans, earliest_end=_time_to_land(session, stopped))
    return plan_with_existing(create_nodes(session, plan))


LANDING = 30 * 60.0
"""Seconds for which a stopped node is started at least, to land what it holds. Its end would
otherwise delete its disk meanwhile, on a cloud where the end deletes the node."""


def _time_to_land(session: Session, stopped: Collection[str]) -> float:
    """Earliest end of nodes that are started to land files; says so if their own is earlier."""
    now, cloud = session.clock.now(), cloud_of(session.config.provider)
    seconds = max(LANDING, cloud.soonest_end + 60.0 if cloud else 0.0)
    for passed, words in ((True, "has passed"), (False, "is near")):
        names = [
            node.name
            for node in session.nodes
            if node.name in stopped
            and node.expires is not None
            and node.expires < now + seconds
            and (node.expires <= now) is passed
        ]
        if names:
            given = f"its end {words}: it is" if len(names) == 1 else f"their end {words}: they are"
            session.console.say(f"{some(names)}: {given} given {seconds / 60:.0f} min to land")
    return now + seconds


def plan_with_existing(session: Session) -> Session:
    """The session with every existing node in its plan, except those whose deletion has begun."""
    going = nodes_leaving(session.records.events())
    nodes = tuple(node for node in session.nodes if node.name not in going)
    planned = {node.name for node in session.plan.nodes}
    others = tuple(
        NodePlan(
            name=node.name, role=node.role, index=node.index, port=0, provisioning=node.provisioning
        )
        for node in nodes
        if node.name not in planned
    )
    plan = replace(session.plan, nodes=(*session.plan.nodes, *others))
    return replace(session, nodes=nodes, plan=plan)


ANSWERS = Retry(pause=1.0, within=NODE_KNOWN)
"""Retries for machines whose state only they can report (`hosts`), until all answer."""


def await_known_states(session: Session) -> Session:
    """Wait until no node is `unknown`, for at most a minute."""
    for node in session.nodes:
        if node.state == "unknown":
            limit = f"waiting for up to {ANSWERS.within:.0f} s"
            session.console.warn(f"{node.name} does not answer: {limit}: {node.fault}")

    def all_known() -> bool | None:
        nonlocal session
        if any(node.state == "unknown" for node in session.nodes):
            session = session.refreshed()
        return None if any(node.state == "unknown" for node in session.nodes) else True

    poll_until(all_known, ANSWERS, clock=session.clock)
    return session


STARTED = Retry(pause=2.0, within=NODE_STARTS)
"""Polls for nodes that are starting: a command that started them was killed."""


def await_started(session: Session) -> Session:
    """Wait until no node is `starting`, for at most five minutes."""

    def all_started() -> bool | None:
        nonlocal session
        session = plan_with_existing(session.refreshed())
        return None if any(node.state == "starting" for node in session.nodes) else True

    if not poll_until(
        all_started, STARTED, waits_for="nodes that are starting", clock=session.clock
    ):
        late = [node.name for node in session.nodes if node.state == "starting"]
        session.console.warn(f"not running {STARTED.within:.0f} s later: {', '.join(late)}")
    return session


def create_nodes(session: Session, plan: Plan) -> Session:
    """Create the nodes of `plan`; on a cloud, wait for their login and rotate their host keys."""
    session = replace(session, plan=with_same_image(session, session.plan))
    plan = with_same_image(session, plan)
    session, plan = within_budget(session, plan)
    plan = replace(plan, owner=current_owner(session.provider, session.console))
    with session.console.stage(f"nodes on {session.provider.name}", len(plan.nodes)) as stage:
        journal = shown_journal(session, stage, plan)
        expected = pending_nodes(session.records.events())
        try:
            made = session.provider.create(plan, identity_for(session), journal, expected)
        except (errors.CapacityError, errors.QuotaError) as error:
            if not clear_leftovers(session, error, journal):
                raise
            made = session.provider.create(plan, identity_for(session), journal)
        refuse_missing_nodes(made, plan)
        for node in made:
            stage.done(node.name, node.address)
    session.records.journal(_placed(session.config, made))
    # A cloud's lists may lack new nodes for a minute.
    new = {node.name for node in made}
    nodes = in_order([*made, *(n for n in session.nodes if n.name not in new)], session.plan)
    identity = load_identity(session.records.folder)
    if is_cloud(session.config.provider):
        with (
            preemption_as_no_capacity(),
            serial_logs_shown(session),
            session.console.stage("first login", len(made)) as stage,
        ):
            await_first_login(
                made,
                identity,
                session.records.folder,
                session.transport,
                session.host_keys,
                stage,
                listed=lambda: session.provider.nodes(session.config.name),
            )
        identity = load_identity(session.records.folder)
    write_ssh_config(session.records, identity, nodes)
    return replace(session, identity=identity, nodes=nodes)


def _placed(config: ClusterConfig, made: Sequence[Node]) -> NodesPlaced:
    """Event with the places of these nodes, their prices and their ends."""
    places = {node.name: node.placement for node in made}
    if not is_cloud(config.provider):
        free = dict.fromkeys(places, 0.0)
        return NodesPlaced(places=places, prices=free, ceilings=free)
    prices = {node.name: price_of(config, node) for node in made}
    return NodesPlaced(
        places=places,
        prices={name: price.machine for name, price in prices.items()},
        ceilings={name: price.ceiling for name, price in prices.items()},
        disks={name: price.disk for name, price in prices.items()},
        addresses={name: price.address for name, price in prices.items()},
        kept=any(price.kept for price in prices.values()),
        expires={node.name: node.expires for node in made},
    )


def with_same_image(session: Session, plan: Plan) -> Plan:
    """The plan with the existing nodes' images and machine types, whatever is chosen today."""
    if not session.nodes:
        return plan
    events, config = session.records.events(), session.config
    machines = {
        (task.role, facts.get("accelerator")): facts["machine"]
        for name, facts in nodes_requested(events).items()
        if facts.get("machine") and (task := TaskId.of_node(name, config.name))
    }

    def same(node: NodePlan) -> NodePlan:
        group = config.nodes.get(node.role)
        if group is None or group.machine is not None:
            return node
        accelerator = str(node.accelerator) if node.accelerator else None
        return replace(node, machine=machines.get((node.role, accelerator), node.machine))

    return replace(plan, nodes=tuple(map(same, plan.nodes)), images=images(events))


@contextmanager
def preemption_as_no_capacity() -> Iterator[None]:
    """Raise CapacityError if nodes were taken while they booted and nothing else went wrong: they
    are created again like nodes for which there was no room."""
    try:
        yield
    except errors.NodeGone as gone:
        raise errors.CapacityError(gone.message) from gone
    except errors.NodesError as failure:
        gone_too = [e for e in failure.failures.values() if isinstance(e, errors.NodeGone)]
        if len(gone_too) < len(failure.failures):
            raise
        raise errors.CapacityError("; ".join(e.message for e in gone_too)) from failure


@contextmanager
def serial_logs_shown(session: Session) -> Iterator[None]:
    """If the block fails, show the serial logs of unreachable nodes where the provider has them."""
    try:
        yield
    except (errors.NodeError, errors.NodesError) as failure:
        all_of_them: dict[str, BaseException] = (
            {failure.node: failure} if isinstance(failure, errors.NodeError) else failure.failures
        )
        for name, error in all_of_them.items():
            if not isinstance(error, errors.NodeUnreachable | errors.HostKeyMismatch):
                continue
            with suppress(errors.CloudtrainError):
                if text := session.provider.serial_log(session.config.name, name):
                    lines = text.replace("\n", "\n  ")
                    session.console.warn(f"{name}: the end of its serial log:\n  {lines}")
        raise


def refuse_missing_nodes(made: Sequence[Node], plan: Plan) -> None:
    missing = {node.name for node in plan.nodes} - {node.name for node in made}
    if missing:
        raise errors.TransientError(
            f"the provider created {len(made)} of {len(plan.nodes)} nodes, without an error for "
            f"the others: {', '.join(sorted(missing))}",
            hint="run `cloudtrain up` to continue, or "
            f"`cloudtrain down {plan.config.name}` to destroy it",
        )


def identity_for(session: Session) -> Identity:
    """The cluster's keys. A node to be recreated gets a new bootstrap host key."""
    folder = session.records.folder
    identity = create_identity(folder, [node.name for node in session.plan.nodes])
    changed = {name for name, host_key in identity.host_keys.items() if host_key.accepted}
    if changed:
        changed -= {node.name for node in session.provider.nodes(session.config.name)}
    for name in sorted(changed):
        session.host_keys.trust(name, renew_host_key(folder, name).pins)
    return load_identity(folder) if changed else identity


def clear_leftovers(session: Session, error: Exception, journal: Journal) -> bool:
    """Delete the nodes of an interrupted `up`, which contain no data, so that every placement can
    be tried. Otherwise they would tie the cluster to a placement without capacity."""
    events = session.records.events()
    if was_ready(events) or not session.provider.nodes(session.config.name):
        return False
    session.console.warn(
        f"{error}\ndeleting the nodes of an interrupted `up` to try every placement"
    )
    session.provider.destroy(session.config.name, journal, pending_nodes(events))
    return True


def shown_journal(session: Session, stage: Stage, plan: Plan | None = None) -> Journal:
    """Return the journal; it also shows each event on the console as it happens. `plan`: the nodes
    as they are requested, which may be dearer than the session's."""

    planned = {node.name: node for node in session.plan.nodes}
    requested = planned if plan is None else {node.name: node for node in plan.nodes}

    def journal(event: Event, /) -> None:
        if isinstance(event, NodeRequested) and event.node in planned:
            node = planned[event.node]
            made = creation_facts_of(session.config, node)
            if is_cloud(session.config.provider):
                made |= charges(session, requested.get(node.name, node))
            event = replace(event, made=made)
        session.records.journal(event)
        if isinstance(event, NodeRequested):
            stage.node(event.node, "requested")
        elif isinstance(event, NodeDeletionBegun):
            stage.node(event.node, "deleting")
        elif isinstance(event, ResourceRequested):
            # In the row of the node that is requested next: it would stay in one of its own.
            stage.node(next(iter(requested), event.name), f"creating the {event.what} {event.name}")
        elif isinstance(event, SpotOrderChosen):
            session.console.say(f"spot: {event.text}: tried in this order")
        elif isinstance(event, PlacementRefused) and event.text:
            session.console.warn(f"{event.placement}: {event.text}")
        elif isinstance(event, NodesShareFiles):
            session.console.warn(
                f"local nodes are no sandbox here: {event.why}: scripts reach your home and each "
                "other's folders, so run none that you would not run yourself; and a path that "
                "only this machine has works here and fails on a cloud (docs/local.md)"
            )

    return journal


# ── nodes that were lost meanwhile ─────────────────────────────────────────────


TAKEN = Retry(pause=5.0, within=NODE_TAKEN)
"""Wait for a preempted node to disappear: it has 150 s on GCP, 120 s on AWS, 30 s on Azure."""


def lost_nodes(session: Session, error: errors.CloudtrainError) -> tuple[str, ...]:
    """Nodes that did not answer, by this error, and that their cloud has no more. A spot node may
    be listed for a while after its last answer: it is waited for. None if the cloud does not
    answer."""
    silent = _unreachable(error)

    def gone() -> tuple[str, ...] | None:
        try:
            there = {node.name for node in session.refreshed().nodes if node.state != "gone"}
        except errors.CloudtrainError:
            return None
        return tuple(sorted(silent - there)) or None

    found = gone() if silent else None
    spot = [node.name for node in session.nodes if node.spot and node.name in silent]
    if found is None and spot:
        why = f"whether the cloud has taken {some(spot)}"
        found = poll_until(gone, TAKEN, waits_for=why, clock=session.clock)
    return found or ()


def _unreachable(error: BaseException | None) -> set[str]:
    """Names of nodes that did not answer, by an error and its causes."""
    found: set[str] = set()
    while error is not None:
        failures = error.failures.values() if isinstance(error, errors.NodesError) else (error,)
        found |= {each.node for each in failures if isinstance(each, errors.NodeUnreachable)}
        error = error.__cause__
    return found


@contextmanager
def lost_as_no_capacity(session: Session) -> Iterator[None]:
    """Raise CapacityError if nodes were lost in the block, before a run began on them, and nothing
    else went wrong: they are created again like nodes for which there was no room."""
    try:
        yield
    except (errors.NodeError, errors.NodesError) as error:
        failed = {error.node} if isinstance(error, errors.NodeError) else set(error.failures)
        lost = lost_nodes(session, error)
        if not failed <= set(lost):
            raise
        raise errors.CapacityError(
            f"{some(lost)}: the cloud took it while it was set up: {error.message}",
            hint="run the command again; `--wait 1h` does so by itself",
        ) from error
