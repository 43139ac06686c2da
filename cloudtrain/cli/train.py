"""`cloudtrain train`"""

from __future__ import annotations

import click

from cloudtrain.cli import options
from cloudtrain.cli.printing import print_json, shown
from cloudtrain.cli.target import target_of


@options.command(
    "train", "cloudtrain train mnist -- --epochs 3 --learning-rate 0.01", passes_on=True
)
@options.name(known="up")
@click.option("--detach", is_flag=True, help="Return once the run has started.")
@options.resume
@options.adopt
@options.full_log
@options.events
@options.as_json
@options.record
def train_command(
    name: str | None, detach: bool, resume: str | None, adopt: bool, full_log: bool, as_json: bool
) -> int:
    """Launch one run on the cluster that is up, and follow it to its end. Ctrl-C detaches: the
    run continues, `cloudtrain logs -f` follows it again. Words after `--` are added to
    `train.command` as written."""
    target, config = target_of(name)
    from cloudtrain.cli.live_view import run_panel
    from cloudtrain.commands.train import train
    from cloudtrain.core.run_record import published, run_to_json

    arguments = options.passed_on()
    panel = list if detach else run_panel(target)
    with shown(as_json=as_json, full_log=full_log) as screen, screen.below(panel):
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
            screen.say(f"run {run.id} {run.state}; artifacts: {run.store or 'none'}")
    if as_json:
        print_json(run_to_json(published(run)))
    return run.exit_code or 0
