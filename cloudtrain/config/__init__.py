"""Reads one YAML file into one validated ClusterConfig, or reports every problem in it at once."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from dataclasses import fields as fields_of
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cloudtrain.core.cloud import cloud_of, providers
from cloudtrain.core.codec import InvalidRecord, decode
from cloudtrain.core.errors import ConfigError, UsageError
from cloudtrain.core.model import Candidate, ClusterConfig, NodeGroup, Problem
from cloudtrain.core.shell import Secret
from cloudtrain.core.store_kinds import kind_of

if TYPE_CHECKING:
    from cloudtrain.config.sections import ConfigFile
    from cloudtrain.config.yaml_source import Block

__all__ = [
    "candidate_number",
    "defaults_path",
    "from_json",
    "load",
    "load_again",
    "read_secrets",
    "to_json",
    "with_candidate",
]


def load(
    path: Path,
    environ: Mapping[str, str] = os.environ,
    *,
    overrides: Sequence[str] = (),
    env_file: Path | None = None,
    defaults: Path | None = None,
) -> ClusterConfig:
    """Read and validate a config file, completed from the environment.

    `overrides` are FIELD=VALUE texts that count as part of the file (`--set`); the variables of
    `env_file` fill `${VAR}` before those of `environ` do. `defaults` is a file of the user's own,
    which fills in what this one leaves out; it need not exist. Raises ConfigError with every
    problem, UsageError if there is no file to read. Secrets need not be set: see read_secrets."""
    from cloudtrain.config.additions import written_tree
    from cloudtrain.config.as_written import texts_with_variables
    from cloudtrain.config.candidates import readings

    own: Mapping[str, str] = {}
    if env_file is not None:
        from cloudtrain.config.env_file import read_env_file

        own = read_env_file(env_file)
    data, file = _read(path), str(path)
    tree, problems, taken = written_tree(data, file, {**environ, **own}, overrides, defaults)
    if tree or not problems:
        tree, checked, several, problems = _checked(tree, path, problems)
    if problems:
        _refuse_other_tool(data, file)
        lacks_hosts = any(p.field == "hosts" and p.text.startswith("is missing") for p in problems)
        raise ConfigError(
            sorted(dict.fromkeys(problems), key=lambda p: (p.file, p.line or 0)),
            hint=HOSTS_EXAMPLE if lacks_hosts else None,
        )
    files = [read.file for read in readings(tree, file)] or [checked]
    configs = [with_environment_defaults(_config(each, path), environ) for each in files]
    return replace(
        configs[0],
        overrides=tuple(overrides),
        env_file=str(env_file.absolute()) if env_file else "",
        defaults=taken,
        written=texts_with_variables(tree),
        candidates=tuple(map(_candidate, configs)) if several else (),
        candidate_order=several,
    )


def _checked(
    tree: Block, path: Path, problems: list[Problem]
) -> tuple[Block, ConfigFile, Literal["", "any_of", "ordered"], list[Problem]]:
    """The tree with the hosts of an INI file, what it says, its list of candidates if it has one,
    and its problems, with those of its fields and between them."""
    from cloudtrain.config import candidates
    from cloudtrain.config.fields import is_name
    from cloudtrain.config.hosts_ini import with_hosts
    from cloudtrain.config.rules import broken_rules
    from cloudtrain.config.validation import exposed_keys, misused_variables, problem, validate

    file = str(path)
    tree, wrong = with_hosts(tree, path.parent, file)
    several = candidates.list_of(tree)
    tree = tree if several else candidates.without_candidates(tree)
    checked = validate(tree, file, broken=[("hosts",)] if wrong else [])
    problems = [*problems, *wrong, *checked.problems, *misused_variables(tree)]
    problems += exposed_keys(tree, {each.field for each in problems})
    broken = [] if several else [*broken_rules(checked.file)]
    if checked.file.name is None and not is_name(_stem(path)):
        why = "is missing, and the file's name is not a valid cluster name: add name: …"
        broken.append((("name",), why))
    for at, text in broken:
        if not checked.shadows(at):
            problems.append(problem(tree, file, at, text))
    if several:
        problems += candidates.problems_between(tree, file, checked.file)
    return tree, checked.file, several, problems


def defaults_path() -> Path:
    """The file of this user's own defaults, which need not exist: `$CLOUDTRAIN_CONFIG`, or
    config.yaml in this user's folder for settings."""
    chosen = os.environ.get("CLOUDTRAIN_CONFIG")
    if chosen:
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_config_path

    return user_config_path("cloudtrain") / "config.yaml"


def load_again(config: ClusterConfig, *more: str) -> ClusterConfig:
    """Read the config's file as it is now, with the same settings and `more` of `--set`; of
    candidates, as the same one reads it."""
    again = load(
        Path(config.source),
        overrides=(*config.overrides, *more),
        env_file=Path(config.env_file) if config.env_file else None,
        defaults=defaults_path() if config.defaults else None,
    )
    number = candidate_number(config)
    if number is None or number >= len(again.candidates):
        return again
    candidate = again.candidates[number]
    same = with_candidate(again, candidate)
    part = set(config.placement) <= set(candidate.placement)
    return replace(same, placement=config.placement) if part else same


def with_environment_defaults(
    config: ClusterConfig, environ: Mapping[str, str] = os.environ
) -> ClusterConfig:
    """The config with the project set from the environment, so that a later `down` queries the
    account that the cluster is in, even if the environment has changed since."""
    cloud = cloud_of(config.provider)
    if config.project is not None or cloud is None:
        return config
    return replace(config, project=environ.get(cloud.project_variable) or None)


HOSTS_EXAMPLE = (
    "for example `hosts: [{address: 10.0.0.4, user: ubuntu, key: ~/.ssh/id_ed25519, role: chief}]`"
)


def read_secrets(
    config: ClusterConfig, environ: Mapping[str, str] = os.environ
) -> dict[str, Secret]:
    """Values of `secrets:`, by their names in the task's environment, from `--env-file` and
    `environ`. Raises ConfigError naming each variable that is not set; an empty one counts as not
    set."""
    from cloudtrain.config.env_file import environment_of

    environ = environment_of(config, environ) if config.secrets else {}
    problems = [
        Problem(
            file=config.source,
            line=None,
            field=f"secrets.{name}",
            text=f"the environment variable {variable} is not set",
        )
        for name, variable in config.secrets.items()
        if not environ.get(variable)
    ]
    if problems:
        raise ConfigError(
            problems, hint="export each in the shell that runs cloudtrain, or use --env-file"
        )
    return {name: Secret(environ[variable]) for name, variable in config.secrets.items()}


def _read(path: Path) -> bytes:
    refuse_url(path)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        hint = "`cloudtrain init` writes a config to start from"
        near = _near(path)
        raise UsageError(
            f"{path}: no such file", hint=f"did you mean {near}?" if near else hint
        ) from None
    except IsADirectoryError:
        files = sorted(p.name for p in path.iterdir() if p.suffix in (".yaml", ".yml"))
        raise UsageError(
            f"cannot read {path}: it is a directory",
            hint=f"name a file in it: {', '.join(files[:5])}" if files else "name a config file",
        ) from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "invalid file name"
        raise UsageError(f"cannot read {path}: {why}") from None


def refuse_url(path: Path) -> None:
    """Raise UsageError for a URL in a file's place; a path has one slash of its two."""
    scheme = re.match(r"([a-z][a-z0-9+.-]+):/|git@", str(path))
    if scheme is None or path.exists():
        return
    kind = kind_of(f"{scheme[1]}://")
    if kind is not None and not kind.on_this_machine:
        hint = "`--store URI` reads what has landed in a store; a config is a file here"
    else:
        hint = "download it (`curl -O URL`, `git clone URL`) and name the file; read it first: "
        hint += "it decides what is rented and what runs"
    url = str(path).replace(":/", "://", 1)
    raise UsageError(f"{url} is a URL, no file", hint=hint)


def _refuse_other_tool(data: bytes, file: str) -> None:
    """Raise UsageError for a file of another tool, which has none of our fields to correct."""
    from cloudtrain.config.other_tools import tool_of
    from cloudtrain.config.yaml_source import shown

    found = tool_of(data)
    if found is not None:
        name = shown(file, 200)
        raise UsageError(f"{name} is {found.what}, no config of cloudtrain", hint=found.way(name))


def _near(path: Path) -> Path | None:
    """A config in the same folder that was probably meant: `good.yaml` for `good.yml`."""
    import difflib

    try:
        names = [p.name for p in path.parent.iterdir() if p.suffix in (".yaml", ".yml")]
    except OSError:
        return None
    same = [name for name in names if Path(name).stem == path.stem]
    found = same or difflib.get_close_matches(path.name, names, n=1, cutoff=0.75)
    return path.parent / found[0] if found else None


def _stem(path: Path) -> str:
    """Cluster name from a file name: `My_Config.yaml` is my-config."""
    return "".join("-" if c in "_ ." else c for c in path.stem.lower())


def _candidate(config: ClusterConfig) -> Candidate:
    return Candidate(**{each.name: getattr(config, each.name) for each in fields_of(Candidate)})


def with_candidate(config: ClusterConfig, candidate: Candidate) -> ClusterConfig:
    """The config as that candidate reads it."""
    return replace(
        config, **{each.name: getattr(candidate, each.name) for each in fields_of(candidate)}
    )


def candidate_number(config: ClusterConfig) -> int | None:
    """Index of the candidate whose values the config has; None without candidates."""
    for number, each in enumerate(config.candidates):
        of_it = _candidate(replace(config, placement=each.placement))
        if of_it == each and set(config.placement) <= set(each.placement):
            return number
    return None


def _config(file: ConfigFile, path: Path) -> ClusterConfig:
    from cloudtrain.config.rules import counts

    groups = file.nodes or {}
    nodes = {}
    for role, count in counts(file).items():
        group = groups.get(role)
        nodes[role] = replace(group.to_model(), count=count) if group else NodeGroup(count=count)
    config = file.to_model(name=file.name or _stem(path), nodes=nodes, source=str(path.absolute()))
    if config.shared is not None:  # it lands and comes back as the folder of checkpoints does
        config = replace(config, train=replace(config.train, checkpoints=config.shared.folder))
    assert isinstance(config, ClusterConfig)
    return config


# ── the record of a cluster's config ─────────────────────────────────────────


def to_json(config: ClusterConfig) -> dict[str, Any]:
    return asdict(config)


def from_json(data: Any) -> ClusterConfig:
    """Decode a recorded config, also of a newer version: its cluster can still be taken down.
    Raises ConfigError."""
    try:
        config = decode(ClusterConfig, _as_now(data))
        if config.provider not in (row.name for row in providers()):
            raise InvalidRecord("provider", "is not a provider of this version")
    except InvalidRecord as error:
        text = f"{error.fault}; the record is not what cloudtrain wrote"
        problem = Problem(file="the recorded config", line=None, field=error.key, text=text)
        raise ConfigError([problem]) from None
    return config


def _as_now(data: Any) -> Any:
    """The record as written today: earlier versions wrote a role's `spot` as true or false."""
    if not isinstance(data, dict):
        return data
    data = dict(data)
    for role, group in data["nodes"].items() if isinstance(data.get("nodes"), dict) else ():
        if isinstance(group, dict) and group.get("spot") is True:
            bought = {"provisioning": {"market": "spot"}, **group}
            data["nodes"] = {**data["nodes"], role: bought}
    if isinstance(data.get("candidates"), list):
        data["candidates"] = [_as_now(each) for each in data["candidates"]]
    return data
