"""A task's layer over a shared environment, with real interpreters and their pip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from cloudtrain.node import layer
from tests.support import environments
from tests.support.wheels import digest, wheel

PIP = ("install", "--no-index", "--disable-pip-version-check", "-q")


def pythons() -> list[ParameterSet]:
    """Every interpreter of this machine that can create an environment: in PATH as python3.7 and
    so on, or this one. `make test` takes this one and the oldest.
    """
    found = {sys.version_info[1]: sys.executable}
    for minor in range(7, 14):
        name = shutil.which(f"python3.{minor}")
        can = name and subprocess.run(
            [name, "-c", "import ensurepip, venv"], capture_output=True, check=False
        )
        if name and can and can.returncode == 0:
            found.setdefault(minor, name)
    taken = (sys.version_info[1], min(found))
    return [
        pytest.param(
            found[minor], id=f"3.{minor}", marks=() if minor in taken else pytest.mark.sweep(0)
        )
        for minor in sorted(found)
    ]


@pytest.fixture(scope="module", params=pythons())
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with `tensorflow-cpu` 2.21.0 and a command `below`."""
    folder = tmp_path_factory.mktemp("cache") / "venvs" / "tf"
    environments.create(folder, request.param)
    wheels = folder.parent / "wheels"
    named = [wheel(wheels, "below"), wheel(wheels, "tensorflow_cpu", "2.21.0")]
    subprocess.run([folder / "bin" / "pip", *PIP, *named], check=True)
    return folder


def said(*words: str | Path) -> str:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["env", "a user's env", "e" * 120])
def test_what_pip_installs_stays_in_the_layer(shared: Path, tmp_path: Path, name: str) -> None:
    before, own = digest(shared), tmp_path / name
    layer.create(str(own), str(shared))
    said(own / "bin" / "pip", *PIP, wheel(tmp_path, "above"))
    said(own / "bin" / "python", "-m", "pip", *PIP, wheel(tmp_path, "below", "2.0"))
    assert said(own / "bin" / "above") == f"1.0 {own}"
    assert said(own / "bin" / "below") == f"2.0 {own}"
    assert said(own / "bin" / "python", "-c", "import below; print(below.VERSION)") == "2.0"
    assert digest(shared) == before
    assert said(shared / "bin" / "below") == f"1.0 {shared}"


def test_whatever_is_in_bin_is_there_in_the_layer_too(shared: Path, tmp_path: Path) -> None:
    below = tmp_path / "below"
    shutil.copytree(shared, below, symlinks=True)
    there = below / "bin"
    (there / "__pycache__").mkdir()
    (there / "__pycache__" / "jp.cpython-310.pyc").write_bytes(b"")
    (there / "jp.py").write_text(f"#!{there}/python\nimport sys; print(sys.prefix)\n")
    (there / "jp.py").chmod(0o755)
    (there / "jars").mkdir()
    (there / "jars" / "a.jar").write_text("jar")
    os.mkfifo(there / "pipe")
    (there / "secret").write_text("x")
    (there / "secret").chmod(0)
    (there / "gone").symlink_to("nowhere")
    (there / "activate.d").mkdir()
    (Path(os.fsdecode(os.fsencode(there) + b"/caf\xe9"))).write_text("latin-1 name")
    own = tmp_path / "own"
    layer.create(str(own), str(below))
    assert said(own / "bin" / "jp.py") == str(own)
    assert (own / "bin" / "jars" / "a.jar").read_text() == "jar"
    assert (own / "bin" / "gone").readlink() == Path("nowhere")
    kept = {each.name for each in there.iterdir()} - {"__pycache__"}
    assert {each.name for each in (own / "bin").iterdir()} == kept


def test_an_editable_install_stays_in_the_layer(shared: Path, tmp_path: Path) -> None:
    before, own, code = digest(shared), tmp_path / "env", tmp_path / "code"
    layer.create(str(own), str(shared))
    (own / layer.packages(str(own))).joinpath("__editable__.pth").write_text(f"{code}\n")
    code.mkdir()
    (code / "trainer.py").write_text("HERE = 1\n")
    assert said(own / "bin" / "python", "-c", "import trainer, below; print(trainer.HERE)") == "1"
    stacks = tmp_path / "stacks"
    signalled = "import os; os.kill(os.getpid(), 47); print('runs on')"
    place = f"CLOUDTRAIN_STACKS={stacks}"
    assert said("env", place, own / "bin" / "python", "-c", signalled) == "runs on"
    assert '  File "<string>", line 1 in <module>\n' in stacks.read_text()
    assert digest(shared) == before


def test_a_package_that_is_below_is_neither_installed_again_nor_removed(
    shared: Path, tmp_path: Path
) -> None:
    before, own = digest(shared), tmp_path / "env"
    layer.create(str(own), str(shared))
    said(own / "bin" / "pip", *PIP, "below")
    said(own / "bin" / "pip", "uninstall", "-y", "-q", "below")
    assert said(own / "bin" / "below") == f"1.0 {own}"
    assert digest(shared) == before


def test_a_package_that_requires_tensorflow_is_given_the_one_below(
    shared: Path, tmp_path: Path
) -> None:
    own = tmp_path / "env"
    layer.create(str(own), str(shared))
    needy = wheel(tmp_path, "needy", "1.0", "tensorflow>=2.10", "tensorflow-gpu")
    said(own / "bin" / "pip", *PIP, needy)
    assert said(own / "bin" / "needy") == f"1.0 {own}"
    newer = wheel(tmp_path, "newer", "1.0", "tensorflow>=2.22")
    done = subprocess.run(
        [own / "bin" / "pip", *PIP, newer], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "tensorflow>=2.22" in done.stderr


def test_uv_keeps_what_is_below_and_another_version_hides_it(shared: Path, tmp_path: Path) -> None:
    before, own = digest(shared), tmp_path / "env"
    layer.create(str(own), str(shared))
    wheels = [wheel(tmp_path, "needy", "1.0", "tensorflow-cpu", "below")]
    wheels.append(wheel(tmp_path, "below", "2.0"))
    uv = [environments.UV, "pip", "install", "--offline", "--no-index", "--no-cache", "--no-config"]
    uv += ["--python", own / "bin" / "python"]

    def records() -> list[str]:
        found = Path(layer.packages(str(own))).glob("*.dist-info")
        return sorted(each.name.removesuffix(".dist-info") for each in found)

    made = records()
    layer.lend(str(own))
    said(*uv, wheels[0])
    layer.take_back(str(own))
    assert records() == sorted([*made, "needy-1.0"]), "what is below is not installed again"
    assert said(own / "bin" / "below") == f"1.0 {own}"
    layer.lend(str(own))
    said(*uv, "needy", wheels[1])
    layer.take_back(str(own))
    assert records() == sorted([*made, "needy-1.0", "below-2.0"])
    assert said(own / "bin" / "below") == f"2.0 {own}"
    assert said(shared / "bin" / "below") == f"1.0 {shared}"
    assert digest(shared) == before


def test_layers_lie_on_each_other(shared: Path, tmp_path: Path) -> None:
    setup, own = tmp_path / "the user's setup", tmp_path / "env"
    layer.create(str(setup), str(shared))
    said(setup / "bin" / "pip", *PIP, wheel(tmp_path, "middle"))
    before = digest(setup)
    layer.create(str(own), str(setup))
    said(own / "bin" / "pip", *PIP, wheel(tmp_path, "above"))
    code = "import above, middle, below; print(above.VERSION, middle.VERSION, below.VERSION)"
    assert said(own / "bin" / "python", "-c", code) == "1.0 1.0 1.0"
    assert said(own / "bin" / "middle") == f"1.0 {own}"
    assert digest(setup) == before


def test_a_layer_is_kept_until_another_environment_lies_below(shared: Path, tmp_path: Path) -> None:
    own, other = tmp_path / "env", tmp_path / "other"
    layer.create(str(own), str(shared))
    said(own / "bin" / "pip", *PIP, wheel(tmp_path, "above"))
    layer.create(str(own), str(shared))
    assert said(own / "bin" / "above") == f"1.0 {own}"
    layer.create(str(other), str(shared))
    layer.create(str(own), str(other))
    assert not (own / "bin" / "above").exists()
    assert said(own / "bin" / "below") == f"1.0 {own}"


def test_an_interrupted_layer_is_created_from_scratch(shared: Path, tmp_path: Path) -> None:
    own = tmp_path / "env"
    (tmp_path / "env.new" / "bin").mkdir(parents=True)
    (tmp_path / "env.new" / "bin" / "python").write_text("half")
    layer.create(str(own), str(shared))
    assert said(own / "bin" / "below") == f"1.0 {own}"


def test_a_folder_that_is_no_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no virtual environment in"):
        layer.create(str(tmp_path / "env"), str(tmp_path))
    assert not (tmp_path / "env").exists()
