"""Modules that nothing provides, in `plan` and `check`; and no false alarm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloudtrain.checks.import_notes import import_notes
from cloudtrain.checks.notes import notes
from cloudtrain.checks.script_code import program_notes
from cloudtrain.config import load
from tests.support.code_parts import write
from tests.support.offline_checks_parts import written

ROOT = Path(__file__).parents[2]


def noted(
    folder: Path, files: dict[str, str], line: str = "python train.py", **values: Any
) -> tuple[str, ...]:
    write(folder / "code", files)
    given: dict[str, Any] = {"setup": {"tensorflow": "2.21"}, "train": {"command": line}, **values}
    return import_notes(written(folder, code={"path": "code"}, **given))


def test_a_module_that_nothing_provides_is_named_with_its_line_and_package(tmp_path: Path) -> None:
    source = "import os\nimport tensorflow as tf\nfrom sklearn import svm\nimport mine.own\n"
    found = noted(tmp_path, {"train.py": source, "lib.py": "import never_imported\n"})
    neither = "neither the code nor `setup:` has the module"
    assert found == (
        f"train.py:3: {neither} sklearn: add scikit-learn to `setup.packages`",
        f"train.py:4: {neither} mine: add mine to `setup.packages`",
    )
    config = written(
        tmp_path,
        code={"path": "code"},
        setup={"tensorflow": "2.21"},
        train={"command": "python train.py"},
    )
    assert set(found) <= set(notes(config))


def test_modules_of_the_code_are_followed(tmp_path: Path) -> None:
    files = {"train.py": "import lib\n", "lib.py": "from parts import one\n"}
    (note,) = noted(tmp_path, {**files, "parts/one.py": "import cv2\n"})
    assert note.startswith("parts/one.py:1: ")
    assert "add opencv-python-headless" in note


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    import horovod_x\nexcept ImportError:\n    horovod_x = None\n",
        "try:\n    import a\nexcept:\n    import b\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pandas\n",
        "import sys\nif sys.version_info < (3, 8):\n    import importlib_x\n",
        "import os\nif os.environ.get('A'):\n    import wandb\n",
        "def main():\n    import wandb\nmain()\n",
        "class A:\n    def f(self):\n        import wandb\n",
        "import contextlib\nwith contextlib.suppress(ImportError):\n    import wandb\n",
        "import numpy, h5py, absl.flags, google.protobuf, PIL.Image, requests, scipy\n",
        "import distutils.util, imp, tomllib\n",
        "import sys\nsys.path.insert(0, '../lib')\nimport mine\n",
        "import os\nos.system('pip install wandb')\nimport wandb\n",
        "import helper\n",
        "import helper.part\n",
        "from . import helper\n",
        "import built\n",
        "import importlib\nimportlib.import_module('x')\n",
        "from keras import layers\nfrom tensorflow.python.platform import flags\n",
    ],
)
def test_what_may_be_there_is_not_noted(tmp_path: Path, source: str) -> None:
    files = {"train.py": source, "helper/part.py": "", "built.cpython-311-x86_64-linux-gnu.so": ""}
    assert noted(tmp_path, files) == ()


@pytest.mark.parametrize(
    "setup",
    [
        {},
        {"tensorflow": "2.21", "packages": ["pandas"]},
        {"tensorflow": "2.21", "packages": ["some-collection"]},
        {"tensorflow": "2.21", "packages": ["tensorflow-datasets[all]"]},
        {"tensorflow": "2.21", "packages": ["git+https://example.org/a.git"]},
        {"tensorflow": "2.21", "requirements": "r.txt"},
        {"tensorflow": "2.21", "requirements": "code:r.txt"},
        {"tensorflow": "2.21", "install": "."},
        {"tensorflow": "2.21", "run": ["pip install pandas"]},
    ],
)
def test_an_environment_that_may_have_it_is_left_in_peace(
    tmp_path: Path, setup: dict[str, Any]
) -> None:
    write(tmp_path, {"r.txt": "some-collection==1\n"})
    assert noted(tmp_path, {"train.py": "import pandas\n", "r.txt": ""}, setup=setup) == ()


def test_horovod_brings_its_own(tmp_path: Path) -> None:
    files = {"train.py": "import horovod.tensorflow\nimport yaml\n"}
    given: dict[str, Any] = {"setup": {"tensorflow": "2.15"}, "nodes": {"worker": {"count": 2}}}
    assert noted(tmp_path, files, strategy="horovod", **given) == ()
    assert len(noted(tmp_path, files, strategy="custom", **given)) == 1


def test_known_packages_bring_what_they_bring_and_no_more(tmp_path: Path) -> None:
    setup = {"tensorflow": "2.21", "packages": ["pandas", "tensorflow-datasets"]}
    source = "import pandas, dateutil, pytz, tqdm, tensorflow_datasets\nimport seaborn\n"
    (note,) = noted(tmp_path, {"train.py": source}, setup=setup)
    assert note.startswith("train.py:2: ")
    assert "seaborn" in note


def test_a_script_in_a_package_is_to_be_started_as_a_module(tmp_path: Path) -> None:
    files = {"trainer/task.py": "from trainer.util import x\n", "trainer/util.py": ""}
    looked = "but a script looks in its own folder, trainer"
    for more in ({}, {"trainer/__init__.py": ""}):
        assert noted(tmp_path, {**files, **more}, "python trainer/task.py --epochs 3") == (
            f"trainer/task.py:1: trainer is in the top folder of the code, {looked}: start "
            "`python -m trainer.task`",
        )
    assert noted(tmp_path, files, "python -m trainer.task --epochs 3") == ()
    inner = {f"jobs/mnist/{name}": text for name, text in files.items()}
    (note,) = noted(tmp_path / "b", inner, "python jobs/mnist/trainer/task.py")
    assert note.endswith("start `python -m trainer.task` with `train.dir: jobs/mnist`")
    (note,) = noted(tmp_path / "c", {"train.py": "import util\n", "lib/util.py": ""})
    assert note.endswith(
        "util is in lib/ of the code, but a script looks in its own folder, .: "
        "set `train.env.PYTHONPATH: lib`"
    )


def test_with_a_path_of_modules_in_the_environment_nothing_is_noted(tmp_path: Path) -> None:
    train = {"command": "python train.py", "env": {"PYTHONPATH": "lib"}}
    files = {"train.py": "import util, pandas\n", "lib/util.py": ""}
    assert noted(tmp_path, files, train=train) == ()


def test_a_module_to_start_that_nobody_has_is_noted(tmp_path: Path) -> None:
    files = {"multi-worker/trainer/task.py": "", "a.py": ""}
    assert noted(tmp_path, files, "python -m trainer.task") == (
        "train.command: -m trainer.task: trainer is in multi-worker/: set `train.dir: "
        "multi-worker`",
    )
    assert noted(tmp_path, files, "python -m launcher.run") == (
        "train.command: -m launcher.run: neither the code nor `setup:` has the module launcher",
    )
    for fine in ("json.tool x", "a", "tensorboard.main"):
        assert noted(tmp_path, files, f"python -m {fine}") == ()
    known = {"tensorflow": "2.21", "packages": ["launcher"]}
    assert noted(tmp_path, files, "python -m launcher.run", setup=known) == ()


def test_examples_and_other_peoples_scripts_are_left_in_peace(tmp_path: Path) -> None:
    scripts = sorted((ROOT / "examples").glob("*.py")) + sorted(
        (ROOT / "tests" / "strangers").rglob("*.py")
    )
    assert len(scripts) > 20
    for path in scripts:
        name, folder = path.name, path.parent
        line = f"python {name}"
        if folder.name == "trainer":
            line, folder = f"python -m trainer.{path.stem}", folder.parent
        config = written(
            tmp_path,
            setup={"tensorflow": "2.21", "packages": ["scikit-learn"]},
            code={"path": str(folder)},
            train={"command": line},
        )
        assert import_notes(config) == (), path
    for config_file in (ROOT / "configs").glob("*.yaml"):
        assert import_notes(load(config_file, {"HOME": "/home/user"})) == (), config_file


# ── programs of the code ─────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("./dos.sh --x", "dos.sh has line ends of Windows"),
        ("bash dos.sh", "dos.sh has line ends of Windows"),
        ("./dos.py", "dos.py has line ends of Windows"),
        ("./plain.sh", "plain.sh is not executable: `chmod +x` it, or name what runs it (`bash "),
        ("exec ./sub/plain.sh", "sub/plain.sh is not executable"),
        ("bash plain.sh", None),
        ("sh -x plain.sh; true", None),
        ("./fine.sh", None),
        ("./gone.sh", None),
        ("python dos.py", None),
        ("/usr/bin/env python dos.py", None),
        ("bash -c './dos.sh'", None),
        ("nvidia-smi", None),
    ],
)
def test_a_program_that_no_node_can_start_is_noted(
    tmp_path: Path, line: str, words: str | None
) -> None:
    text = "#!/bin/sh\necho 1\n"
    files = {"plain.sh": text, "sub/plain.sh": text, "fine.sh": text, "dos.sh": "", "dos.py": ""}
    root = write(tmp_path / "code", files)
    (root / "dos.sh").write_bytes(b"#!/bin/sh\r\necho 1\r\n")
    (root / "dos.py").write_bytes(b"#!/usr/bin/env python3\r\nprint(1)\r\n")
    for name in ("fine.sh", "dos.sh", "dos.py"):
        (root / name).chmod(0o755)
    found = program_notes(written(tmp_path, code={"path": "code"}, train={"command": line}))
    assert len(found) == (words is not None)
    assert all(f"train.command: {words}" in note for note in found)


@pytest.mark.parametrize(
    ("path", "silent"),
    [("../lib", True), ("..:../lib", True), ("/opt/x", True), ("../other", False), ("", False)],
)
def test_what_pythonpath_has_is_there(tmp_path: Path, path: str, silent: bool) -> None:
    files = {"jobs/train.py": "import util\n", "lib/util.py": ""}
    train = {"command": "python train.py", "dir": "jobs", "env": {"PYTHONPATH": path}}
    assert bool(noted(tmp_path, files, train=train)) != silent
    train["command"] = "python -m util"
    assert bool(noted(tmp_path, files, train=train)) != silent
