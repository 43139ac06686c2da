"""`cloudtrain check`: what would stop `up` or `train`; changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain

from cloudtrain import catalog
from cloudtrain.catalog import reported
from cloudtrain.checks.findings import (
    CheckedData,
    access_findings,
    checked_data,
    egress_finding,
    found_ahead,
    refusal,
    spot_finding,
)
from cloudtrain.checks.node_notes import without_end
from cloudtrain.checks.offline_checks import launched, notes, too_long
from cloudtrain.checks.path_notes import unusable
from cloudtrain.checks.price import price
from cloudtrain.checks.script_code import missing_script
from cloudtrain.checks.trial_machine import try_machine
from cloudtrain.cluster.drift import lifetime_note, on_record, recorded_drift, refuse_drift
from cloudtrain.cluster.place_choice import each_candidate
from cloudtrain.cluster.plan import CHOOSES, OTHER_GPUS, plan_errors, plan_notes, without_code
from cloudtrain.cluster.session import Handle, open_provider
from cloudtrain.core import errors
from cloudtrain.core.cloud import is_cloud
from cloudtrain.core.errors import exit_code, if_told, of_kind
from cloudtrain.core.model import ClusterConfig, Plan
from cloudtrain.core.parallel import ask_all
from cloudtrain.core.protocols import Console, Finding, RentsMachines, WritesPolicies
from cloudtrain.core.retry import CLOCK


def check(
    plan: Plan, *, deep: Console | None = None, ignore: Collection[str] = ()
) -> tuple[Finding, ...]:
    """Every finding, good ones included; those on a candidate's place for each of them, which are
    asked side by side. `deep`: the stage that shows a test on the account; None for none. `ignore`:
    findings that stop nothing."""
    handle = Handle(plan.config, plan)
    offline = (*script(plan.config), *buckets(plan.config), *noted(plan.config))
    read = each_candidate(plan.config)
    if len(read) == 1:
        found = findings(handle, deep=deep, ignore=ignore)
        existing = (*drift_finding(handle.plan), *end_findings(handle))
        return (*found, *spot_finding(handle, found), *offline, *existing)
    for config in read:  # in this thread, where an MFA code may be asked for
        with suppress(errors.CloudtrainError):
            open_provider(config)
    data = checked_data(handle.plan, priced=False)

    def of_place(config: ClusterConfig) -> tuple[Finding, ...]:
        handle = Handle(config)
        try:
            found = findings_of_place(handle, deep=deep, ignore=ignore)
            found = (*found, *spot_finding(handle, found))
        except errors.CloudtrainError as error:
            found = (Finding.of("provider", error),)
        place = f"{config.provider} {', '.join(config.placement)}"
        found = (*found, *(egress_finding(config, data.traffic) if found else ()))
        return tuple(replace(each, place=place) for each in found)

    places = ask_all(read, of_place, name=lambda config: config.provider)
    of_all = findings_of_all(handle, ignore=ignore, data=data)
    return (*of_all, *offline, *chain.from_iterable(places))


def noted(config: ClusterConfig) -> tuple[Finding, ...]:
    """Notes on configs that work, but hardly as intended; not what is a finding of its own."""
    refused = (missing_script(config), *unusable(config))
    found = (note for note in notes(config, "check") if note not in refused)
    return tuple(Finding(what="note", ok=True, text=note) for note in found)


def least_policy(config: ClusterConfig) -> str:
    """The policy or role to paste for this file. Raises UsageError if there is none."""
    provider = open_provider(config)
    found = provider.policy(config) if isinstance(provider, WritesPolicies) else ""
    if not found:
        raise errors.UsageError(
            f"no policy can be written for provider {config.provider}",
            hint=f"docs/{config.provider}.md has the rights that it needs",
        )
    return found


def drift_finding(plan: Plan) -> tuple[Finding, ...]:
    """Finding on what `up` would refuse of a changed file, by the record here; none if no node is
    on record."""
    if not on_record(plan):
        return ()
    try:
        refuse_drift(recorded_drift(plan), plan.config)
    except errors.UsageError as error:
        return (Finding.of("cluster", error),)
    text = "; ".join(lifetime_note(plan)) or "its nodes match the file"
    return (Finding(what="cluster", ok=True, text=text),)


def end_findings(handle: Handle) -> tuple[Finding, ...]:
    """Finding on the ends of existing nodes, by the cloud; none if no node is on record, or if the
    cloud does not answer, which other findings say."""
    provider = handle.provider if on_record(handle.plan) else None
    if not isinstance(provider, RentsMachines):
        return ()
    nodes = if_told(lambda: tuple(provider.nodes_and_ends(handle.config.name)), ())
    lacking = without_end(nodes, CLOCK.now())
    if lacking:
        text = "; ".join(f"{node.name}: NO END: {node.no_end}" for node in lacking)
        hint = "`cloudtrain up` gives them one where the cloud can, `cloudtrain down` deletes them"
        return refusal("end", [text], hint, errors.LeftoverError)
    if not any(node.expires and node.state == "running" for node in nodes):
        return ()
    return (Finding(what="end", ok=True, text="the cloud will end its running nodes"),)


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
    return (*found_ahead(config), *command(plan), store(handle), *ignored(data.findings, ignore))


PLANNED_AGAIN = 3
"""How often at most: each time, a machine chosen by accelerator may turn out to lack it."""


def fitting_findings(
    handle: Handle, refused: tuple[Finding, ...], ignore: Collection[str]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...] | None]:
    """Findings on the plan's machines, and those of them that came from the cloud; None if it was
    not asked, as the plan itself is refused."""
    plan = handle.plan
    fitting = ignored(
        (*(refused or machines(plan)), *refusal("gpus", without_code(plan), OTHER_GPUS)), ignore
    )
    if not all(finding.ok for finding in fitting):
        return fitting, None
    queried = ignored(handle.provider.check(plan), ignore)
    access = ignored(access_findings(plan.config), ignore)
    return (*fitting, *access, *ignored(price(plan), ignore), *queried), queried


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


def refuse_ahead(config: ClusterConfig) -> None:
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


def refuse_missing_script(config: ClusterConfig) -> None:
    """Refuse a run that could only fail; `up` alone warns, as the code may come later."""
    missing = missing_script(config)
    if missing is not None:
        raise errors.PreflightError(missing, hint="see `train.command`, `train.dir` and `code:`")


def machines(plan: Plan) -> tuple[Finding, ...]:
    """Finding on machine types, before any cloud is queried; none if no machine is rented."""
    if not is_cloud(plan.config.provider):
        return ()
    chosen = dict.fromkeys(f"{node.machine}" for node in plan.nodes)
    text = "; ".join(plan_notes(plan)) or ", ".join(chosen)
    wrong = refusal("machines", plan_errors(plan), CHOOSES)
    return wrong or (Finding(what="machines", ok=True, text=text),)


def command(plan: Plan) -> tuple[Finding, ...]:
    """Return a finding if the command cannot be started, otherwise none."""
    return refusal("command", [str(each) for each in too_long(plan.config, launched(plan))])


def script(config: ClusterConfig) -> tuple[Finding, ...]:
    """Finding if the file that the command names is not delivered."""
    missing = missing_script(config)
    return refusal("script", [missing] if missing else [], kind=errors.PreflightError)


def buckets(config: ClusterConfig) -> tuple[Finding, ...]:
    """Finding on URIs that no program on the nodes can open."""
    return refusal("buckets", unusable(config))


def store(handle: Handle) -> Finding:
    """Finding on the store, tested by writing, reading and deleting a file."""
    config = handle.config
    if config.artifacts.store is None:
        return Finding(what="store", ok=True, text="artifacts are downloaded to this machine")
    try:
        handle.store.check()
    except errors.CloudtrainError as error:
        if isinstance(error, errors.NoBucketError) and config.artifacts.create:
            text = f"{config.artifacts.store}: does not exist yet: `up` creates it"
            return Finding(what="store", ok=True, text=text)
        return Finding.of("store", error)
    return Finding(what="store", ok=True, text=config.artifacts.store)
