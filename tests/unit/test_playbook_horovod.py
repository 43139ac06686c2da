"""The horovod playbook's steps as values: environments, requirements, Python."""

from __future__ import annotations

import pytest

from cloudtrain.checks.findings import found_ahead
from cloudtrain.core.errors import UsageError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.protocols import Finding
from cloudtrain.playbooks import horovod, tensorflow
from tests.support.horovod_parts import config
from tests.support.nodes_here import node
from tests.support.tensorflow_parts import files

# ── as values ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (
            config(),
            ["Horovod's compiler and Open MPI", "Horovod 0.28.1", "horovodrun --check-build"],
        ),
        (config(provider="local"), ["Horovod 0.28.1", "horovodrun --check-build"]),
        (config(provider="hosts"), ["Horovod 0.28.1", "horovodrun --check-build"]),
        (config(tensorflow=None), ["horovodrun --check-build"]),
        (config(strategy="mirrored"), []),
    ],
)
def test_what_is_done_on_whose_machine(wanted: ClusterConfig, names: list[str]) -> None:
    assert [step.name for step in horovod.steps(wanted, node())] == names


def test_its_environment_is_another_than_that_of_the_same_tensorflow_alone() -> None:
    assert tensorflow.bin_folder(config(), node()) != tensorflow.bin_folder(
        config(strategy="mirrored"), node()
    )


def test_what_it_imports_is_there_before_it_is_built_and_the_users_own_line_gives_way() -> None:
    packages = ("Horovod[tensorflow]==0.27.0", "psutil<7", "six")
    (_, step) = tensorflow.steps(config(packages=packages), node())
    lines = files(step)["install"]
    assert lines == ["cloudpickle", "packaging", "pyyaml", "setuptools", "wheel"]
    assert files(step)["own/setup.packages"] == ["psutil<7", "six"]
    (_, step) = tensorflow.steps(config(strategy="custom", packages=packages), node())
    assert "Horovod[tensorflow]==0.27.0" in files(step)["own/setup.packages"]


def test_auto_is_no_python_without_distutils() -> None:
    (step, *_) = tensorflow.steps(config(tensorflow="2.18"), node())
    assert step.run.arguments[-4:] == ("python3.11", "python3.10", "python3.9", "python3")
    (step, *_) = tensorflow.steps(config(tensorflow="2.18", strategy="mirrored"), node())
    assert "python3.12" in step.run.arguments


def setup_finding(config: ClusterConfig) -> Finding:
    return next(each for each in found_ahead(config) if each.what == "setup")


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        ({"tensorflow": "2.21"}, 'not with 2.21: set `tensorflow: "2.15.1"`'),
        ({"tensorflow": "2.12.1"}, "builds with TensorFlow 2.13 to 2.18, not with 2.12.1"),
        ({"tensorflow": "2.18", "keras": "3"}, "setup.keras: Horovod 0.28.1 cannot train with"),
    ],
)
def test_what_it_cannot_be_built_with_is_refused_before_anything_is_made(
    setup: dict[str, str], words: str
) -> None:
    finding = setup_finding(config(**setup))
    assert finding.error is UsageError
    assert words in finding.text


@pytest.mark.parametrize("version", ["2.13", "2.15.1", "2.18.0", None])
def test_what_it_can_be_built_with_is_let_through(version: str | None) -> None:
    assert setup_finding(config(tensorflow=version)).ok


def test_a_version_that_is_none_is_told_once() -> None:
    assert setup_finding(config(tensorflow="new")).text.count("setup.tensorflow") == 1
