"""`setup.requirements: code:FILE` and `setup.install`: what is read, refused and planned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain import config as configs
from cloudtrain.checks.notes import notes
from cloudtrain.checks.setup import setup_problems
from cloudtrain.config import requirements
from cloudtrain.core.errors import ConfigError
from cloudtrain.core.model import ClusterConfig, Code
from cloudtrain.node import requirement_lines
from cloudtrain.playbooks import base, code_packages, tensorflow
from tests.support.nodes_here import node
from tests.support.tensorflow_parts import config

CONFIG = """\
provider: local
strategy: one_device
code: {path: .}
train: {command: python train.py}
setup:
"""


def written(folder: Path, setup: str) -> ClusterConfig:
    path = folder / "c.yaml"
    path.write_text(CONFIG + "".join(f"  {line}\n" for line in setup.splitlines()))
    return configs.load(path)


def test_one_folder_needs_no_list(tmp_path: Path) -> None:
    assert written(tmp_path, "install: .").setup.install == (".",)
    assert written(tmp_path, "install: [lib, 'app[gpu]']").setup.install == ("lib", "app[gpu]")


@pytest.mark.parametrize("value", ["/x", "../x", "-x", "a/../../x", "~"])
@pytest.mark.parametrize("field", ["install: [%s]", "requirements: code:%s"])
def test_paths_stay_inside_the_code(tmp_path: Path, field: str, value: str) -> None:
    with pytest.raises(ConfigError, match=r"c\.yaml:6: setup"):
        written(tmp_path, field % value)


def test_what_the_code_lacks_is_found_offline_with_file_and_line(tmp_path: Path) -> None:
    mine = written(tmp_path, "requirements: code:needs.txt\ninstall: [lib, .]")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "setup.py").write_text("")
    found = [str(problem).removeprefix(f"{tmp_path}/") for problem in setup_problems(mine)]
    assert found == [
        "c.yaml:6: setup.requirements: the delivered code has no file needs.txt",
        "c.yaml:7: setup.install: the delivered code has no pyproject.toml or setup.py in .",
    ]
    (tmp_path / "needs.txt").write_text("six\n")
    (tmp_path / "pyproject.toml").write_text("")
    assert setup_problems(mine) == ()


def test_a_file_that_is_ignored_is_missing_too(tmp_path: Path) -> None:
    (tmp_path / "needs.txt").write_text("six\n")
    (tmp_path / ".cloudtrainignore").write_text("needs.txt\n")
    (problem,) = setup_problems(written(tmp_path, "requirements: code:needs.txt"))
    assert "has no file needs.txt" in problem.text


def test_without_code_there_is_nothing_to_install() -> None:
    (problem,) = code_packages.problems(config(install=(".",)), None)
    assert problem.text.startswith("requires `code:`")


def test_code_of_a_git_server_is_looked_at_on_the_node() -> None:
    mine = replace(config(install=(".",)), code=Code(git="https://example.com/x.git"))
    assert code_packages.problems(mine, None) == ()


def test_plan_says_what_is_installed(tmp_path: Path) -> None:
    mine = written(tmp_path, "requirements: code:r.txt\ninstall: .")
    line = "setup.requirements: code:r.txt, setup.install: .: installed with the delivered code"
    assert any(note.startswith(line) for note in notes(mine))


def test_they_need_an_environment_even_without_tensorflow() -> None:
    assert tensorflow.environment_folder(config(), node()) is None
    assert tensorflow.environment_folder(config(install=(".",)), node()) is not None
    assert "python3-venv" in base.packages(config(install=(".",)))
    mine = config(requirements="code:r.txt")
    assert requirements.lines(mine) == ()
    assert tensorflow.environment_folder(mine, node()) is not None


def test_each_code_and_each_setup_has_a_layer_of_its_own() -> None:
    mine = config(tensorflow="2.21", install=(".",))
    folders = [
        code_packages.environment_folder(one, node(), code)
        for one, code in (
            (mine, "a"),
            (mine, "b"),
            (config(tensorflow="2.20", install=(".",)), "a"),
            (config(tensorflow="2.21", install=("lib",)), "a"),
            (config(tensorflow="2.21"), "a"),
        )
    ]
    assert len(set(folders)) == 5
    assert folders[4] == tensorflow.environment_folder(config(tensorflow="2.21"), node())


def test_paths_with_quotes_are_arguments_and_no_shell_text() -> None:
    odd = "a 'b' $(c)"
    (step,) = code_packages.steps(config(tensorflow="2.21", install=(odd,)), node(), "d")
    assert step.run.arguments[-1] == odd
    assert odd not in step.run.arguments[2]


def test_included_lines_are_read_and_listed_packages_lose_their_bounds(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("six==1 \\\n  ; python_version > '3'\n# no\n-r b.txt\n")
    (tmp_path / "b.txt").write_text("NumPy>1\n-r a.txt\n-c c.txt\n")
    own = requirement_lines.lines(str(tmp_path / "a.txt"))
    assert own == ["six==1    ; python_version > '3'", "NumPy>1", f"-c {tmp_path}/c.txt"]
    given = ["numpy<2", "keras<4", "tensorflow==2.21.0"]
    assert requirement_lines.bounds([*own, "tensorflow"], given) == [
        "keras<4",
        "tensorflow==2.21.0",
    ]
