"""A task that did not find what this machine has: the hint says how to deliver or find it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.checks.own_code_hints import with_own_code
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.run_record import Cause, Run
from tests.support.code_parts import write
from tests.support.offline_checks_parts import written

FILES = {
    ".gitignore": "data/\n*.pb\n/secret_models\n",
    "data/train.csv": "",
    "data/deep/a b.csv": "",
    "model.pb": "",
    "secret_models/__init__.py": "",
    "train.py": "",
    "trainer/task.py": "",
    "trainer/util.py": "",
    "jobs/one/pkg/main.py": "",
    "jobs/one/pkg/lib.py": "",
    "lib/helper.py": "",
}


def config(folder: Path, line: str = "python train.py", **train: str) -> ClusterConfig:
    write(folder / "code", FILES)
    return written(folder, code={"path": "code"}, train={"command": line, **train})


def hint(made: ClusterConfig, *said: str, kind: str = "exit") -> str | None:
    cause = Cause(
        task="worker0", node="n", kind=kind, text="exit code 1", last_lines=said, hint="general"
    )
    run = Run(
        id="R", cluster="t", command=made.train.command, tasks=(), state="running", created=0.0
    )
    return with_own_code(made, run, cause).hint


IGNORED = "data/train.csv is here, but left out (.gitignore:1 `data/`): add `!data/` to "


@pytest.mark.parametrize(
    "said",
    [
        "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.csv'",
        "FileNotFoundError: [Errno 2] No such file or directory: './data/train.csv'",
        "FileNotFoundError: [Errno 2] No such file or directory: "
        "'/home/u/.cloudtrain/t/runs/R/worker0/work/data/train.csv'",
        "tensorflow.python.framework.errors_impl.NotFoundError: data/train.csv; No such file or "
        "directory",
        "NotFoundError: {{function_node __wrapped__ReadFile}} data/train.csv; No such file",
        "cat: data/train.csv: No such file or directory",
        "OSError: Unable to open file (unable to open file: name = 'data/train.csv', errno = 2,",
    ],
)
def test_a_file_that_an_ignore_file_holds_back_is_named_with_the_line_and_the_way(
    tmp_path: Path, said: str
) -> None:
    assert hint(config(tmp_path), "Traceback", said) == f"{IGNORED}.cloudtrainignore"


def test_names_with_spaces_and_other_folders_of_the_code(tmp_path: Path) -> None:
    made = config(tmp_path, "python task.py", dir="trainer")
    said = "No such file or directory: '../data/deep/a b.csv'"
    assert str(hint(made, said)).startswith("data/deep/a b.csv is here, but left out (.gitignore:1")
    said = "OSError: SavedModel file does not exist at: model.pb/{saved_model.pbtxt}"
    assert hint(made, said) == "general"
    said = "NotFoundError: model.pb; No such file or directory"
    assert hint(made, said) == (
        "model.pb is here, but left out (.gitignore:2 `*.pb`): add `!model.pb` to .cloudtrainignore"
    )


@pytest.mark.parametrize(
    "said",
    [
        "No such file or directory: '/data/train.csv'",
        "No such file or directory: '/home/me/code/data/train.csv'",
        "No such file or directory: 'data/other.csv'",
        "No such file or directory: 'train.py'",
        "ValueError: data/train.csv is empty",
        "ModuleNotFoundError: No module named 'pandas'",
    ],
)
def test_what_this_machine_cannot_tell_keeps_its_hint(tmp_path: Path, said: str) -> None:
    assert hint(config(tmp_path), said) == "general"
    assert hint(config(tmp_path), "No such file or directory: 'data/train.csv'", kind="lost") == (
        "general"
    )
    assert hint(written(tmp_path), said) == "general"


@pytest.mark.parametrize(
    ("line", "module", "expected"),
    [
        (
            "python trainer/task.py --epochs 3",
            "trainer",
            "trainer is in the code, but a script looks in its own folder: start `python -m "
            "trainer.task`",
        ),
        (
            "python jobs/one/pkg/main.py",
            "pkg",
            "pkg is in the code, but a script looks in its own folder: start `python -m "
            "pkg.main` with `train.dir: jobs/one`",
        ),
        (
            "python train.py",
            "helper",
            "helper is in lib/ of the code: set `train.env.PYTHONPATH: lib`",
        ),
        ("python -m pkg.main", "pkg", "pkg is in jobs/one/ of the code: set `train.dir: jobs/one`"),
        (
            "python train.py",
            "secret_models",
            "secret_models/__init__.py is here, but left out (.gitignore:3 `/secret_models`): add "
            "`!secret_models/` to .cloudtrainignore",
        ),
    ],
)
def test_a_module_of_the_code_is_never_to_be_installed(
    tmp_path: Path, line: str, module: str, expected: str
) -> None:
    made = config(tmp_path, line)
    assert hint(made, f"ModuleNotFoundError: No module named '{module}.util'") == expected
    assert hint(made, f"/usr/bin/python: No module named {module}") == expected
