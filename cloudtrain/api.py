"""The commands as functions, exported by `import cloudtrain`: docs/python-api.md."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloudtrain.artifacts.manifest import Manifest
    from cloudtrain.commands.plan import PlanReport
    from cloudtrain.commands.status import StatusReport
    from cloudtrain.core.model import Cluster, ClusterConfig
    from cloudtrain.core.protocols import Console, Finding
    from cloudtrain.core.run_record import Run


def load(
    path: str | os.PathLike[str],
    *,
    environ: Mapping[str, str] | None = None,
    set: Sequence[str] = (),
    env_file: str | os.PathLike[str] | None = None,
    trust: bool = False,
) -> ClusterConfig:
    """Read and validate a config file. `environ` fills its `${VAR}` (default: `os.environ`).

    `set` has FIELD=VALUE texts that count as part of the file, such as `nodes.worker.count=4`.
    `env_file` is a dotenv file whose variables win over those of `environ`, and give the secrets.
    Of several candidates (`any_of`), the config is as the one reads it that `plan` shows first.
    `trust` allows the file what `cloudtrain trust` lists, such as sending credentials to a host
    that is none of the clouds' own. Raises ConfigError with every problem of the file, UsageError
    if it cannot be read, and, as UntrustedError, for such a file that nobody has trusted."""
    from cloudtrain import config
    from cloudtrain.cluster.place_choice import settle
    from cloudtrain.trust.consent import refuse_untrusted

    read = config.load(
        Path(path),
        os.environ if environ is None else environ,
        overrides=tuple(set),
        env_file=Path(env_file) if env_file is not None else None,
        defaults=config.defaults_path(),
    )
    if not trust:
        refuse_untrusted(read)
    return settle(read)


def plan(config: ClusterConfig, *, ignore: Collection[str] = ()) -> PlanReport:
    """Plan every node, TF_CONFIG and command, and what they cost. Offline.

    Raises UsageError for machines that no cloud offers, ConfigError for invalid versions, places
    and commands. `ignore`: findings of `check` to ignore."""
    from cloudtrain.cluster.plan import make_plan
    from cloudtrain.commands.plan import plan_report

    return plan_report(make_plan(config), ignore=ignore)


def check(
    config: ClusterConfig,
    *,
    deep: bool = False,
    ignore: Collection[str] = (),
    console: Console | None = None,
) -> tuple[Finding, ...]:
    """Query the cloud and the store for what would stop `up` or `train`. Returns all findings.

    `deep` also tests `up` on the account, for a cent at most."""
    from cloudtrain.checks.check import check
    from cloudtrain.cluster.plan import make_plan

    with _shown(console) as shown:
        return check(make_plan(config), deep=shown if deep else None, ignore=ignore)


def up(
    config: ClusterConfig,
    *,
    shrink: bool = False,
    replace: bool = False,
    give_back: bool = False,
    wait: float | None = None,
    adopt: bool = False,
    ignore: Collection[str] = (),
    console: Console | None = None,
) -> Cluster:
    """Create the cluster and set it up, or repair an existing one. Asks for no confirmation.

    Blocks until every node is ready, some minutes. `shrink` deletes nodes that the config no longer
    has, `replace` recreates those that differ, `give_back` deletes what this call created if it
    fails, `wait` is how many seconds to try again while there is no capacity or quota. Raises
    UsageError, CapacityError, QuotaError, PermissionsError, StepFailed, LockedError and other
    CloudtrainErrors."""
    from cloudtrain.cluster.plan import make_plan
    from cloudtrain.commands.up import up
    from cloudtrain.runs.landing_steps import AllowedChanges

    with _shown(console) as shown:
        return up(
            make_plan(config),
            allowed=AllowedChanges(shrink=shrink, replace=replace),
            adopt=adopt,
            ignore=ignore,
            give_back=give_back,
            wait=wait,
            console=shown,
        )


def train(
    cluster: ClusterConfig | str,
    *,
    arguments: Sequence[str] = (),
    detach: bool = False,
    adopt: bool = False,
    resume: str | None = None,
    console: Console | None = None,
) -> Run:
    """Start one run on a cluster that is up, follow it to its end and land its artifacts.

    `resume`: a run whose last landed checkpoint it begins with: its id, `last`, or the URI of its
    store. `arguments` are added to `train.command`. Blocks for the whole run, with `detach` until
    it has started. On KeyboardInterrupt the run continues, supervised by a background process.
    Raises RunFailed for a failed run, PreflightError, NotLanded, UsageError, LockedError."""
    from cloudtrain.commands.train import train

    name, config = _target(cluster)
    with _shown(console) as shown:
        return train(
            name,
            config,
            arguments=arguments,
            detach=detach,
            adopt=adopt,
            resume=resume,
            console=shown,
        )


def run(
    config: ClusterConfig,
    *,
    keep_on_failure: bool = False,
    adopt: bool = False,
    ignore: Collection[str] = (),
    resume: str | None = None,
    wait: float | None = None,
    console: Console | None = None,
) -> Run:
    """Create the cluster, train, land the artifacts and destroy the cluster, even after a failure.

    `resume` as for `train`, `wait` as for `up`. Asks for no confirmation. Blocks to the end;
    KeyboardInterrupt ends the run and takes the cluster down first. Raises what `up`, `train` and
    `down` raise, NodesError if both the run and `down` failed."""
    from cloudtrain.cluster.plan import make_plan
    from cloudtrain.commands.run import run

    with _shown(console) as shown:
        return run(
            make_plan(config),
            keep_on_failure=keep_on_failure,
            adopt=adopt,
            ignore=ignore,
            resume=resume,
            wait=wait,
            console=shown,
        )


def status(
    cluster: ClusterConfig | str | None = None, *, store: str | None = None, offline: bool = False
) -> StatusReport:
    """Report clusters, their nodes as their provider lists them now, and their runs.

    Without `cluster`, all known ones. `store`: a URI whose landed runs are read instead of the
    local records. `offline` queries no provider. A provider that does not answer is the `error` of
    its cluster. Raises UsageError for an unknown name, StoreError."""
    from cloudtrain.commands.status import status

    name, config = (None, None) if cluster is None else _target(cluster, store)
    return status(name, config=config, store=store, offline=offline)


def logs(
    cluster: ClusterConfig | str,
    *,
    run: str | None = None,
    roles: Sequence[str] = (),
    tail: int | None = None,
    follow: bool = False,
    store: str | None = None,
    console: Console | None = None,
) -> Mapping[str, str]:
    """Output of every task of the latest run (or of `run`), by the task's name.

    `roles` limits it to `worker` or `worker0`, `tail` to the last lines of each. `follow` blocks
    until the run has ended; `console` shows lines as they come. Raises UsageError, StoreError."""
    from cloudtrain.commands.logs import logs
    from cloudtrain.console.logging_console import CollectingConsole

    name, config = _target(cluster, store)
    with _shown(console) as shown:
        collecting = CollectingConsole(shown)
        logs(
            name,
            config=config,
            store=store,
            follow=follow,
            roles=roles,
            tail=tail,
            run=run,
            console=collecting,
        )
    return MappingProxyType(collecting.texts)


def fetch(
    cluster: ClusterConfig | str,
    destination: str | os.PathLike[str],
    *,
    run: str | None = None,
    store: str | None = None,
    overwrite: bool = False,
    console: Console | None = None,
) -> Manifest:
    """Download the artifacts of the latest run (or of `run`) to `destination`, each verified. A
    file there that no earlier fetch wrote is replaced with `overwrite` alone.

    Each path of the manifest's `files` is at `destination / path`. Blocks until all are downloaded.
    Raises UsageError, StoreError."""
    from cloudtrain.commands.fetch import fetch

    name, config = _target(cluster, store)
    with _shown(console) as shown:
        return fetch(
            name,
            Path(destination),
            config=config,
            store=store,
            run=run,
            overwrite=overwrite,
            console=shown,
        )


def down(
    cluster: ClusterConfig | str,
    *,
    discard: bool = False,
    adopt: bool = False,
    owner: str | None = None,
    order_key: str | os.PathLike[str] | None = None,
    console: Console | None = None,
) -> None:
    """Land the artifacts, delete everything, and check that nothing is left. Asks for no
    confirmation.

    `order_key`: private key with which the controller of a cluster that is away is ended from
    another machine than the one that sent it. Blocks until nothing is left. Raises NotLanded, with
    every node kept, unless `discard`; LeftoverError, which names what still exists; UsageError,
    LockedError."""
    from cloudtrain.commands.down import down

    name, config = _target(cluster)
    with _shown(console) as shown:
        down(
            name,
            config,
            discard=discard,
            adopt=adopt,
            owner=owner,
            order_key=None if order_key is None else Path(order_key),
            console=shown,
        )


def _target(
    cluster: ClusterConfig | str, store: str | None = None
) -> tuple[str, ClusterConfig | None]:
    """A config, or the name of a cluster that is known here or has runs in `store`."""
    if not isinstance(cluster, str):
        return cluster.name, cluster
    if store is not None:
        return cluster, None
    from cloudtrain.state import resolve

    return resolve(cluster), None


@contextmanager
def _shown(console: Console | None) -> Iterator[Console]:
    """Yield the console of this call, by default one that logs."""
    from cloudtrain.console.logging_console import LoggingConsole
    from cloudtrain.core.retry import waits_reported_to
    from cloudtrain.state.clock import clock_corrected

    shown = console or LoggingConsole()
    with waits_reported_to(shown.say), clock_corrected(shown.warn):
        yield shown
