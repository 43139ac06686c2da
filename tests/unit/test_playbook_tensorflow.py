"""The tensorflow playbook's step as a value: builds, indexes and pins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from cloudtrain.config import load
from cloudtrain.core.errors import ConfigError
from cloudtrain.core.model import Accelerator, ClusterConfig
from cloudtrain.core.shell import Step, command, script
from cloudtrain.playbooks import code_packages, scripts, tensorflow, tensorflow_releases
from tests.support.nodes_here import node
from tests.support.tensorflow_parts import config, files

T4 = Accelerator(kind="T4")


# ── as values ────────────────────────────────────────────────────────────────


def test_the_step_of_an_environment_as_a_value() -> None:
    (step,) = tensorflow.steps(config(tensorflow="2.21"), node())
    folder = ".cache/cloudtrain/venvs/tf2.21-cpu-KEY"
    found = tensorflow.bin_folder(config(tensorflow="2.21"), node())
    assert found is not None
    folder = folder.replace("KEY", found.split("-")[-1].removesuffix("/bin"))
    assert found == f"{folder}/bin"
    pythons = ("python3.13", "python3.12", "python3.11", "python3.10", "python3")
    assert step == Step(
        name="tf2.21-cpu",
        run=script(scripts.ENVIRONMENT, folder, "3.10", "3.13", "python3-venv", "", *pythons),
        unless=script(scripts.ENVIRONMENT_THERE, folder),
        stdin=step.stdin,
        once_per_host=True,
        shared=folder,
    )
    assert files(step) == {
        "install": [
            "tensorflow-cpu==2.21.* ; platform_machine == 'x86_64' and sys_platform == 'linux'",
            "tensorflow==2.21.* ; platform_machine != 'x86_64' or sys_platform != 'linux'",
            "tensorboard==2.21.*",
        ],
        "install-alone": ["tf-keras==2.21.*"],
        "constraints": [
            "tensorflow==2.21.*",
            "keras<=3.15.1",
            "numpy<=2.4.6",
            "protobuf<=7.36.2",
            "h5py<3.15",
        ],
        "no-cache": [],
    }


@pytest.mark.parametrize(
    ("wanted", "first_line"),
    [
        (config(tensorflow="2.21.0", accelerator=T4), "tensorflow[and-cuda]==2.21.0"),
        (config(tensorflow="2.15", accelerator=T4), "tensorflow[and-cuda]==2.15.*"),
        (config(tensorflow="1.15.5", accelerator=T4), "tensorflow-gpu==1.15.5"),
        (config(tensorflow="2.13", accelerator=T4), "tensorflow==2.13.*"),
        (config(tensorflow="1.15.5"), "tensorflow==1.15.5"),
        (
            config(tensorflow="2.15.1", accelerator=T4, provider="local"),
            "tensorflow-cpu==2.15.1 ; platform_machine == 'x86_64' and sys_platform == 'linux'",
        ),
    ],
)
def test_the_build_follows_the_nodes_accelerator(wanted: ClusterConfig, first_line: str) -> None:
    (step,) = tensorflow.steps(wanted, node())
    assert files(step)["install"][0] == first_line


def test_cuda_11_comes_from_the_index_for_releases_whose_extra_cannot_be_had() -> None:
    for version, count in (("2.10", 0), ("2.11", 10), ("2.14", 10), ("2.15", 0)):
        (step,) = tensorflow.steps(config(tensorflow=version, accelerator=T4), node())
        lines = [line for line in files(step)["install"] if line.startswith("nvidia-")]
        assert len(lines) == count, version


@pytest.mark.parametrize("version", ["2.20", "2.21", "2.21.0"])
def test_the_whole_cuda_set_is_pinned_where_the_release_leaves_it_open(version: str) -> None:
    (step,) = tensorflow.steps(config(tensorflow=version, accelerator=T4), node())
    asked = files(step)
    pinned = dict(line.split("==") for line in asked["cuda"])
    assert pinned["nvidia-cudnn-cu12"] == "9.24.0.43"
    assert len(pinned) == 12
    assert not [line for line in asked["constraints"] if "nvidia" in line]
    (cpu,) = tensorflow.steps(config(tensorflow=version), node())
    assert "cuda" not in files(cpu)


@pytest.mark.parametrize("kind", ["V100", "V100-32GB", "nvidia-tesla-p100", "P4"])
def test_gpus_before_turing_get_the_last_cudnn_that_has_code_for_them(kind: str) -> None:
    older = config(tensorflow="2.21", accelerator=Accelerator(kind=kind))
    (step,) = tensorflow.steps(older, node())
    assert "nvidia-cudnn-cu12==9.10.2.21" in files(step)["cuda"]
    assert "nvidia-cudnn-cu12<9.11" in files(step)["constraints"]
    newer = config(tensorflow="2.21", accelerator=T4)
    assert tensorflow.bin_folder(older, node()) != tensorflow.bin_folder(newer, node())
    earlier = config(tensorflow="2.19", accelerator=Accelerator(kind=kind))
    (step,) = tensorflow.steps(earlier, node())
    assert "cuda" not in files(step), "its wheel names each, and cuDNN 9.3"


def test_what_the_user_names_of_cuda_is_theirs() -> None:
    own = ["nvidia-cudnn-cu12==9.20.0.48", "torch"]
    wanted = config(tensorflow="2.21", accelerator=T4, packages=own)
    environment, packages = tensorflow.steps(wanted, node())
    assert not [line for line in files(environment)["cuda"] if "cudnn" in line]
    assert own[0] in files(environment)["install"], "TensorFlow finds none in a layer above it"
    assert own == files(packages)["own/setup.packages"]


@pytest.mark.parametrize("accelerator", [T4, None])
def test_downloads_are_not_kept_beside_the_environment_on_a_rented_node(
    accelerator: Accelerator | None,
) -> None:
    (rented,) = tensorflow.steps(config(tensorflow="2.21", accelerator=accelerator), node())
    own = config(tensorflow="2.21", accelerator=T4, provider="hosts")
    (hosts,) = tensorflow.steps(own, node())
    assert "no-cache" in files(rented)
    assert "no-cache" not in files(hosts)


def test_a_local_node_never_changes_the_users_own_machine() -> None:
    (step,) = tensorflow.steps(config(tensorflow="2.21", provider="local"), node())
    assert step.run.arguments[7] == ""


def test_nothing_asked_is_nothing_done() -> None:
    assert tensorflow.steps(config(), node()) == ()
    assert tensorflow.bin_folder(config(), node()) is None
    assert code_packages.packages_command(config(), node(), "none") is None


def test_packages_alone_make_an_environment_without_tensorflow() -> None:
    environment, packages = tensorflow.steps(config(packages=("six",)), node())
    assert (environment.name, packages.name) == ("python", "python-packages")
    nothing: dict[str, list[str]] = {"install": [], "constraints": [], "no-cache": []}
    assert files(environment) == {"install-alone": [], **nothing}
    assert files(packages) == {"below": [], "own/setup.packages": ["six"], **nothing}


def test_the_users_packages_are_a_layer_over_what_others_share() -> None:
    plain, own = config(tensorflow="2.21"), config(tensorflow="2.21", packages=("numpy==2.4.0",))
    (environment,) = tensorflow.steps(plain, node())
    below, layer = tensorflow.steps(own, node())
    assert below == replace(environment, stdin=below.stdin)
    assert layer.below == below.shared == tensorflow.base_folder(own, node())
    assert layer.shared == tensorflow.environment_folder(own, node())
    given = files(layer)
    assert given["below"] == files(below)["install"], "what it must go with"
    assert "numpy<=2.4.6" not in given["constraints"], "the user's own line bounds it"
    assert "keras<=3.15.1" in given["constraints"]


def test_what_the_user_names_is_not_bounded_and_their_tensorflow_lines_give_way(
    tmp_path: Path,
) -> None:
    (tmp_path / "more.txt").write_text("TF_Keras\nscipy>1 # why\n-r requirements.txt\n")
    (tmp_path / "limits.txt").write_text("tensorflow==2.3\nml-dtypes<1\n")
    (tmp_path / "requirements.txt").write_text(
        "# a comment\ntensorflow>=2.2\nTensorFlow_GPU==2.3 \\\n  --hash=sha256:1\n"
        "NumPy==1.26.4 \\\n  --hash=x\n\n-r more.txt\n-c limits.txt\n"
    )
    wanted = config(
        tensorflow="2.21",
        packages=("tensorflow-datasets", "tensorflow"),
        requirements="requirements.txt",
        source=str(tmp_path / "mnist.yaml"),
    )
    (_, step) = tensorflow.steps(wanted, node())
    given = files(step)
    assert given["own/setup.packages"] == ["tensorflow-datasets"]
    assert given["own/requirements"] == [
        "# a comment",
        *("#", "#", "#"),
        *("NumPy==1.26.4 \\", "  --hash=x", "", "-r more.txt", "-c limits.txt"),
    ]
    assert given["own/more"] == ["#", "scipy>1 # why", "-r requirements.txt"]
    assert given["own/limits"] == ["#", "ml-dtypes<1"]
    assert given["own-file"] == ["requirements.txt", "hashes"]
    bounded = ["tensorflow==2.21.*", "keras<=3.15.1", "protobuf<=7.36.2", "h5py<3.15"]
    assert files(step)["constraints"] == bounded


def test_a_requirements_file_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    wanted = config(requirements="no.txt", source=str(tmp_path / "m.yaml"))
    with pytest.raises(ConfigError, match=r"setup\.requirements: .*/no\.txt cannot be read: No"):
        tensorflow.steps(wanted, node())


def test_another_content_is_another_environment(tmp_path: Path) -> None:
    text = tmp_path / "r.txt"
    text.write_text("six\n")
    source = str(tmp_path / "m.yaml")
    wanted = [
        config(tensorflow="2.21"),
        config(tensorflow="2.21", accelerator=T4),
        config(tensorflow="2.20"),
        config(tensorflow="2.21", python="3.11"),
        config(tensorflow="2.21", packages=("six",)),
        config(tensorflow="2.21", requirements="r.txt", packages=("a",), source=source),
    ]
    folders = [tensorflow.bin_folder(one, node()) for one in wanted]
    text.write_text("six==1.17\n")
    folders.append(tensorflow.bin_folder(wanted[-1], node()))
    assert len(set(folders)) == len(folders)
    assert tensorflow.bin_folder(replace(wanted[0], name="other"), node()) == folders[0]


@pytest.mark.parametrize(
    ("strategy", "version", "keras", "choice"),
    [
        ("multi_worker_mirrored", "2.21", "auto", "legacy"),
        ("parameter_server", "2.16", "auto", "legacy"),
        ("horovod", "2.18", "auto", "legacy"),
        ("central_storage", "2.21", "auto", "legacy"),
        ("mirrored", "2.21", "auto", "3"),
        ("custom", "2.21", "auto", "3"),
        ("multi_worker_mirrored", "2.21", "3", "3"),
        ("mirrored", "2.21", "legacy", "legacy"),
        ("multi_worker_mirrored", "2.15.1", "auto", "bundled"),
        ("mirrored", "2.15", "legacy", "bundled"),
        ("multi_worker_mirrored", None, "auto", "bundled"),
    ],
)
def test_keras_is_the_legacy_one_where_the_strategy_needs_it(
    strategy: str, version: str | None, keras: str, choice: str
) -> None:
    wanted = config(strategy, tensorflow=version, keras=keras)
    assert tensorflow.keras_choice(wanted) == choice
    legacy = {"TF_USE_LEGACY_KERAS": "1"} if choice == "legacy" else {}
    assert tensorflow.environment(wanted, node()) == legacy
    assert (tensorflow.keras_note(wanted) is not None) == (choice == "legacy" and keras == "auto")


@pytest.mark.parametrize("version", ["2.15", "2.16", "2.21"])
def test_a_first_script_of_ones_own_needs_no_second_tensorflow(version: str) -> None:
    """The example has another strategy, Keras and packages than what `init` writes."""
    example = config("multi_worker_mirrored", tensorflow=version, packages=("scikit-learn",))
    own = config("mirrored", tensorflow=version, keras="3")
    assert tensorflow.base_folder(example, node()) == tensorflow.base_folder(own, node())


def test_our_choice_of_keras_is_said_in_one_line() -> None:
    assert tensorflow.keras_note(config(tensorflow="2.21")) == (
        "keras: auto means legacy here (tf_keras, TF_USE_LEGACY_KERAS=1): "
        "model.fit of Keras 3 does not work with multi_worker_mirrored"
    )


@pytest.mark.parametrize(
    ("setup", "text"),
    [
        ({"tensorflow": "2.12", "python": "3.12"}, "TensorFlow 2.12 has wheels for Python 3.8 to"),
        ({"tensorflow": "1.15", "python": "3.11"}, "TensorFlow 1.15 has wheels for Python 3.5 to"),
        ({"tensorflow": "2.15", "keras": "3"}, "setup.keras: TensorFlow 2.15 has no Keras 3"),
        ({"tensorflow": "newest"}, "setup.tensorflow: 'newest' is not a TensorFlow version"),
    ],
)
def test_what_cannot_be_had_is_a_problem_before_anything_is_made(
    setup: dict[str, str], text: str
) -> None:
    (problem,) = tensorflow.problems(config(**setup))
    assert text in str(problem)


@pytest.mark.parametrize("python", ["auto", "3.10", "3.13.1", "/opt/python/bin/python3", "3.7"])
def test_what_can_be_had_is_none(python: str) -> None:
    version = "2.11" if python == "3.7" else "2.21"
    assert tensorflow.problems(config(tensorflow=version, python=python)) == ()


def test_a_release_newer_than_the_table_is_left_to_the_package_index() -> None:
    newer = config(tensorflow="2.30", accelerator=T4)
    assert tensorflow.problems(newer) == ()
    (step,) = tensorflow.steps(newer, node())
    arguments = step.run.arguments
    assert arguments[5:9] == (
        "3.10",
        "3.17",
        "python3-venv",
        "2.30 tensorflow tensorboard tf-keras",
    )
    assert arguments[9] == "python3.17"
    assert files(step) == {
        "install": ["tensorflow[and-cuda]==2.30.*", "tensorboard==2.30.*"],
        "install-alone": ["tf-keras==2.30.*"],
        "constraints": ["tensorflow==2.30.*"],
        "no-cache": [],
    }
    assert tensorflow.newer_note(newer) == (
        f"TensorFlow 2.30 is newer than the table of {tensorflow_releases.READ}: Python and CUDA "
        "are chosen on the node, by what the package index has; nothing bounds their versions"
    )


@pytest.mark.parametrize("version", ["2.21", "2.21.9", "1.15", None])
def test_a_release_of_the_table_is_not(version: str | None) -> None:
    assert tensorflow.newer_note(config(tensorflow=version)) is None


# ── setup.run ────────────────────────────────────────────────────────────────


def test_own_lines_are_steps_after_the_environment() -> None:
    line = "echo 'it is' $HOME; sudo apt-get install -y libsndfile1"
    environment, layer, own = tensorflow.steps(config(tensorflow="2.21", run=(line,)), node())
    assert environment.once_per_host
    assert layer.below == environment.shared, "what the line installs is this config's alone"
    done = own.run.arguments[4]
    wanted = config(tensorflow="2.21", run=(line,))
    folder = (tensorflow.bin_folder(wanted, node()) or "").removesuffix("/bin")
    assert own == Step(
        name=f"setup.run: {line}",
        run=script(own.run.arguments[2], done, folder, line, "1800", f"mnist/{Path(done).name}"),
        unless=command("test", "-f", done),
        once_per_host=True,
        timeout=1920.0,
    )
    assert done.startswith(".cloudtrain/mnist/setup/")


# ── this machine's Python ────────────────────────────────────────────────────


def candidates(
    running: tuple[int, int], monkeypatch: pytest.MonkeyPatch, **setup: str
) -> list[str]:
    runs = SimpleNamespace(version_info=(*running, 1), _base_executable="/opt/py/bin/python3")
    monkeypatch.setattr(tensorflow, "sys", runs)
    monkeypatch.setattr(tensorflow.shutil, "which", lambda name: None if "12" in name else name)
    here = replace(config(tensorflow="2.21", **setup), provider="local")
    (step,) = tensorflow.steps(here, node())
    words = step.run.arguments
    return list(words[words.index("3.13") + 3 :])


def test_on_this_machine_the_running_python_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    newest = ["python3.13", "python3.12", "python3.11", "python3.10", "python3"]
    others = [name for name in newest if name != "python3.11"]
    assert candidates((3, 11), monkeypatch) == ["python3.11", *others]
    others = [name for name in newest if name != "python3.12"]
    found = candidates((3, 12), monkeypatch)
    assert found == ["/opt/py/bin/python3", "python3.12", *others], "not in PATH"
    assert candidates((3, 14), monkeypatch) == newest, "TensorFlow has no wheels for it"


def test_plan_says_which_python_this_machine_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    here = replace(config(tensorflow="2.21"), provider="local")
    monkeypatch.setattr(tensorflow, "sys", SimpleNamespace(version_info=(3, 11, 2)))
    assert tensorflow.python_note(here) == "python: auto means 3.11 here, which runs cloudtrain"
    monkeypatch.setattr(tensorflow, "sys", SimpleNamespace(version_info=(3, 14, 0)))
    assert "TensorFlow 2.21 has no wheels for 3.14" in str(tensorflow.python_note(here))
    assert tensorflow.python_note(config(tensorflow="2.21")) is None, "a node chooses"


def test_what_init_writes_has_the_environment_of_the_demo() -> None:
    configs = Path(__file__).parents[2] / "configs"
    demo, first = load(configs / "local.yaml"), load(configs / "templates" / "local.yaml")
    assert tensorflow.environment_folder(demo, node()) == tensorflow.environment_folder(
        first, node()
    )
