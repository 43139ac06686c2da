"""The product calls everything that it has."""

import ast
from pathlib import Path
from typing import TypeGuard

import cloudtrain
from cloudtrain.cli.app import COMMANDS, HIDDEN
from tests.support.sources import nodes, parsed

PACKAGE = Path(cloudtrain.__file__).parent


def test_the_product_names_every_function_class_and_method_that_it_has() -> None:
    """What only tests call is dead. Methods of classes that extend a library's are called there."""
    folders = (PACKAGE, PACKAGE / "providers", PACKAGE / "playbooks")
    paths = {path for folder in folders for path in folder.rglob("*.py")}
    trees = {path: parsed(path) for path in sorted(paths)}
    named = {name for path in trees for name in names(path)}
    named |= {f"{name.replace('-', '_')}_command" for name in (*COMMANDS, *HIDDEN)}
    own = {node.name for tree in trees.values() for node in tree.body if is_class(node)}
    own |= {"Protocol", "Exception", "Enum", "NamedTuple", "str"}
    dead = [
        f"{path.relative_to(PACKAGE)}: {name}"
        for path, tree in trees.items()
        for name in defined(tree, own)
        if name.rpartition(".")[2] not in named
    ]
    assert dead == [], "call it, or delete it: tests alone do not count"


def is_class(node: ast.stmt) -> TypeGuard[ast.ClassDef]:
    return isinstance(node, ast.ClassDef)


def names(path: Path) -> set[str]:
    found = {node.id for node in nodes(path, ast.Name)}
    found |= {node.attr for node in nodes(path, ast.Attribute)}
    return found | {alias.name for node in nodes(path, ast.ImportFrom) for alias in node.names}


def defined(tree: ast.Module, own: set[str]) -> list[str]:
    """`function`, `Class`, and `Class.method` of those that extend none but `own` classes."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not is_special(node.name):
            found.append(node.name)
        if is_class(node) and all(isinstance(b, ast.Name) and b.id in own for b in node.bases):
            found += [
                f"{node.name}.{each.name}"
                for each in node.body
                if isinstance(each, ast.FunctionDef) and not is_special(each.name)
            ]
    return found


def is_special(name: str) -> bool:
    """Called by Python or a notebook: `__getattr__`, `_repr_html_`."""
    return name.startswith("_") and name.endswith("_")
