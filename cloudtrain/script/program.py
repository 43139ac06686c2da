"""Reads a script with the modules of its own code that it imports."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import dataclass

from cloudtrain.script.facts import Arguments, ScriptFacts, Use
from cloudtrain.script.module import LARGEST, ModuleFacts, Unreadable, read_module

MOST = 100
"""Modules of one program that are read; the rest is not followed."""

Read = Callable[[str], "bytes | None"]
"""Maps a path in the code to its content, at most `module.LARGEST` bytes and one more; None if it
is not there."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A module to read: its path in the code, and its dotted name from the folder `root`."""

    path: str
    root: str
    module: str = ""

    @property
    def package(self) -> str:
        if posixpath.basename(self.path) == "__init__.py":
            return self.module
        return self.module.rpartition(".")[0]


def read_program(entry: Entry, read: Read) -> ScriptFacts:
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
    own = {name for module in modules for name in _own_roots(module, entry.root, read)}
    outside = frozenset(libraries - own - {""})
    return _together(modules, unreadable, outside, complete=complete and not todo)


def _own_roots(module: ModuleFacts, root: str, read: Read) -> set[str]:
    return {name.partition(".")[0] for name in module.imports if located(name, root, read)}


def located(name: str, root: str, read: Read) -> list[Entry]:
    """Files of a module and of the packages around it, as far as the code has them."""
    found = []
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        module = ".".join(parts[:end])
        path = posixpath.normpath(posixpath.join(root, *parts[:end]))
        for candidate in (f"{path}/__init__.py", f"{path}.py"):
            if read(candidate) is not None:
                found.append(Entry(path=candidate, root=root, module=module))
                break
    return found


def _together(
    modules: list[ModuleFacts],
    unreadable: list[Use],
    libraries: frozenset[str],
    *,
    complete: bool,
) -> ScriptFacts:
    names: dict[str, Use] = {}
    for use in (use for module in modules for use in module.names):
        if use.name not in names or (use.sure and not names[use.name].sure):
            names[use.name] = use
    keys: dict[str, Use] = {}
    for use in (use for module in modules for use in module.tf_config):
        keys.setdefault(use.name, use)
    roles = [module.roles for module in modules]
    spoken = {role for each in roles for role in each.spoken}
    chiefs = [use for each in roles for use in each.only.get("chief", ())]
    masters = [use for each in roles for use in each.only.get("master", ())]
    return ScriptFacts(
        files=tuple(module.file for module in modules),
        names=tuple(names.values()),
        libraries=libraries,
        uris=tuple(use for module in modules for use in module.uris),
        by_index=() if spoken else tuple(use for each in roles for use in each.by_index),
        own_addresses=tuple(use for module in modules for use in module.own_addresses),
        written=tuple(use for module in modules for use in module.written),
        saves=tuple(use for module in modules for use in module.saves),
        reads_back=any(module.reads_back for module in modules),
        chief_only=() if any(each.first_worker for each in roles) else tuple(chiefs),
        master_only=()
        if "chief" in spoken or any(each.first_worker for each in roles)
        else tuple(masters),
        tf_config=tuple(keys.values()),
        default_collectives=tuple(use for module in modules for use in module.default_collectives),
        arguments=_arguments(modules, complete and not unreadable),
        unreadable=tuple(unreadable),
    )


def _arguments(modules: list[ModuleFacts], complete: bool) -> Arguments:
    options = tuple(option for module in modules for option in module.options)
    one_library = len({option.library for option in options}) == 1
    computed = any(module.computed for module in modules)
    return Arguments(
        options=options,
        all_known=complete
        and one_library
        and not computed
        and any(module.parsed for module in modules),
        tolerant=any(module.tolerant for module in modules),
        abbreviations=all(module.abbreviations for module in modules),
    )
