"""The config under construction: values by path, each with its origin and a comment; its YAML."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from cloudtrain.config.sections import section_at
from cloudtrain.config.yaml_source import Path as FieldPath
from cloudtrain.config.yaml_source import dotted, shown
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.model import ClusterConfig, Problem
from cloudtrain.core.task_id import ROLE_ORDER
from cloudtrain.importers.placed_code import PlacedCode
from cloudtrain.importers.submit_line import Submit
from cloudtrain.importers.values import Value
from cloudtrain.node.key_shapes import without_keys

Plain = str | int | bool | list[Any] | dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class DraftEntry:
    """One value of the config. `origin` is where the source says it."""

    value: Plain
    origin: Value | None = None
    comment: str = ""
    fill_in: bool = False
    """The source has no such value: the user must."""


@dataclass
class Draft:
    """Findings of an importer so far."""

    kind: str
    """The source's kind, in words."""
    file: str
    entries: dict[FieldPath, DraftEntry] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    gpus: int = 0
    """The most GPUs of any node."""
    tpu: bool = False
    container: tuple[str, ...] = ()
    """Words that the image starts by itself: ENTRYPOINT and CMD."""
    workdir: str = ""
    """The image's working folder."""
    placed: PlacedCode | None = None
    """Where the image's files are here."""
    exports: dict[str, str] = field(default_factory=dict)
    """By variable: what each command begins with."""
    variables: dict[str, str] = field(default_factory=dict)
    """Variables that the source's own files set, for those that the environment does not."""

    def put(
        self,
        path: str | FieldPath,
        value: Plain | None,
        origin: Value | None = None,
        comment: str = "",
        *,
        fill_in: bool = False,
    ) -> None:
        """Set a value, unless it is None."""
        if value is None:
            return
        at = tuple(path.split(".")) if isinstance(path, str) else path
        self.entries[at] = DraftEntry(value=value, origin=origin, comment=comment, fill_in=fill_in)

    def keep(self, path: str | FieldPath, value: Value | None, comment: str = "") -> None:
        """Set what a value of the source says, if there is one."""
        self.put(path, value.text if value else None, value, comment)

    def get(self, path: str) -> Any:
        entry = self.entries.get(tuple(path.split(".")))
        return entry.value if entry else None

    def has(self, *path: str) -> bool:
        return any(key[: len(path)] == path for key in self.entries)

    def lose(self, origin: Value, text: str) -> None:
        """Report what the source says and the config does not."""
        self.problems.append(origin.problem(without_keys(text)))

    def counts(self) -> dict[str, int]:
        """Number of nodes by role; 0 for a role that is explicitly off."""
        found: dict[str, int] = {}
        for path, entry in self.entries.items():
            if path[0] == "nodes" and len(path) > 1:
                role = str(path[1])
                found.setdefault(role, 1)
                if len(path) == 2 and entry.value is False:
                    found[role] = 0
                elif path[2:] == ("count",) and isinstance(entry.value, int):
                    found[role] = entry.value
        return found

    def role(self, role: str, count: int, origin: Value | None = None) -> None:
        """Add a role with `count` nodes; do nothing if that is 0."""
        if count > 0:
            self.put(("nodes", role, "count"), count, origin)

    def rename_role(self, old: str, new: str) -> None:
        self.entries = {
            (path[0], new, *path[2:]) if path[:2] == ("nodes", old) else path: entry
            for path, entry in self.entries.items()
        }

    def without(self, field_name: str) -> Iterator[DraftEntry]:
        """Remove the entry of a field, or those below it, or the one that it is part of; yield
        what was removed."""
        for path in list(self.entries):
            short, long = sorted((dotted(path), field_name), key=len)
            if long == short or long.startswith((f"{short}.", f"{short}[")):
                yield self.entries.pop(path)

    def fill_ins(self) -> tuple[str, ...]:
        return tuple(dotted(path) for path, entry in self.entries.items() if entry.fill_in)


@dataclass(frozen=True, kw_only=True)
class Options:
    """`here` is the folder of the submit line's paths, `folder` that of the imported file, `base`
    that of the config to write."""

    here: Path
    folder: Path
    base: Path
    provider: str | None = None
    strategy: str | None = None
    strategy_in_code: Callable[[ClusterConfig], str | None] | None = None
    """The strategy that the script of a config uses; None if it cannot be told."""
    submit: Submit | None = None


# ── the YAML file, in the order of the templates ─────────────────────────────


_TOP = (
    *("name", "provider", "project", "placement", "hosts", "network", "identity", "strategy"),
    *("nodes", "image", "setup", "code", "shared", "train", "artifacts", "limits", "secrets"),
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
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip("\n") + "\n"


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
    fields = section.names() if section else []
    return (fields.index(str(path[1])) if len(path) > 1 and path[1] in fields else 0,)


def _block(name: str, node: Any, depth: int) -> list[str]:
    pad = "  " * depth
    key = scalar(name, flow=True)
    if isinstance(node, DraftEntry):
        return _entry(pad, key, node)
    if depth == 1 and not any(isinstance(below, dict) for below in node.values()):
        line = _role(key, node)
        if line is not None:
            return [line]
    lines = [f"{pad}{key}:"]
    for below, value in node.items():
        lines += _block(below, value, depth + 1)
    return lines


def _role(key: str, node: dict[str, DraftEntry]) -> str | None:
    """`worker: {count: 2, machine: …}` with the comments of its values; None if it is long."""
    inner = ", ".join(f"{name}: {_flow(entry.value)}" for name, entry in node.items())
    if len(inner) > _FLOW or key in ("env", "run"):
        return None
    said = dict.fromkeys(_comment(each) for each in node.values() if each.comment)
    return _with_comment(f"  {key}: {{{inner}}}", " · ".join(said))


def _entry(pad: str, key: str, entry: DraftEntry) -> list[str]:
    comment, value = _comment(entry), entry.value
    if isinstance(value, list) and value:
        flow = _flow(value)
        if len(flow) > _FLOW or any(isinstance(item, dict) for item in value):
            first = _with_comment(f"{pad}{key}:", comment)
            return [first, *(f"{pad}  - {_item(item)}" for item in value)]
        return [_with_comment(f"{pad}{key}: {flow}", comment)]
    line = f"{pad}{key}: {_item(value)}"
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


def _comment(entry: DraftEntry) -> str:
    text = entry.comment or (entry.origin.field if entry.origin else "")
    return shown(f"FILL IN: {text}" if entry.fill_in else text, 300) if text else ""


def _with_comment(line: str, comment: str) -> str:
    return f"{line.ljust(_COMMENT_AT)}  # {comment}" if comment else line
