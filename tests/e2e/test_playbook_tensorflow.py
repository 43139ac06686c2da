"""The tensorflow playbook with a real pip: which Python it gets, and what a crash leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import platformdirs
import pytest

from cloudtrain.core.errors import StepFailed
from cloudtrain.core.model import ClusterConfig, Node
from cloudtrain.core.shell import command
from cloudtrain.playbooks import code_packages, tensorflow
from cloudtrain.playbooks.apply import apply
from tests.support.environments import quick_python
from tests.support.lanes import Cases
from tests.support.nodes_here import HereTransport, Remembered, node
from tests.support.tensorflow_parts import config, python

# ── through /bin/sh, with stand-ins for Python ───────────────────────────────

TOOLS = (
    *("sh", "dirname", "mkdir", "cp", "rm", "mv", "cat", "tar", "sed", "tr", "flock", "id", "env"),
    *("chmod", "true", "awk", "cut", "grep", "head", "setsid", "sleep", "stat", "tail"),
    *("mktemp", "tee", "ls", "sort", "cksum", "find"),
)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A PATH with a few tools and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        (folder / tool).symlink_to(f"/usr/bin/{tool}")
    return folder


def ready(wanted: ClusterConfig, tmp_path: Path, one: Node | None = None) -> list[str]:
    """What is shown while the steps run on a machine whose PATH is tmp_path/bin."""
    transport = HereTransport(tmp_path / "nodes", {"PATH": str(tmp_path / "bin")})
    stage = Remembered()
    apply(lambda n: tensorflow.steps(wanted, n), [one or node()], transport, stage)
    shown = [text.partition(": ")[2] for _, text in stage.lines if ": " in text]
    return [text for text in shown if not text.startswith("note: the package index has no uv")]


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
    "python install --no-bin --no-progress 3.10")
        mkdir -p "$place"; cp "FOUND" "$place/python3.10";;
    "python find 3.10") echo "$place/python3.10";;
    *) echo "error: No download found for request: $5" >&2; exit 2;;
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
        "  uv could not install Python 3.9",
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
        "install one there, or set another setup.python or setup.tensorflow"
    )


def test_a_python_that_makes_no_environments_says_so(tmp_path: Path, machine: Path) -> None:
    python(machine, "python3", "3.11", ensurepip=False)
    with pytest.raises(StepFailed, match="bin/python3 cannot create virtual env") as caught:
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
    assert ready(config(tensorflow="2.21"), tmp_path)[:4] == [
        "apt-get install python3-venv",
        f"apt-get {options} --fix-broken install",
        f"apt-get {options} install python3-venv",
        f"virtual environment with {machine}/python3",
    ]


def test_pip_is_asked_for_all_at_once_and_for_tf_keras_alone(tmp_path: Path, machine: Path) -> None:
    python(machine, "python3.11", "3.11")
    one = node(cache=str(tmp_path / "cache"))
    ready(config(tensorflow="2.21"), tmp_path, one)
    folder = Path(tensorflow.bin_folder(config(tensorflow="2.21"), one) or "").parent
    options = (
        "--no-cache-dir --no-input --disable-pip-version-check --progress-bar off"
        " --no-warn-script-location"
    )
    assert (folder / "log").read_text().splitlines() == [
        f"pip -m pip install {options} -r {folder}/pip/install.txt -c {folder}/pip/constraints.txt",
        f"pip -m pip install {options} --no-deps -r {folder}/pip/install-alone.txt",
    ]


def test_a_step_killed_anywhere_is_done_again_and_whole(
    tmp_path: Path, machine: Path, cases: Cases
) -> None:
    """A debug trap is not in sh: each of the commands that it runs kills it in turn."""
    python(machine, "python3.11", "3.11")
    one = node(cache=str(tmp_path / "cache"))
    (step,) = tensorflow.steps(config(tensorflow="2.21"), one)
    assert step.stdin
    assert step.unless
    count = tmp_path / "count"
    count.write_text("")
    environ = {"PATH": str(machine), "COUNT": str(count), "FATAL": "none"}
    transport = HereTransport(tmp_path / "nodes", environ)
    for tool in ("mkdir", "rm", "mv", "tar", "dirname", "flock", "cp", "sed"):
        (machine / tool).unlink()
        (machine / tool).write_text(
            "#!/bin/sh\n"
            f'echo x >>"$COUNT"; if [ "$(/usr/bin/wc -l <"$COUNT")" = "$FATAL" ]; then\n'
            f'/usr/bin/{tool} "$@"; kill -9 0; fi\nexec /usr/bin/{tool} "$@"\n'
        )
        (machine / tool).chmod(0o755)
    assert transport.run(one, step.run, stdin=step.stdin()).exit_code == 0
    commands = len(count.read_text().splitlines())
    assert 8 < commands < 60
    assert transport.run(one, step.unless).exit_code == 0
    for fatal in cases.of(range(1, commands + 1), 3):
        subprocess.run(["rm", "-rf", tmp_path / "cache"], check=True)
        count.write_text("")
        transport.environ["FATAL"] = str(fatal)
        done = transport.run(one, step.run, stdin=step.stdin())
        there = transport.run(one, step.unless).exit_code == 0
        assert done.exit_code == -signal.SIGKILL
        made = list((tmp_path / "cache").glob("venvs/*/log"))
        assert not there or len(made[0].read_text().splitlines()) == 2, "marked before it was whole"
        transport.environ["FATAL"] = "none"
        transport.run(one, step.run, stdin=step.stdin())
        assert transport.run(one, step.unless).exit_code == 0


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


def test_own_lines_run_once_in_order_with_the_environment_first_in_path(
    tmp_path: Path, machine: Path
) -> None:
    quick_python(machine / "python3")
    lines = ('command -v python; echo "one $(pwd)"', "cat; echo 'tw\"o' >>log", "echo tw-o >>log")
    wanted = config(python=".".join(map(str, sys.version_info[:2])), run=lines)
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
    asked = code_packages.packages_command(wanted, nodes[0], "none")
    assert asked is not None
    found = json.loads(transport.run(nodes[0], asked).stdout)["packages"]
    versions = dict(line.split("==") for line in found)
    assert versions["tensorflow-cpu"].startswith("2.21.")
    assert versions["tf-keras"].startswith("2.21.")
    assert {"scikit-learn", "numpy"} <= versions.keys(), "of the layer, and of what is below"
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
