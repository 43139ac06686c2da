"""Reads a script with the modules of its own code that it imports."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from cloudtrain.script.arguments import OptionReader
from cloudtrain.script.facts import Arguments, ScriptFacts, Use, first_uses
from cloudtrain.script.module import (
    LARGEST,
    ModuleFacts,
    Unreadable,
    is_main_guard,
    parse,
    read_module,
)
from cloudtrain.script.names import absolute
from cloudtrain.script.roles import of_program

MOST = 100
"""Modules of one program that are read; the rest is not followed."""

Read = Callable[[str], "bytes | None"]
"""Maps a path in the code to its content, at most `module.LARGEST` bytes and one more; None if it
is not there."""


@dataclass(frozen=True, kw_only=True)
class ModuleEntry:
    """A module to read: its path in the code, and its dotted name from the folder `root`."""

    path: str
    root: str
    module: str = ""

    @property
    def package(self) -> str:
        if posixpath.basename(self.path) == "__init__.py":
            return self.module
        return self.module.rpartition(".")[0]


def read_program(entry: ModuleEntry, read: Read) -> ScriptFacts:
    """Facts on the script `entry` and its own modules. Never raises for what they contain."""
    modules: list[ModuleFacts] = []
    unreadable: list[Use] = []
    libraries: set[str] = set()
    todo, seen, complete = [entry], {entry.path}, True
    while todo and len(modules) + len(unreadable) < MOST:
        one = todo.pop(0)
        source = read(one.path)
        if source is None:
            continue
        if len(source) > LARGEST:
            complete = False
            continue
        try:
            facts = read_module(
                source, one.path, package=one.package, is_main=one.path == entry.path
            )
        except Unreadable as error:
            unreadable.append(Use(name=error.text, file=one.path, line=error.line))
            continue
        modules.append(facts)
        for name in facts.imports:
            found = located(name, entry.root, read)
            libraries |= set() if found else {name.partition(".")[0]}
            new = [each for each in found if each.path not in seen]
            seen |= {each.path for each in new}
            todo += new
    imported = {name for module in modules for name in module.imports}
    own = {name.partition(".")[0] for name in imported if located(name, entry.root, read)}
    outside = frozenset(libraries - own - {""})
    return _together(modules, unreadable, outside, complete=complete and not todo)


def located(name: str, root: str, read: Read) -> list[ModuleEntry]:
    """Files of a module and of the packages around it, as far as the code has them."""
    found = []
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        module = ".".join(parts[:end])
        path = posixpath.normpath(posixpath.join(root, *parts[:end]))
        for candidate in (f"{path}/__init__.py", f"{path}.py"):
            if read(candidate) is not None:
                found.append(ModuleEntry(path=candidate, root=root, module=module))
                break
    return found


def _together(
    modules: list[ModuleFacts], unreadable: list[Use], libraries: frozenset[str], *, complete: bool
) -> ScriptFacts:
    keys: dict[str, Use] = {}
    for use in (use for module in modules for use in module.tf_config):
        keys.setdefault(use.name, use)
    roles = of_program([module.roles for module in modules])
    return ScriptFacts(
        files=tuple(module.file for module in modules),
        names=first_uses(use for module in modules for use in module.names),
        libraries=libraries,
        by_index=() if roles.spoken else tuple(roles.by_index),
        reads_back=any(module.reads_back for module in modules),
        chief_only=tuple(roles.only["chief"]),
        master_only=() if "chief" in roles.spoken else tuple(roles.only["master"]),
        tf_config=tuple(keys.values()),
        arguments=_arguments([module.options for module in modules], complete and not unreadable),
        unreadable=tuple(unreadable),
        **{
            name: tuple(use for module in modules for use in getattr(module, name))
            for name in ("uris", "own_addresses", "written", "saves", "default_collectives")
        },
    )


def _arguments(readers: list[OptionReader], complete: bool) -> Arguments:
    options = tuple(option for reader in readers for option in reader.options)
    one_library = len({option.library for option in options}) == 1
    known = complete and one_library and not any(reader.computed for reader in readers)
    return Arguments(
        options=options,
        all_known=known and any(reader.parsed for reader in readers),
        tolerant=any(reader.tolerant for reader in readers),
        abbreviations=all(reader.abbreviations for reader in readers),
    )


# ── The modules that a program imports for certain, in whatever way it goes on ────────────────


def certain_imports(entry: ModuleEntry, read: Read) -> tuple[Use, ...]:
    """The first import of each top-level module that the code does not have, of those that run
    whenever the script does: in no function, and below no condition, `try` or `with`."""
    todo, seen = [entry], {entry.path}
    missing: dict[str, Use] = {}
    own: set[str] = set()
    while todo and len(seen) <= MOST:
        one = todo.pop(0)
        source = read(one.path)
        if source is None or len(source) > LARGEST:
            continue
        if re.search(rb"\bsys\.path\b|\bpip\b|addsitedir", source):
            return ()  # it looks for modules elsewhere, or installs them itself
        try:
            tree = parse(source)
        except Unreadable:
            continue
        for name, line in _imports(tree.body, one.package, is_main=one is entry):
            top = name.partition(".")[0]
            found = located(name, entry.root, read)
            if found or located(top, entry.root, read):
                own.add(top)
            elif top:
                missing.setdefault(top, Use(name=name, file=one.path, line=line))
            todo += [each for each in found if each.path not in seen]
            seen |= {each.path for each in found}
    return tuple(use for top, use in missing.items() if top not in own)


def _imports(body: Iterable[ast.stmt], package: str, *, is_main: bool) -> Iterator[tuple[str, int]]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from ((each.name, node.lineno) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = absolute(node, package)
            yield module, node.lineno
            yield from ((f"{module}.{each.name}", node.lineno) for each in node.names)
        elif is_main and isinstance(node, ast.If) and is_main_guard(node.test):
            yield from _imports(node.body, package, is_main=is_main)
        elif isinstance(node, ast.Try) and not node.handlers:
            yield from _imports([*node.body, *node.finalbody], package, is_main=is_main)
