"""`cloudtrain check`: all findings in order, what would stop `up` or `train`; changes nothing."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain

from cloudtrain import catalog
from cloudtrain.artifacts.landing import prove_upload
from cloudtrain.catalog import reported
from cloudtrain.catalog.gpus import is_older
from cloudtrain.catalog.offers import plain_machines
from cloudtrain.checks.findings import (
    CheckedData,
    access_findings,
    buckets,
    checked_data,
    command,
    drift_finding,
    egress_finding,
    end_findings,
    found_ahead,
    machines,
    refusal,
    spot_finding,
    store,
)
from cloudtrain.checks.images import image_findings
from cloudtrain.checks.node_notes import without_end
from cloudtrain.checks.notes import notes
from cloudtrain.checks.path_notes import unusable
from cloudtrain.checks.price import price
from cloudtrain.checks.script_code import missing_script
from cloudtrain.cluster.lifetime import confirm_own_ends, moment
from cloudtrain.cluster.place_choice import each_candidate
from cloudtrain.cluster.plan import OTHER_GPUS, plan_errors, without_code
from cloudtrain.cluster.provision import ensure_nodes
from cloudtrain.cluster.session import Handle, Session, open_provider, open_session, record_cluster
from cloudtrain.core import errors, model
from cloudtrain.core.cloud import cloud_of, is_cloud
from cloudtrain.core.errors import exit_code, if_told, of_kind
from cloudtrain.core.events import DownBegun, UpBegun, images, pending_nodes
from cloudtrain.core.finding_kinds import OF_MACHINE
from cloudtrain.core.parallel import ask_all
from cloudtrain.core.paths import work_folder
from cloudtrain.core.protocols import Console, Finding, RentsMachines, WritesPolicies
from cloudtrain.money.estimate import estimate
from cloudtrain.training.strategies import ONE_DEVICE


def check(
    plan: model.Plan, *, deep: Console | None = None, ignore: Collection[str] = ()
) -> tuple[Finding, ...]:
    """Every finding, good ones included; those on a candidate's place for each of them, which are
    asked side by side. `deep`: the stage that shows a test on the account; None for none. `ignore`:
    findings that stop nothing."""
    return ignored(_found(plan, deep, ignore), ignore)


def _found(plan: model.Plan, deep: Console | None, ignore: Collection[str]) -> tuple[Finding, ...]:
    handle = Handle(plan.config, plan)
    missing = missing_script(plan.config)
    offline = (
        *refusal("script", [missing] if missing else [], kind=errors.PreflightError),
        *buckets(plan.config),
        *noted(plan.config),
    )
    read = each_candidate(plan.config)
    if len(read) == 1:
        found = findings(handle, deep=deep, ignore=ignore)
        return (*found, *further_findings(handle, found), *offline)
    for config in read:  # in this thread, where an MFA code may be asked for
        with suppress(errors.CloudtrainError):
            open_provider(config)
    data = checked_data(handle.plan, priced=False)

    def of_place(config: model.ClusterConfig) -> tuple[Finding, ...]:
        handle = Handle(config)
        try:
            found = findings_of_place(handle, deep=deep, ignore=ignore)
            found = (*found, *further_findings(handle, found))
        except errors.CloudtrainError as error:
            found = (Finding.of("provider", error),)
        place = f"{config.provider} {', '.join(config.placement)}"
        found = (*found, *(egress_finding(config, data.traffic) if found else ()))
        return tuple(replace(each, place=place) for each in found)

    places = ask_all(read, of_place, name=lambda config: config.provider)
    of_all = findings_of_all(handle, ignore=ignore, data=data)
    return (*of_all, *offline, *chain.from_iterable(places))


def further_findings(handle: Handle, found: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings on one candidate's place that only `check` has, after those that `up` has too."""
    existing = (*drift_finding(handle.plan), *end_findings(handle))
    return (*spot_finding(handle, found), *existing)


def noted(config: model.ClusterConfig) -> tuple[Finding, ...]:
    """Notes on configs that work, but hardly as intended; not what is a finding of its own."""
    refused = (missing_script(config), *unusable(config))
    found = (note for note in notes(config, "check") if note not in refused)
    return tuple(Finding(what="note", ok=True, text=note) for note in found)


def least_policy(config: model.ClusterConfig) -> str:
    """The policy or role to paste for this file. Raises UsageError if there is none."""
    provider = open_provider(config)
    found = provider.policy(config) if isinstance(provider, WritesPolicies) else ""
    if not found:
        raise errors.UsageError(
            f"no policy can be written for provider {config.provider}",
            hint=f"docs/{config.provider}.md has the rights that it needs",
        )
    return found


def findings(
    handle: Handle, *, deep: Console | None = None, ignore: Collection[str] = ()
) -> tuple[Finding, ...]:
    """Everything that does not depend on what exists already."""
    of_place = findings_of_place(handle, deep=deep, ignore=ignore)
    return (*of_place, *findings_of_all(handle, ignore=ignore))


def findings_of_place(
    handle: Handle, *, deep: Console | None, ignore: Collection[str]
) -> tuple[Finding, ...]:
    """Findings on the provider, its machines and their price. If the cloud describes a machine
    otherwise than the plan has it, the cluster is planned and checked again."""
    refused, news = learn_machines(handle)
    fitting, asked = fitting_findings(handle, refused, ignore)
    for _ in range(PLANNED_AGAIN):
        told, changed = compare_machines(handle, asked)
        news = (*news, *told)
        if not changed:
            break
        fitting, asked = fitting_findings(handle, (), ignore)
    if deep is not None and asked is not None:
        fitting = (*fitting, *deep_check(handle, fitting, deep, ignore))
    return (*(Finding(what="machine facts", ok=True, text=text) for text in news), *fitting)


def findings_of_all(
    handle: Handle, *, ignore: Collection[str], data: CheckedData | None = None
) -> tuple[Finding, ...]:
    """Findings that are the same wherever the cluster is. `data`: if that is checked already."""
    config, plan = handle.config, handle.plan
    data = data or checked_data(plan)
    found = (
        *found_ahead(config),
        *command(plan),
        store(handle),
        *image_findings(plan),
        *data.findings,
    )
    return ignored(found, ignore)


PLANNED_AGAIN = 3
"""How often at most: each time, a machine chosen by accelerator may turn out to lack it."""


def fitting_findings(
    handle: Handle, refused: tuple[Finding, ...], ignore: Collection[str]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...] | None]:
    """Findings on the plan's machines, and those of them that came from the cloud; None if it was
    not asked, as the plan itself is refused."""
    plan = handle.plan
    fitting = (*(refused or machines(plan)), *refusal("gpus", without_code(plan), OTHER_GPUS))
    if not all(finding.ok for finding in ignored(fitting, ignore)):
        return ignored(fitting, ignore), None
    queried = handle.provider.check(plan)
    found = (*fitting, *access_findings(plan.config), *price(plan), *queried)
    return ignored(found, ignore), queried


def learn_machines(handle: Handle) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Query the cloud for machine types that the price tables lack, or because of which they refuse
    the plan, and keep its answer. A finding only if the query was refused and so the plan is; and
    what was known otherwise."""
    config = handle.config
    names = dict.fromkeys(group.machine for group in config.nodes.values() if group.machine)
    refused = bool(plan_errors(handle.plan))
    wanted = [
        name
        for name in names
        if catalog.is_unknown_machine(config.provider, name)
        or (refused and catalog.machine_type(config.provider, name) is not None)
    ]
    provider = handle.provider if wanted else None
    if not isinstance(provider, RentsMachines):
        return (), ()
    try:
        facts = provider.machine_facts(handle.plan, wanted)
    except errors.CloudError as error:
        if not plan_errors(handle.plan):
            return (), ()
        return (Finding.of("machines", error),), ()
    news = reported.learn(config.provider, facts)
    handle.plan_again()
    return (), news


def compare_machines(
    handle: Handle, queried: tuple[Finding, ...] | None
) -> tuple[tuple[str, ...], bool]:
    """Return what the cloud says otherwise of the plan's machines, and whether the plan changes.
    The check before has asked for these machine types, so no further query is sent."""
    provider, plan = handle.provider if queried else None, handle.plan
    names = list(dict.fromkeys(node.machine for node in plan.nodes if node.machine))
    reached = any(finding.what == "machines" for finding in queried or ())
    if not reached or not isinstance(provider, RentsMachines):
        return (), False
    # Else the check itself has said so.
    facts = if_told(lambda: provider.machine_facts(plan, names), ())
    news = reported.learn(plan.config.provider, facts)
    if not news:
        return (), False
    handle.plan_again()
    return news, handle.plan.nodes != plan.nodes


def ignored(findings: Sequence[Finding], ignore: Collection[str]) -> tuple[Finding, ...]:
    return tuple(
        replace(found, ok=True, told=False, text=f"ignored: {found.text}")
        if not found.ok and found.what in ignore
        else found
        for found in findings
    )


def deep_check(
    handle: Handle, found: tuple[Finding, ...], console: Console, ignore: Collection[str]
) -> tuple[Finding, ...]:
    """Deep check. Skipped while other findings would stop it. A cloud that can validate requests
    without executing them does so with all of them; then one small machine is created and deleted
    on every cloud."""
    wrong = [finding.what for finding in found if not finding.ok]
    if wrong:
        text = f"skipped: fix {', '.join(dict.fromkeys(wrong))} first"
        return (Finding(what="rehearsal", ok=True, text=text, told=False),)
    rehearsed = handle.provider.dry_run(handle.plan)
    if not is_cloud(handle.config.provider) or not all(finding.ok for finding in rehearsed):
        return rehearsed
    return (*rehearsed, *try_machine(handle.plan, console, ignore))


def refuse(handle: Handle, console: Console, ignore: Collection[str] = ()) -> None:
    """Raise one error with the text of all bad findings, and the exit code of the worst."""
    found = findings(handle, ignore=ignore)
    for finding in found:
        if finding.what == "machine facts":
            console.warn(finding.text)
    raise_bad(found)


def refuse_ahead(config: model.ClusterConfig) -> None:
    """Raise what this machine finds out by itself, as `refuse` does."""
    raise_bad(found_ahead(config))


def raise_bad(found: Sequence[Finding]) -> None:
    """Raise one error with the text of all bad findings; none without any."""
    bad = [finding for finding in found if not finding.ok]
    if not bad:
        return
    text = "\n".join(f"{finding.what}: {finding.text}" for finding in bad)
    hint = next((finding.hint for finding in bad if finding.hint), None)
    if {finding.what for finding in bad} == {"quota"}:
        way = "pass `--ignore quota` to continue anyway"
        hint = f"{hint}; {way}" if hint else way
    worst = max((finding.error or errors.UsageError for finding in bad), key=exit_code)
    raise of_kind(worst, text, hint)


def refuse_missing_script(config: model.ClusterConfig) -> None:
    """Refuse a run that could only fail; `up` alone warns, as the code may come later."""
    missing = missing_script(config)
    if missing is not None:
        raise errors.PreflightError(missing, hint="see `train.command`, `train.dir` and `code:`")


# ── `--deep`: one machine for about a minute, created as the file's nodes are ──────


LIFETIME = 900.0
"""Seconds after which the cloud ends the machine if this program does not; a cloud that cannot set
such a near end (Azure) does so ENDS_LATER seconds after the nearest."""
ENDS_LATER = 600.0
TRIES = 8
"""Machine types that are checked at most until the account may have one."""

Tell = Callable[[Finding], None]


def try_machine(
    plan: model.Plan, console: Console, ignore: Collection[str] = ()
) -> tuple[Finding, ...]:
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
        except errors.CloudtrainError as error:
            return (*found, Finding.of("trial", error))
    took = time.monotonic() - begun
    text = f"{machine} created, logged in to and deleted in {took:.0f} s, {cost(handle, took)}"
    return (*found, Finding(what="trial", ok=True, text=text))


def accepted(plan: model.Plan, ignore: Collection[str]) -> tuple[Handle, tuple[Finding, ...]]:
    """The cheapest machine that passes `check` in this account, such as those that AWS' Free plan
    may launch; with the findings on the very cheapest if none does."""
    config, cloud = plan.config, cloud_of(plan.config.provider)
    assert cloud is not None, "only called for clouds"
    bought = model.SPOT if all(node.spot for node in plan.nodes) else model.ON_DEMAND
    cheapest = plain_machines(cloud.name, market=bought.market, places=config.placement)
    # With GPUs, `auto` is another image where the cloud has it, and a policy may allow those of
    # some projects only.
    kinds = [node.accelerator.kind for node in plan.nodes if node.accelerator]
    is_plain = config.image != "auto" or all(is_older(kind, "Turing") for kind in kinds)
    first = None
    for image in (config.image,) if is_plain else ("deeplearning", "auto"):
        for machine in dict.fromkeys((*cheapest[: TRIES - 1], cloud.default_machine)):
            group = model.NodeGroup(machine=machine, provisioning=bought)
            handle = Handle(trial_config(replace(config, image=image), group))
            wrong = bad(price(handle.plan), ignore)
            wrong = wrong or bad(handle.provider.check(handle.plan), ignore)
            said = f"{machine} was not created"
            refused = (
                replace(each, what="trial", text=f"{said}: {each.what}: {each.text}", lines=())
                for each in wrong
            )
            first = first or (handle, tuple(refused))
            if not wrong:
                return handle, ()
            if not {finding.what for finding in wrong} <= OF_MACHINE:
                break
    assert first is not None, "each cloud has a default machine"
    return first


def bad(findings: Collection[Finding], ignore: Collection[str]) -> list[Finding]:
    return [finding for finding in findings if not finding.ok and finding.what not in ignore]


def trial_config(config: model.ClusterConfig, group: model.NodeGroup) -> model.ClusterConfig:
    """Config of one such machine, with nothing to install."""
    artifacts = model.ArtifactRules(
        store=config.artifacts.store, encryption=config.artifacts.encryption
    )
    cloud = cloud_of(config.provider)
    soonest = cloud.soonest_end if cloud else 0.0
    return replace(
        config,
        name=f"{config.name[:19].rstrip('-')}-trial-{secrets.token_hex(2)}",
        strategy=ONE_DEVICE.name,
        nodes={"chief": group},
        setup=model.Setup(),
        code=model.Code(),
        train=model.Train(),
        artifacts=artifacts,
        data={},
        limits=model.Limits(
            max_lifetime=max(LIFETIME, soonest + ENDS_LATER), max_price=config.limits.max_price
        ),
        away=model.Away(),
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
        except errors.CloudtrainError as second:
            if isinstance(failure, errors.CloudtrainError):
                raise errors.NodesError({"up": failure, "down": second}) from failure
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
        except errors.CloudtrainError as error:
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
        return Finding.of("trial end", errors.LeftoverError(text))
    text = f"armed and confirmed: ends at {moment(nodes[0].expires)} if nobody deletes it"
    return Finding(what="trial end", ok=True, text=text)


def upload_of(session: Session) -> Finding:
    (node,), store, config = session.nodes, session.store, session.config
    folder = work_folder(config.name, "trial", "chief0")
    try:
        text = prove_upload(node, folder, store, f"{config.name}/proof", session.transport)
    except errors.NoBucketError as error:  # of `artifacts.create`; any other is a finding by itself
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
