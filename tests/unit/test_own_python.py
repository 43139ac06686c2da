"""Every Python that this machine starts for us is started in one way."""

import ast
from pathlib import Path

from cloudtrain.core import own_python
from tests.support.sources import nodes, text_of
from tests.unit.test_architecture import PACKAGE, modules

WITHOUT_STARTING = {"playbooks/tensorflow.py", "providers/local/environment.py"}
"""They look where the interpreter is."""
ON_NODES = {"node/newer_release.py", "node/watcher.py"}


def own(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def is_executable(node: ast.Attribute) -> bool:
    return node.attr == "executable" and ast.unparse(node) == "sys.executable"


def test_our_interpreter_is_started_by_one_module_alone() -> None:
    found = {own(path) for path in modules() if any(map(is_executable, nodes(path, ast.Attribute)))}
    assert found == {"core/own_python.py", *WITHOUT_STARTING, *ON_NODES}


def test_whoever_starts_it_does_so_in_a_neutral_folder() -> None:
    users = [path for path in modules() if "own_python" in text_of(path)]
    users = [path for path in users if own(path) not in {"core/own_python.py", "__main__.py"}]
    starts = 0
    for path in users:
        for node in nodes(path, ast.Call):
            if ast.unparse(node.func).startswith("subprocess."):
                folder = [each.value for each in node.keywords if each.arg == "cwd"]
                names = [ast.unparse(each).rpartition(".")[2] for each in folder]
                assert names == ["NEUTRAL"], path
                starts += 1
    assert starts >= 5


def test_the_folder_is_left_out_in_the_way_that_the_python_has() -> None:
    new, old = (own_python.module("pip", "x", safe_path=safe)[1:] for safe in (True, False))
    assert new == ["-P", "-m", "pip", "x"]
    assert (old[0], old[2:]) == ("-c", ["pip", "x"])
    assert own_python.program("x.py", "a")[1:] == ["-I", "x.py", "a"]
    assert own_python.code("text", "a")[1:] == ["-I", "-c", "text", "a"]
