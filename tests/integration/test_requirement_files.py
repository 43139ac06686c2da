"""The user's own requirements file with a real uv and a real pip: it means to both what it means to
pip elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from cloudtrain.config import requirements
from cloudtrain.core.errors import StepFailed
from cloudtrain.core.model import ClusterConfig
from cloudtrain.playbooks import tensorflow, tensorflow_releases
from cloudtrain.playbooks.apply import apply
from tests.support.environments import UV, quick_python
from tests.support.nodes_here import HereTransport, Remembered, node
from tests.support.tensorflow_parts import config
from tests.support.wheels import wheel

pytestmark = pytest.mark.sweep(1, over="make")  # one of the two installers
Make = Callable[[ClusterConfig], set[str]]


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    for name, version in (("extra", "1.0"), ("extra", "2.0"), ("more", "1.0")):
        wheel(folder, name, version)
    wheel(folder, "tensorflow_cpu", "2.21.0", "deep<2")
    wheel(folder, "tf_keras", "2.21.0")
    for version in ("1.0", "2.0"):
        wheel(folder, "deep", version)
    for line in tensorflow_releases.tensorflow("2.21", "cpu")[1:]:
        wheel(folder, line.partition("=")[0].partition("<")[0].replace("-", "_"), "2.21.0")
    return folder


@pytest.fixture(params=["uv", "pip"])
def make(tmp_path: Path, wheels: Path, request: pytest.FixtureRequest) -> Make:
    """Run the steps on a node that finds these wheels alone, with a uv of its own or none; returns
    what a program there imports."""
    (tmp_path / "bin").mkdir()
    quick_python(tmp_path / "bin" / "python3")
    if request.param == "uv":
        (tmp_path / "bin" / "uv").symlink_to(UV)
    environ = {
        "PATH": f"{tmp_path}/bin:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        **dict.fromkeys(("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"), ""),
    }

    def run(wanted: ClusterConfig) -> set[str]:
        transport = HereTransport(tmp_path / "nodes", environ)
        stage = Remembered()
        apply(lambda one: tensorflow.steps(wanted, one), [node()], transport, stage)
        assert (request.param == "pip") == any("pip installs" in text for _, text in stage.lines)
        assert not any("asking pip" in text for _, text in stage.lines)
        found: dict[str, str] = {}  # of the layer first, which hides what is below
        for folder in (tensorflow.environment_folder, tensorflow.base_folder):
            pattern = f"*/{folder(wanted, node())}/lib/python3*/site-packages/*.dist-info"
            for path in (tmp_path / "nodes").glob(pattern):
                name, _, version = path.name.removesuffix(".dist-info").partition("-")
                found.setdefault(name, version)
        return {f"{name}-{version}" for name, version in found.items()}

    return run


def of(tmp_path: Path, text: str | bytes, **setup: object) -> ClusterConfig:
    (tmp_path / "needs.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    made = config("mirrored", provider="local", source=str(tmp_path / "m.yaml"), **setup)
    return replace(made, setup=replace(made.setup, requirements="needs.txt"))


def test_includes_limits_and_marks_mean_what_they_mean_to_pip(tmp_path: Path, make: Make) -> None:
    (tmp_path / "deps").mkdir()
    (tmp_path / "deps" / "base.txt").write_bytes(b"\xef\xbb\xbfextra  # caf\xc3\xa9\n")
    (tmp_path / "deps" / "limits.txt").write_bytes(b"# caf\xe9\nextra<2\n")
    found = make(of(tmp_path, "-r deps/base.txt\r\n-c deps/limits.txt\r\n", packages=("more",)))
    assert {"extra-1.0", "more-1.0"} <= found


@pytest.mark.sweep(1, of="apart")
def test_hashes_are_asked_of_the_users_lines_alone(
    tmp_path: Path, wheels: Path, make: Make
) -> None:
    digest = sha256((wheels / "extra-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    text = f"tensorflow==2.15 --hash=sha256:{'0' * 64}\nextra==1.0 \\\n  --hash=sha256:{digest}\n"
    assert {"extra-1.0", "tensorflow_cpu-2.21.0"} <= make(of(tmp_path, text, tensorflow="2.21"))


@pytest.mark.sweep(1, of="apart")
def test_a_companys_index_needs_no_tensorflow_and_replaces_nothing_below(
    tmp_path: Path, wheels: Path, make: Make
) -> None:
    index = tmp_path / "index" / "extra"
    index.mkdir(parents=True)
    link = f"{wheels.as_uri()}/extra-1.0-py3-none-any.whl"
    (index / "index.html").write_text(f'<a href="{link}">extra</a>')
    options = f"--index-url {index.parent.as_uri()}\n"
    found = make(of(tmp_path, f"{options}extra\ndeep\n", tensorflow="2.21"))
    assert {"tensorflow_cpu-2.21.0", "deep-1.0"} <= found
    assert {"extra-1.0", "extra-2.0"} & found


def test_an_environment_without_bytecode_has_one_library(tmp_path: Path, make: Make) -> None:
    make(replace(of(tmp_path, "extra\n"), provider="hosts"))
    found = [path.name for path in tmp_path.glob("nodes/*/.cache/cloudtrain/venvs/*/lib/*")]
    assert found
    assert set(found) == {"python{}.{}".format(*sys.version_info)}


def test_an_option_of_the_file_that_uv_passes_over_still_counts(
    tmp_path: Path, wheels: Path, make: Make
) -> None:
    wheel(wheels, "extra", "3.0b1")
    (tmp_path / "base.txt").write_text("--pre\n")
    assert "extra-3.0b1" in make(of(tmp_path, "-r base.txt\nextra\n"))


def test_pip_names_the_line_of_the_users_own_file(tmp_path: Path, make: Make) -> None:
    (tmp_path / "base.txt").write_text("# one\n\nmore==9\n")
    wanted = of(tmp_path, "extra\n-r base.txt\n", packages=("extra<2",))
    with pytest.raises(StepFailed, match="No matching distribution found for more==9") as caught:
        make(wanted)
    assert "venvs" not in str(caught.value)
    assert requirements.line_named(wanted, str(caught.value)) == "base.txt:3: more==9"
