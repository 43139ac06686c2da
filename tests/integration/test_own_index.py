"""`setup.index` with a real uv: a private index that wants a password, beside a public one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.core import paths
from cloudtrain.core.errors import ConfigError, StepFailed
from cloudtrain.core.model import ClusterConfig, Code
from cloudtrain.playbooks import code_packages, tensorflow
from cloudtrain.playbooks.apply import apply
from tests.support.environments import UV, quick_python
from tests.support.nodes_here import HereTransport, Remembered, node
from tests.support.package_index import PackageIndex, package_index
from tests.support.tensorflow_parts import config
from tests.support.wheels import wheel

PASSWORD = "pa:ss%20'\\$(touch hit) word"
VARIABLE = "CLOUDTRAIN_TEST_PASSWORD"


class Machine:
    """A node whose own index has extra 9.0 and other 1.0; `private` has extra 1.0 and 2.0."""

    def __init__(self, folder: Path, public: PackageIndex, private: PackageIndex) -> None:
        (folder / "bin").mkdir()
        quick_python(folder / "bin" / "python3")
        environ = {
            "PATH": f"{folder}/bin:/usr/bin:/bin",
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_INDEX_URL": public.url("node"),
            **dict.fromkeys(("PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT", "PIP_NO_INDEX"), ""),
        }
        self.folder, self.private = folder, private
        self.transport = HereTransport(folder / "nodes", environ)
        self.has_uv(True)

    def has_uv(self, there: bool) -> None:
        (self.folder / "bin" / "uv").unlink(missing_ok=True)
        if there:
            (self.folder / "bin" / "uv").symlink_to(UV)

    def wanted(self, **setup: Any) -> ClusterConfig:
        made = config("mirrored", provider="local", source=str(self.folder / "m.yaml"))
        url = self.private.url("node").replace("://", "://me@")
        own = {"index": url, "index_password": "INDEX_PASSWORD", **setup}
        return replace(
            made,
            code=Code(path="."),
            setup=replace(made.setup, **own),
            secrets={"INDEX_PASSWORD": VARIABLE},
        )

    def ready(self, wanted: ClusterConfig, code: str = "") -> set[str]:
        """What is installed over the environment below."""
        stage = Remembered()
        if code:
            steps = code_packages.steps(wanted, node(), code)
            apply(lambda _: steps, [node()], self.transport, stage)
            folder = code_packages.environment_folder(wanted, node(), code)
        else:
            apply(lambda one: tensorflow.steps(wanted, one), [node()], self.transport, stage)
            folder = tensorflow.environment_folder(wanted, node())
        assert PASSWORD not in repr((stage.lines, self.transport.ran))
        home = self.folder / "nodes" / node().name
        sites = [home / str(folder) / "lib"]
        if code:
            sites += home.glob(".cloudtrain/*/packages/requirements-*/lib")
        found = (path for site in sites for path in site.glob("*/site-packages/*.dist-info"))
        return {path.name.removesuffix(".dist-info") for path in found}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setenv(VARIABLE, PASSWORD)
    for name, version in (("extra", "9.0"), ("other", "1.0")):
        wheel(tmp_path / "public", name, version)
    for version in ("1.0", "2.0"):
        wheel(tmp_path / "private", "extra", version)
    with (
        package_index(tmp_path / "public", tmp_path / "log") as public,
        package_index(tmp_path / "private", tmp_path / "own-log", f"me:{PASSWORD}") as private,
    ):
        yield Machine(tmp_path, public, private)


def test_what_the_own_index_has_comes_from_it_alone(machine: Machine) -> None:
    project = machine.folder / "pyproject.toml"
    project.write_text('[project]\nname = "x"\ndependencies = ["other"]\n')
    found = machine.ready(machine.wanted(packages=("extra",), requirements=project.name))
    assert {"extra-2.0", "other-1.0"} <= found
    kept = [path for path in machine.folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [path for path in kept if PASSWORD.encode() in path.read_bytes()]
    assert not list(machine.folder.rglob("hit"))


def test_what_the_code_requires_comes_from_it_too(machine: Machine) -> None:
    code = machine.folder / "nodes" / node().name / paths.code_folder("mnist", "0" * 16)
    code.mkdir(parents=True)
    (code / "needs.txt").write_text("extra<2\nother\n")
    wanted = machine.wanted(requirements="code:needs.txt")
    machine.ready(wanted)
    assert {"extra-1.0", "other-1.0"} <= machine.ready(wanted, "0" * 16)
    (code / "needs.txt").write_text("extra\n")
    (code.parent / ("2" * 16)).symlink_to(code)
    without = machine.wanted(requirements="code:needs.txt", index=None, index_password=None)
    machine.ready(without)
    assert "extra-9.0" in machine.ready(without, "2" * 16)
    assert "extra-2.0" in machine.ready(wanted, "2" * 16)  # nothing of before has it
    (code / "needs.txt").write_text(f"extra==1.0 --hash=sha256:{sha256().hexdigest()}\n")
    (code.parent / ("1" * 16)).symlink_to(code)
    with pytest.raises(StepFailed, match=r"`setup\.index` requires uv"):
        machine.ready(wanted, "1" * 16)


def test_a_wrong_password_is_said_and_nothing_comes_from_elsewhere(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "wrong")
    with pytest.raises(StepFailed) as caught:
        machine.ready(machine.wanted(packages=("extra",)))
    said = "\n".join(caught.value.last_lines)
    assert "401" in said
    assert str(caught.value.hint).startswith("check `setup.index`: its address, user and password")
    with pytest.raises(StepFailed) as caught:
        machine.ready(machine.wanted(packages=("extra",), index="http://127.0.0.1:9/simple"))
    assert "Connection refused" in "\n".join(caught.value.last_lines)
    assert str(caught.value.hint).startswith("check `setup.index`: its address")
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(ConfigError, match=f"setup.index_password: .* {VARIABLE} is not set here"):
        machine.ready(machine.wanted(packages=("extra",)))


def test_pip_is_not_asked_as_it_would_take_the_newest_of_anybody(machine: Machine) -> None:
    machine.has_uv(False)
    with pytest.raises(StepFailed, match=r"`setup\.index` requires uv"):
        machine.ready(machine.wanted(packages=("extra",)))
