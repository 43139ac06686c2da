"""`cloudtrain run --away`: makes a desk, a small machine in the cloud, which runs the command."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from cloudtrain.away import desk_cluster
from cloudtrain.away.away_orders import nodes_left, process_there, refuse_to_lose_keys
from cloudtrain.away.find_away import are_desk, find_away
from cloudtrain.away.job import (
    Job,
    code_on_desk,
    config_for_desk,
    deliver_code,
    deliver_job,
    end_of_output,
    environment,
    make_key,
    process_of,
    requirement_files,
    start,
)
from cloudtrain.away.orders import load_order_key, new_order_key
from cloudtrain.away.published import AwayState, Published, Publisher
from cloudtrain.away.signatures import DeskKeys, new_desk_id, publish_desk_key
from cloudtrain.checks.check import refuse, refuse_missing_script
from cloudtrain.cluster.lease import PROGRAM, holding_cluster, is_recorded_desk
from cloudtrain.cluster.ownership import current_owner
from cloudtrain.cluster.plan import make_plan
from cloudtrain.cluster.provision import lost_nodes
from cloudtrain.cluster.session import (
    Handle,
    Session,
    open_session,
    record_cluster,
    refuse_other_account,
    refuse_other_folder,
)
from cloudtrain.commands.down import destroy_cluster
from cloudtrain.commands.up import up
from cloudtrain.config import read_secrets
from cloudtrain.core import errors, moments
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.model import Away, ClusterConfig, Plan
from cloudtrain.core.protocols import Console
from cloudtrain.core.retry import CLOCK, Clock, Retry, poll_until
from cloudtrain.core.shell import Secret
from cloudtrain.core.store_kinds import scheme_of
from cloudtrain.money.estimate import estimate
from cloudtrain.playbooks import code as code_playbook
from cloudtrain.runs.resume_source import resume_source
from cloudtrain.state import Records
from cloudtrain.state.away_record import AwayRecord, mark_of, save_away
from cloudtrain.state.folder import ORDER_KEY

PROOF = Retry(pause=2.0, within=600.0)
"""Looks at the store for the desk's first report that goes past `check`, which it does with its own
credentials."""


@dataclass(frozen=True, kw_only=True)
class AwayPlan:
    """Facts that are settled before there is a desk."""

    config: ClusterConfig
    desk: Handle
    id: str
    """Of the desk's life."""
    code: code_playbook.CodeSource
    secrets: dict[str, Secret]
    """By the names of their variables."""
    resume: str | None
    ignore: tuple[str, ...]
    wait: float | None


def run_away(
    plan: Plan,
    *,
    adopt: bool = False,
    ignore: Collection[str] = (),
    resume: str | None = None,
    wait: float | None = None,
    console: Console,
    clock: Clock = CLOCK,
) -> AwayState:
    """Create the desk, give it the command, and return its first report once it has begun.

    Whatever fails before the desk has begun, even an interrupt, ends in its deletion. Raises
    UsageError for a config that a desk cannot run, and while one attends to the cluster; the error
    of the desk's own `check`."""
    config, records = plan.config, Records(plan.config.name)
    desk_cluster.refuse_unfit(config)
    with records.lock("run --away"):
        refuse_other_account(config, records)
        refuse_other_folder(config, records, adopt=adopt)
        if records.is_open() and records.has_keys():
            raise errors.UsageError(
                f"{config.name} is up, and this machine attends to it",
                hint=f"run `cloudtrain down {config.name}` first, or use another `name`",
            )
        refuse_missing_script(config)
        away = settled(plan, ignore, resume, wait, console, clock)
        clear_ended_desk(away, records, console)
        record = record_away(away, records, clock)
        # With its label, on all that is created for it from now on.
        desk = replace(away.desk.config, away=Away(mark=mark_of(record)))
        away = replace(away, desk=Handle(desk))
        console.say(f"the controller: {desk_cluster.desk_price(config)}")
        published = begin(away, record, adopt, console, clock)
        state = await_proof(away, published, console, clock)
        if state.phase == "ended" and state.exit_code:
            error = errors.CloudtrainError(f"the controller: {state.error}")
            error = error.copy_with(exit_code=state.exit_code)
            clean_up(away, records, console, error)
            raise error
        return state


def settled(
    plan: Plan,
    ignore: Collection[str],
    resume: str | None,
    wait: float | None,
    console: Console,
    clock: Clock,
) -> AwayPlan:
    """Settle what the desk gets. Raises what `check` finds of the nodes with what is left for them
    of `limits`, and UsageError."""
    config = plan.config
    program = Records(desk_cluster.desk_name(config.name)).folder / PROGRAM
    desk = desk_cluster.desk_config(config, program, wait)
    paid = desk_cluster.without_desks_share(config, desk)
    refuse(Handle(paid, replace(plan, config=paid)), console, ignore)
    handle = Handle(config, plan)
    return AwayPlan(
        config=config,
        desk=Handle(desk),
        id=new_desk_id(clock.now()),
        code=code_playbook.resolve(config),
        secrets=secrets_of(config),
        resume=resume_uri(handle, resume, console) if resume is not None else None,
        ignore=tuple(ignore),
        wait=wait,
    )


def secrets_of(config: ClusterConfig) -> dict[str, Secret]:
    """Values of the tasks' secrets by the names of their variables. The token of the code's
    repository stays here, as this machine fetches the code, unless something else needs it."""
    found = read_secrets(config)
    return {
        variable: found[name]
        for name, variable in config.secrets.items()
        if name != config.git_secret
    }


def resume_uri(handle: Handle, resume: str, console: Console) -> str:
    """URI of the run that `--resume` names, which the desk must be able to read."""
    source = resume_source(handle, resume, console)
    own = scheme_of(handle.config.artifacts.store or "")
    if scheme_of(source.store) != own:
        raise errors.UsageError(
            f"--resume {resume}: the controller cannot read {source.store}",
            hint=f"copy it to a store of {own}://",
        )
    return f"{source.store}/{source.run}"


def clear_ended_desk(away: AwayPlan, records: Records, console: Console) -> None:
    """Delete what an earlier desk has left. Raises UsageError for one that is at work, or that
    another machine may be creating, and for a cluster of its name that is none; NotLanded while
    there are nodes whose keys it has."""
    desk, cluster = away.desk, records.name
    name = desk.config.name
    with holding_cluster(desk, "run --away", console):
        refuse_taken_name(away)
        if desk.provider.find(name):
            if is_at_work(away, console):
                raise errors.UsageError(
                    f"{cluster} is away: its controller is at work",
                    hint=f"`cloudtrain logs -f {cluster}` follows it, `cloudtrain down {cluster}` "
                    "ends it",
                )
            if not desk.records.has_keys():
                raise errors.UsageError(
                    f"{name} exists, and this machine did not create it",
                    hint="another machine may be creating it; `cloudtrain down FILE` deletes it",
                )
            refuse_to_lose_keys(away.config, f"the command of {name} has ended or never began")
            console.say(f"deleting {name}, whose command has ended or never began")
        elif not desk.records.has_keys():
            return
        destroy_cluster(desk, discard=True, console=console)


def is_at_work(away: AwayPlan, console: Console) -> bool:
    """True if the desk's process runs: as the desk says or, if it does not answer, as its signed
    report does."""
    process = process_there(away.desk, console)
    if process is not None:
        return process == "running"
    found = find_away(away.config.name, away.config)
    state = found.state() if found is not None else None
    if state is None or state.unsigned or state.phase == "ended":
        return False
    return not state.is_silent(moments.now())


def refuse_taken_name(away: AwayPlan) -> None:
    """Raise UsageError if the name of the desk is that of another cluster of the user's."""
    cluster, desk = away.config.name, away.desk
    there = [node for node in desk.provider.find(desk.config.name) if node.state != "gone"]
    is_open = desk.records.configured() > 0 and desk.records.is_open()
    if are_desk(cluster, there) if there else not is_open or is_recorded_desk(cluster):
        return
    raise errors.UsageError(
        f"the name {desk.config.name} is taken: that cluster is not the controller of {cluster}",
        hint=f"`run --away` calls the controller of {cluster} so: use another `name`, or end that "
        f"cluster first (`cloudtrain down {desk.config.name}`)",
    )


def record_away(away: AwayPlan, records: Records, clock: Clock) -> AwayRecord:
    """Record that the cluster is away, before there is a desk."""
    config = away.config
    record_cluster(config, records)
    record = AwayRecord(
        cluster=config.name,
        desk=away.id,
        node=away.desk.config.name,
        store=config.artifacts.store or "",
        public_key=new_order_key(records.folder).public,
        created=clock.now(),
    )
    save_away(records, record)
    return record


def begin(
    away: AwayPlan, record: AwayRecord, adopt: bool, console: Console, clock: Clock
) -> Published:
    """Create the desk, deliver all that it needs, and start its process; after a failure, delete
    it."""
    desk, config, name = away.desk, away.config, away.config.name
    records = Records(name)
    try:
        desk_cluster.write_program(desk.records.folder / PROGRAM, desk_cluster.desk_extras(config))
        up(desk.plan, adopt=adopt, ignore=away.ignore, give_back=True, console=console)
        program, store = code_playbook.resolve(desk.config).digest, Handle(config).store
        with open_session(desk, console) as session:
            deliver_code(session, away.code, name)
            job = job_of(away, record.public_key, session, clock)
            deliver_job(session, job, away.secrets)
            record = replace(record, desk_key=make_key(session, job))
            save_away(records, record)
            # It is known from now on, also to other machines, and where its order key is.
            order_key = load_order_key(records.folder / ORDER_KEY)
            publish_desk_key(store, order_key, record)
            log_file, warn = records.folder / "away.log", console.warn
            publisher = Publisher(
                store, name, job.desk, log_file=log_file, warn=warn, key=order_key
            )
            publisher.state(
                AwayState(
                    cluster=name,
                    desk=job.desk,
                    phase="starting",
                    as_of=clock.now(),
                    began=job.began,
                    expires=job.expires,
                    node=job.name,
                    place=job.place,
                    price_per_hour=job.price_per_hour,
                )
            )
            start(session, job, program)
        return Published(store, name, job.desk, keys=DeskKeys(record))
    except BaseException as error:
        clean_up(away, records, console, error)
        raise


def job_of(away: AwayPlan, public_key: str, session: Session, clock: Clock) -> Job:
    config, (node,) = away.config, session.nodes
    itself = replace(away.desk.config, placement=(node.placement,), source="")
    price = estimate(make_plan(itself))
    paid = desk_cluster.without_desks_share(config, away.desk.config)
    return Job(
        desk=away.id,
        name=itself.name,
        config=config_for_desk(paid, code_on_desk(config, away.code), node.internal),
        requirements=requirement_files(config),
        itself=config_for_desk(itself, itself.code, node.internal),
        public_key=public_key,
        owner=current_owner(session.provider),
        environment=environment(config),
        resume=away.resume,
        ignore=away.ignore,
        wait=away.wait,
        began=clock.now(),
        expires=node.expires,
        place=f"{config.provider} {node.placement}",
        price_per_hour=price.per_hour if price is not None else None,
        generation=node.generation,
    )


def await_proof(away: AwayPlan, published: Published, console: Console, clock: Clock) -> AwayState:
    """Wait until the desk has passed `check` with its own credentials, or has ended. It goes on
    whatever happens to this wait. Raises CloudtrainError with what it printed if its process ended
    without a report."""
    name = away.desk.config.name
    with (
        open_session(away.desk, console) as session,
        console.stage("check by the controller", 1) as stage,
    ):

        def look() -> AwayState | None:
            ended = why_ended(session, name)
            try:
                state = published.state()
            except errors.StoreError as error:  # it may answer the next time; the desk goes on
                stage.node(session.nodes[0].name, error.message)
                return None
            if state is not None and state.phase != "starting" and not state.unsigned:
                return state
            if ended:
                raise errors.CloudtrainError(
                    ended, hint=f"`cloudtrain down {away.config.name}` deletes it"
                )
            said = "" if state is None else state.text
            if state is not None and state.unsigned:
                said = f"ignored a report that is {state.unsigned}"
            stage.node(session.nodes[0].name, said)
            return None

        state = poll_until(look, PROOF, clock=clock)
        if state is None:
            raise errors.CloudtrainError(
                f"the controller is not done with `check` after {PROOF.within:.0f} s; it goes on",
                hint=f"`cloudtrain status {away.config.name}` shows what it does",
            )
        stage.done(session.nodes[0].name, state.phase)
    return state


def why_ended(session: Session, name: str) -> str:
    """Reason for which the desk's process has ended, "" if none is known. The desk's report is in
    the store by then."""
    try:
        if process_of(session, name) != "ended":
            return ""
        output = end_of_output(session, name) or "no output"
        return f"the controller's process has ended: {output}"
    except errors.NodeError as error:
        lost = lost_nodes(session, error)
        return f"{', '.join(lost)}: its cloud has it no more" if lost else ""


def clean_up(away: AwayPlan, records: Records, console: Console, error: BaseException) -> None:
    """Delete the desk after a failure. A second error is attached to the first. The cluster stays
    on record if the desk has created nodes by then."""
    if isinstance(error, errors.LeasedError):  # another machine's: nothing was created from here
        records.close()
        return
    name, desk = away.config.name, away.desk
    if not isinstance(error, errors.CloudtrainError):
        console.warn(f"interrupted: deleting {desk.config.name}")
    try:
        with holding_cluster(desk, "run --away", console):
            refuse_taken_name(away)
            destroy_cluster(desk, discard=True, console=console)
        nodes = nodes_left(away.config)
    except errors.CloudtrainError as second:
        raise errors.NodesError({"run --away": error, "down": second}) from error
    if nodes:
        console.warn(
            f"{nodes} may have been created by the controller: `cloudtrain down {name} --discard` "
            "deletes what is left"
        )
        return
    records.close()
