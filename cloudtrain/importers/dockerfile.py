"""Reads a Dockerfile line by line: its setup, its variables, what it copies and what it starts.

https://docs.docker.com/reference/dockerfile/"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.importers import shell_words
from cloudtrain.importers.code_folder import add_packages, put_image
from cloudtrain.importers.draft import Draft
from cloudtrain.importers.placed_code import Copy
from cloudtrain.importers.source_files import below, text_of
from cloudtrain.importers.values import Value

_NAMELESS = ("LABEL", "MAINTAINER", "EXPOSE", "USER", "SHELL", "STOPSIGNAL", "VOLUME")
"""Instructions that nodes do not need."""


@dataclass
class Dockerfile:
    """Facts on the program in a Dockerfile's last stage."""

    folder: str = ""
    """WORKDIR."""
    copies: tuple[Copy, ...] = ()
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    variables: dict[str, Value] = field(default_factory=dict)
    """ENV. What a variable had before it is `shell_words.OWN`."""
    requirements: tuple[tuple[str, Value], ...] = ()
    """Files that pip installs, by their paths in the image."""
    installs: tuple[tuple[str, Value], ...] = ()
    """Folders that pip installs."""


@dataclass
class _Reading:
    draft: Draft
    context: Path
    found: Dockerfile = field(default_factory=Dockerfile)
    stages: dict[str, Dockerfile] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    """ARG."""

    def known(self) -> dict[str, str]:
        return {**self.arguments, **{name: v.text for name, v in self.found.variables.items()}}


def read_dockerfile(draft: Draft, path: Path, context: Path | None = None) -> Dockerfile | None:
    """Map FROM, pip and apt-get; report what else it does to the image. None if there is no such
    file. `context` is the folder that it copies from."""
    context = context or path.parent
    try:
        text = text_of(context, path)
    except (OSError, ValueError):
        return None
    reading = _Reading(draft=draft, context=context)
    for line, name, rest in _instructions(text):
        _instruction(reading, Value(text=rest, file=str(path), line=line, field=name))
    return reading.found


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, upper-case name and arguments of each instruction."""
    whole, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or (not line.strip() and not whole):
            continue
        start = start or number
        whole += line.rstrip()
        if whole.endswith("\\"):
            whole = whole[:-1] + " "
            continue
        name, _, rest = whole.strip().partition(" ")
        yield start, name.upper(), rest.strip()
        whole, start = "", 0


def _instruction(reading: _Reading, value: Value) -> None:
    draft, found = reading.draft, reading.found
    if value.field == "FROM":
        _from(reading, value)
    elif value.field == "WORKDIR":
        whole = shell_words.quoted("".join(_words(value.text)))
        (folder,) = shell_words.filled(whole, reading.known())
        folder = shell_words.with_defaults(folder)
        found.folder = posixpath.normpath(posixpath.join(found.folder or "/", folder))
    elif value.field in ("COPY", "ADD"):
        _copy(reading, value)
    elif value.field == "RUN":
        _run(reading, value)
    elif value.field == "ARG":
        for word in _words(value.text):
            name, equals, text = word.partition("=")
            if equals:
                reading.arguments[name] = "".join(shell_words.filled(text, reading.known()))
    elif value.field == "ENV":
        _environment(reading, value)
    elif value.field == "ENTRYPOINT":
        found.entrypoint, found.command = _exec_form(value.text), ()
    elif value.field == "CMD":
        found.command = _exec_form(value.text)
    elif value.field in ("HEALTHCHECK", "ONBUILD"):
        draft.lose(value, f"not mapped: {value.text}")
    elif value.field not in _NAMELESS:
        draft.lose(replace(value, text="", field=""), "is no instruction of a Dockerfile")


def _from(reading: _Reading, value: Value) -> None:
    """A further stage begins anew, or as one before it ended."""
    words = [word for word in _filled(reading, value.text) if not word.startswith("--")]
    image = words[0] if words else ""
    known = reading.stages.get(image.lower())
    reading.found = replace(known, variables=dict(known.variables)) if known else Dockerfile()
    if len(words) > 2 and words[1].lower() == "as":
        reading.stages[words[2].lower()] = reading.found
    if known is None:
        put_image(reading.draft, value.with_text(shell_words.plain(image)))


# ── files ────────────────────────────────────────────────────────────────────


def _copy(reading: _Reading, value: Value) -> None:
    draft, found = reading.draft, reading.found
    flags = [word for word in value.text.split() if word.startswith("--")]
    listed = _json_words(re.sub(r"^(--\S+\s+)*", "", value.text))
    words = listed or [w for w in _filled(reading, value.text) if not w.startswith("--")]
    if any(flag.startswith("--from=") for flag in flags):
        draft.lose(value, f"not mapped: {value.text}: it comes from another stage or image")
        return
    if len(words) < 2:
        draft.lose(value, f"not mapped: {value.text}")
        return
    target = posixpath.normpath(posixpath.join(found.folder or "/", words[-1]))
    into = words[-1].endswith(("/", "/.")) or len(words) > 2 or target == (found.folder or "/")
    into = into or any(copy.target == target and copy.source.is_dir() for copy in found.copies)
    for word in words[:-1]:
        if re.match(r"(https?|git|ssh)://|git@", word):
            draft.lose(value, f"{word} is not mapped: bring it with `data:`, or in setup.run")
            continue
        for source in _sources(reading, value, word):
            if value.field == "ADD" and re.search(r"\.(tar(\.\w+)?|tgz|txz)$", source.name):
                draft.lose(value, f"{word} is not unpacked: deliver its content")
                continue
            inside = source.is_file() and (into or _has_glob(word))
            at = posixpath.join(target, source.name) if inside else target
            found.copies += (Copy(source=source, target=at, origin=value),)


def _has_glob(word: str) -> bool:
    return re.search(r"[*?[]", word) is not None


def _sources(reading: _Reading, value: Value, word: str) -> list[Path]:
    name = posixpath.normpath(word.lstrip("/")) if word.strip("/") else "."
    named = sorted(reading.context.glob(name)) if _has_glob(name) else [reading.context / name]
    inside = (below(reading.context, each) for each in named)
    found = [each for each in inside if each is not None and each.exists()]
    if not found:
        reading.draft.lose(value, f"{word} is not in {reading.context}: not mapped")
    return found


# ── software ─────────────────────────────────────────────────────────────────


def _run(reading: _Reading, value: Value) -> None:
    folder = reading.found.folder or "/"
    for words in _commands(reading, value.text):
        line = shell_words.plain(" ".join(words))
        while words[:1] == ["sudo"]:
            words = words[1:]
        if re.fullmatch(r"(/\S*/)?python[\d.]*", (words or [""])[0]) and words[1:2] == ["-m"]:
            words = words[2:]
        if words[:1] == ["cd"] and len(words) == 2:
            folder = posixpath.normpath(posixpath.join(folder, words[1]))
        elif re.fullmatch(r"(/\S*/)?pip[\d.]*", (words or [""])[0]) and words[1:2] == ["install"]:
            _pip(reading, value, words[2:], folder)
        elif words[:1] == ["apt-get"] or words[:1] == ["apt"]:
            lines: list[str] = list(reading.draft.get("setup.run") or [])
            command = "sudo " + shell_words.shell_line(words)
            reading.draft.put("setup.run", [*lines, command], value)
        elif words and words[0] not in ("rm", "mkdir"):
            why = f"not mapped: {line}: add it to setup.run if the nodes need it"
            reading.draft.lose(value, why)


def _commands(reading: _Reading, text: str) -> list[list[str]]:
    """The commands of a RUN, without redirections and what runs only if one fails."""
    text = re.sub(r"^(--\S+\s+)*", "", text)
    found: list[list[str]] = [[]]
    takes = True
    for word in _json_words(text) or _filled(reading, text):
        if word.startswith(shell_words.OPERATORS):
            takes = word[1:].strip("();\n&") == "" and word[1:] != "&"
            found.append([])
        elif takes:
            found[-1].append(word)
    return [words for words in found if words]


def _pip(reading: _Reading, value: Value, words: list[str], folder: str) -> None:
    draft, found = reading.draft, reading.found
    names: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in ("-r", "--requirement") or word.startswith(("--requirement=", "-r")):
            name = re.sub(r"^(--requirement=?|-r)", "", word) or next(rest, "")
            path = posixpath.normpath(posixpath.join(folder, name))
            found.requirements += ((path, value),)
        elif word in ("-e", "--editable"):
            continue
        elif word in (".", "./") or word.startswith(("./", "/")):
            path = posixpath.normpath(posixpath.join(folder, word.partition("[")[0]))
            found.installs += ((path, value),)
        elif word in ("-U", "-q") or word.startswith("--no-") or word in ("--upgrade", "--quiet"):
            continue
        elif word.startswith("-"):
            draft.lose(value, f"pip's option {word} is not mapped")
        else:
            names.append(shell_words.plain(word))
    add_packages(draft, [name for name in names if name not in ("pip", "setuptools")], value)


# ── variables and words ──────────────────────────────────────────────────────


def _environment(reading: _Reading, value: Value) -> None:
    words = _words(value.text)
    if words and "=" not in words[0]:
        words = [f"{words[0]}={' '.join(words[1:])}"]
    for word in words:
        name, _, text = word.partition("=")
        known = {key: old for key, old in reading.known().items() if shell_words.OWN not in old}
        known[name] = reading.known().get(name, shell_words.OWN)
        whole = "".join(shell_words.filled(shell_words.quoted(text), known))
        unknown = [each for each in shell_words.unknown(whole) if ":-" not in each]
        if unknown:
            why = f"{unknown[0]} in it is the image's own: write {name} under train.env"
            reading.draft.lose(value.with_text(text), why)
        else:
            reading.found.variables[name] = value.with_text(shell_words.with_defaults(whole))


def _exec_form(text: str) -> tuple[str, ...]:
    """ENTRYPOINT's or CMD's words: a JSON list, or a shell's line."""
    return tuple(_json_words(text)) or ("/bin/sh", "-c", text)


def _json_words(text: str) -> list[str]:
    """The words of a JSON list of texts; none of anything else."""
    try:
        found = json.loads(text)
    except ValueError:
        return []
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        return []
    return [shell_words.clean(word) for word in found]


def _filled(reading: _Reading, text: str) -> list[str]:
    known = reading.known()
    return [part for word in _words(text) for part in shell_words.filled(word, known)]


def _words(text: str) -> list[str]:
    try:
        return shell_words.words(text)
    except ValueError:
        return shell_words.clean(text).split()
