"""Finds what `init` and `import` left to fill in: lines with a mark, and placeholders."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path

from cloudtrain.core.model import ClusterConfig, Problem
from cloudtrain.core.store_kinds import KINDS

_MARK = re.compile(r"^(?P<value>[^#]*\S)\s+# FILL IN(?:: (?P<what>.*))?$")
_VALUE = re.compile(r"FILL_IN(?:_\w+)?")
_EXAMPLES = "|".join(f"{kind.scheme}://{kind.example}" for kind in KINDS if kind.example)
_BUCKET = re.compile(rf"(?:{_EXAMPLES})(?![\w-])")
_NOBODYS = re.compile(rf"(?:{_BUCKET.pattern})(?:/.*)?")
"""Buckets of our templates. The names are other people's."""
_NOT_WRITTEN = frozenset(("source", "folder", "defaults", "candidates", "overrides", "environment"))


def unfilled(config: ClusterConfig) -> tuple[Problem, ...]:
    """Values that are placeholders for the user's own."""
    found = []
    for field, value in _texts(config, ""):
        left = _VALUE.search(value)
        if left is not None:
            text = f"{left[0]} is still to be filled in"
        elif _NOBODYS.fullmatch(value) and config.endpoints.storage is None:
            text = f"{value} is the template's: put a bucket of yours"
        else:
            continue
        at = field.removesuffix(".source")  # of `data:`, whose short form has no key of its own
        found.append(Problem(file=config.source, line=None, field=at, text=text))
    return tuple(found)


def marked(config: ClusterConfig) -> tuple[str, ...]:
    """A note for each line of the file with the mark, whether it was changed or not; `unfilled`
    names those that hold a placeholder.
    """
    path = Path(config.source)
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ()
    found = []
    for number, line in enumerate(lines, 1):
        mark = _MARK.match(line)
        if mark and not _VALUE.search(mark["value"]) and not _BUCKET.search(mark["value"]):
            place = f"{path.name}:{number}: `{mark['value'].strip()}`"
            what = f" ({mark['what']})" if mark["what"] else ""
            found.append(f"{place} is marked FILL IN{what}: put your own, or remove the mark")
    return tuple(found)


def _texts(value: object, path: str) -> Iterator[tuple[str, str]]:
    """Every text of a config with its field."""
    if isinstance(value, str):
        yield path, value
    elif is_dataclass(value):
        for each in fields(value):
            if path or each.name not in _NOT_WRITTEN:
                name = f"{path}.{each.name}" if path else each.name
                yield from _texts(getattr(value, each.name), name)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _texts(each, f"{path}.{key}")
    elif isinstance(value, tuple):
        for number, each in enumerate(value):
            yield from _texts(each, f"{path}[{number}]")
