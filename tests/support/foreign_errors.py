"""Exceptions of other people's libraries, made without what their constructors want."""

from __future__ import annotations

from types import SimpleNamespace

import azure.core.exceptions


def raised(kind: type[Exception]) -> Exception:
    """One of that class, however its constructor wants it."""
    made = kind.__new__(kind)
    Exception.__init__(made, "words")
    named = SimpleNamespace(id="i-1", name="words")
    names = "code driver value node name msg body headers message reason status_code error"
    for name in names.split():
        if not hasattr(made, name):
            setattr(made, name, {"code": 503, "driver": named, "node": named}.get(name, "words"))
    if kind is azure.core.exceptions.ODataV4Error:
        made._error_format = None  # type: ignore[attr-defined]
    return made
