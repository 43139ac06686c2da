"""Refuses keys that stand elsewhere than under `secrets:`, where records and reports keep them.

Variables that are called like keys, or have one, are refused before (variable_rules).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from cloudtrain.config.variables import only_variable, variables
from cloudtrain.config.yaml_source import Block, Path, Scalar, dotted, scalars
from cloudtrain.core.model import Problem
from cloudtrain.node.key_shapes import given_keys, is_no_key, kind_of_key, looks_like_key_name

_KEPT = "which records, reports and process lists would keep"


def exposed_keys(tree: Block, known: Collection[str]) -> Iterator[Problem]:
    """One problem for each field with a key, by name or by value, without its text. `known`: fields
    that have a problem already.
    """
    section = tree.get("secrets")
    secrets = section if isinstance(section, Block) else {}
    for path, value in scalars(tree.without("secrets")):
        twice = path[:2] == ("train", "env") and path[-1] in secrets
        text = "" if twice else _fault(path, value)
        if text and dotted(path) not in known:
            at = value.place
            yield Problem(file=at.file, line=at.line or None, field=dotted(path), text=text)


def _fault(path: Path, value: Scalar) -> str:
    try:
        text = value.text()
    except ValueError:
        return ""  # reported with its field
    if path[:2] == ("train", "env") and len(path) == 3:
        fault = _of_variable(str(path[2]), value, text)
        if fault:
            return fault
    kind = kind_of_key(text)
    if path[:2] == ("train", "command"):
        return f"has {kind} in it, {_KEPT}: {_in_line('NAME')}" if kind else _of_line(text)
    return f"has {kind} in it, {_KEPT}: remove it" if kind else ""


def _of_variable(name: str, value: Scalar, text: str) -> str:
    if not looks_like_key_name(name):
        kind = kind_of_key(text)
        return f"has {kind} in it, {_KEPT}: {_way(name, value)}" if kind else ""
    if not variables(value.source) and is_no_key(text):
        return ""
    return f"looks like a key, {_KEPT}: {_way(name, value)}"


def _of_line(text: str) -> str:
    for name, _ in given_keys(text):
        return f"gives {name}, {_KEPT}: {_in_line(re.sub(r'[^A-Za-z0-9]', '_', name).upper())}"
    return ""


def _in_line(name: str) -> str:
    return f"write `{name}: ${{{name}}}` under `secrets:`, and `$${{{name}}}` here"


def _way(name: str, value: Scalar) -> str:
    variable = only_variable(value.source)
    export = "" if variable else f", and export {name}"
    return f"write `{name}: ${{{variable or name}}}` under `secrets:` instead{export}"
