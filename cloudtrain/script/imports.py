"""The modules that a program imports for certain, in whatever way it goes on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from cloudtrain.script.facts import Use
from cloudtrain.script.module import LARGEST, Unreadable, is_main_guard, parse
from cloudtrain.script.names import absolute
from cloudtrain.script.program import MOST, Entry, Read, located


def certain_imports(entry: Entry, read: Read) -> tuple[Use, ...]:
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
