"""`cloudtrain down`: lands the artifacts, destroys everything, asks what is left, says what it saw."""

from __future__ import annotations

from cloudtrain.attend import attend
from cloudtrain.background import DOING
from cloudtrain.errors import CloudtrainError, LockedError, NotLanded, RunFailed
from cloudtrain.landing import land, runs_on, unlanded
from cloudtrain.model import ClusterConfig, Node, Run, Task
from cloudtrain.nodes import revive
from cloudtrain.protocols import Console
from cloudtrain.records import Records
from cloudtrain.session import Session, open_provider, open_session, recorded_config
from cloudtrain.verbs.stop_run import stop_run


def down(name: str, config: ClusterConfig | None, *, discard: bool, console: Console) -> None:
    """Nothing of the cluster is left, and nothing that was only on its nodes is lost.

    Raises NotLanded (exit 5, nodes kept) unless `discard`, LeftoverError (exit 6), LockedError.
    """
    records = Records(name)
    config = config or recorded_config(records)
    take_over(records, console)
    with records.lock("down"):
        bring_down(config, records, discard=discard, console=console)


def take_over(records: Records, console: Console) -> None:
    """A background process that attends to a run lands and leaves; a person's command is not
    disturbed, and named by the lock's error."""
    holder = records.holder()
    if holder is not None and holder.doing == DOING and records.active_run() is not None:
        stop_run(records.name, console=console)


def bring_down(
    config: ClusterConfig, records: Records, *, discard: bool, console: Console
) -> None:
    """`down` for who holds the lock already."""
    provider = open_provider(config)
    nodes = provider.nodes(config.name)
    if nodes and not discard:
        with open_session(config, records, console) as session:
            land_everything(session)
    records.journal("down", nodes=[node.name for node in nodes])
    with console.stage(f"destroy on {provider.name}", len(nodes)) as stage:
        provider.destroy(config.name, records.journal)
        for node in nodes:
            stage.done(node.name, "gone")
    left = provider.nodes(config.name)
    assert not left, "a provider's destroy raises LeftoverError for what is left"
    records.close()
    console.say(f"{config.name}: {provider.name} lists nothing of it any more")
