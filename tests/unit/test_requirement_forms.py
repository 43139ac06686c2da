"""Requirements as people have them: what pip cannot read is said with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloudtrain.checks.notes import notes
from cloudtrain.checks.setup import setup_problems
from cloudtrain.config import requirements
from cloudtrain.core.model import Setup
from cloudtrain.node.requirement_lines import decoded, lines
from tests.support.tensorflow_parts import config


def said(folder: Path, text: str | bytes, name: str = "needs.txt") -> list[str]:
    data = text if isinstance(text, bytes) else text.encode()
    (folder / name).write_bytes(data)
    made = config(tensorflow="2.21", requirements=name, source=str(folder / "m.yaml"))
    return [str(problem) for problem in setup_problems(made)]


FINE = """\
# what people have
--index-url https://pypi.example.org/simple
--extra-index-url=https://x.example.org
-f https://download.example.org/whl
--trusted-host example.org
--no-binary :all:
--pre
numpy
Pillow >= 9, < 12
tensorflow-datasets[all]~=4.9
scipy!=1.9.*,>1 ; python_version < "3.13"   # comment
torch==2.0.0+cu118
odd.name_x===1!2.0
old (>=1.0,<2)
pkg @ https://example.org/pkg-1.0.tar.gz
git+https://example.org/a/b.git@main#egg=b
-e git+https://example.org/a/b.git#egg=b
https://example.org/c-1.0-py3-none-any.whl
pywin32==306; sys_platform == "win32"
six==1.16.0 \\
    --hash=sha256:1e61c37477a1626458e36f7b1d82aa5c9b094fa4802892072e49de9c60c4c926 \\
    --hash=sha256:8abb2f1d86890a2dfb989f9a77cfcfd3e47c2a354b01111771326f8aa26e0254
private @ https://${USER}:${TOKEN}@example.org/x.whl
cloudpickle>=${LOWEST}
"""


def test_what_pip_reads_is_let_through(tmp_path: Path) -> None:
    assert said(tmp_path, FINE) == []


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + FINE.encode(),
        b"\xff\xfe" + FINE.encode("utf-16-le"),
        b"\xfe\xff" + FINE.encode("utf-16-be"),
        b"# caf\xe9\n" + FINE.encode(),
        b"# -*- coding: cp1252 -*-\n# \x80\n" + FINE.encode(),
        FINE.replace("\n", "\r\n").encode(),
    ],
)
def test_it_is_read_in_any_encoding_that_editors_write(tmp_path: Path, data: bytes) -> None:
    assert said(tmp_path, data) == []
    assert "numpy" in lines(str(tmp_path / "needs.txt"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("six = 1.16", "`six = 1.16` has one `=`: write six==1.16"),
        ("six=1.16.0=pyhd3eb1b0_1", "is a line of conda's: write six==1.16.0"),
        ("-e .", "which no node has: `setup.install: .` installs the delivered code"),
        (".", "`setup.install: .`"),
        ("./lib", "`setup.install: .`"),
        ("--editable ../lib[gpu]", "`setup.install: .`"),
        ("wheels/a-1.0-py3-none-any.whl", "`setup.install: .`"),
        ("--find-links wheels", "`setup.install: .`"),
        (
            "numpy @ file:///home/conda/numpy_1/work",
            "as conda's `pip freeze` has them: write numpy",
        ),
        ("tensorflow-intel==2.15.0", "is Windows's part of TensorFlow"),
        ("pywin32==306", "exists for Windows alone: remove the line"),
        ("TensorFlow_Metal", "exists for macOS alone"),
        ("pip install six", "is a command: write the packages alone"),
        ("numpy pandas", "has several packages"),
        ("numpy, pandas", "has several packages"),
        ("python>=3.9", "`setup.python`"),
        ("sklearn", "write scikit-learn"),
        ("--upgrade six", "no option that pip knows"),
        ("import numpy as np", "is Python"),
        ("numpy==", "no requirement that pip can read"),
        ("numpy>>1", "no requirement that pip can read"),
    ],
)
def test_a_line_that_pip_cannot_install_is_named_with_its_place(
    tmp_path: Path, line: str, words: str
) -> None:
    (problem,) = said(tmp_path, f"# first\nrich\n{line}\n")
    assert problem.startswith("needs.txt:3: setup.requirements: ")
    assert words in problem
    named = config(tensorflow="2.21", packages=(line,), source=str(tmp_path / "m.yaml"))
    (problem,) = setup_problems(named)
    assert problem.field == "setup.packages[0]"


def test_an_absolute_path_may_be_on_the_node(tmp_path: Path) -> None:
    (tmp_path / "a-1.0-py3-none-any.whl").write_text("")
    lines = [f"{tmp_path}/a-1.0-py3-none-any.whl", f"-e {tmp_path}", f"--find-links={tmp_path}"]
    lines += [f"a @ file://{tmp_path}/a-1.0-py3-none-any.whl"]

    def refused(provider: str, *lines: str) -> int:
        return len(setup_problems(config("mirrored", provider=provider, packages=lines)))

    assert refused("local", *lines) == 0
    assert refused("local", *(line.replace(str(tmp_path), "/gone") for line in lines)) == 4
    assert refused("gcp", *lines) == 4
    assert refused("gcp", "/opt/wheels/a-1.0-py3-none-any.whl", "-e /opt/lib") == 0
    assert refused("hosts", *lines) == 0
    assert refused("hosts", "numpy @ file:///croot/numpy_and_numpy_base_1/work", "./lib") == 2


def test_an_included_file_is_named_itself(tmp_path: Path) -> None:
    (tmp_path / "deps").mkdir()
    (tmp_path / "deps" / "base.txt").write_text("rich\nsix = 1\n")
    (tmp_path / "deps" / "limits.txt").write_text("numpy<2\n")
    (problem,) = said(tmp_path, "-r deps/base.txt\n-c deps/limits.txt\n")
    assert problem.startswith("deps/base.txt:2: ")
    (problem,) = said(tmp_path, "--requirement=gone.txt\n")
    assert "gone.txt cannot be read: No such file" in problem


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("environment.yml", "name: x\ndependencies:\n  - numpy\n", "an environment of conda"),
        ("needs.txt", "channels:\n  - x\ndependencies:\n  - numpy\n", "an environment of conda"),
        ("needs.txt", "# platform: linux-64\n@EXPLICIT\nhttps://x\n", "an environment of conda"),
        ("Pipfile", '[[source]]\nurl = "x"\n[packages]\nsix = "*"\n', "`pipenv requirements"),
        ("Pipfile.lock", '{\n "_meta": {}}', "`pipenv requirements"),
        ("uv.lock", 'version = 1\n[[package]]\nname = "a"\n', "`uv export --frozen"),
        ("poetry.lock", '# by Poetry\n[[package]]\nname = "a"\n', "`poetry export"),
        ("setup.py", "from setuptools import setup\n", "`setup.install: .`"),
        ("needs.txt", "n\0u\0m\0p\0y\0", "save it as UTF-8"),
        ("pyproject.toml", '[project]\nname = "x"\ndynamic = ["dependencies"]\n', "uv export"),
        ("pyproject.toml", '[tool.poetry.dependencies]\nsix = "*"\n', "`poetry export"),
    ],
)
def test_another_kind_of_file_is_named_as_what_it_is(
    tmp_path: Path, name: str, text: str, words: str
) -> None:
    (problem,) = said(tmp_path, text, name)
    assert problem.startswith(f"{name}:1: setup.requirements: ")
    assert words in problem


def test_the_dependencies_of_a_pyproject_are_read_with_their_lines(tmp_path: Path) -> None:
    pytest.importorskip("tomllib")
    text = (
        '[project]\nname = "x"\ndependencies = [\n  "six>=1",\n  "tensorflow==2.15",\n  "a b",\n]\n'
    )
    (problem,) = said(tmp_path, text, "pyproject.toml")
    assert problem.startswith("pyproject.toml:6: setup.requirements: `a b` has several")
    made = config(tensorflow="2.21", requirements="pyproject.toml", source=str(tmp_path / "m.yaml"))
    assert requirements.lines(made)[:2] == ("six>=1", "tensorflow==2.15")
    given = requirements.delivered(made, {"tensorflow"})
    assert given.main == "pyproject.toml.txt"
    assert dict(given.texts)[given.main].splitlines()[3:5] == ["six>=1", "#"]


LOCK = """\
version = 1
requires-python = ">=3.10"
[[package]]
name = "mine"
version = "0.1"
source = { virtual = "." }
dependencies = [
  { name = "six" },
  { name = "ip", version = "8", marker = "python_full_version < '3.11'" },
  { name = "ip", version = "9", marker = "python_full_version >= '3.11'" },
  { name = "requests", extra = ["socks"] },
]
[package.dev-dependencies]
dev = [{ name = "pytest" }]
[[package]]
name = "six"
version = "1.16"
source = { registry = "https://pypi.org/simple" }
dependencies = [{ name = "colorama", marker = "sys_platform == 'win32'" }]
[[package]]
name = "ip"
version = "8"
source = { registry = "https://pypi.org/simple" }
dependencies = [{ name = "deep" }, { name = "six" }]
[[package]]
name = "ip"
version = "9"
source = { registry = "https://pypi.org/simple" }
[[package]]
name = "deep"
version = "1"
source = { git = "https://example.org/deep.git?rev=main#abc" }
dependencies = [{ name = "ip", version = "8" }]
[[package]]
name = "colorama"
version = "0.4"
source = { registry = "https://pypi.org/simple" }
[[package]]
name = "requests"
version = "2"
source = { registry = "https://pypi.org/simple" }
[package.optional-dependencies]
socks = [{ name = "pysocks" }]
[[package]]
name = "pysocks"
version = "1.7"
source = { registry = "https://pypi.org/simple" }
[[package]]
name = "pytest"
version = "9"
source = { registry = "https://pypi.org/simple" }
"""
"""As uv 0.11 writes it; the rule was compared with its own `uv export` for 34 packages."""


def test_a_lock_of_uv_is_read_as_uv_exports_it(tmp_path: Path) -> None:
    pytest.importorskip("tomllib")
    assert said(tmp_path, LOCK, "uv.lock") == []
    made = config(requirements="uv.lock", source=str(tmp_path / "m.yaml"))
    assert requirements.lines(made) == (
        "six==1.16",
        "ip==8 ; ((python_full_version < '3.11'))",
        "ip==9 ; ((python_full_version >= '3.11'))",
        "deep @ git+https://example.org/deep.git@abc ; ((python_full_version < '3.11'))",
        "colorama==0.4 ; ((sys_platform == 'win32'))",
        "requests==2",
        "pysocks==1.7",
    )
    local = LOCK.replace('{ git = "https://example.org/deep.git?rev=main#abc" }', '{ path = "x" }')
    (problem,) = said(tmp_path, local, "uv.lock")
    assert "`uv export --frozen" in problem


def record(*environments: list[str]) -> str:
    return json.dumps({"id": "1", "environments": [{"packages": each} for each in environments]})


def test_the_record_of_a_run_names_the_packages_that_all_of_it_had(tmp_path: Path) -> None:
    both = [
        "numpy==1.26.4",
        "torch==2.0.0+cu118",
        "mine @ git+https://e.org/a@abc#subdirectory=b/c",
    ]
    hostile = ["six==1\n--index-url https://evil", "-r x", "-e==.", "a @ file:///etc", "x==1 ; y"]
    every = [*both, *hostile, "pip==25"]
    text = record([*every, "nvidia-cudnn-cu12==9", "a==1"], [*every, "a==2"])
    assert said(tmp_path, text, "run.json") == []
    made = config(requirements="run.json", source=str(tmp_path / "m.yaml"))
    assert list(requirements.lines(made)) == [both[2], both[0], both[1]]


@pytest.mark.parametrize(
    "text", [record(), record([]), "{}", "[]", "{", "[" * 9999, '{"environments": 3}']
)
def test_a_record_without_packages_is_refused(tmp_path: Path, text: str) -> None:
    (problem,) = said(tmp_path, text, "run.json")
    assert "run.json:1: setup.requirements: records no packages" in problem


@pytest.mark.parametrize(
    ("line", "differs"),
    [
        ("tensorflow==2.15.0", True),
        ("tensorflow-cpu ~= 2.15.0", True),
        ("tensorflow<2.16,>=2.10", True),
        ("TensorFlow_GPU>2.30", True),
        ("tensorflow~=2.15", False),
        ("tensorflow>=2.10", False),
        ("tensorflow==2.21.*", False),
        ("tensorflow", False),
        ("tensorflow-datasets==4.9", False),
        ("tensorflow<=2.21", False),
        ("tensorflow!=2.20", False),
    ],
)
def test_a_tensorflow_that_gives_way_is_said(tmp_path: Path, line: str, differs: bool) -> None:
    (tmp_path / "needs.txt").write_text(f"rich\n{line}\n")
    made = config(tensorflow="2.21", requirements="needs.txt", source=str(tmp_path / "m.yaml"))
    told = [note for note in notes(made) if "left out" in note]
    expected = f'needs.txt:2: {line} is left out: `setup.tensorflow: "2.21"` decides'
    assert told == ([expected] if differs else [])
    named = config(tensorflow="2.21", packages=(line,))
    told = [note for note in notes(named) if "left out" in note]
    assert bool(told) is differs


def test_files_keep_their_folders_and_absolute_names_become_relative(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "shared" / "base.txt").write_text("six\n")
    (tmp_path / "mine" / "needs.txt").write_text(f"-r {tmp_path}/shared/base.txt\nrich\n")
    made = config(requirements="needs.txt", source=str(tmp_path / "mine" / "m.yaml"))
    found = requirements.delivered(made, ())
    assert (found.main, found.apart) == ("mine/needs.txt", "")
    assert dict(found.texts) == {
        "mine/needs.txt": "-r ../shared/base.txt\nrich\n",
        "shared/base.txt": "six\n",
    }


def test_only_files_with_an_index_or_hashes_are_given_to_pip_alone(tmp_path: Path) -> None:
    made = config(requirements="r.txt", source=str(tmp_path / "m.yaml"))
    for text, apart in {
        "six\n": "",
        "--extra-index-url https://x\nsix\n": "",
        "--index-url https://x\nsix\n": "index",
        "-i https://x\n": "index",
        "six==1 --hash=sha256:1\n": "hashes",
        "--require-hashes\n": "hashes",
    }.items():
        (tmp_path / "r.txt").write_text(text)
        assert requirements.delivered(made, ()).apart == apart, text
    assert requirements.delivered(config(), ()) == requirements.Delivered()
    assert Setup().requirements is None


def test_text_of_no_encoding_at_all_is_read_anyway() -> None:
    assert decoded(b"# -*- coding: klingon -*-\nsix # \xff\n") == (
        "# -*- coding: klingon -*-\nsix # \xff\n"
    )
