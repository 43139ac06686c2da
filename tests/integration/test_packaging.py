"""What an installation puts on a machine: of the wheel, of the sdist, editable, and without one."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from cloudtrain import __version__

ROOT = Path(__file__).parents[2]
FOLDERS = ("cloudtrain", "providers", "playbooks", "configs", "docs")
MEGABYTE = 10**6


def checked(*command: str | Path, cwd: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**environment, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(folder: Path, *targets: str) -> Path:
    options = [word for target in targets for word in ("-t", target)]
    checked(sys.executable, "-m", "hatchling", "build", "-d", folder, *options, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of this checkout."""
    return build(tmp_path_factory.mktemp("dist"), "sdist", "wheel")


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


class Installed:
    """An environment that has the dependencies of this one, and a cloudtrain of its own."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        venv.create(folder / "venv", with_pip=False, symlinks=True)
        self.folder = folder / "an empty folder"
        self.folder.mkdir()
        self.python = folder / "venv" / "bin" / "python"
        (self.site,) = folder.glob("venv/lib/python*/site-packages")
        pip = (sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet")
        checked(*pip, "--no-deps", "--no-index", wheel, cwd=self.folder)
        (self.site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))

    def run(self, *arguments: str | Path) -> str:
        return checked(self.python, *arguments, cwd=self.folder)


@pytest.fixture(scope="module")
def from_wheel(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("wheel"), wheel)


@pytest.fixture(params=["wheel", "editable"])
def installed(request: pytest.FixtureRequest, tmp_path: Path) -> Installed:
    if request.param == "editable":  # what `pip install -e` has made and installs
        (wheel,) = build(tmp_path / "dist", "wheel:editable").glob("*.whl")
        return Installed(tmp_path, wheel)
    made: Installed = request.getfixturevalue("from_wheel")
    return made


def sources() -> Iterator[tuple[str, bytes]]:
    """Every file that must be installed, by its path there."""
    for top in FOLDERS:
        for path in sorted((ROOT / top).rglob("*")):
            inside = path.relative_to(ROOT).as_posix()
            if path.is_file() and "__pycache__" not in inside:
                yield inside if top == "cloudtrain" else f"cloudtrain/{inside}", path.read_bytes()


def test_the_wheel_holds_every_source_and_nothing_beside_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
        modes = {stat.S_IFMT(entry.external_attr >> 16) for entry in archive.infolist()}
    info = f"cloudtrain-{__version__}.dist-info/"
    assert f"{info}licenses/LICENSE" in files
    assert {name: data for name, data in files.items() if not name.startswith(info)} == dict(
        sources()
    )
    assert modes <= {0, stat.S_IFREG}, "a symlink is no file on the machine it is installed on"


def test_the_sources_include_what_is_no_python() -> None:
    names = {name for name, _ in sources()}
    assert names >= {
        "cloudtrain/py.typed",
        "cloudtrain/node/uploader.py",
        "cloudtrain/node/task_dispatch.sh",
        "cloudtrain/node/setup_line.sh",
        "cloudtrain/node/task_processes.sh",
        "cloudtrain/node/task_watcher.sh",
        "cloudtrain/node/watcher.py",
        "cloudtrain/node/user_file.sh",
        "cloudtrain/providers/aws/machines.csv",
        "cloudtrain/providers/gcp/machines.csv",
        "cloudtrain/providers/azure/machines.csv",
        "cloudtrain/configs/schema.json",
        "cloudtrain/configs/templates/local.yaml",
        "cloudtrain/providers/local/provider.py",
        "cloudtrain/providers/local/ssh_server.py",
        "cloudtrain/playbooks/tensorflow.py",
    }


def test_a_wheel_made_from_the_sdist_is_the_same(built: Path, wheel: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    checked(*pip, "--no-index", "--wheel-dir", tmp_path, sdist, cwd=tmp_path)
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_sdist_can_run_its_own_checks(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive}
    assert names >= {"Makefile", "README.md", "LICENSE", "CHANGELOG.md", "docs/local.md"}
    assert names >= {"configs/local.yaml", "configs/schema.json", "cloudtrain/configs/local.yaml"}
    assert names >= {"tests/conftest.py", "examples/multi_worker_mirrored.py"}
    assert names >= {"tools/build_site.py", "tools/site/conf.py", "tools/site/static/draw.js"}


@pytest.mark.sweep(0)
def test_the_site_builds_from_the_sdist_with_every_file_that_it_links(
    built: Path, tmp_path: Path
) -> None:
    (sdist,) = built.glob("*.tar.gz")
    shutil.unpack_archive(sdist, tmp_path)
    (folder,) = tmp_path.iterdir()
    checked(sys.executable, "tools/build_site.py", "--out", tmp_path / "site", cwd=folder)
    assert (tmp_path / "site" / "index.html").is_file()


def test_the_installed_command_works_from_an_empty_folder(installed: Installed) -> None:
    command = installed.python.parent / "cloudtrain"
    version = checked(command, "--version", cwd=installed.folder)
    assert version.split()[-1] == __version__
    checked(command, "init", "local", cwd=installed.folder)
    (installed.folder / "src").mkdir(exist_ok=True)
    assert "TF_CONFIG" in checked(command, "plan", "local.yaml", cwd=installed.folder)
    (installed.folder / "local.yaml").unlink()
    assert "# The config file" in checked(command, "docs", "config", cwd=installed.folder)


@pytest.mark.parametrize(
    "module",
    ["providers.local.provider", "providers.base", "playbooks.tensorflow", "playbooks.fabfile"],
)
def test_providers_and_playbooks_are_in_the_package(from_wheel: Installed, module: str) -> None:
    where = f"import cloudtrain.{module} as module; print(module.__file__)"
    assert Path(from_wheel.run("-c", where)).is_relative_to(from_wheel.site / "cloudtrain")


def test_no_generic_name_is_put_into_everybodys_way(from_wheel: Installed) -> None:
    names = {"providers", "playbooks", "configs", "tests", "examples", "bench", "docs"}
    assert names.isdisjoint(path.name for path in from_wheel.site.iterdir())
    seen = "import importlib.util as i, sys; print([n for n in sys.argv[1:] if i.find_spec(n)])"
    brought = ("tests",) if (Path(sysconfig.get_path("purelib")) / "tests").exists() else ()
    found = from_wheel.run("-I", "-c", seen, *sorted(names.difference(brought)))
    assert found == "[]\n", "brought along by a dependency: gpuhunt 0.1.34 has a `tests`"


def test_a_bare_checkout_runs_with_nothing_installed(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "cloudtrain", tmp_path / "cloudtrain", symlinks=True)
    for folder in FOLDERS[1:]:
        shutil.copytree(ROOT / folder, tmp_path / folder)
    assert __version__ in checked(sys.executable, "-m", "cloudtrain", "--version", cwd=tmp_path)
    where = "import cloudtrain.providers.local.provider as module; print(module.__file__)"
    assert str(tmp_path) in checked(sys.executable, "-c", where, cwd=tmp_path)


def test_a_type_checker_sees_the_types_of_the_installed_package(from_wheel: Installed) -> None:
    (from_wheel.folder / "user.py").write_text(
        "from cloudtrain.core.model import Node\n"
        "from cloudtrain.providers.local.provider import LocalProvider\n\n"
        "def nodes(provider: LocalProvider) -> tuple[Node, ...]:\n"
        '    reveal_type(provider.nodes("mnist"))\n'
        '    return provider.nodes("mnist")\n'
    )
    mypy = ("-m", "mypy", "--strict", "--cache-dir", os.devnull, "--python-executable")
    shown = checked(sys.executable, *mypy, from_wheel.python, "user.py", cwd=from_wheel.folder)
    assert 'Revealed type is "tuple[cloudtrain.core.model.Node, ...]"' in shown.replace(
        "builtins.", ""
    )


def base_install() -> dict[str, Distribution]:
    """cloudtrain's dependencies and theirs, without extras, by name."""
    found: dict[str, Distribution] = {}
    wanted = requires("cloudtrain") or []
    while wanted:
        requirement = Requirement(wanted.pop())
        name = requirement.name.lower().replace("_", "-")
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found[name] = distribution(name)
        wanted += found[name].requires or []
    return found


def test_the_base_install_is_small_and_has_no_cloud_and_no_tensorflow() -> None:
    packages = base_install()
    heavy = ("tensorflow", "keras", "numpy", "boto", "google", "azure", "libcloud", "ray")
    assert [name for name in packages if any(word in name for word in heavy)] == []
    paths = [path.locate() for each in packages.values() for path in each.files or ()]
    size = sum(Path(str(path)).stat().st_size for path in paths if Path(str(path)).is_file())
    assert 10 * MEGABYTE < size < 48 * MEGABYTE, f"{size / MEGABYTE:.1f} MB and 11 MB of our own"
