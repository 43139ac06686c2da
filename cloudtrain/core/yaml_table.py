"""Tables of the package in YAML, each beside the module that reads it when it is first needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def read_table(file: Path) -> Any:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(file.read_bytes(), loader)


def pattern_of(given: str | list[str]) -> str:
    """A pattern; a list's are alternatives."""
    return given if isinstance(given, str) else "|".join(given)
