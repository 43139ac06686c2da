"""Expands `${VAR}` and `${VAR:-default}` in the file's values from the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_PIECE = re.compile(rf"\$\$\{{|\$\{{(?P<name>{_NAME})(?::-(?P<default>[^}}]*))?\}}|\$\{{")
_WHOLE = re.compile(rf"\$\{{({_NAME})\}}")


def expand_variables(source: str, environ: Mapping[str, str]) -> str:
    """Expand variables; `$${` stays as `${`. Raises ValueError.

    As in a shell, a default also replaces an empty variable. Applied to values that YAML has
    already separated, so no variable's value can change the structure.
    """

    def value(piece: re.Match[str]) -> str:
        name, default = piece["name"], piece["default"]
        if piece[0] == "$${":
            return "${"
        if name is None or "${" in (default or ""):
            raise ValueError(
                "has a ${ that is not ${VAR} or ${VAR:-default}: write $${ for a literal ${"
            )
        if default is not None:
            return environ.get(name) or default
        if name not in environ:
            raise ValueError(
                f"the environment variable {name} is not set: set it, or write ${{{name}:-default}}"
                f" (for a variable of the node's own shell, $${{{name}}})"
            )
        return environ[name]

    return _PIECE.sub(value, source)


def variables(source: str) -> frozenset[str]:
    """Names of the variables that `source` uses."""
    return frozenset(piece["name"] for piece in _PIECE.finditer(source) if piece["name"])


def only_variable(source: str) -> str | None:
    """VAR if `source` is exactly `${VAR}`."""
    whole = _WHOLE.fullmatch(source)
    return whole[1] if whole else None
