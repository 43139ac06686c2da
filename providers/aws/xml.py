"""Parses EC2's XML, in any namespace, into plain dicts and lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar
from xml.etree import ElementTree

T = TypeVar("T")
Tree = dict[str, Any]
"""An element: a dict of its children by name. A leaf is its text; a set of `<item>`s is a list."""


def tree(xml: str) -> Tree:
    """Parse a response. Raises ValueError if it is truncated or not XML."""
    try:
        found = _plain(ElementTree.fromstring(xml))
    except ElementTree.ParseError as error:
        raise ValueError(f"the response is truncated or not XML: {error}") from error
    return found if isinstance(found, dict) else {"Errors": found}


def items(answer: Mapping[str, Any], name: str) -> list[Any]:
    """The members of a set; empty if it is empty or absent. Raises TypeError for anything else."""
    return _typed(answer, name, list, "set")


def part(answer: Mapping[str, Any], name: str) -> Tree:
    """A structure; empty if it is empty or absent. Raises TypeError for anything else."""
    return _typed(answer, name, dict, "structure")


def text(answer: Mapping[str, Any], name: str) -> str:
    """A text; "" if it is absent. Raises TypeError for anything else."""
    return _typed(answer, name, str, "text")


def number(answer: Mapping[str, Any], name: str) -> int:
    """A whole number; 0 if it is absent or something else."""
    found = text(answer, name)
    return int(found) if found.isdecimal() else 0


def _typed(answer: Mapping[str, Any], name: str, kind: type[T], word: str) -> T:
    found = answer.get(name) or kind()
    if not isinstance(found, kind):
        raise TypeError(f"{name} is not a {word}: {found!r:.60}")
    return found


def tags(answer: Mapping[str, Any]) -> dict[str, str]:
    return {text(tag, "key"): text(tag, "value") for tag in items(answer, "tagSet")}


def _plain(element: ElementTree.Element) -> Any:
    children = list(element)
    if not children:
        return (element.text or "").strip()
    names = [child.tag.rpartition("}")[2] for child in children]
    if set(names) in ({"item"}, {"Error"}):
        return [_plain(child) for child in children]
    return {name: _plain(child) for name, child in zip(names, children, strict=True)}
