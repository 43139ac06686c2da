"""Writes a draft as a commented YAML file in the order of the templates."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import yaml

from cloudtrain.config.sections import section_at
from cloudtrain.config.yaml_source import Path, shown
from cloudtrain.core.task_id import ROLE_ORDER
from cloudtrain.importers.draft import Draft, Entry, Plain

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


def _rank(path: Path) -> tuple[int, ...]:
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
