"""`cloudtrain rehearse`"""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial

import click

from cloudtrain.cli import options
from cloudtrain.cli.printing import print_json, print_lines, shown
from cloudtrain.cli.process import go_on_in_child
from cloudtrain.cli.target import config_of, target_of


def _share(_context: click.Context, _parameter: click.Parameter, value: str) -> float | None:
    if value == "random":
        return None
    number = value.removesuffix("%")
    if value.endswith("%") and number.isdecimal() and 0 <= int(number) <= 100:
        return int(number) / 100
    raise click.BadParameter(f"{value!r} is neither `random` nor a percentage like 50%")


@options.command(
    "rehearse",
    "cloudtrain rehearse gcp.yaml",
    "cloudtrain rehearse gcp.yaml --faults kill,disk --seed 7",
    passes_on=True,
)
@options.file()
@options.option(
    "--faults FAULT,…",
    "One run for each: kill, freeze, cut, preempt, disk, away, clock, lid; or `all` of them "
    "but `lid`, which takes five minutes, as `away` does a job of one node.",
    default="",
)
@options.option("--times", "Runs of each fault.", type=click.IntRange(1, 100), default=1)
@options.role
@options.option(
    "--at PERCENT",
    "When, in per cent of the undisturbed training: 50% (default: random).",
    name="share",
    default="random",
    callback=_share,
)
@options.option("--seed", "Repeats the random choices of another rehearsal.", type=int)
@options.option("--store URI", "Where the artifacts land (default: a local folder).")
@options.option("--setup-run", "Also run the lines of `setup.run` here.")
@options.events
@options.shows("progress")
@options.as_json
def rehearse_command(
    file: str,
    faults: str,
    times: int,
    roles: tuple[str, ...],
    share: float | None,
    seed: int | None,
    store: str | None,
    setup_run: bool,
    as_json: bool,
) -> int:
    """Run FILE's job on local nodes, whatever its provider: no account, no bill. With --faults,
    then once for each fault, which breaks a node under your own script while it trains, stops this
    process, or sets its clock; the table says whether it came through, what it repeated, and what
    to change. Exit code 1 if it did not. Words after `--` are added to `train.command`."""
    from cloudtrain.rehearsal.fault_trial import local_config

    # Only what is rehearsed needs trust; the store is a folder of this program's own.
    rehearsed = partial(local_config, store="file:///store", setup_run=False)
    config = config_of(file, partial(target_of, used=rehearsed))
    from cloudtrain.commands.rehearse import rehearse
    from cloudtrain.rehearsal.report import table

    named = tuple(name.strip() for name in faults.split(",") if name.strip())
    if "lid" in named and sys.platform == "linux":  # as local nodes are
        go_on_in_child()
    with shown() as screen:
        report = rehearse(
            config,
            kinds=named,
            roles=roles,
            share=share,
            times=times,
            seed=seed,
            store=store,
            setup_run=setup_run,
            arguments=options.passed_on(),
            console=screen,
        )
    if as_json:
        print_json(asdict(report))
    else:
        print_lines(table(report))
    return 0 if report.came_through else 1
