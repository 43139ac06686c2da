"""The `packages` playbook with a real pip: what the delivered code requires, and itself."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.core import paths
from cloudtrain.core.errors import StepFailed
from cloudtrain.core.model import ClusterConfig, Code
from cloudtrain.playbooks import code_packages, tensorflow
from cloudtrain.playbooks.apply import apply
from tests.support import environments
from tests.support.nodes_here import HereTransport, Remembered, node
from tests.support.own_backend import package
from tests.support.tensorflow_parts import config
from tests.support.wheels import digest, wheel

CODE = "0123456789abcdef"


class Machine:
    """A node with an environment that has `tensorflow-cpu` 2.21.0 and a module `below`."""

    def __init__(self, folder: Path) -> None:
        self.node = node(cache=str(folder / "cache"))
        self.transport = HereTransport(folder / "nodes")
        self.home = self.transport.home(self.node)
        self.wheels = folder / "wheels"
        self.shared = Path(tensorflow.environment_folder(wanted(), self.node) or "")
        environments.create(self.shared)
        named = [wheel(self.wheels, "below"), wheel(self.wheels, "tensorflow_cpu", "2.21.0")]
        pip = [self.shared / "bin" / "pip", "install", "-q", "--no-index", *named]
        subprocess.run(list(map(str, pip)), check=True, capture_output=True)
        (self.shared / "pip").mkdir()
        (self.shared / "pip" / "constraints.txt").write_text("tensorflow==2.21.*\nbelow<2\n")

    def code(self, digest: str = CODE) -> Path:
        folder = self.home / paths.code_folder("mnist", digest)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def requires(self, *lines: str, digest: str = CODE) -> None:
        text = [f"--no-index\n--find-links {self.wheels}", *lines]
        (self.code(digest) / "requirements.txt").write_text("\n".join(text) + "\n")

    def ready(self, config: ClusterConfig, digest: str = CODE) -> list[str]:
        stage = Remembered()
        steps = code_packages.steps(config, self.node, digest)
        apply(lambda _: steps, [self.node], self.transport, stage)
        return [text for _, text in stage.lines]

    def says(self, config: ClusterConfig, text: str, digest: str = CODE) -> str:
        folder = code_packages.environment_folder(config, self.node, digest)
        python = self.home / str(folder) / "bin" / "python"
        done = subprocess.run([python, "-c", text], capture_output=True, text=True, check=True)
        return done.stdout.strip()


def wanted(**setup: Any) -> ClusterConfig:
    return replace(config(tensorflow="2.21", **setup), code=Code(path="."))


FILE = {"requirements": "code:requirements.txt"}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_what_the_code_requires_is_installed_once_beside_the_shared_environment(
    machine: Machine,
) -> None:
    wheel(machine.wheels, "extra")
    machine.requires("extra  # for the metrics", "tensorflow>=2.10")
    before, mine = digest(machine.shared), wanted(**FILE)
    shown = machine.ready(mine)
    assert shown[0] == "setup.requirements: code:requirements.txt"
    assert "setup.requirements: code:requirements.txt: install -r requirements.txt" in shown
    assert machine.says(mine, "import extra, below; print(extra.VERSION)") == "1.0"
    assert machine.ready(mine) == []
    assert digest(machine.shared) == before


def test_a_change_of_the_code_alone_installs_no_requirement_again(machine: Machine) -> None:
    wheel(machine.wheels, "extra")
    for one in (CODE, "f" * 16):
        machine.requires("extra", digest=one)
    mine = wanted(**FILE)
    machine.ready(mine)
    shown = machine.ready(mine, "f" * 16)
    assert not [line for line in shown if ": install " in line]
    assert machine.says(mine, "import extra; print(extra.VERSION)", "f" * 16) == "1.0"
    machine.requires("extra", "below", digest="e" * 16)
    assert [line for line in machine.ready(mine, "e" * 16) if ": install " in line]


def test_another_tensorflow_is_refused_in_pips_words_with_a_hint(machine: Machine) -> None:
    wheel(machine.wheels, "tensorflow", "2.15.0")
    machine.requires("tensorflow==2.15.0")
    with pytest.raises(StepFailed) as caught:
        machine.ready(wanted(**FILE))
    assert "ERROR: Cannot install tensorflow==2.15.0" in str(caught.value)
    assert "(constraint) tensorflow==2.21.*,==2.21.0" in "\n".join(caught.value.last_lines)
    assert "set the version that your code requires" in str(caught.value.hint)


def test_bounds_hold_for_what_a_package_requires_but_not_for_what_is_listed(
    machine: Machine,
) -> None:
    wheel(machine.wheels, "below", "2.0")
    wheel(machine.wheels, "needy", "1.0", "below>=2")
    machine.requires("needy")
    with pytest.raises(StepFailed, match="Cannot install "):
        machine.ready(wanted(**FILE))
    machine.requires("needy", "below==2.0")
    mine = wanted(**FILE)
    machine.ready(mine)
    assert machine.says(mine, "import below; print(below.VERSION)") == "2.0"


def test_the_code_itself_is_installed_and_its_delivered_files_stay_as_they_are(
    machine: Machine,
) -> None:
    package(machine.code() / "multi task", "tensorflow>=2.10", "below")
    before, delivered = digest(machine.shared), digest(machine.code())
    mine = wanted(install=("multi task",))
    shown = machine.ready(mine)
    assert "setup.install: multi task: install multi task" in shown
    assert machine.says(mine, "import trainer; trainer.main()").startswith("trains in")
    assert digest(machine.code()) == delivered
    assert digest(machine.shared) == before
    assert machine.ready(mine) == []


def test_an_editable_line_points_into_a_copy_of_the_code(machine: Machine) -> None:
    wheel(machine.code() / "vendored", "extra")
    machine.requires("./vendored/extra-1.0-py3-none-any.whl")
    delivered, mine = digest(machine.code()), wanted(**FILE)
    machine.ready(mine)
    assert machine.says(mine, "import extra; print(extra.VERSION)") == "1.0"
    assert digest(machine.code()) == delivered


def test_a_missing_file_is_named_on_the_node_too(machine: Machine) -> None:
    machine.code()
    with pytest.raises(StepFailed) as caught:
        machine.ready(wanted(requirements="code:deep/needs.txt"))
    assert "the delivered code has no deep/needs.txt" in str(caught.value)
    machine.requires("-r others.txt")
    with pytest.raises(StepFailed, match=r"others.txt cannot be read|No such file"):
        machine.ready(wanted(**FILE))


def test_what_a_kill_left_is_installed_again(machine: Machine) -> None:
    wheel(machine.wheels, "extra")
    machine.requires("extra")
    mine = wanted(**FILE)
    machine.ready(mine)
    packages = machine.home / ".cloudtrain" / "mnist" / "packages"
    for done in packages.glob("*/.complete"):
        done.unlink()
    for module in packages.glob("*/lib/*/site-packages/extra.py"):
        module.unlink()
    assert machine.ready(mine) != []
    assert machine.says(mine, "import extra; print(extra.VERSION)") == "1.0"


def test_a_hash_of_one_line_is_asked_of_all_and_a_pre_release_where_the_file_says_so(
    machine: Machine,
) -> None:
    wheel(machine.wheels, "extra", "2.0", "deep")
    wheel(machine.wheels, "extra", "3.0b1")
    wheel(machine.wheels, "deep")
    mine = wanted(**FILE)
    known = sha256((machine.wheels / "extra-2.0-py3-none-any.whl").read_bytes()).hexdigest()
    machine.requires(f"extra==2.0 --hash=sha256:{known}")
    with pytest.raises(StepFailed, match=r"(?s)all requirements must.*deep"):
        machine.ready(mine)
    machine.requires("--pre", "extra", digest="f" * 16)
    machine.ready(mine, "f" * 16)
    assert machine.says(mine, "import extra; print(extra.VERSION)", "f" * 16) == "3.0b1"
