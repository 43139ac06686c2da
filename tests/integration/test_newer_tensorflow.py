"""A TensorFlow that the tables do not know, from a served index of small wheels: which Python and
packages the node chooses, and what it says of what is not there."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cloudtrain.core.errors import StepFailed
from cloudtrain.core.model import Accelerator, ClusterConfig
from cloudtrain.playbooks import scripts, tensorflow
from cloudtrain.playbooks.apply import apply
from tests.support.environments import quick_python
from tests.support.nodes_here import HereTransport, Remembered, node
from tests.support.pythons import python
from tests.support.tensorflow_parts import config
from tests.support.wheels import wheel

pytestmark = pytest.mark.other_python

NEW, OLD = 12, 10
"""The minor version of the only Python with wheels, and one that the node has, too."""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """A folder listing of each package is a simple index: PEP 503."""
    folder = tmp_path / "index"

    def put(name: str, version: str, *requires: str, tag: str = "py3-none-any") -> None:
        place = folder / name.replace("_", "-")
        wheel(place, name, version, *requires, tag=tag)

    only = f"cp3{NEW}-none-any"
    for package in ("tensorflow", "tensorflow_cpu"):
        put(package, "2.21.0", tag=f"cp3{OLD}-none-any")
        put(package, "2.21.0", tag=only)
    put("tensorflow_cpu", "2.22.0", "numpy", tag=only)
    put("tensorflow_cpu", "2.22.1", "numpy", tag=only)
    put("tensorflow", "2.22.1", "nvidia-cudnn-cu13>=9; extra == 'and-cuda'", tag=only)
    put("nvidia_cudnn_cu13", "9.40")
    put("numpy", "3.1")
    put("tensorboard", "2.21.0")
    put("tf_keras", "2.21.0")
    put("tf_keras", "2.22.0")
    put("tensorflow_cpu", "2.23.0", tag=only)
    put("tensorboard", "2.23.0")
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def fewer_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index is asked for three Pythons, not for eight: each is a pip, half a second of CPU."""
    usual = scripts.ENVIRONMENT
    less = usual.replace("MINORS = range(10, 18)", f"MINORS = range({OLD}, {NEW + 1})")
    assert less != usual
    monkeypatch.setattr(scripts, "ENVIRONMENT", less)


@pytest.fixture
def make(tmp_path: Path, index: str) -> Callable[[ClusterConfig], list[str]]:
    """Run the steps on a node with two Pythons; returns what they showed."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for minor in (NEW, OLD):
        quick_python(tools / f"python3.{minor}", python(minor))
    quick_python(tools / "python3", python(OLD))
    environ = {
        "PATH": f"{tools}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PIP_INDEX_URL": index,
        "PIP_CONFIG_FILE": "/dev/null",
        **dict.fromkeys(("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"), ""),
    }

    def run(wanted: ClusterConfig) -> list[str]:
        stage = Remembered()
        transport = HereTransport(tmp_path / "nodes", environ)
        apply(lambda one: tensorflow.steps(wanted, one), [node()], transport, stage)
        return [text for _, text in stage.lines]

    return run


def installed(tmp_path: Path, wanted: ClusterConfig) -> set[str]:
    folder = tensorflow.environment_folder(wanted, node())
    assert folder
    (packages,) = (tmp_path / "nodes").glob(f"*/{folder}/lib/python3*/site-packages")
    assert packages.parent.name == f"python3.{NEW}"
    found = {each.name.removesuffix(".dist-info") for each in packages.glob("*.dist-info")}
    return {each for each in found if not each.startswith(("pip-", "setuptools-"))}


@pytest.mark.sweep(1, of="indexes")
def test_the_python_that_has_wheels_is_taken_and_the_newest_patch(
    tmp_path: Path, make: Callable[[ClusterConfig], list[str]]
) -> None:
    wanted = config("mirrored", provider="hosts", tensorflow="2.22")
    told = " ".join(make(wanted))
    assert "TensorFlow 2.22 is newer than the table: asking the package index" in told
    assert f"it has wheels for Python 3.{NEW}" in told
    assert installed(tmp_path, wanted) == {
        "tensorflow_cpu-2.22.1",
        "numpy-3.1",
        "tensorboard-2.21.0",
    }


@pytest.mark.sweep(1, of="indexes")
@pytest.mark.usefixtures("fewer_pythons")
def test_tf_keras_of_the_same_minor_version_comes_with_it(
    tmp_path: Path, make: Callable[[ClusterConfig], list[str]]
) -> None:
    wanted = config("multi_worker_mirrored", provider="hosts", tensorflow="2.22.0")
    make(wanted)
    found = installed(tmp_path, wanted)
    assert {"tensorflow_cpu-2.22.0", "tf_keras-2.22.0"} <= found


@pytest.mark.sweep(1, of="indexes")
@pytest.mark.usefixtures("fewer_pythons")
def test_cudas_libraries_are_those_of_its_own_extra_and_are_shown(
    tmp_path: Path, make: Callable[[ClusterConfig], list[str]]
) -> None:
    t4 = Accelerator(kind="T4")
    wanted = config("mirrored", provider="hosts", tensorflow="2.22", accelerator=t4)
    told = " ".join(make(wanted))
    assert "nvidia_cudnn_cu13-9.40" in installed(tmp_path, wanted)
    assert "cudnn" in told
    assert "9.40" in told


@pytest.mark.sweep(1, of="indexes")
@pytest.mark.usefixtures("fewer_pythons")
@pytest.mark.parametrize(
    ("setup", "error", "hint"),
    [
        (
            {"tensorflow": "2.99"},
            "TensorFlow 2.99 is not on the package index (tensorflow-cpu); the newest there is "
            "2.23.0",
            'set `setup.tensorflow: "2.23"`',
        ),
        (
            {"tensorflow": "2.22.7"},
            "TensorFlow 2.22.7 is not on the package index (tensorflow-cpu); the newest there is "
            "2.23.0",
            'set `setup.tensorflow: "2.23"`',
        ),
        (
            {"tensorflow": "2.22", "python": f"3.{OLD}"},
            f"TensorFlow 2.22 has wheels for Python 3.{NEW}, not for setup.python",
            f'set `setup.python: "3.{NEW}"`',
        ),
        (
            {"tensorflow": "2.23", "keras": "legacy"},
            "the package index has no tf-keras of TensorFlow 2.23, which this needs",
            "set setup.keras or an earlier setup.tensorflow",
        ),
    ],
)
def test_what_the_index_lacks_is_said_exactly(
    make: Callable[[ClusterConfig], list[str]], setup: dict[str, str], error: str, hint: str
) -> None:
    with pytest.raises(StepFailed) as caught:
        make(config("mirrored", provider="hosts", **setup))
    assert error in str(caught.value)
    assert caught.value.hint == hint


@pytest.mark.sweep(1, of="indexes")
@pytest.mark.usefixtures("fewer_pythons")
def test_an_index_that_does_not_answer_is_no_missing_release(
    make: Callable[[ClusterConfig], list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for file in (tmp_path / "index").rglob("*.whl"):
        file.unlink()
    with pytest.raises(StepFailed) as caught:
        make(config("mirrored", provider="hosts", tensorflow="2.22"))
    words = "TensorFlow 2.22 is not known, and the package index has no tensorflow-cpu"
    assert words in str(caught.value)
