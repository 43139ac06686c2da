"""CUDA's libraries are where TensorFlow's loader looks for them, once the environment is made."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from cloudtrain.catalog import cuda
from cloudtrain.core.model import Accelerator, ClusterConfig, NodeGroup, Setup
from cloudtrain.core.ship import text
from cloudtrain.playbooks import tensorflow, tensorflow_releases
from cloudtrain.playbooks.apply import apply
from tests.support.environments import quick_python
from tests.support.nodes_here import HereTransport, Remembered, node
from tests.support.prepared import users_pip_config

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None, reason="needs gcc, which makes libraries"
)

LOADER = """\
#include <dlfcn.h>
const char *said = "Could not load dynamic library '%s'";
int load(const char *name) { return dlopen(name, RTLD_NOW) != 0; }
"""
FOLDERS = ("cublas", "cudnn")
"""Those of pip's that the loader searches."""
ASK = """\
import ctypes, sysconfig
loader = ctypes.CDLL(sysconfig.get_path("platlib") + "/tensorflow/libtensorflow_framework.so.2")
print([name for name in %r if loader.load(name.encode())])
"""
NAMES = ["libcublas.so.12", "libcusolver.so.11", "libnvJitLink.so.12"]


def library(path: Path, source: str = "int here;", *flags: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", *flags, "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """What wheels of a TensorFlow unpack, whose loader does not search cuSOLVER's folder, and of
    CUDA: cuSOLVER needs a library of another package, by its own RUNPATH."""
    made = tmp_path / "packages"
    near = [f"$ORIGIN/../nvidia/{name}/lib:$ORIGIN/../../{name}" for name in FOLDERS]
    search = "-Wl,--enable-new-dtags,-rpath," + ":".join(near)
    library(made / "tensorflow/libtensorflow_framework.so.2", LOADER, search)
    library(made / "tensorflow/libtensorflow_cc.so.2", "int big[1 << 16] = {1};")
    for name in ("cublas/lib/libcublas.so.12", "cudnn/lib/libcudnn.so.9"):
        library(made / "nvidia" / name)
    link = made / "nvidia/nvjitlink/lib/libnvJitLink.so.12"
    library(link, "int linker;", f"-Wl,-soname,{link.name}")
    needs = [str(link), "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN/../../nvjitlink/lib"]
    library(made / "nvidia/cusolver/lib/libcusolver.so.11", "extern int linker;", *needs)
    return made


def wheel(folder: Path, name: str, version: str, files: Path, *below: str, needs: str = "") -> Path:
    plain = name.replace("-", "_")
    made = folder / f"{plain}-{version}-py3-none-any.whl"
    info = f"{plain}-{version}.dist-info"
    with zipfile.ZipFile(made, "w") as file:
        for path in sorted(path for place in below for path in (files / place).rglob("*.so*")):
            file.write(path, str(path.relative_to(files)))
        about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        file.writestr(f"{info}/METADATA", about + (f"Requires-Dist: {needs}\n" if needs else ""))
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: x\n")
        file.writestr(f"{info}/RECORD", "")
    return made


def found(python: Path) -> str:
    asked = [str(python), "-c", ASK % NAMES]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def test_an_environment_is_made_with_what_the_loader_would_not_find(
    tmp_path: Path, packages: Path
) -> None:
    wheels = [
        wheel(tmp_path, "tensorflow", "2.21.0", packages, "tensorflow"),
        wheel(tmp_path, "nvidia-all-cu12", "12.9", packages, "nvidia"),
    ]
    config = ClusterConfig(
        name="mnist",
        provider="hosts",
        strategy="mirrored",
        nodes={"chief": NodeGroup()},
        setup=Setup(
            python=str(quick_python(tmp_path / "python")), packages=tuple(map(str, wheels))
        ),
    )
    environ = {"PIP_CONFIG_FILE": pip_config} if (pip_config := users_pip_config()) else {}
    stage = Remembered()
    transport = HereTransport(tmp_path / "homes", environ)
    apply(lambda one: tensorflow.steps(config, one), [node()], transport, stage)
    told = [text for _, text in stage.lines]
    assert "python-packages: linking CUDA's libraries to where TensorFlow looks for them" in told
    folder = tensorflow.bin_folder(config, node())
    assert folder is not None
    python = tmp_path / "homes" / node().name / folder / "python"
    assert found(python) == str(NAMES)
    (place,) = python.parents[1].glob("lib/python3*/site-packages")
    for name in FOLDERS:
        link = place / f"nvidia/{name}/lib/libcusolver.so.11"
        assert str(link.readlink()) == "../../cusolver/lib/libcusolver.so.11"


@pytest.fixture
def environment(tmp_path: Path, packages: Path) -> tuple[Path, Path]:
    """Its python and its site-packages, with those packages in it."""
    made = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True)
    place = Path(sysconfig.get_path("platlib", vars={"base": str(made), "platbase": str(made)}))
    for name in ("tensorflow", "nvidia"):
        (packages / name).rename(place / name)
    return made / "bin/python", place


def link(python: Path) -> str:
    asked = [str(python), "-I", "-c", text("cuda_links.py")]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout


def state(place: Path) -> list[tuple[str, str]]:
    return sorted(
        (str(each), str(each.readlink())) for each in place.rglob("*") if each.is_symlink()
    )


def test_nothing_is_changed_twice(environment: tuple[Path, Path]) -> None:
    python, place = environment
    assert found(python) == "['libcublas.so.12']"
    assert link(python) == "linking CUDA's libraries to where TensorFlow looks for them\n"
    assert found(python) == str(NAMES)
    before = state(place)
    assert link(python) == ""
    assert state(place) == before


def test_a_library_exchanged_by_another_version_is_linked_anew(
    environment: tuple[Path, Path],
) -> None:
    python, place = environment
    link(python)
    folder = place / "nvidia/cusolver/lib"
    (folder / "libcusolver.so.11").rename(folder / "libcusolver.so.12")
    assert link(python) != ""
    assert (place / "nvidia/cudnn/lib/libcusolver.so.12").exists()


def test_a_tensorflow_without_cuda_is_left_alone(environment: tuple[Path, Path]) -> None:
    python, place = environment
    (place / "nvidia").rename(place / "other")
    assert link(python) == ""
    assert state(place) == []


def test_a_loader_that_names_no_folder_of_pips_finds_them_beside_it(
    environment: tuple[Path, Path],
) -> None:
    python, place = environment
    search = "-Wl,--enable-new-dtags,-rpath,$ORIGIN/"
    library(place / "tensorflow/libtensorflow_framework.so.2", LOADER, search)
    assert link(python) != ""
    linked = place / "tensorflow/libcusolver.so.11"
    assert str(linked.readlink()) == "../nvidia/cusolver/lib/libcusolver.so.11"


@pytest.mark.parametrize(("needs", "has"), [("nvidia-x>=1", "1.0"), ("nvidia-x==2.0", "2.0")])
def test_what_is_pinned_of_cuda_stays_unless_a_package_of_the_users_needs_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needs: str, has: str
) -> None:
    index = tmp_path / "index"
    index.mkdir()
    for version in ("1.0", "2.0"):
        wheel(index, "nvidia-x", version, tmp_path)
    wheel(index, "theirs", "1.0", tmp_path, needs=needs)
    wheel(index, "tf-keras", "2.21.0", tmp_path)
    config = ClusterConfig(
        name="mnist",
        provider="gcp",
        strategy="mirrored",
        nodes={"chief": NodeGroup(accelerator=Accelerator(kind="T4"))},
        setup=Setup(
            tensorflow="2.21",
            python=str(quick_python(tmp_path / "python")),
            packages=("theirs",),
        ),
    )
    monkeypatch.setattr(tensorflow_releases, "tensorflow", lambda version, build: ())
    monkeypatch.setattr(cuda, "pins", lambda version, kind: ("nvidia-x==1.0",))
    environ = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    transport = HereTransport(tmp_path / "homes", environ)
    apply(lambda one: tensorflow.steps(config, one), [node()], transport, Remembered())
    folder = tensorflow.bin_folder(config, node())
    assert folder is not None
    home = tmp_path / "homes" / node().name / folder
    base = tmp_path / "homes" / node().name / str(tensorflow.base_folder(config, node()))
    (below,) = base.glob("lib/python3*/site-packages/nvidia_x-*.dist-info")
    assert below.name == "nvidia_x-1.0.dist-info", "TensorFlow's, beside it"
    ask = "from importlib.metadata import version; print(version('nvidia-x'))"
    asked = [home / "python", "-c", ask]
    said = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert said.stdout == f"{has}\n", "what the user's package finds"
