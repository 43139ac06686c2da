"""`cloudtrain run`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cloudtrain.cli import options
from cloudtrain.cli.printing import print_json, shown
from cloudtrain.cli.target import plan_of

if TYPE_CHECKING:
    from cloudtrain.core.model import Plan


@options.command("run", "cloudtrain run local.yaml")
@options.file()
@click.option("--keep-on-failure", is_flag=True, help="Keep the nodes of a run that failed.")
@click.option(
    "--away",
    is_flag=True,
    help="Run it from a small machine in the cloud that deletes itself last.",
)
@options.resume
@options.wait
@options.adopt
@options.yes
@options.ignore
@options.full_log
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
    full_log: bool,
) -> int:
    """Create the cluster, train, land the artifacts and destroy the cluster, even after a failure
    or Ctrl-C. Nodes are kept if their artifacts could not be landed (exit code 5). Never asks for
    confirmation. With --away, returns once a machine in the cloud does all that instead."""
    plan = plan_of(file)
    if away:
        return run_from_desk(plan, keep_on_failure, adopt, ignore, resume, wait, as_json)
    from cloudtrain.cli.live_view import run_panel
    from cloudtrain.commands.run import run as run_all
    from cloudtrain.core.run_record import published, run_to_json

    panel = run_panel(plan.config.name)
    with shown(as_json=as_json, full_log=full_log) as screen, screen.below(panel):
        run = run_all(
            plan,
            keep_on_failure=keep_on_failure,
            adopt=adopt,
            ignore=ignore,
            resume=resume,
            wait=wait,
            console=screen,
        )
        screen.say(f"run {run.id} {run.state}; artifacts: {run.store or 'none'}")
    if as_json:
        print_json(run_to_json(published(run)))
    return run.exit_code or 0


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
    with shown(as_json=as_json) as screen:
        state = run_away(plan, adopt=adopt, ignore=ignore, resume=resume, wait=wait, console=screen)
        screen.say(
            f"{name} is away: `cloudtrain status {name}` and `cloudtrain logs -f {name}` follow it,"
            f" `cloudtrain stop-run {name}` and `cloudtrain down {name}` end it, from here; this "
            "machine may be switched off"
        )
    if as_json:
        print_json(asdict(state))
    return 0
