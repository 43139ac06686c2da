"""Resolves the cluster of a command: a FILE is accepted wherever a NAME is, and the other way
round."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from cloudtrain.cli.options import given_settings, is_yaml
from cloudtrain.cli.printing import on_terminal
from cloudtrain.core.errors import ConfigError, UntrustedError, UsageError
from cloudtrain.state import Records, known_clusters, resolve

if TYPE_CHECKING:
    from cloudtrain.core.model import ClusterConfig, Plan


class ClusterTarget(NamedTuple):
    """A resolved cluster. `config` is set for a FILE only: else the cluster's own record counts."""

    name: str
    config: ClusterConfig | None


def target_of(
    argument: str | None, used: Callable[[ClusterConfig], ClusterConfig] | None = None
) -> ClusterTarget:
    """Name and config of a file, or a cluster that is known here. A file that would use rights of
    the user's is asked about once; `used` makes of it the config that the command carries out."""
    target = read_target(argument)
    if target.config is not None:
        consent_to(used(target.config) if used else target.config)
    return target


def target_to_end(argument: str | None, *, adopt: bool = False) -> ClusterTarget:
    """As `target_of`, for what ends a bill: a cluster on record here is ended by its record,
    whatever the file says that nobody has trusted."""
    name, config = read_target(argument)
    if config is not None and name in known_clusters() and Records(name).is_open():
        from cloudtrain.cluster.session import refuse_other_folder
        from cloudtrain.trust.consent import open_facts

        given = given_settings()
        if not given.trust and open_facts(config, given.trusted_hosts):
            refuse_other_folder(config, Records(name), adopt=adopt)
            return ClusterTarget(name, None)
    try:
        return target_of(argument)
    except UntrustedError as error:
        from cloudtrain.core.cloud import is_cloud

        if config is None or not is_cloud(config.provider):
            raise
        way = f"`cloudtrain down {name} --provider {config.provider}` ends it without the file"
        raise error.copy_with(hint=f"{way}; {error.hint}") from None


def read_target(argument: str | None) -> ClusterTarget:
    """The same for what only reads the file: `plan`, and a cluster's name."""
    if argument is not None and argument not in known_clusters() and Path(argument).is_dir():
        files = sorted(path.name for path in Path(argument).glob("*.y*ml"))
        raise UsageError(
            f"{argument} is a folder",
            hint=f"name a config file: {', '.join(files[:5])}" if files else "name a config file",
        )
    if argument is not None and is_file(argument):
        from cloudtrain.config import defaults_path, load

        given = given_settings()
        config = load(
            Path(argument),
            overrides=given.overrides,
            env_file=given.env_file,
            defaults=defaults_path(),
        )
        if config.candidates:
            from cloudtrain.cluster.place_choice import settle

            config = settle(config)
        return ClusterTarget(config.name, config)
    return ClusterTarget(resolve(argument), None)


def refuse_settings_without_file(argument: str | None, flag: str) -> None:
    """Refuse `--set` and `--env-file` of a NAME: its recorded config has its values already."""
    if argument is None:
        raise UsageError(f"{flag} requires a FILE", hint="pass the config FILE that it completes")
    if is_file(argument):
        return
    try:
        source = str(Records(resolve(argument)).config().get("source") or "")
    except ConfigError:
        source = ""
    raise UsageError(
        f"{flag} requires a FILE: {argument} is a cluster's name, whose recorded config is used",
        hint=f"pass the FILE: {source}" if source else "pass the config FILE instead",
    )


def name_of(argument: str | None) -> str:
    """A cluster that is known here, by its name or its file."""
    name, config = read_target(argument)
    if config is not None and name not in known_clusters():
        raise UsageError(
            f"no local record of {name}: its SSH keys are on the machine that ran `up`",
            hint=f"run this there; here, `cloudtrain status {argument}` shows what has landed, "
            "`logs` and `fetch` download it",
        )
    return resolve(name)


def desk_target(argument: str | None) -> ClusterTarget | None:
    """The cluster of a FILE that is away, sent from another machine; None for any other."""
    if argument is None or not is_file(argument):
        return None
    target = target_to_end(argument)
    from cloudtrain.away.find_away import find_away

    return target if find_away(*target) is not None else None


def refuse_file_of_another_folder(argument: str | None) -> None:
    """Refuse a FILE whose name belongs to another project's cluster."""
    name, config = read_target(argument)
    if config is not None:
        from cloudtrain.cluster.session import refuse_other_folder

        refuse_other_folder(config, Records(name), adopt=False)


def landed_target(argument: str | None, store: str | None) -> ClusterTarget:
    """Cluster to read from a store if it is not on record: any FILE; with `store` any NAME, or its
    only cluster."""
    if argument is not None and is_file(argument):
        return target_of(argument)
    if store is None:
        try:
            return ClusterTarget(resolve(argument), None)
        except UsageError as error:
            if "did you mean" in (error.hint or ""):
                raise
            hint = f"{error.hint}; pass its config FILE, or --store URI, to read what has landed"
            raise UsageError(error.message, hint=hint) from None
    if argument is not None:
        return ClusterTarget(Records(argument).name, None)
    from cloudtrain.away.find_run import only_cluster_in

    return ClusterTarget(only_cluster_in(store), None)


def config_of(
    argument: str | None, target_of: Callable[[str | None], ClusterTarget] = target_of
) -> ClusterConfig:
    """A file's config; for a known cluster, that of its last `up`."""
    name, config = target_of(argument)
    if config is not None:
        return config
    from cloudtrain.cluster.session import recorded_config

    return recorded_config(Records(name))


def plan_of(
    argument: str | None, target_of: Callable[[str | None], ClusterTarget] = target_of
) -> Plan:
    from cloudtrain.cluster.plan import make_plan

    return make_plan(config_of(argument, target_of))


def is_file(argument: str) -> bool:
    if "/" in argument or is_yaml(argument):
        return True
    return argument not in known_clusters() and Path(argument).is_file()


# ── consent to the file ────────────────────────────────────────────────────────


def consent_to(config: ClusterConfig) -> None:
    """Return if the user agrees, or agreed, to all that the file does. Raises UntrustedError
    without a terminal."""
    from cloudtrain.trust.consent import open_facts, untrusted

    given = given_settings()
    found = () if given.trust else open_facts(config, given.trusted_hosts)
    if not found:
        return
    refusal = untrusted(config, found)
    if not on_terminal():
        raise refusal
    from cloudtrain.console.lines import printable

    sys.stderr.write(printable(f"{refusal.message}\n"))
    click.confirm("Is that what you want?", abort=True, err=True)
    from cloudtrain.trust.consent import remember

    remember(config.source, found)
