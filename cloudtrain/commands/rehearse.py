"""`cloudtrain rehearse`: the same job on local nodes, undisturbed and with faults."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from cloudtrain.cluster.plan import make_plan, tasks
from cloudtrain.cluster.session import Handle
from cloudtrain.commands.down import destroy_cluster
from cloudtrain.commands.run import run
from cloudtrain.core import moments
from cloudtrain.core.errors import UsageError
from cloudtrain.core.metrics import last_loss
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.protocols import Console
from cloudtrain.core.run_record import Run
from cloudtrain.rehearsal import faults
from cloudtrain.rehearsal.fault_trial import Trial, local_config, name_of_rehearsal, not_rehearsed
from cloudtrain.rehearsal.faults import CLIENT, CLIENT_FAULTS
from cloudtrain.rehearsal.report import Fault, Rehearsal
from cloudtrain.state import Records, home

ALL = ("all",)
EARLIEST, LATEST = 0.2, 0.8
"""Share of the undisturbed training within which a random fault comes."""


def rehearse(
    config: ClusterConfig,
    *,
    kinds: Sequence[str] = (),
    roles: Sequence[str] = (),
    share: float | None = None,
    times: int = 1,
    seed: int | None = None,
    store: str | None = None,
    setup_run: bool = False,
    arguments: Sequence[str] = (),
    console: Console,
) -> Rehearsal:
    """Run the job on local nodes: undisturbed, then once for each fault (`times` each).

    Nothing is left afterwards but the artifacts in `store`. `roles`: whose tasks are hit (roles or
    tasks; default: any but an evaluator). `share`: when, as a share of the undisturbed training
    (default: random). Raises RunFailed if the undisturbed run fails, UsageError, and what `run`
    raises."""
    seed = random.SystemRandom().randrange(1 << 16) if seed is None else seed
    store = store or folder_of_rehearsals(config)
    local = local_config(config, store, setup_run=setup_run)
    due = chosen(local, kinds, roles, share, times, random.Random(seed))
    left_out = tuple(not_rehearsed(config, setup_run=setup_run))
    for text in left_out:
        console.say(f"not rehearsed: {text}")

    def run_job(shown: Console) -> Run:
        return run(make_plan(local), arguments=arguments, console=shown)

    down = partial(down_if_up, local, console)
    down(True)
    console.say("undisturbed run")
    reference = Trial(local, console, run_job, down)
    report = undisturbed(reference, seed, store, left_out)
    for number, fault in enumerate(due, 1):
        console.say(f"fault {number} of {len(due)}: {fault.kind} {fault.task}")
        trial = Trial(
            *(local, console, run_job, down, fault),
            *(reference.training, reference.unit, reference.span),
            *(reference.landed, reference.doubts),
        )
        report = replace(report, outcomes=(*report.outcomes, trial.outcome()))
    return report


def undisturbed(reference: Trial, seed: int, store: str, left_out: tuple[str, ...]) -> Rehearsal:
    """The report, after a run without a fault, with which the others are compared."""
    whole = reference.run()
    return Rehearsal(
        name=whole.cluster,
        seed=seed,
        store=store,
        not_rehearsed=left_out,
        seconds=round((whole.ended or moments.now()) - whole.created, 1),
        loss=last_loss(reference.lines),
        doubts=reference.doubts,
    )


def down_if_up(local: ClusterConfig, console: Console, discard: bool) -> None:
    if Records(local.name).is_open():
        destroy_cluster(Handle(local), discard=discard, console=console)


def folder_of_rehearsals(config: ClusterConfig) -> str:
    folder = home() / "rehearsals" / name_of_rehearsal(config.name)
    folder.mkdir(parents=True, exist_ok=True)
    return folder.as_uri()


def chosen(
    config: ClusterConfig,
    kinds: Sequence[str],
    roles: Sequence[str],
    share: float | None,
    times: int,
    dice: random.Random,
) -> list[Fault]:
    """Every fault with its task and moment. Raises UsageError."""
    for kind in kinds:
        if kind not in faults.FAULTS and tuple(kinds) != ALL:
            known = ", ".join(faults.FAULTS)
            raise UsageError(f"{kind!r} is not a fault", hint=f"use some of {known}, or `all`")
    every = tasks(make_plan(config), ())
    if tuple(kinds) == ALL:
        left_out = faults.NAMED | (faults.ALONE if len(every) == 1 else frozenset())
        kinds = [kind for kind in faults.FAULTS if kind not in left_out]
    names = [
        task.name
        for task in every
        if ({task.role, task.name} & set(roles) if roles else task.role != "evaluator")
    ]
    if not names:
        raise UsageError(
            f"{config.name} has no task of {', '.join(roles)}", hint="name a role or a task of it"
        )
    return [
        Fault(
            kind=kind,
            task=CLIENT if kind in CLIENT_FAULTS else dice.choice(names),
            share=dice.uniform(EARLIEST, LATEST) if share is None else share,
        )
        for kind in kinds
        for _ in range(times)
    ]
