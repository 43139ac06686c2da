"""Parses YAML into a tree whose values know their file, line and original text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import yaml

from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.model import Problem

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32
MAX_ALIASES = 1000


SET = "--set"
"""The file of a value that `--set` gives."""


class SourceLocation(NamedTuple):
    file: str
    line: int
    """0 for a value that `--set` gives."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file

    def problem(self, path: Path, text: str) -> Problem:
        return Problem(file=self.file, line=self.line or None, field=dotted(path), text=text)


@dataclass(frozen=True)
class Scalar:
    """One value as written. Its field determines its type, not YAML: `tensorflow: 2.20` is the
    version 2.20 and `NO` is Norway."""

    source: str
    place: SourceLocation
    plain: bool = False
    """Written without quotes."""
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    def text(self) -> str:
        """The text with its variables expanded. Raises ValueError."""
        return expand_variables(self.source, self.environ)


class Block(dict[str, "Tree"]):
    """A mapping; `keys_at` has each key's location."""

    def __init__(self, place: SourceLocation) -> None:
        super().__init__()
        self.place = place
        self.keys_at: dict[str, SourceLocation] = {}

    def put(self, key: str, value: Tree, place: SourceLocation) -> None:
        self[key] = value
        self.keys_at[key] = place

    def without(self, key: str) -> Block:
        """A copy without this key: aliases may share the same block."""
        copy = Block(self.place)
        for name, value in self.items():
            if name != key:
                copy.put(name, value, self.keys_at[name])
        return copy

    def having(self, path: Path, value: Tree, place: SourceLocation) -> Block:
        """A copy with the value at `path`; missing blocks are created."""
        head, tail = str(path[0]), path[1:]
        at = place
        if tail:
            inner, at = self.get(head), self.keys_at.get(head, place)
            value = (inner if isinstance(inner, Block) else Block(place)).having(tail, value, place)
        copy = self.without(head)
        copy.put(head, value, at)
        return copy


class Items(list["Tree"]):
    """A list."""

    def __init__(self, place: SourceLocation) -> None:
        super().__init__()
        self.place = place


Tree = Scalar | Block | Items
Path = tuple[str | int, ...]


def parse(data: bytes, file: str, environ: Mapping[str, str]) -> tuple[Block, list[Problem]]:
    """The file's mapping and its structural problems; raises nothing. Built from parser events:
    depth and aliases are limited before anything is expanded."""
    builder = _Builder(file, environ)
    try:
        return builder.document(_decode(data)), builder.problems
    except _NotYaml as error:
        at = SourceLocation(file, error.line or 0)
        return Block(SourceLocation(file, 1)), [at.problem((), str(error))]


def parse_value(text: str, environ: Mapping[str, str]) -> Tree:
    """The value of `--set FIELD=VALUE`: a list or mapping in YAML's short form, a quoted text, or
    the text as it is. Raises ValueError."""
    place = SourceLocation(SET, 0)
    if text[:1] not in ("[", "{", '"', "'"):
        return Scalar(text, place, plain=True, environ=environ)
    builder = _Builder(SET, environ)
    try:
        tree = builder.value(_decode(text.encode("utf-8", "surrogateescape")))
    except _NotYaml as error:
        quote = ": put a text that begins with { or [ in quotes" if text[0] in "{[" else ""
        why = str(error).partition(": check that")[0]
        raise ValueError(f"{why}{quote}") from None
    if builder.problems:
        raise ValueError(builder.problems[0].text)
    return tree


def documents(text: str) -> list[Tree]:
    """Each document of a text; none of what is not YAML, too large or nested too deep."""
    builder, found = _Builder("", {}), list[Tree]()
    events = _events(text if len(text) <= MAX_BYTES else "")
    try:
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                found.append(builder.node(events, next(events), ()))
    except _NotYaml:
        return []
    return found


def place_of(tree: Tree, path: Path) -> SourceLocation | None:
    """Location of `path`, or of its nearest existing parent; None for the file."""
    place = None
    for part in path:
        if isinstance(tree, Block) and part in tree:
            place, tree = tree.keys_at[str(part)], tree[str(part)]
        elif isinstance(tree, Items) and isinstance(part, int) and part < len(tree):
            tree = tree[part]
            place = tree.place
        else:
            break
    return place


def value_at(tree: Tree, path: Path) -> Tree | None:
    for part in path:
        if isinstance(tree, Block) and part in tree:
            tree = tree[str(part)]
        elif isinstance(tree, Items) and isinstance(part, int) and part < len(tree):
            tree = tree[part]
        else:
            return None
    return tree


def scalars(tree: Tree) -> Iterator[tuple[Path, Scalar]]:
    """Every value with its path; those of an aliased block or list once, as aliases multiply."""
    seen: set[int] = set()
    left: list[tuple[Path, Tree]] = [((), tree)]
    while left:
        path, node = left.pop()
        if isinstance(node, Scalar):
            yield path, node
            continue
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Block):
            left += [((*path, key), value) for key, value in node.items()]
        else:
            left += [((*path, index), value) for index, value in enumerate(node)]


def is_empty(node: object) -> bool:
    """True for nothing after a colon."""
    return isinstance(node, Scalar) and node.plain and not node.source


def dotted(path: Path) -> str:
    """Format `("hosts", 0, "user")` as `hosts[0].user`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return shown(text.removeprefix("."), limit=120)


def shown(text: str, limit: int = 60) -> str:
    """Shorten to one line of printable characters."""
    clean = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return clean if len(clean) <= limit else f"{clean[: limit - 1]}…"


class _NotYaml(Exception):
    def __init__(self, text: str, line: int | None = None) -> None:
        super().__init__(text)
        self.line = line


def _decode(data: bytes) -> str:
    if len(data) > MAX_BYTES:
        raise _NotYaml(f"is larger than {MAX_BYTES // 1024} KiB: this is not a cloudtrain config")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _NotYaml("is not UTF-8 text: save it in UTF-8", line) from None


class _Builder:
    """Builds the tree of one file, event by event."""

    def __init__(self, file: str, environ: Mapping[str, str]) -> None:
        self.file = file
        self.environ = environ
        self.problems: list[Problem] = []
        self.anchors: dict[str, Tree] = {}
        self.aliases = 0

    def document(self, text: str) -> Block:
        tree = self.value(text)
        if is_empty(tree):
            raise _NotYaml("is empty: `cloudtrain init` writes a config to start from")
        if not isinstance(tree, Block):
            raise _NotYaml(
                "must contain `field: value` lines, such as `provider: local`", tree.place.line
            )
        return tree

    def value(self, text: str) -> Tree:
        """The only document of a text."""
        events = _events(text)
        next(events)
        if isinstance(next(events), yaml.StreamEndEvent):
            raise _NotYaml("is empty: `cloudtrain init` writes a config to start from")
        tree = self.node(events, next(events), ())
        next(events)
        after = next(events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise _NotYaml("contains more than one YAML document (---)", _line(after))
        return tree

    def place(self, event: Any) -> SourceLocation:
        return SourceLocation(self.file, 0 if self.file == SET else _line(event))

    def node(self, events: Iterator[Any], event: Any, path: Path) -> Tree:
        place = self.place(event)
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event)
        if len(path) > MAX_DEPTH:
            raise _NotYaml(f"is nested deeper than {MAX_DEPTH} levels", place.line)
        self.refuse_tag(event, path)
        tree: Tree
        if isinstance(event, yaml.ScalarEvent):
            plain = not event.style and event.tag is None
            tree = Scalar(event.value, place, plain, self.environ)
        elif isinstance(event, yaml.SequenceStartEvent):
            tree = self.items(events, place, path)
        else:
            tree = self.block(events, place, path)
        if event.anchor:
            self.anchors[event.anchor] = tree
        return tree

    def items(self, events: Iterator[Any], place: SourceLocation, path: Path) -> Items:
        items = Items(place)
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(self.node(events, event, (*path, len(items))))
        return items

    def block(self, events: Iterator[Any], place: SourceLocation, path: Path) -> Block:
        block = Block(place)
        merged: list[Tree] = []
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            at = self.place(event)
            key = self.node(events, event, (*path, "?"))
            name = key.source if isinstance(key, Scalar) else "?"
            value = self.node(events, next(events), (*path, name))
            if not isinstance(key, Scalar):
                self.problem(at, path, "has a list or a mapping as a key: keys must be plain text")
            elif key.plain and name == "<<":
                merged.append(value)
            elif name in block:
                first = block.keys_at[name].line
                self.problem(
                    at, (*path, name), f"is given twice, first on line {first}: remove one"
                )
            else:
                block.put(name, value, at)
        for value in merged:
            self.merge(block, value, path)
        return block

    def merge(self, block: Block, value: Tree, path: Path) -> None:
        """Apply YAML's `<<: *defaults`: the block's own entries win."""
        for other in value if isinstance(value, Items) else [value]:
            if not isinstance(other, Block):
                self.problem(other.place, (*path, "<<"), "must be a mapping, such as *defaults")
                continue
            for name, inherited in other.items():
                if name not in block:
                    block.put(name, inherited, other.keys_at[name])

    def alias(self, event: Any) -> Tree:
        self.aliases += 1
        if self.aliases > MAX_ALIASES:
            raise _NotYaml(f"has more than {MAX_ALIASES} aliases (*name)", _line(event))
        if event.anchor not in self.anchors:
            name = shown(event.anchor)
            raise _NotYaml(f"uses *{name} before &{name} is complete", _line(event))
        return self.anchors[event.anchor]

    def refuse_tag(self, event: Any, path: Path) -> None:
        tag = event.tag or "!"
        if tag != "!" and not tag.startswith("tag:yaml.org,2002:"):
            self.problem(self.place(event), path, f"YAML tags ({shown(tag)}) are not supported")

    def problem(self, place: SourceLocation, path: Path, text: str) -> None:
        self.problems.append(place.problem(path, text))


def _events(text: str) -> Iterator[Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        yield from yaml.parse(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        why = ", ".join(shown(part, 100) for part in (error.context, error.problem) if part)
        raise _NotYaml(
            f"is not valid YAML: {why or 'syntax error'}{_likely_cause(text, line)}", line
        ) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _NotYaml("contains a control character, which YAML does not allow", line) from None


def _likely_cause(text: str, line: int | None) -> str:
    """Common mistake found on such a line."""
    lines = text.splitlines()
    source = lines[line - 1] if line and line <= len(lines) else ""
    if "\t" in source:
        return ": indent with spaces, not tabs"
    if "${" in source and "{" in source.replace("${", ""):
        return ': inside { }, put a ${VAR} in quotes: "${VAR}"'
    for number, each in enumerate(lines[: line or 0], 1):
        plain = re.sub(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\s#.*""", "", each)
        if any(plain.count(a) > plain.count(b) for a, b in ("{}", "[]")):
            return f": check that the bracket opened on line {number} is closed"
    return ""


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


# ── Expands `${VAR}` and `${VAR:-default}` in the file's values from the environment ──────────


_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_PIECE = re.compile(rf"\$\$\{{|\$\{{(?P<name>{_NAME})(?::-(?P<default>[^}}]*))?\}}|\$\{{")
_WHOLE = re.compile(rf"\$\{{({_NAME})\}}")


def expand_variables(source: str, environ: Mapping[str, str]) -> str:
    """Expand variables; `$${` stays as `${`. Raises ValueError. As in a shell, a default also
    replaces an empty variable. Applied to values that YAML has already separated, so no variable's
    value can change the structure."""

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
