"""The matrix of TensorFlow versions: its cells, its page, and how it goes on."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from cloudtrain.catalog import cuda, gpus
from cloudtrain.config import load
from cloudtrain.training.strategies import STRATEGIES
from tests.support.project import ROOT
from tests.support.releases import NEWEST, NUMBER


@pytest.fixture(scope="module")
def matrix() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "tensorflow_matrix", ROOT / "tools" / "tensorflow_matrix.py"
    )
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_is_that_of_the_results_beside_it(matrix: ModuleType) -> None:
    results = matrix.read(ROOT / "docs" / "versions.json")
    assert results
    page = (ROOT / "docs" / "versions.md").read_text("utf-8")
    assert page == matrix.page(results), "run: python tools/tensorflow_matrix.py --page"


LOOKED_AT = {
    "READ of playbooks/tensorflow_releases.py, the day on which its tables were read": "2.21",
    "TOOLKITS of catalog/cuda.py, from https://www.tensorflow.org/install/source#gpu": "2.21",
}
"""The newest release when these were read: for a new one they may need no row."""
OLDER = {
    "configs/horovod.yaml": {"2.15"},
    "configs/tpu.yaml": {"2.20"},
    "docs/config.md": {"2.15"},
    "docs/failures.md": {"2.15"},
    "docs/from-ssh-windows.md": {"1.15"},
    "docs/gcp.md": {"2.20"},
    "docs/import.md": {"2.8"},
    "docs/strategies.md": {"1.15", "2.15", "2.20"},
}
"""Releases in files on what the newest lacks."""


GPU_CODE = (ROOT / "cloudtrain" / "catalog" / "gpu_code.csv").read_text("utf-8")


def test_a_release_is_known_everywhere(matrix: ModuleType) -> None:
    """What a new one needs beside its row in playbooks/tensorflow_releases.py."""
    results = matrix.read(ROOT / "docs" / "versions.json")
    known = {
        "gpus.NEWEST of catalog/gpus.py, after a look at DEVICE_CODE": gpus.NEWEST == NUMBER,
        "a row of LIBRARIES in catalog/cuda.py": cuda.LIBRARIES[-1].release == NUMBER,
        "RELEASES of tools/tensorflow_matrix.py": NEWEST in matrix.RELEASES,
        "docs/versions.json: run tools/tensorflow_matrix.py": any(
            cell.startswith(f"{NEWEST} ") for cell in results
        ),
        "catalog/gpu_code.csv: run `make gpu-code`": f"\n{NEWEST}." in GPU_CODE,
    }
    for place, release in LOOKED_AT.items():
        known[f"{place}; then in LOOKED_AT here"] = release == NEWEST
    pages = [ROOT / "README.md", ROOT / "examples" / "README.md", *(ROOT / "docs").glob("*.*")]
    for path in sorted([*(ROOT / "configs").rglob("*.yaml"), *pages]):
        name, text = str(path.relative_to(ROOT)), path.read_text("utf-8")
        named = {*re.findall(r'\btensorflow(?:: "|-cpu==)(\d+\.\d+)', text)}
        known[name] = named <= {NEWEST, *OLDER.get(name, ())}
    lacking = [place for place, is_known in known.items() if not is_known]
    texts = [place for place in lacking if (ROOT / place).exists()]
    way = f"sed -i 's/OLD/{NEWEST}/' {' '.join(texts)}" if texts else ""
    assert not lacking, "\n".join([f"{NEWEST} is lacking in:", *lacking, way])


def test_every_strategy_that_needs_no_tpu_is_trained(matrix: ModuleType) -> None:
    trained = {name for name, each in STRATEGIES.items() if not each.tpus}
    assert matrix.NODES.keys() == trained, "add it to NODES of tools/tensorflow_matrix.py"


def test_the_newest_python_of_every_release_comes_first(matrix: ModuleType) -> None:
    found = [cell.name for cell in matrix.cells(["2.21", "2.15"], ["mirrored"], newest=False)]
    assert found[:3] == ["2.21 3.13 mirrored", "2.15 3.11 mirrored", "2.21 3.12 mirrored"]
    assert len(found) == 7
    newest = [cell.name for cell in matrix.cells(["2.21", "2.15"], ["mirrored"], newest=True)]
    assert newest == found[:2]


@pytest.mark.parametrize(
    ("release", "python", "strategy", "is_there"),
    [
        ("2.15", "3.11", "custom", True),
        ("2.16", "3.11", "custom", False),
        ("2.18", "3.11", "horovod", True),
        ("2.18", "3.12", "horovod", False),
        ("2.19", "3.11", "horovod", False),
        ("2.8", "3.10", "parameter_server", True),
        ("2.4", "3.8", "parameter_server", False),
        ("1.15", "3.7", "multi_worker_mirrored", False),
    ],
)
def test_what_a_release_lacks_is_no_cell(
    matrix: ModuleType, release: str, python: str, strategy: str, is_there: bool
) -> None:
    assert (matrix.absent(matrix.Cell(release, python, strategy)) is None) is is_there


def result(
    matrix: ModuleType, *, passed: bool = True, made: bool = False, text: str = ""
) -> object:
    versions = {"tensorflow": "2.21.0", "python": "3.13.0", "numpy": "2.4.6"} if passed else {}
    return matrix.Result(
        date="2026-11-23",
        seconds=34.7,
        made=made,
        passed=passed,
        text=text,
        versions=versions,
        machine="2 × CPU, Linux",
    )


def test_the_page_tells_seconds_versions_failures_and_what_was_not_run(matrix: ModuleType) -> None:
    page = matrix.page(
        {
            "2.21 3.13 mirrored": result(matrix),
            "2.21 3.13 one_device": result(matrix, made=True),
            "2.21 3.12 mirrored": result(matrix, passed=False, text="error: it broke"),
        }
    )
    assert "2 of 3 cells passed; 2026-11-23, on 2 × CPU, Linux." in page
    assert "- **2.21.0, Python 3.13.0**, numpy 2.4.6:\n  mirrored 35 s, one_device 35 s*\n" in page
    assert "- **2.21, Python 3.12**:\n  mirrored failed (1)\n" in page
    assert "\nNot run yet: " in page
    assert "1. 2.21 3.12 mirrored: error: it broke" in page


def test_what_has_a_result_is_not_run_again_unless_asked(
    matrix: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix, "interpreter", lambda version: f"/opt/python{version}")
    known = {
        "2.21 3.13 mirrored": result(matrix),
        "2.20 3.13 mirrored": result(matrix, passed=False),
    }

    def todo(*more: str) -> list[str]:
        releases = ("--releases", "2.21,2.20,2.19", "--strategies", "mirrored")
        asked = matrix.options([*releases, "--pythons", "newest", *more])
        return [cell.release for cell in matrix.wanted_cells(asked, known)]

    assert todo() == ["2.19"]
    assert todo("--failed") == ["2.20", "2.19"]
    assert todo("--again") == ["2.21", "2.20", "2.19"]
    monkeypatch.setattr(matrix, "interpreter", lambda version: None)
    assert todo() == [], "a Python that this machine lacks"


def test_the_environments_used_longest_ago_go_first(matrix: ModuleType, tmp_path: Path) -> None:
    for number, name in enumerate(("old", "newer", "own")):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (number, number))
    matrix.make_room(tmp_path / "own", 2)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["newer", "own"]


@pytest.mark.parametrize("strategy", ["mirrored", "horovod", "custom"])
def test_a_cell_is_an_ordinary_config(matrix: ModuleType, tmp_path: Path, strategy: str) -> None:
    file = matrix.write_config(matrix.Cell("2.15", "3.11", strategy), "/opt/python3.11", tmp_path)
    assert load(file).strategy == strategy
    assert yaml.safe_load(file.read_text())["setup"]["tensorflow"] == "2.15"
    assert (tmp_path / "code" / "train.py").exists()


def test_a_failure_is_told_by_cloudtrains_own_line(
    matrix: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    told = matrix.cause(1, "", "03:31 up\nerror: chief0: exit code 1\nhint: look\n")
    assert told == "error: chief0: exit code 1"
    assert "hint: look" in capsys.readouterr().err
