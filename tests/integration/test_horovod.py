"""How a Horovod job is launched, with Horovod's own launcher parts in a Python of their own.

Its native library takes minutes to build and is not in that Python: what ranks then do with each
other is in test_horovod_real.py.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.cluster.plan import make_plan, tasks
from cloudtrain.cluster.task_launch import LaunchInputs, task_launch
from cloudtrain.core import ship
from cloudtrain.core.errors import StepFailed
from cloudtrain.core.model import Accelerator, ClusterConfig, NodeGroup, Setup, Train
from cloudtrain.core.run_record import Run
from cloudtrain.playbooks import horovod as playbook
from cloudtrain.playbooks import tensorflow
from cloudtrain.playbooks.apply import apply
from cloudtrain.training import horovod
from tests.support import environments, processes
from tests.support.nodes_here import HereTransport, Remembered, node
from tests.support.ports import free_ports
from tests.support.prepared import users_pip_config
from tests.support.project import until


def config(
    workers: int = 2, gpus: int = 0, provider: Any = "gcp", port: int = 8900, **train: Any
) -> ClusterConfig:
    accelerator = Accelerator(kind="T4", count=gpus) if gpus else None
    return ClusterConfig(
        name="mnist",
        provider=provider,
        strategy="horovod",
        placement=("us-central1-a",),
        nodes={"worker": NodeGroup(count=workers, accelerator=accelerator)},
        train=Train(command="python train.py", port=port, **train),
    )


pytestmark = pytest.mark.timeout(600)  # pip, and Horovod's setup.py, on a busy machine

BUILT = ClusterConfig(
    name="mnist",
    provider="hosts",
    strategy="horovod",
    nodes={"worker": NodeGroup()},
    setup=Setup(tensorflow="2.15.1"),
)


def run_of(config: ClusterConfig, command: str = "python train.py") -> Run:
    return Run(
        id="r1",
        cluster="mnist",
        command=command,
        tasks=tasks(make_plan(config)),
        state="starting",
        created=0.0,
    )


def words(config: ClusterConfig, worker: int) -> list[str]:
    """The command of one node, as a shell splits it, without `exec python -c …`."""
    run = run_of(config)
    addresses = {task.node: f"10.0.0.{task.index}" for task in run.tasks}
    plan, task = make_plan(config), run.tasks[worker]
    line = horovod.line(plan, run, task, addresses, "python", "python train.py")
    return shlex.split(line)[4:]


# ── as values ────────────────────────────────────────────────────────────────


def test_every_node_is_told_all_hosts_where_the_first_is_and_a_peer() -> None:
    hosts = "mnist-worker0:1,mnist-worker1:1,mnist-worker2:1"
    own = "python train.py"
    three = config(workers=3)
    assert words(three, 0) == [hosts, "mnist-worker0", "10.0.0.0", "8900", "10.0.0.1", own]
    assert words(three, 1) == [hosts, "mnist-worker1", "10.0.0.0", "8900", "10.0.0.0", own]
    assert words(three, 2) == [hosts, "mnist-worker2", "10.0.0.0", "8900", "10.0.0.0", own]


def test_a_node_alone_is_its_own_peer() -> None:
    assert words(config(workers=1), 0)[1:5] == ["mnist-worker0", "10.0.0.0", "8900", "10.0.0.0"]


def test_there_is_a_rank_for_each_accelerator_but_not_on_this_machine() -> None:
    assert words(config(gpus=4), 0)[0] == "mnist-worker0:4,mnist-worker1:4"
    assert words(config(gpus=4, provider="local"), 0)[0] == "mnist-worker0:1,mnist-worker1:1"


def test_ranks_are_those_of_the_accelerator_that_the_plan_has() -> None:
    """Whatever the config names: the machine may bring it."""
    plan = make_plan(config())
    eight = tuple(
        replace(node, accelerator=Accelerator(kind="V100", count=8)) for node in plan.nodes
    )
    found = [horovod.slots(replace(plan, nodes=eight), node.name) for node in eight]
    assert found == [8] * len(eight)


def test_the_users_line_is_one_word_and_has_its_placeholders_filled() -> None:
    wanted = config()
    run = run_of(wanted, 'python train.py --to {output} --name "it\'s" $HOME')
    inputs = LaunchInputs(
        addresses=dict.fromkeys((task.node for task in run.tasks), "10.0.0.1"),
        work=dict.fromkeys((task.node for task in run.tasks), "/home/a b"),
        bin_folder={task.node: ".cache/v/bin" for task in run.tasks},
    )
    made = task_launch(make_plan(wanted), run, run.tasks[1], inputs)
    assert made.command.startswith('export PATH="$HOME"/.cache/v/bin:"$PATH"')
    line = made.command.splitlines()[1]
    assert shlex.split(line)[:3] == ["exec", "python", "-c"]
    assert shlex.split(line)[-1] == "python train.py --to '/home/a b/output' --name \"it's\" $HOME"


def test_horovod_waits_as_long_as_a_start_may_take_and_there_is_no_tf_config() -> None:
    wanted = config(start_timeout=300.0, env={"HOROVOD_FUSION_THRESHOLD": "0"})
    run = run_of(wanted)
    inputs = LaunchInputs(
        addresses={t.node: "10.0.0.1" for t in run.tasks}, work={t.node: "/w" for t in run.tasks}
    )
    seen = task_launch(make_plan(wanted), run, run.tasks[0], inputs).environment
    assert seen["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "300"
    assert seen["HOROVOD_FUSION_THRESHOLD"] == "0"
    assert "TF_CONFIG" not in seen


# ── on nodes ─────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def node_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The playbook ran there to its check, on an environment without TensorFlow: Horovod is from
    the package index, and has all but its native library (HOROVOD_SKIP_COMPILE)."""
    folder = tmp_path_factory.mktemp("horovod")
    environment = folder / node().name / environment_of(BUILT)
    environments.create(environment)
    pip = [environment / "bin/python", "-m", "pip", "install", "-q", "--no-input"]
    needs = [need if need != "setuptools" else "setuptools<81" for need in horovod.LIBRARY.needs]
    subprocess.run([*pip, "--disable-pip-version-check", *needs], check=True)
    pip_config = users_pip_config()
    environ = {"PIP_CONFIG_FILE": pip_config} if pip_config else {}
    transport = HereTransport(folder, {"HOROVOD_SKIP_COMPILE": "1", **environ})
    with pytest.raises(StepFailed, match="this Horovod is built without TensorFlow"):
        apply(lambda one: playbook.steps(BUILT, one), [node()], transport, Remembered())
    return folder / node().name


def environment_of(config: ClusterConfig) -> str:
    folder = tensorflow.bin_folder(config, node())
    assert folder is not None
    return folder.removesuffix("/bin")


def test_a_build_that_does_not_know_tensorflow_is_refused_each_time(node_home: Path) -> None:
    environment = node_home / environment_of(BUILT)
    assert (environment / ".horovod-built").exists()
    assert not (environment / ".horovod-checked").exists()


@pytest.fixture(scope="module")
def python(node_home: Path) -> Path:
    return node_home / environment_of(BUILT) / "bin" / "python"


class Nodes:
    """The tasks of a run as their supervisors start them, each node an address of this machine."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.python = python
        self.folder = folder
        self.port = free_ports(1)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        line: str,
        *,
        only: int | None = None,
        address: str = "127.0.0.{}",
        variables: Mapping[str, str] = {},
        **wanted: Any,
    ) -> None:
        cluster = config(port=self.port, **wanted)
        run = run_of(cluster)
        addresses = {task.node: address.format(task.index + 1) for task in run.tasks}
        for task in run.tasks:
            if only not in (None, task.index):
                continue
            own = horovod.line(make_plan(cluster), run, task, addresses, str(self.python), line)
            environment = {**os.environ, **horovod.environment(cluster), **variables}
            with (self.folder / task.name).open("wb") as log:
                process = subprocess.Popen(
                    ["/bin/sh", "-c", own],
                    env={**environment, "FOLDER": str(self.folder), "OWN": str(self.python)},
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self.processes.append(process)

    def codes(self) -> list[int]:
        return [process.wait(60) for process in self.processes]

    def log(self, worker: int) -> str:
        return (self.folder / f"worker{worker}").read_text()

    def ranks(self) -> dict[int, dict[str, str]]:
        """What each rank wrote of its environment, by rank."""
        seen = [json.loads(path.read_text()) for path in self.folder.glob("seen-*")]
        return {int(one["HOROVOD_RANK"]): one for one in seen}


@pytest.fixture
def nodes(python: Path, tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(python, tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()


SEES = """\
import json, os, time, urllib.error, urllib.request
me, size = os.environ["HOROVOD_RANK"], int(os.environ["HOROVOD_SIZE"])
with open(os.environ["FOLDER"] + "/seen-" + me, "w") as file:
    json.dump(dict(os.environ), file)
place = "http://{HOROVOD_GLOO_RENDEZVOUS_ADDR}:{HOROVOD_GLOO_RENDEZVOUS_PORT}/global/".format(**os.environ)
urllib.request.urlopen(urllib.request.Request(place + me, data=me.encode(), method="PUT"))
for other in range(size):
    while True:
        try:
            assert urllib.request.urlopen(place + str(other)).read() == str(other).encode()
            break
        except urllib.error.HTTPError as error:
            assert error.code == 404
            time.sleep(0.05)
print("sees", size, flush=True)
urllib.request.urlopen(urllib.request.Request(place + me, method="DELETE"))
"""


def test_the_ranks_of_all_nodes_meet_at_the_first_ones_rendezvous(nodes: Nodes) -> None:
    (nodes.folder / "sees.py").write_text(SEES)
    nodes.start('"$OWN" sees.py', workers=2, gpus=2)
    assert nodes.codes() == [0, 0], nodes.log(0) + nodes.log(1)
    names = ("HOSTNAME", "RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    ranks = nodes.ranks()
    placed = [tuple(ranks[rank][f"HOROVOD_{name}"] for name in names) for rank in sorted(ranks)]
    assert placed == [
        ("mnist-worker0", "0", "4", "0", "2", "0", "2"),
        ("mnist-worker0", "1", "4", "1", "2", "0", "2"),
        ("mnist-worker1", "2", "4", "0", "2", "1", "2"),
        ("mnist-worker1", "3", "4", "1", "2", "1", "2"),
    ]
    for seen in ranks.values():
        assert (seen["HOROVOD_CONTROLLER"], seen["HOROVOD_CPU_OPERATIONS"]) == ("gloo", "gloo")
        assert seen["HOROVOD_GLOO_IFACE"] == "lo"
        assert horovod.RANKS not in seen


def test_ranks_that_share_a_log_say_which_they_are(nodes: Nodes) -> None:
    nodes.start("echo here; echo $HOROVOD_LOCAL_RANK there >&2", workers=1, gpus=2)
    assert nodes.codes() == [0]
    assert sorted(nodes.log(0).splitlines()) == [
        "[0] 0 there",
        "[0] here",
        "[1] 1 there",
        "[1] here",
    ]


def test_a_rank_alone_on_its_node_writes_as_it_is(nodes: Nodes) -> None:
    nodes.start("printf '%s' \"$HOROVOD_RANK of $HOROVOD_SIZE\"", workers=1)
    assert nodes.codes() == [0]
    assert nodes.log(0) == "0 of 1"


@pytest.mark.parametrize(("line", "code"), [("exit 3", 3), ("kill -9 $$", 137), ("true", 0)])
def test_a_node_ends_as_its_rank_did(nodes: Nodes, line: str, code: int) -> None:
    nodes.start(line, workers=1)
    assert nodes.codes() == [code]


def test_the_first_rank_that_fails_ends_the_others_of_its_node_even_deaf_ones(nodes: Nodes) -> None:
    launcher = ship.text("horovod_ranks.py")
    hasty = launcher.replace("GRACE = 5.0", "GRACE = 0.5")
    assert hasty != launcher
    nodes.start(
        "[ $HOROVOD_RANK = 0 ] || exec sh -c 'trap \"\" TERM; touch deaf; sleep 1000 & wait; wait';"
        " while [ ! -e deaf ]; do sleep 0.1; done; exit 5",
        workers=1,
        gpus=2,
        variables={horovod.RANKS: hasty},
    )
    assert nodes.codes() == [5]
    assert not alive("sleep 1000", nodes.folder)


def alive(command: str, folder: Path) -> list[int]:
    found = [pid for pid in processes.pids() if " ".join(processes.words(pid)) == command]
    return [pid for pid in found if processes.folder(pid) == folder]


def test_a_node_waits_for_the_first_one_to_be_there(nodes: Nodes) -> None:
    (nodes.folder / "sees.py").write_text(SEES)
    nodes.start('"$OWN" sees.py', only=1)
    until(lambda: alive_launchers(nodes) == 1, 60)
    nodes.start('"$OWN" sees.py', only=0)
    assert nodes.codes() == [0, 0], nodes.log(0) + nodes.log(1)


def alive_launchers(nodes: Nodes) -> int:
    return sum(process.poll() is None for process in nodes.processes)


def test_a_first_node_that_never_comes_is_told_and_no_rank_is_started(nodes: Nodes) -> None:
    nodes.start("touch started", only=1, start_timeout=1.0)
    assert nodes.codes() == [1]
    place = re.escape(f"127.0.0.1:{nodes.port}")
    assert re.search(rf"Horovod's rendezvous at {place} does not answer: .*refused", nodes.log(1))
    assert not (nodes.folder / "started").exists()


def test_the_users_own_interface_is_kept(nodes: Nodes) -> None:
    nodes.start(
        "echo $HOROVOD_GLOO_IFACE $NCCL_SOCKET_IFNAME",
        workers=1,
        variables={"HOROVOD_GLOO_IFACE": "eth7"},
    )
    assert nodes.codes() == [0]
    assert nodes.log(0) == "eth7 lo\n"


@pytest.mark.parametrize(
    ("address", "open_elsewhere"),
    [
        ("127.0.0.{}", False),
        ("localhost", True),  # the machine's own name may be that of its loopback
        ("192.0.2.{}", True),  # a router's address, by which others reach it
    ],
)
def test_the_rendezvous_is_open_on_the_nodes_address_alone_where_it_is_known(
    nodes: Nodes, address: str, open_elsewhere: bool
) -> None:
    calls = f"import socket; socket.create_connection(('127.0.0.9', {nodes.port}))"
    nodes.start(f'"$OWN" -c "{calls}"', workers=1, address=address)
    assert nodes.codes() == [0 if open_elsewhere else 1], nodes.log(0)
