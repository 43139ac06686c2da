"""Completes a draft (name, strategy, placeholders) and proves it with the config's own reader."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from cloudtrain.config import load
from cloudtrain.config.sections import section_at
from cloudtrain.config.yaml_source import Path as FieldPath
from cloudtrain.config.yaml_source import shown
from cloudtrain.core.cloud import cloud_of, clouds, facts_of, providers
from cloudtrain.core.errors import ConfigError
from cloudtrain.core.model import ClusterConfig, Problem
from cloudtrain.core.store_kinds import kind_of
from cloudtrain.core.task_id import ROLE_ORDER
from cloudtrain.importers.draft import Draft, Entry, Options, Plain
from cloudtrain.importers.values import Value
from cloudtrain.playbooks import tensorflow
from cloudtrain.training.strategies import STRATEGIES, strategy_for

TENSORFLOW = "2.21"
"""Version of the templates, where the source names none."""


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
    if options.strategy:
        draft.put("strategy", options.strategy)
    else:
        _put_strategy_by_roles(draft)
    config = _without_refused(draft, options)
    in_code = None if options.strategy else options.strategy_in_code
    found = in_code(config) if in_code else None
    if found is not None and STRATEGIES[found].launched:
        draft.put("strategy", found, comment="as the code has it")
        config = _without_refused(draft, options)
    return Imported(
        kind=draft.kind,
        text=yaml_text(draft),
        config=config,
        unmapped=tuple(draft.problems),
        fill_in=draft.fill_ins(),
    )


def _without_refused(draft: Draft, options: Options) -> ClusterConfig:
    """The config of a draft, which loses each value that the config's reader refuses. Raises
    ConfigError if what is left cannot be one, either."""
    _put_placeholders(draft)
    while True:
        draft.problems = _unique(draft.problems)
        try:
            return _loaded(draft, options)
        except ConfigError as error:
            _drop_refused(draft, error, options)


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
    for path in [path for path in draft.entries if path[0] in _OF_A_CLOUD]:
        del draft.entries[path]
    if facts_of(wanted).free:
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


def _put_strategy_by_roles(draft: Draft) -> None:
    """Put the strategy, with `tf_config` where it would give none to a cluster."""
    counts = draft.counts()
    for host in draft.get("hosts") or ():
        counts[host["role"]] = counts.get(host["role"], 0) + 1
    roles = [role for role, count in counts.items() if count]
    if roles == ["worker"] and counts["worker"] == 1 and not draft.has("hosts"):
        draft.entries.pop(("nodes", "chief"), None)
        draft.rename_role("worker", "chief")
        counts = {"chief": 1}
    elif set(roles) == {"worker"} and not draft.has("hosts"):
        off = Entry(value=False, comment="worker 0 saves the model")
        draft.entries = {("nodes", "chief"): off, **draft.entries}
    found = strategy_for(counts, draft.gpus)
    if not found.roles and not draft.has("train", "tf_config") and len(roles) > 1:
        draft.put("train.tf_config", True, comment="a cluster of its own")
    draft.put("strategy", found.name, comment="by the roles: check it against the script")


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


def _loaded(draft: Draft, options: Options) -> ClusterConfig:
    """The config of the draft's own text. Raises ConfigError."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{draft.get('name')}.yaml")
        path.write_text(yaml_text(draft), encoding="utf-8")
        config = load(path)
    config = replace(config, source=str(options.base / f"{config.name}.yaml"))
    problems = tensorflow.problems(config)
    if problems:
        raise ConfigError(problems)
    return config


def _drop_refused(draft: Draft, error: ConfigError, options: Options) -> None:
    """Drop each refused value, and report it at its line in the source. Raises ConfigError if only
    placeholders are refused."""
    own = [replace(problem, file=draft.file, line=None) for problem in error.problems]
    roles = re.compile(r"nodes(\.[^.]+)?|strategy|hosts")
    between = next((problem for problem in own if roles.fullmatch(problem.field)), None)
    if between is not None:
        name = draft.get("strategy")
        _put_strategy_by_roles(draft)
        if options.strategy or draft.get("strategy") == name:
            raise ConfigError(own, hint=f"pass --strategy: {', '.join(STRATEGIES)}")
        draft.lose(_whole(draft), f"{name}, as the code has it, does not fit: {between.text}")
        return
    before = dict(draft.entries)
    for problem in own:
        for entry in draft.without(problem.field) if problem.field else ():
            draft.lose(entry.origin or _whole(draft), f"as {problem.field}: {problem.text}")
    _put_placeholders(draft)
    if draft.entries == before:  # a placeholder that is refused would be put in for ever
        raise ConfigError(own)


def _whole(draft: Draft) -> Value:
    return Value(file=draft.file, field="")


# ── the YAML file, in the order of the templates ─────────────────────────────


_TOP = (
    *("name", "provider", "project", "placement", "hosts", "network", "identity", "strategy"),
    *("nodes", "image", "setup", "code", "train", "artifacts", "limits", "secrets"),
)
_FLOW = 88
"""Columns up to which a list or a role is written on one line."""
_COMMENT_AT = 34


def yaml_text(draft: Draft) -> str:
    """The whole file, with what could not be mapped as comments at its end."""
    lines = [
        f"# cloudtrain: imported from {shown(draft.file, 200)} ({draft.kind}).",
        "# Every field: cloudtrain docs config.   Next: cloudtrain plan FILE",
    ]
    if any(entry.fill_in for entry in draft.entries.values()):
        lines.append("# Lines marked FILL IN have no counterpart in the source.")
    lines.append("")
    tree = _tree(draft)
    for name in (*_TOP, *sorted(set(tree) - set(_TOP))):
        if name in tree:
            lines += _block(name, tree[name], 0)
            if isinstance(tree[name], dict):
                lines.append("")
    if draft.problems:
        lines += ["", "# Not mapped:"]
        lines += [f"#   {shown(str(problem), 400)}" for problem in draft.problems]
    return "\n".join(_without_double_blanks(lines)) + "\n"


def scalar(value: str | int | bool, *, flow: bool = False) -> str:
    """One value as YAML, by a real emitter; on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if flow and re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*:[0-9]+", value):
        return value
    style = '"' if "\n" in value or not value.isprintable() else None
    wrapped: Any = [value] if flow else {"k": value}
    text = yaml.dump(
        wrapped,
        Dumper=_Dumper,
        width=float("inf"),
        allow_unicode=True,
        default_flow_style=flow,
        default_style=style,
    )
    return text.strip()[1:-1] if flow else text.split(":", 1)[1].strip()


class _Dumper(yaml.SafeDumper):
    """A word that reads like a number or a boolean is quoted, with double quotes as in the
    templates."""


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    kind = dumper.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    number = kind != "tag:yaml.org,2002:str"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if number else None)


_Dumper.add_representer(str, _represent)


def _tree(draft: Draft) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, entry in sorted(draft.entries.items(), key=lambda item: _rank(item[0])):
        node = tree
        for part in path[:-1]:
            below = node.setdefault(str(part), {})
            if not isinstance(below, dict):
                below = node[str(part)] = {}
            node = below
        node[str(path[-1])] = entry
    return tree


def _rank(path: FieldPath) -> tuple[int, ...]:
    """Roles as TF_CONFIG orders them, fields as the docs do; the rest as it came (stable)."""
    if path[0] == "nodes" and len(path) > 1:
        return (ROLE_ORDER.index(str(path[1])) if path[1] in ROLE_ORDER else len(ROLE_ORDER),)
    section = section_at(path[:1])
    fields = list(section.model_fields) if section else []
    return (fields.index(str(path[1])) if len(path) > 1 and path[1] in fields else 0,)


def _block(name: str, node: Any, depth: int) -> list[str]:
    pad = "  " * depth
    key = scalar(name, flow=True)
    if isinstance(node, Entry):
        return _entry(pad, key, node)
    if depth == 1 and not any(isinstance(below, dict) for below in node.values()):
        line = _role(key, node)
        if line is not None:
            return [line]
    lines = [f"{pad}{key}:"]
    for below, value in node.items():
        lines += _block(below, value, depth + 1)
    return lines


def _role(key: str, node: dict[str, Entry]) -> str | None:
    """`worker: {count: 2, machine: …}` with the comments of its values; None if it is long."""
    inner = ", ".join(f"{name}: {_flow(entry.value)}" for name, entry in node.items())
    if len(inner) > _FLOW or key in ("env", "run"):
        return None
    said = (_comment(each) for each in node.values() if each.comment)
    text = " · ".join(dict.fromkeys(said))
    return _with_comment(f"  {key}: {{{inner}}}", text)


def _entry(pad: str, key: str, entry: Entry) -> list[str]:
    comment, value = _comment(entry), entry.value
    if isinstance(value, list) and value:
        flow = _flow(value)
        if len(flow) > _FLOW or any(isinstance(item, dict) for item in value):
            first = _with_comment(f"{pad}{key}:", comment)
            return [first, *(f"{pad}  - {_item(item)}" for item in value)]
        return [_with_comment(f"{pad}{key}: {flow}", comment)]
    written = _flow(value) if isinstance(value, list | dict) else scalar(value)
    line = f"{pad}{key}: {written}"
    if comment and len(line) + len(comment) > 140:
        return [f"{pad}# {comment}", line]
    return [_with_comment(line, comment)]


def _item(item: Plain) -> str:
    return _flow(item) if isinstance(item, list | dict) else scalar(item)


def _flow(value: Plain) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, dict):
        inner = ", ".join(f"{scalar(k, flow=True)}: {_flow(v)}" for k, v in value.items())
        return f"{{{inner}}}"
    return scalar(value, flow=True)


def _comment(entry: Entry) -> str:
    origin = entry.origin
    where = f"{origin.field}" if origin and not entry.comment else ""
    text = entry.comment or where
    return shown(f"FILL IN: {text}" if entry.fill_in else text, 300) if text else ""


def _with_comment(line: str, comment: str) -> str:
    return f"{line.ljust(_COMMENT_AT)}  # {comment}" if comment else line


def _without_double_blanks(lines: Iterable[str]) -> list[str]:
    kept: list[str] = []
    for line in lines:
        if line or (kept and kept[-1]):
            kept.append(line)
    while kept and not kept[-1]:
        kept.pop()
    return kept
