"""`cloudtrain run`, `train` and `stop-run`: a run, from its start to its end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloudtrain.cli import options
from cloudtrain.cli.printing import print_json, shown
from cloudtrain.cli.target import (
    ClusterTarget,
    desk_target,
    name_of,
    plan_of,
    refuse_file_of_another_folder,
    target_of,
)

if TYPE_CHECKING:
    from cloudtrain.core.model import Plan
    from cloudtrain.core.protocols import Console
    from cloudtrain.core.run_record import Run


@options.command("run", "cloudtrain run local.yaml")
@options.file()
@options.option("--keep-on-failure", "Keep the nodes of a run that failed.")
@options.option("--away", "Run it from a small machine in the cloud that deletes itself last.")
@options.resume
@options.wait
@options.adopt
@options.yes
@options.ignore
@options.shows("log")
@options.events
@options.as_json
@options.record
def run_command(
    file: str,
    keep_on_failure: bool,
    away: bool,
    resume: str | None,
    wait: float | None,
    adopt: bool,
    yes: bool,
    as_json: bool,
    ignore: tuple[str, ...],
) -> int:
    """Create the cluster, train, land the artifacts and destroy the cluster, even after a failure
    or Ctrl-C. Nodes are kept if their artifacts could not be landed (exit code 5). Never asks for
    confirmation. With --away, returns once a machine in the cloud does all that instead."""
    plan = plan_of(file)
    if away:
        return run_from_desk(plan, keep_on_failure, adopt, ignore, resume, wait, as_json)
    from cloudtrain.cli.live_view import run_panel
    from cloudtrain.commands.run import run as run_all

    panel = run_panel(plan.config.name)
    with shown() as screen, screen.below(panel):
        run = run_all(
            plan,
            keep_on_failure=keep_on_failure,
            adopt=adopt,
            ignore=ignore,
            resume=resume,
            wait=wait,
            console=screen,
        )
        say_end(run, screen)
    print_run(run, as_json)
    return run.exit_code or 0


def say_end(run: Run, screen: Console) -> None:
    screen.say(f"run {run.id} {run.state}; artifacts: {run.store or 'none'}")


def print_run(run: Run, as_json: bool) -> None:
    from cloudtrain.core.run_record import published, run_to_json

    if as_json:
        print_json(run_to_json(published(run)))


def run_from_desk(
    plan: Plan,
    keep_on_failure: bool,
    adopt: bool,
    ignore: tuple[str, ...],
    resume: str | None,
    wait: float | None,
    as_json: bool,
) -> int:
    if keep_on_failure:
        raise click.UsageError(
            "--keep-on-failure and --away exclude each other: the controller has the nodes' keys, "
            "and deletes itself"
        )
    from dataclasses import asdict

    from cloudtrain.commands.run_away import run_away

    name = plan.config.name
    with shown() as screen:
        state = run_away(plan, adopt=adopt, ignore=ignore, resume=resume, wait=wait, console=screen)
        screen.say(
            f"{name} is away: `cloudtrain status {name}` and `cloudtrain logs -f {name}` follow it,"
            f" `cloudtrain stop-run {name}` and `cloudtrain down {name}` end it, from here; this "
            "machine may be switched off"
        )
    if as_json:
        print_json(asdict(state))
    return 0


@options.command("stop-run", "cloudtrain stop-run mnist")
@options.name(known="up")
@options.order_key
@options.events
@options.shows("progress")
@options.as_json
def stop_run_command(name: str | None, order_key: Path | None, as_json: bool) -> None:
    """End the run on every node and land its artifacts. The nodes stay up. A run that is away is
    ended by its controller, with its nodes."""
    cluster, config = desk_target(name) or ClusterTarget(name_of(name), None)
    refuse_file_of_another_folder(name)
    from cloudtrain.commands.stop_run import stop_run

    with shown() as screen:
        run = stop_run(cluster, config=config, order_key=order_key, console=screen)
        say_end(run, screen)
    print_run(run, as_json)


@options.command(
    "train", "cloudtrain train mnist -- --epochs 3 --learning-rate 0.01", passes_on=True
)
@options.name(known="up")
@options.option("--detach", "Return once the run has started.")
@options.resume
@options.adopt
@options.shows("log")
@options.events
@options.as_json
@options.record
def train_command(
    name: str | None, detach: bool, resume: str | None, adopt: bool, as_json: bool
) -> int:
    """Launch one run on the cluster that is up, and follow it to its end. Ctrl-C detaches: the
    run continues, `cloudtrain logs -f` follows it again. Words after `--` are added to
    `train.command` as written."""
    target, config = target_of(name)
    from cloudtrain.cli.live_view import run_panel
    from cloudtrain.commands.train import train

    arguments = options.passed_on()
    panel = list if detach else run_panel(target)
    with shown() as screen, screen.below(panel):
        run = train(
            target,
            config,
            arguments=arguments,
            detach=detach,
            adopt=adopt,
            resume=resume,
            console=screen,
        )
        if run.ended is not None:
            say_end(run, screen)
    print_run(run, as_json)
    return run.exit_code or 0
