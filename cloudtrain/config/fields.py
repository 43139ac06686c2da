"""Field types: how each is parsed, and its JSON Schema."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

from cloudtrain.config.yaml_source import Block, Items, Scalar, only_variable
from cloudtrain.core.cloud import providers
from cloudtrain.core.model import Accelerator, Market, Provisioning
from cloudtrain.core.task_id import CLUSTER_NAME
from cloudtrain.training.strategies import STRATEGIES

NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_VARIABLE = {"type": "string", "pattern": r"\$\{"}
BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_A_YEAR = 365 * 86400.0


class InvalidValue(ValueError):
    """Raised with a text, and perhaps a hint, for an invalid value of a field. If the text begins
    with `must`, the value is reported as written in the file. Parsers never include the value, as
    it may come from a variable."""


_LIST = {"type": "array", "items": {"type": "string"}}
ONE_OR_LIST = ({"type": "string"}, _LIST)
Reader = Callable[[Any], Any]


class Before:
    """Metadata of a field's type: `read` makes of the tree's node what the type is read from. It
    raises InvalidValue."""

    def __init__(self, read: Reader) -> None:
        self.read = read


class Reads(Before):
    """The same, with the JSON Schema of the field: a title, and names of types or whole forms, with
    which a text with a variable is valid."""

    def __init__(
        self, read: Reader, title: str, *forms: str | Mapping[str, Any], **more: str
    ) -> None:
        super().__init__(read)
        schema: dict[str, Any] = {**({"title": title} if title else {}), **more}
        types = [form for form in forms if isinstance(form, str)]
        if types:
            self.schema = {**schema, "type": types[0] if len(types) == 1 else types}
        else:
            self.schema = {**schema, "anyOf": [*forms, *([] if _LIST in forms else [_VARIABLE])]}


class Also:
    """Another form of a field in the JSON Schema, which its reader reads."""

    def __init__(self, title: str, **schema: Any) -> None:
        self.form = {"title": title, **schema}


def is_null(node: object) -> bool:
    """True for an unquoted `~`, `null` or empty value."""
    return isinstance(node, Scalar) and node.plain and node.source in NULLS


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The valid name that was probably meant; None if none is near."""
    found = difflib.get_close_matches(name.lower()[:60], list(names), n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """The hint to the valid name that was probably meant; `otherwise` if none is near."""
    meant = nearest(name, names)
    return f"did you mean {meant!r}?" if meant else otherwise


# ── Readers ──────────────────────────────────────────────────────────────────


def text(node: Any) -> str:
    """The text as written, even if YAML would read a number or a boolean."""
    if node is None:
        raise InvalidValue("is missing")
    if not isinstance(node, Scalar):
        raise InvalidValue("must be a single value")
    value = node.text()
    if "\0" in value:
        raise InvalidValue("contains a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidValue("contains a character that is not valid Unicode") from None
    return value


def environment_value(node: Any) -> str:
    """Value of a variable; as in a shell, no value is the empty string."""
    return "" if is_null(node) else text(node)


def line(node: Any) -> str:
    """One line that is safe as a program's argument: it cannot be read as an option."""
    value = text(node)
    if not value.strip():
        raise InvalidValue("is empty")
    if any(ord(c) < 32 or ord(c) == 127 for c in value):
        raise InvalidValue("must be one line without control characters")
    if value.startswith("-"):
        raise InvalidValue("must not begin with a dash")
    return value


def matching(pattern: str, message: str, *hints: str, read: Reader = line) -> Reader:
    """A reader of texts that match a pattern as a whole."""

    def reads(node: Any) -> str:
        value: str = read(node)
        if not re.fullmatch(pattern, value):
            raise InvalidValue(message, *hints)
        return value

    return reads


def shell_line(node: Any) -> str:
    value = text(node)
    if not value.strip():
        raise InvalidValue("is empty")
    return value


def boolean(node: Any) -> bool:
    value = BOOLEANS.get(text(node).lower())
    if value is None:
        raise InvalidValue("must be true or false")
    return value


def close(node: Any) -> str:
    value = text(node)
    found = BOOLEANS.get(value.lower())
    if value != "auto" and found is None:
        raise InvalidValue("must be auto, on or off")
    return "auto" if found is None else "on" if found else "off"


def auto_or_off(node: Any) -> str:
    value = text(node)
    if value == "auto" or BOOLEANS.get(value.lower()) is False:
        return "auto" if value == "auto" else "off"
    raise InvalidValue("must be auto or off")


def positive(node: Any) -> float:
    value = _number(text(node))
    if value is None or value <= 0:
        raise InvalidValue("must be a number greater than 0")
    return value


def duration(node: Any) -> float:
    value = text(node)
    unit = value[-1:] if value[-1:] in _UNITS else ""
    number = _number(value.removesuffix(unit))
    if number is None:
        raise InvalidValue(
            "must be a duration such as 90s, 5m, 12h or 1d (a plain number is seconds)"
        )
    seconds = number * _UNITS[unit]
    if not 0 < seconds <= _A_YEAR:
        raise InvalidValue("must be more than 0 and at most 365d")
    return seconds


def duration_or_off(node: Any) -> float | None:
    if text(node).lower() in ("off", "false", "none"):
        return None
    try:
        return duration(node)
    except ValueError as error:
        raise InvalidValue(error.args[0], "`off` disables it") from None


def auto_duration_or_off(node: Any) -> float | Literal["auto"] | None:
    if text(node).lower() == "auto":
        return "auto"
    try:
        return duration_or_off(node)
    except ValueError as error:
        raise InvalidValue(error.args[0], "`auto` decides by cost, `off` disables it") from None


def identity(node: Any) -> str | None:
    value = line(node)
    return None if value.lower() in ("none", "off", "false") else value


_SIZES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def size(node: Any) -> int:
    found = re.fullmatch(r"([0-9.]+) *([a-z]*)", text(node), re.IGNORECASE)
    number = _number(found[1]) if found else None
    unit = _SIZES.get(found[2].upper()) if found else None
    if number is None or unit is None:
        raise InvalidValue("must be a size such as 500MB or 5GB (a plain number is bytes)")
    return int(number * unit)


def tag_name(value: Any) -> Any:
    """Key of an entry of `tags`, as far as all clouds agree."""
    if not isinstance(value, str) or not value.strip() or value != value.strip():
        raise InvalidValue("a tag's name must be a text without spaces around it")
    if any(ord(c) < 32 or ord(c) == 127 for c in value):
        raise InvalidValue("a tag's name must not contain control characters")
    if value.lower().startswith("cloudtrain"):
        raise InvalidValue("names that begin with cloudtrain are reserved")
    return value


def tag_value(node: Any) -> str:
    value = "" if is_null(node) else text(node)
    if any(ord(c) < 32 or ord(c) == 127 for c in value):
        raise InvalidValue("must be one line without control characters")
    return value


def accelerator(node: Any) -> Accelerator:
    found = re.fullmatch(r"([A-Za-z][A-Za-z0-9_-]{0,63})(?::([1-9][0-9]?))?", text(node))
    if not found:
        raise InvalidValue("must be a kind and the number on each node, such as T4:1")
    return Accelerator(kind=found[1], count=int(found[2] or 1))


_NAMED: Mapping[str, Market] = {"reservation": "reservation", "capacity_block": "capacity-block"}
_UNNAMED: tuple[Market, ...] = ("on-demand", "spot", "flex-start")
PROVISIONING = "on-demand, spot, flex-start, {reservation: NAME} or {capacity_block: ID}"


def provisioning(node: Any) -> Provisioning:
    if isinstance(node, Block):
        if len(node) != 1 or next(iter(node)) not in _NAMED:
            raise InvalidValue(f"must be one of {PROVISIONING}")
        key, name = next(iter(node.items()))
        return Provisioning(market=_NAMED[key], name=line(name))
    value = text(node)
    for market in _UNNAMED:
        if value == market:
            return Provisioning(market=market)
    for key, named in _NAMED.items():
        if value in (key, named):
            raise InvalidValue(f"must have a name: {{{key}: NAME}}")
    hint = did_you_mean(value, _UNNAMED)
    raise InvalidValue(f"must be one of {PROVISIONING}", *filter(None, [hint]))


def name(node: Any) -> str:
    value = text(node)
    if not is_name(value):
        raise InvalidValue(
            "must be a lower-case letter, followed by up to 29 lower-case letters, digits or dashes"
        )
    return value


def is_name(value: str) -> bool:
    return CLUSTER_NAME.match(value) is not None


def inside(node: Any) -> str:
    """A relative path, or glob, that stays below its folder."""
    value = line(node)
    if value.startswith(("/", "~")) or ".." in value.split("/"):
        raise InvalidValue(
            "must be a relative path that stays inside the folder (no .., no leading /)"
        )
    return value


def one_or_more(node: Any) -> Any:
    """A list; a single value is a list of one."""
    if not isinstance(node, Scalar) or is_null(node):
        return node
    found = Items(node.place)
    found.append(node)
    return found


def environment_name(value: Any) -> Any:
    """Key of an `env` or `secrets` entry."""
    if not (isinstance(value, str) and value.isascii() and value.isidentifier()):
        raise InvalidValue(
            "a variable's name has only letters, digits and _, and does not start with a digit"
        )
    if value == "TF_CONFIG":
        raise InvalidValue("is set by cloudtrain: `train.tf_config: false` disables it")
    if value.startswith("CLOUDTRAIN_"):
        raise InvalidValue("names that begin with CLOUDTRAIN_ are reserved")
    return value


def secret_variable(node: Any) -> str:
    """Name of the variable that holds a secret. Its value is not read, and an invalid name is never
    shown."""
    found = only_variable(node.source) if isinstance(node, Scalar) else None
    if found is None:
        raise InvalidValue("a secret must be exactly ${VAR}, without a default or other text")
    return found


def mapping(node: Any) -> Any:
    if not isinstance(node, Block):
        raise InvalidValue("must be a mapping: `NAME: value` lines, indented")
    return node


def _number(value: str) -> float | None:
    if not re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,15})?|\.[0-9]{1,15}", value):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _whole(low: int, high: int) -> Reads:
    def read(node: Any) -> int:
        value = text(node)
        if not re.fullmatch(r"0|[1-9][0-9]{0,17}", value) or not low <= int(value) <= high:
            raise InvalidValue(f"must be a whole number from {low} to {high}")
        return int(value)

    return Reads(read, f"{low}…{high}", {"type": "integer", "minimum": low, "maximum": high})


def choice(*options: str) -> Reads:
    def read(node: Any) -> str:
        value = text(node)
        if value not in options:
            hint = did_you_mean(node.source, options)
            raise InvalidValue(f"must be one of {', '.join(options)}", *filter(None, [hint]))
        return value

    numbers = [int(option) for option in options if option.isdigit()]
    return Reads(read, " | ".join(options), {"enum": [*options, *numbers]})


# ── Kinds ────────────────────────────────────────────────────────────────────

_SECONDS = {"type": "number", "exclusiveMinimum": 0}
_WITH_UNIT = {"type": "string", "pattern": r"^[0-9.]+[smhd]?$"}
TEXT = ("string", "number", "boolean")

EnvironmentValue = Annotated[str, Reads(environment_value, "text", *TEXT, "null")]
Line = Annotated[str, Reads(line, "text", *TEXT)]
ShellLine = Annotated[str, Reads(shell_line, "shell line", *TEXT)]
Identity = Annotated[str | None, Reads(identity, "none | identity", *TEXT)]
Boolean = Annotated[bool, Reads(boolean, "true | false", {"type": "boolean"})]
Price = Annotated[float, Reads(positive, "number > 0", _SECONDS)]
Duration = Annotated[float, Reads(duration, "duration", _SECONDS, _WITH_UNIT)]
DurationOrOff = Annotated[
    float | None,
    Reads(duration_or_off, "duration | off", _SECONDS, _WITH_UNIT, {"enum": ["off", False]}),
]
AutoDurationOrOff = Annotated[
    float | Literal["auto"] | None,
    Reads(
        auto_duration_or_off,
        "auto | duration | off",
        _SECONDS,
        _WITH_UNIT,
        {"enum": ["auto", "off", False]},
    ),
]
GpuKind = Annotated[Accelerator, Reads(accelerator, "KIND:COUNT", "string")]
Provision = Annotated[
    Provisioning,
    Reads(
        provisioning,
        "on-demand | spot | flex-start | {reservation: NAME} | {capacity_block: ID}",
        {"enum": list(_UNNAMED)},
        *(
            {
                "type": "object",
                "properties": {key: {"type": ["string", "number"]}},
                "required": [key],
                "additionalProperties": False,
            }
            for key in _NAMED
        ),
    ),
]
Name = Annotated[str, Reads(name, "name", *TEXT)]
Inside = Annotated[str, Reads(inside, "relative path", *TEXT)]
Folders = Annotated[
    tuple[Inside, ...], Reads(one_or_more, "relative path, or a list", *ONE_OR_LIST)
]
Globs = Annotated[tuple[Inside, ...], Reads(one_or_more, "auto | glob, or a list", *ONE_OR_LIST)]
Size = Annotated[
    int,
    Reads(
        size,
        "size",
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": "^[0-9.]+ *([kKmMgGtT]?[bB])?$"},
    ),
]
EnvironmentName = Annotated[str, Reads(environment_name, "", "string")]
TagName = Annotated[str, Reads(tag_name, "", "string")]
TagValue = Annotated[str, Reads(tag_value, "text", *TEXT, "null")]
SecretVariable = Annotated[
    str, Reads(secret_variable, "${VAR}", "string", pattern=r"^\$\{[A-Za-z_][A-Za-z0-9_]*\}$")
]
NodeCount = Annotated[int, _whole(1, 1000)]
Gigabytes = Annotated[int, _whole(1, 65536)]
SshPort = Annotated[int, _whole(1, 65535)]
TaskPort = Annotated[int, _whole(1024, 65000)]
Restarts = Annotated[int, _whole(0, 1000)]
ExitCode = Annotated[int, _whole(1, 255)]
ProviderChoice = Annotated[str, choice(*(row.name for row in providers()))]
StrategyChoice = Annotated[str, choice(*STRATEGIES)]
Close = Annotated[
    Literal["auto", "on", "off"],
    Reads(close, "auto | on | off", {"enum": ["auto", "on", "off", True, False]}),
]
AutoOrOff = Annotated[
    Literal["auto", "off"], Reads(auto_or_off, "auto | off", {"enum": ["auto", "off", False]})
]
