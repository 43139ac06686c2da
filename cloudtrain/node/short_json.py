"""Reads and writes short JSON without the module `json`.

Its import takes as long as the start of Python itself, 7 ms of CPU on each node: it imports `re`.
"""

TYPE_CHECKING = False  # `typing` takes longer to import than all the rest
if TYPE_CHECKING:
    from typing import Any

_NAMES = {
    **{"null": None, "true": True, "false": False},
    **{"Infinity": float("inf"), "NaN": float("nan")},
    "__builtins__": {},
}  # type: dict[str, Any]
_SAID = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}


def read(line: bytes) -> "Any":
    """Value of one line of the client, who has sent this program as well: never a stranger's."""
    text = line.decode("ascii")
    if "\\ud" in text:  # halves of characters, which JSON joins
        import json

        return json.loads(text)
    return eval(text, _NAMES)


def written(value: object) -> str:
    """The value as ASCII: texts, whole and other numbers, lists, mappings from texts."""
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return _SAID.get(repr(value), repr(value))
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(written, value)) + "]"
    assert isinstance(value, dict)
    return "{" + ", ".join(_text(key) + ": " + written(its) for key, its in value.items()) + "}"


def _text(text: str) -> str:
    try:
        if text.encode("ascii") and text.isprintable() and '"' not in text and "\\" not in text:
            return '"' + text + '"'
    except UnicodeEncodeError:
        pass
    if not text:
        return '""'
    import json

    return json.dumps(text)
