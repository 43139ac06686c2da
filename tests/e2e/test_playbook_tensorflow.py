"""The tensorflow playbook: what is asked of pip, which Python it gets, and what a crash leaves."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from cloudtrain.apply import apply
from cloudtrain.errors import ConfigError, StepFailed
from cloudtrain.model import Accelerator, ClusterConfig, Node, NodeGroup, Setup
from cloudtrain.playbooks import releases, scripts, tensorflow
from cloudtrain.shell import command, script
from cloudtrain.step import Step
from tests.support.nodes_here import HereTransport, Remembered, node

T4 = Accelerator(kind="T4")


def config(
    strategy: Any = "multi_worker_mirrored",
    provider: Any = "gcp",
    accelerator: Accelerator | None = None,
    source: str = "/x/mnist.yaml",
    **setup: Any,
) -> ClusterConfig:
    return ClusterConfig(
        name="mnist",
        provider=provider,
        strategy=strategy,
        nodes={"chief": NodeGroup(accelerator=accelerator), "worker": NodeGroup(count=2)},
        setup=Setup(**setup),
        source=source,
    )


def files(step: Step) -> dict[str, list[str]]:
    """What pip is given."""
    assert step.stdin
    with tarfile.open(fileobj=io.BytesIO(b"".join(step.stdin()))) as tar:
        return {
            member.name.removesuffix(".txt"): (tar.extractfile(member) or io.BytesIO())
            .read()
            .decode()
            .splitlines()
            for member in tar
        }


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
        run=script(scripts.ENVIRONMENT, folder, "3.10", "3.13", "python3-venv", *pythons),
        unless=script(scripts.ENVIRONMENT_THERE, folder),
        stdin=step.stdin,
        once_per_host=True,
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
    }


@pytest.mark.parametrize(
    ("wanted", "first_line"),
    [
        (config(tensorflow="2.21.0", accelerator=T4), "tensorflow[and-cuda]==2.21.0"),
        (config(tensorflow="2.15", accelerator=T4), "tensorflow[and-cuda]==2.15.*"),
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
    (step,) = tensorflow.steps(config(tensorflow="2.21", accelerator=T4, packages=own), node())
    assert not [line for line in files(step)["cuda"] if "cudnn" in line]
    assert own[0] in files(step)["install"]


def test_downloads_are_not_kept_beside_the_environment_on_a_rented_node_with_gpus() -> None:
    (rented,) = tensorflow.steps(config(tensorflow="2.21", accelerator=T4), node())
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
    assert tensorflow.versions_command(config(), node()) is None


def test_packages_alone_make_an_environment_without_tensorflow() -> None:
    (step,) = tensorflow.steps(config(packages=("six",)), node())
    assert step.name == "python"
    assert files(step) == {"install": ["six"], "install-alone": [], "constraints": []}


def test_what_the_user_names_is_not_bounded_and_their_tensorflow_lines_give_way(
    tmp_path: Path,
) -> None:
    (tmp_path / "more.txt").write_text("TF_Keras\nscipy>1 # why\n-r requirements.txt\n")
    (tmp_path / "requirements.txt").write_text(
        "# a comment\ntensorflow>=2.2\nTensorFlow_GPU==2.3\nNumPy==1.26.4 \\\n  --hash=x\n"
        "\n-r more.txt\ngit+https://example.org/keras.git\n./tensorflow\n"
    )
    wanted = config(
        tensorflow="2.21",
        packages=("tensorflow-datasets", "tensorflow"),
        requirements="requirements.txt",
        source=str(tmp_path / "mnist.yaml"),
    )
    (step,) = tensorflow.steps(wanted, node())
    assert files(step)["install"][3:] == [
        "tensorflow-datasets",
        "NumPy==1.26.4    --hash=x",
        "scipy>1 # why",
        "git+https://example.org/keras.git",
        "./tensorflow",
    ]
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
        config(tensorflow="2.21", strategy="mirrored"),
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


def test_our_choice_of_keras_is_said_in_one_line() -> None:
    assert tensorflow.keras_note(config(tensorflow="2.21")) == (
        "keras: auto is legacy here (tf_keras, TF_USE_LEGACY_KERAS=1): "
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


def test_releases_newer_than_the_table_are_taken_like_its_newest_without_bounds() -> None:
    assert releases.pythons("2.30") == releases.pythons("2.21")
    assert releases.constraints("2.30") == ("tensorflow==2.30.*",)


# ── through /bin/sh, with stand-ins for Python ───────────────────────────────

STAND_IN = """#!/bin/sh
# A Python of version VERSION whose venv and pip only leave traces.
case "$1 $2 $3" in
    "-c import ensurepip"*) exit ENSUREPIP;;
    "-c import sys; print"*) echo VERSION;;
    "-c import sys"*) exec REAL -c "import sys; sys.version_info = (VERSIONS, 4)
$2" "$3" "$4";;
    "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python";;
    "-m pip install")
        case "$*" in *" uv") cp UV_STAND_IN "$(dirname "$0")/uv"; exit;; esac
        echo "pip $*" >>"$(dirname "$0")/../log";;
    "-I -c import pip") exit 0;;
    *) exit 99;;
esac
"""
TOOLS = (
    *("sh", "dirname", "mkdir", "cp", "rm", "mv", "cat", "tar", "sed", "tr", "flock", "id", "env"),
    *("chmod", "true"),
)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A PATH with a few tools and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        (folder / tool).symlink_to(f"/usr/bin/{tool}")
    return folder


def python(folder: Path, name: str, version: str, *, ensurepip: bool = True) -> Path:
    real = Path("/proc/self/exe").resolve()
    text = (
        STAND_IN.replace("ENSUREPIP", "0" if ensurepip else "1")
        .replace("VERSIONS", version.replace(".", ", "))
        .replace("VERSION", version)
    )
    folder.mkdir(parents=True, exist_ok=True)
    text = text.replace("REAL", str(real)).replace("UV_STAND_IN", str(folder / "uv-stand-in"))
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return folder / name


def ready(wanted: ClusterConfig, tmp_path: Path, one: Node | None = None) -> list[str]:
    """What is shown while the steps run on a machine whose PATH is tmp_path/bin."""
    transport = HereTransport(tmp_path / "nodes", {"PATH": str(tmp_path / "bin")})
    stage = Remembered()
    apply(lambda n: tensorflow.steps(wanted, n), [one or node()], transport, stage)
    return [text.partition(": ")[2] for _, text in stage.lines if ": " in text]


def made_with(wanted: ClusterConfig, tmp_path: Path) -> str:
    return ready(wanted, tmp_path)[0].removeprefix(f"virtual environment with {tmp_path}/")


def test_auto_takes_the_newest_python_that_the_release_runs_on(
    tmp_path: Path, machine: Path
) -> None:
    for minor in (9, 10, 12, 14):
        python(machine, f"python3.{minor}", f"3.{minor}")
    assert made_with(config(tensorflow="2.21"), tmp_path) == "bin/python3.12"
    assert made_with(config(tensorflow="2.15"), tmp_path) == "bin/python3.10"


def test_python3_is_taken_where_its_version_will_do(tmp_path: Path, machine: Path) -> None:
    python(machine, "python3", "3.11")
    assert made_with(config(tensorflow="2.21"), tmp_path) == "bin/python3"
    assert made_with(config(tensorflow="2.20", python="3.11"), tmp_path) == "bin/python3"
    assert made_with(config(tensorflow="2.20", python="3.11.4"), tmp_path) == "bin/python3"
    with pytest.raises(StepFailed, match=r"no Python 3\.11\.5 on the node; it has: 3.11"):
        ready(config(tensorflow="2.20", python="3.11.5", provider="local"), tmp_path)


def test_a_path_is_taken_as_it_is(tmp_path: Path, machine: Path) -> None:
    odd = python(tmp_path / "odd $place", "py", "3.11")
    assert made_with(config(tensorflow="2.21", python=str(odd)), tmp_path) == "odd $place/py"
    home = HereTransport(tmp_path / "nodes").home(node())
    python(home / "py" / "bin", "python", "3.11")
    wanted = config(tensorflow="2.20", python="~/py/bin/python")
    assert made_with(wanted, tmp_path) == "nodes/mnist-chief0/py/bin/python"


def test_a_pyenv_shim_that_does_not_run_leads_to_the_real_one(
    tmp_path: Path, machine: Path
) -> None:
    root = tmp_path / "my pyenv"
    real = python(root / "versions" / "3.12.1" / "bin", "python3.12", "3.12")
    shim = root / "shims" / "python3.12"
    shim.parent.mkdir()
    shim.write_text("#!/bin/sh\necho 'pyenv: python3.12: command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    transport = HereTransport(tmp_path / "nodes", {"PATH": f"{shim.parent}:{machine}"})
    stage = Remembered()
    (step,) = tensorflow.steps(config(tensorflow="2.21"), node())
    apply(lambda _: [step], [node()], transport, stage)
    assert stage.lines[1] == (node().name, f"tf2.21-cpu: virtual environment with {real}")


UV = """#!/bin/sh
# A uv that has one Python, 3.10, which it brings to the folder that it is told.
place=$UV_PYTHON_INSTALL_DIR/cpython-3.10/bin
case "$*" in
    --version) ;;
    "python install --no-bin 3.10") mkdir -p "$place"; cp "FOUND" "$place/python3.10";;
    "python find 3.10") echo "$place/python3.10";;
    *) echo "error: No download found for request: $4" >&2; exit 2;;
esac
"""


def uv(machine: Path, folder: Path) -> None:
    found = python(folder, "python3.10", "3.10")
    (machine / "uv-stand-in").write_text(UV.replace("FOUND", str(found)))
    (machine / "uv-stand-in").chmod(0o755)


def test_uv_brings_a_python_where_the_node_has_none_that_will_do(
    tmp_path: Path, machine: Path
) -> None:
    python(machine, "python3", "3.12")  # as on Ubuntu 24.04
    uv(machine, tmp_path / "from uv")
    shown = ready(config(tensorflow="2.11"), tmp_path)
    home = tmp_path / "nodes" / "mnist-chief0" / ".cache/cloudtrain/venvs/uv"
    assert shown[:2] == [
        "Python 3.10 from uv",
        f"virtual environment with {home}/pythons/cpython-3.10/bin/python3.10",
    ]
    assert ready(config(tensorflow="2.11"), tmp_path) == []


def test_a_uv_that_was_killed_while_it_was_installed_is_installed_again(
    tmp_path: Path, machine: Path
) -> None:
    python(machine, "python3", "3.12")
    uv(machine, tmp_path / "from uv")
    half = tmp_path / "nodes" / "mnist-chief0" / ".cache/cloudtrain/venvs/uv/bin/uv"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"\x7fELF")
    half.chmod(0o755)
    assert "Python 3.10 from uv" in ready(config(tensorflow="2.11"), tmp_path)


def test_what_uv_has_not_either_says_so(tmp_path: Path, machine: Path) -> None:
    python(machine, "python3", "3.12")
    uv(machine, tmp_path / "from uv")
    with pytest.raises(StepFailed) as caught:
        ready(config(tensorflow="2.11", python="3.9"), tmp_path)
    assert str(caught.value).splitlines()[1:] == [
        "  Python 3.9 from uv",
        "  error: No download found for request: 3.9",
        "  uv could not bring Python 3.9",
        "  no Python 3.9 on the node; it has: 3.12",
    ]


def test_no_python_that_will_do_says_what_is_there(tmp_path: Path, machine: Path) -> None:
    python(machine, "python3", "3.8")
    with pytest.raises(StepFailed) as caught:
        ready(config(tensorflow="2.21", provider="local"), tmp_path)
    assert str(caught.value).splitlines()[1:] == [
        "  no Python 3.10 to 3.13 on the node; it has: 3.8"
    ]
    assert caught.value.hint == (
        "install one there, or name another in setup.python or setup.tensorflow"
    )


def test_a_python_that_makes_no_environments_says_so(tmp_path: Path, machine: Path) -> None:
    python(machine, "python3", "3.11", ensurepip=False)
    with pytest.raises(StepFailed, match="bin/python3 cannot make virtual env") as caught:
        ready(config(tensorflow="2.21", provider="local"), tmp_path)
    assert caught.value.hint == "install it on the node: sudo apt-get install python3-venv"


def test_what_debian_lacks_is_installed_where_we_may(tmp_path: Path, machine: Path) -> None:
    python(machine, "python3", "3.11", ensurepip=False)
    better = python(tmp_path / "better", "python3", "3.11")
    sudo = machine / "sudo"
    sudo.write_text('#!/bin/sh\n[ "$1" = -n ] && shift && exec "$@"\n')
    apt = machine / "apt-get"
    apt.write_text(
        f'#!/bin/sh\necho "apt-get $*"\n'
        f'case "$*" in *"install python3-venv") cp {better} {machine}/python3;; esac\n'
    )
    for tool in ("dpkg", "dpkg-query"):
        (machine / tool).symlink_to("/usr/bin/true")
    for tool in (sudo, apt):
        tool.chmod(0o755)
    options = (
        "-q -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "
        "-o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold"
    )
    assert ready(config(tensorflow="2.21"), tmp_path)[:5] == [
        "apt-get install python3-venv",
        f"apt-get {options} --fix-broken install",
        f"apt-get {options} update",
        f"apt-get {options} install python3-venv",
        f"virtual environment with {machine}/python3",
    ]


def test_pip_is_asked_for_all_at_once_and_for_tf_keras_alone(tmp_path: Path, machine: Path) -> None:
    python(machine, "python3.11", "3.11")
    one = node(cache=str(tmp_path / "cache"))
    ready(config(tensorflow="2.21"), tmp_path, one)
    folder = Path(tensorflow.bin_folder(config(tensorflow="2.21"), one) or "").parent
    options = "--no-input --disable-pip-version-check --progress-bar off --no-warn-script-location"
    assert (folder / "log").read_text().splitlines() == [
        f"pip -m pip install {options} -r {folder}/pip/install.txt -c {folder}/pip/constraints.txt",
        f"pip -m pip install {options} --no-deps -r {folder}/pip/install-alone.txt",
    ]


def test_a_step_killed_anywhere_is_done_again_and_whole(tmp_path: Path, machine: Path) -> None:
    """A debug trap is not in sh: each of the commands that it runs kills it in turn."""
    python(machine, "python3.11", "3.11")
    one = node(cache=str(tmp_path / "cache"))
    (step,) = tensorflow.steps(config(tensorflow="2.21"), one)
    assert step.stdin
    assert step.unless
    environ = {"PATH": str(machine), "COUNT": str(tmp_path / "count")}
    transport = HereTransport(tmp_path / "nodes", environ)
    for tool in ("mkdir", "rm", "mv", "tar", "dirname", "flock", "cp", "sed"):
        (machine / tool).unlink()
        (machine / tool).write_text(
            "#!/bin/sh\n"
            f'echo x >>"$COUNT"; if [ "$(/usr/bin/wc -l <"$COUNT")" = "$FATAL" ]; then\n'
            f'/usr/bin/{tool} "$@"; kill -9 0; fi\nexec /usr/bin/{tool} "$@"\n'
        )
        (machine / tool).chmod(0o755)
    killed = 0
    for fatal in range(1, 60):
        (tmp_path / "count").write_text("")
        transport.environ["FATAL"] = str(fatal)
        done = transport.run(one, step.run, stdin=step.stdin())
        there = transport.run(one, step.unless).exit_code == 0
        if done.exit_code == 0:
            assert there
            break
        assert done.exit_code == -signal.SIGKILL
        made = list((tmp_path / "cache").glob("venvs/*/log"))
        assert not there or len(made[0].read_text().splitlines()) == 2, "marked before it was whole"
        killed += 1
        transport.environ["FATAL"] = "none"
        transport.run(one, step.run, stdin=step.stdin())
        assert transport.run(one, step.unless).exit_code == 0
        subprocess.run(["rm", "-rf", tmp_path / "cache"], check=True)
    assert killed > 8


def test_two_processes_on_one_host_make_an_environment_once(tmp_path: Path, machine: Path) -> None:
    python(machine, "python3.11", "3.11")
    one = node(cache=str(tmp_path / "cache"))
    (step,) = tensorflow.steps(config(tensorflow="2.21"), one)
    assert step.stdin
    data = b"".join(step.stdin())
    transport = HereTransport(tmp_path / "nodes", {"PATH": str(machine)})
    processes = [transport.process(one, step.run) for _ in range(4)]
    for process in processes:
        assert process.stdin
        process.stdin.write(data)
        process.stdin.close()
        process.stdin = None
    outputs = [process.communicate()[0].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0, 0]
    assert sum("virtual environment with" in output for output in outputs) == 1


def test_an_environment_whose_python_went_away_is_made_again(tmp_path: Path, machine: Path) -> None:
    python(machine, "python3.11", "3.11")
    one = node(cache=str(tmp_path / "cache"))
    ready(config(tensorflow="2.21"), tmp_path, one)
    assert ready(config(tensorflow="2.21"), tmp_path, one) == []
    folder = Path(tensorflow.bin_folder(config(tensorflow="2.21"), one) or "").parent
    (folder / "bin" / "python").unlink()
    assert ready(config(tensorflow="2.21"), tmp_path, one)[0].startswith("virtual environment")


# ── setup.run ────────────────────────────────────────────────────────────────


def test_own_lines_are_steps_after_the_environment() -> None:
    line = "echo 'it is' $HOME; sudo apt-get install -y libsndfile1"
    environment, own = tensorflow.steps(config(tensorflow="2.21", run=(line,)), node())
    assert environment.once_per_host
    done = own.run.arguments[4]
    folder = (tensorflow.bin_folder(config(tensorflow="2.21"), node()) or "").removesuffix("/bin")
    assert own == Step(
        name=f"setup.run: {line}",
        run=script(scripts.OWN_LINE, done, folder, line),
        unless=command("test", "-f", done),
        once_per_host=True,
    )
    assert done.startswith(".cloudtrain/mnist/setup/")


def test_own_lines_run_once_in_order_with_the_environment_first_in_path(
    tmp_path: Path, machine: Path
) -> None:
    python(machine, "python3.11", "3.11")
    lines = ('command -v python; echo "one $(pwd)"', "cat; echo 'tw\"o' >>log", "echo tw-o >>log")
    wanted = config(tensorflow="2.21", run=lines)
    home = tmp_path / "nodes" / "mnist-chief0"
    folder = tensorflow.bin_folder(wanted, node())
    shown = [line for line in ready(wanted, tmp_path) if line.startswith(lines[0] + ": ")]
    assert shown == [f"{lines[0]}: {home}/{folder}/python", f"{lines[0]}: one {home}"]
    assert (home / "log").read_text() == 'tw"o\ntw-o\n'
    assert ready(wanted, tmp_path) == []
    assert (home / "log").read_text() == 'tw"o\ntw-o\n'


def test_an_own_line_that_fails_is_named_and_run_again_next_time(tmp_path: Path) -> None:
    wanted = config(run=("echo no luck; exit 3",))
    for _ in range(2):
        transport = HereTransport(tmp_path / "nodes")
        with pytest.raises(StepFailed) as caught:
            apply(lambda n: tensorflow.steps(wanted, n), [node()], transport, Remembered())
        text = "mnist-chief0: setup.run: echo no luck; exit 3: exit 3\n  no luck"
        assert str(caught.value) == text


# ── for real ─────────────────────────────────────────────────────────────────


@pytest.mark.tensorflow
def test_a_real_tensorflow_with_legacy_keras_and_tensorboard(tmp_path: Path) -> None:
    cache = os.environ.get("CLOUDTRAIN_CACHE") or platformdirs.user_cache_dir("cloudtrain")
    packages = ("scikit-learn",)  # as configs/local.yaml, whose environment this is then
    wanted = config(tensorflow="2.21", packages=packages, provider="local")
    nodes = [node(f"mnist-worker{i}", host="here", cache=cache) for i in range(2)]
    transport = HereTransport(tmp_path / "nodes")
    apply(lambda n: tensorflow.steps(wanted, n), nodes, transport, Remembered())
    asked = tensorflow.versions_command(wanted, nodes[0])
    assert asked is not None
    versions = json.loads(transport.run(nodes[0], asked).stdout)
    assert versions["tensorflow"].startswith("2.21.")
    assert versions["tf_keras"].startswith("2.21.")
    text = """
import tensorflow as tf, numpy as np
layer = tf.keras.layers.Dense(1)
assert type(layer).__module__.startswith("tf_keras"), type(layer).__module__
model = tf.keras.Sequential([layer])
model.compile("sgd", "mse")
model.fit(np.ones((4, 2)), np.ones((4, 1)), callbacks=[tf.keras.callbacks.TensorBoard("logs")])
with tf.summary.create_file_writer("logs").as_default():
    tf.summary.scalar("a", 1.0, step=1)
"""
    transport.environ.update(tensorflow.environment(wanted, nodes[0]))
    done = transport.run(
        nodes[0], command(f"{tensorflow.bin_folder(wanted, nodes[0])}/python", "-c", text)
    )
    assert done.exit_code == 0, done.stderr.decode()[-2000:]
