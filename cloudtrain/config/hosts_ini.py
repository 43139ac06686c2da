"""Reads `hosts: cluster.ini`: an INI `[cluster]` file with `chief=`, `worker=`, `ps=` as hosts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.config.yaml_source import Block, Items, Scalar, SourceLocation, shown
from cloudtrain.core.model import Problem
from cloudtrain.core.task_id import ROLE_ORDER

if TYPE_CHECKING:
    import configparser

_HOST = re.compile(r"(?P<address>[^\s:\[\]]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?")


def with_hosts(tree: Block, folder: Path, file: str) -> tuple[Block, list[Problem]]:
    """Replace `hosts: cluster.ini` by that file's machines. Its ports are those of the TensorFlow
    servers (SSH's is 22), so they become `train.port`."""
    written = tree.get("hosts")
    if not isinstance(written, Scalar) or not written.source:
        return tree, []
    place = tree.keys_at["hosts"]
    try:
        path = folder / written.text()
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else None
        own = str(error) if not isinstance(error, (UnicodeDecodeError, OSError)) else None
        reason = own or f"cannot read {shown(written.source)!r}: {why or 'it is not UTF-8 text'}"
        return tree.without("hosts"), [place.problem(("hosts",), reason)]
    ini = Ini(shown(written.source, 200), text)
    hosts = ini.hosts(place)
    return _with_port(tree.having(("hosts",), hosts, place), ini), ini.problems


class Ini:
    """An INI `[cluster]` file: its hosts, the ports that they name, and what is wrong with it."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self.ports: set[int] = set()
        self.problems: list[Problem] = []

    def hosts(self, place: SourceLocation) -> Items:
        items = Items(place)
        for role, value in self.roles().items():
            at = SourceLocation(self.file, self.line_of(role))
            for entry in filter(None, re.split(r"[\s,]+", value)):
                self.host(items, at, role, entry)
        if not items and not self.problems:
            self.problem(
                None, "cluster", "lists no hosts: add chief=host:port, worker=host:port, …"
            )
        return items

    def roles(self) -> dict[str, str]:
        import configparser

        parser = configparser.ConfigParser(interpolation=None, strict=True)
        parser.optionxform = str  # type: ignore[assignment, method-assign]
        try:
            parser.read_string(self.text, source=self.file)
        except configparser.Error as error:
            line = getattr(error, "lineno", None)
            if line is None and getattr(error, "errors", None):
                line = error.errors[0][0]  # type: ignore[attr-defined]
            self.problem(line, "", _plainly(error))
            return {}
        if not parser.has_section("cluster"):
            self.problem(None, "", "has no [cluster] section")
            return {}
        found = {role: value or "" for role, value in parser.items("cluster")}
        order = {role: number for number, role in enumerate(ROLE_ORDER)}
        return dict(sorted(found.items(), key=lambda item: order.get(item[0], len(order))))

    def host(self, items: Items, at: SourceLocation, role: str, entry: str) -> None:
        found = _HOST.fullmatch(entry)
        if not found:
            self.problem(at.line, role, f"must be a list of host:port, not '{shown(entry)}'")
            return
        if found["port"]:
            self.ports.add(int(found["port"]))
        host = Block(at)
        host.put("address", Scalar(found["address"].strip("[]"), at), at)
        host.put("role", Scalar(role, at), at)
        items.append(host)

    def line_of(self, start: str) -> int:
        pattern = re.compile(rf"\s*{re.escape(start)}\s*([=:]|$)")
        lines = self.text.splitlines()
        return next((n for n, line in enumerate(lines, 1) if pattern.match(line)), 1)

    def problem(self, line: int | None, field: str, text: str) -> None:
        self.problems.append(Problem(file=self.file, line=line, field=field, text=text))


def _with_port(tree: Block, ini: Ini) -> Block:
    """Set the file's port unless the YAML has a `train.port` of its own."""
    train = tree.get("train")
    if not ini.ports or not isinstance(train, Block) or "port" in train:
        return tree
    if len(ini.ports) > 1:
        ports = ", ".join(map(str, sorted(ini.ports)))
        ini.problem(
            None, "cluster", f"has different ports ({ports}): choose one for all with `train.port`"
        )
        return tree
    place = SourceLocation(ini.file, ini.line_of("[cluster]"))
    return tree.having(("train", "port"), Scalar(str(*ini.ports), place), place)


def _plainly(error: configparser.Error) -> str:
    import configparser

    if isinstance(error, configparser.MissingSectionHeaderError):
        return "has text before its [cluster] line"
    if isinstance(error, configparser.DuplicateOptionError):
        return f"has {shown(error.option)} twice"
    if isinstance(error, configparser.DuplicateSectionError):
        return f"has [{shown(error.section)}] twice"
    return "is not a valid INI file: expected [cluster] and lines such as chief=host:port"
