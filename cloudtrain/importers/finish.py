"""Completes a draft (name, strategy, placeholders) and proves it with the config's own reader."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from cloudtrain.config import load
from cloudtrain.core.cloud import cloud_of, clouds, facts_of, providers
from cloudtrain.core.errors import ConfigError
from cloudtrain.core.model import ClusterConfig, Problem
from cloudtrain.core.store_kinds import kind_of
from cloudtrain.importers.draft import Draft, Entry
from cloudtrain.importers.options import Options
from cloudtrain.importers.values import Value
from cloudtrain.importers.yaml_text import yaml_text
from cloudtrain.playbooks import tensorflow
from cloudtrain.training.choice import strategy_for
from cloudtrain.training.strategies import STRATEGIES

TENSORFLOW = "2.21"
"""Version of the templates, where the source names none."""
ROUNDS = 50


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A config made of another tool's file."""

    kind: str
    text: str
    """The YAML file, with comments."""
    config: ClusterConfig
    unmapped: tuple[Problem, ...]
    """What the source says and the config does not."""
    fill_in: tuple[str, ...]
    """Fields that the source has no value for: placeholders."""


def finish(draft: Draft, options: Options) -> Imported:
    """The complete config. Raises ConfigError if the source cannot be made into a valid one."""
    _put_name(draft)
    _put_provider(draft, options)
    draft.put("strategy", *_strategy(draft, options))
    for _ in range(ROUNDS):
        _put_placeholders(draft)
        draft.problems = _unique(draft.problems)
        text = yaml_text(draft)
        try:
            config = _loaded(text, draft.get("name"))
        except ConfigError as error:
            _repair(draft, error, options)
            continue
        config = replace(config, source=str(options.base / f"{config.name}.yaml"))
        problems = tensorflow.problems(config)
        if not problems and not _takes_the_codes_strategy(draft, config, options):
            return Imported(
                kind=draft.kind,
                text=text,
                config=config,
                unmapped=tuple(draft.problems),
                fill_in=draft.fill_ins(),
            )
        if problems:
            _repair(draft, ConfigError(problems), options)
    raise ConfigError([Problem(file=draft.file, line=None, field="", text="cannot be imported")])


def cluster_name(text: str) -> str:
    """A name made to fit `[a-z][a-z0-9-]{0,29}`; "" if nothing of it fits."""
    words = re.sub(r"[^a-z0-9]+", "-", text.lower()[:200])
    return re.sub(r"^[^a-z]+", "", words)[:30].strip("-")


def _unique(problems: list[Problem]) -> list[Problem]:
    """Each once: parts that several roles share by an alias are on the same lines."""
    found: dict[tuple[str, int | None, str, str], Problem] = {}
    for each in problems:
        field = "" if each.line else each.field
        found.setdefault((each.file, each.line, field, each.text), each)
    return list(found.values())


def _put_name(draft: Draft) -> None:
    entry = draft.entries.get(("name",))
    given = cluster_name(str(entry.value)) if entry else ""
    if entry and given:
        comment = f"was {entry.value}" if given != entry.value else ""
        draft.put("name", given, entry.origin, comment)
        return
    path = Path(draft.file)
    found = cluster_name(path.stem)
    usual = found in ("config", "docker-compose", "compose", "job", "cluster", "submit", "tfjob")
    found = cluster_name(path.absolute().parent.name) if usual or not found else found
    draft.put("name", found or "imported", comment="unique in an account")


_OF_A_CLOUD = ("placement", "project", "network", "identity", "resource_group", "disk_key", "tags")


def _put_provider(draft: Draft, options: Options) -> None:
    """The wanted provider; machines and stores of another cloud fall away."""
    source = draft.get("provider")
    local = next(row.name for row in providers() if row.on_this_machine)
    wanted = options.provider or source or local
    others = ", ".join(row.name for row in clouds())
    draft.put("provider", wanted, comment="" if source == wanted else f"or {others}")
    if wanted == source or source is None:
        return
    is_free = facts_of(wanted).free
    for path in [path for path in draft.entries if path[0] in _OF_A_CLOUD]:
        del draft.entries[path]
    if is_free:
        _rehearse(draft)
        return
    for path, entry in list(draft.entries.items()):
        if path[0] == "nodes" and path[-1] == "machine":
            text = f"{entry.value} is no machine of {wanted}: `cloudtrain gpus` lists them"
            draft.lose(entry.origin or _whole(draft), text)
            del draft.entries[path]
    cloud = cloud_of(wanted)
    store = draft.entries.get(("artifacts", "store"))
    if cloud and store and not str(store.value).startswith(cloud.store_scheme):
        comment = f"another cloud's: {cloud.store_scheme}:// is this one's own"
        draft.put("artifacts.store", store.value, store.origin, comment)


def _rehearse(draft: Draft) -> None:
    """On this machine: no machine types, no GPUs, and a folder as the store."""
    for path in list(draft.entries):
        if path[0] == "nodes" and path[-1] in ("machine", "accelerator", "disk_gb", "spot"):
            del draft.entries[path]
    store = draft.entries.pop(("artifacts", "store"), None)
    if store is not None:
        comment = f"instead of {store.value}"
        draft.put("artifacts.store", _local_store(draft.get("name")), store.origin, comment)


def _strategy(draft: Draft, options: Options) -> tuple[str, None, str]:
    if options.strategy:
        return options.strategy, None, ""
    return _by_roles(draft)


def _takes_the_codes_strategy(draft: Draft, config: ClusterConfig, options: Options) -> bool:
    """Take the strategy from the script, read at most once; True if it was taken just now."""
    if options.strategy or draft.asked_the_code or options.strategy_in_code is None:
        return False
    draft.asked_the_code = True
    found = options.strategy_in_code(config)
    if found is None or not STRATEGIES[found].launched:
        return False
    draft.put("strategy", found, comment="as the code has it")
    return True


def _by_roles(draft: Draft) -> tuple[str, None, str]:
    """By the roles; with `tf_config` where the strategy would give none to a cluster."""
    counts = draft.counts()
    for host in draft.get("hosts") or ():
        counts[host["role"]] = counts.get(host["role"], 0) + 1
    roles = [role for role, count in counts.items() if count]
    if roles == ["worker"] and counts["worker"] == 1 and not draft.has("hosts"):
        draft.entries.pop(("nodes", "chief"), None)
        draft.rename_role("worker", "chief")
        counts = {"chief": 1}
    elif set(roles) == {"worker"} and not draft.has("hosts"):
        draft.entries = {("nodes", "chief"): _off(), **draft.entries}
    found = strategy_for(counts, draft.gpus)
    if not found.roles and not draft.has("train", "tf_config") and len(roles) > 1:
        draft.put("train.tf_config", True, comment="a cluster of its own")
    return found.name, None, "by the roles: check it against the script"


def _off() -> Entry:
    return Entry(value=False, comment="worker 0 saves the model")


def _put_placeholders(draft: Draft) -> None:
    """Put in what a config needs and the source may not have."""
    provider, name = draft.get("provider"), draft.get("name") or "imported"
    cloud = cloud_of(provider)
    if not draft.has("name"):
        draft.put("name", name)
    if cloud and not draft.has("placement"):
        draft.put("placement", [cloud.first_region], comment="the zones or regions", fill_in=True)
    if not draft.has("setup", "tensorflow"):
        draft.put("setup.tensorflow", TENSORFLOW, comment="the script's version", fill_in=True)
    if not draft.has("code"):
        draft.put("code.path", ".", comment="the folder of the script", fill_in=True)
    if not draft.has("train", "command"):
        draft.put(
            "train.command", "python train.py --output {output}", comment="the line", fill_in=True
        )
    if not draft.has("artifacts", "store"):
        _put_store(draft, cloud.store_scheme if cloud else "", name)


def _put_store(draft: Draft, scheme: str, name: str) -> None:
    kind = kind_of(f"{scheme}://")
    if kind is None:
        draft.put("artifacts.store", _local_store(name))
        return
    uri = f"{scheme}://{kind.example}/{name}"
    draft.put("artifacts.store", uri, comment="the bucket", fill_in=True)


def _local_store(name: str) -> str:
    """One folder for each project, as `init` writes it."""
    return f"file://${{HOME}}/cloudtrain-artifacts/{name}"


def _loaded(text: str, name: str) -> ClusterConfig:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{name}.yaml")
        path.write_text(text, encoding="utf-8")
        return load(path)


def _repair(draft: Draft, error: ConfigError, options: Options) -> None:
    """Drop each value that the config's reader refuses, and report it at its line in the source.

    Raises ConfigError if nothing can be dropped.
    """
    own = [replace(problem, file=draft.file, line=None) for problem in error.problems]
    between = [p for p in own if p.field in ("nodes", "strategy", "hosts") or _is_role(p.field)]
    if between:
        name = draft.get("strategy")
        other, _, comment = _by_roles(draft)
        if options.strategy or other == name:
            raise ConfigError(own, hint=f"pass --strategy: {', '.join(STRATEGIES)}")
        draft.lose(_whole(draft), f"{name}, as the code has it, does not fit: {between[0].text}")
        draft.put("strategy", other, comment=comment)
        return
    dropped = 0
    for problem in own:
        for entry in draft.without(problem.field) if problem.field else ():
            dropped += not entry.fill_in
            draft.lose(entry.origin or _whole(draft), f"as {problem.field}: {problem.text}")
    if not dropped:
        raise ConfigError(own)


def _is_role(field: str) -> bool:
    return re.fullmatch(r"nodes\.[^.]+", field) is not None


def _whole(draft: Draft) -> Value:
    return Value(text="", file=draft.file, line=None, field="")
