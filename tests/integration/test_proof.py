"""Nodes compute before a run: what they say is understood, what fails is named, nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from cloudtrain.cluster.session import Session
from cloudtrain.cluster.task_launch import TaskLaunch
from cloudtrain.core import paths, ship
from cloudtrain.core.errors import PreflightError
from cloudtrain.core.model import Accelerator, ClusterConfig, Node, NodeGroup, Plan, Setup
from cloudtrain.core.run_record import Run, Task
from cloudtrain.core.shell import Secret, command
from cloudtrain.node import compute_proof
from cloudtrain.runs import node_talk
from cloudtrain.runs.node_talk import NodeAnswer, ProofOrder, compute
from cloudtrain.runs.proof import Member, proof_orders, prove_nodes
from cloudtrain.state import Records
from tests.support.fakes import eventually
from tests.support.landing_parts import Heard
from tests.support.ports import free_ports
from tests.support.streaming_here import Here

READY = """\
printf '%s\\n' '{"phase": "import"}'
printf '%s\\n' '{"tensorflow": "2.21.0", "ready": true}'
read -r go
printf '%s\\n' '{"gpus": 0}' '{"phase": "matrix product"}'
"""
WELL = READY + """printf '%s\\n' '{"tflops": [0.25]}' '{"done": true}'"""
"""A Python that says what one with TensorFlow does, at once."""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    here = Here(tmp_path)
    yield here
    here.close()


def pretended(folder: Path, name: str, says: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{says}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def member(number: int, python: str, *, host: str = "", gpus: Accelerator | None = None) -> Member:
    name = f"mnist-worker{number}"
    return Member(
        task=Task(role="worker", index=number, node=name, port=free_ports(1)),
        node=Node(
            name=name,
            role="worker",
            index=number,
            state="running",
            address="127.0.0.1",
            internal="127.0.0.1",
            host=host or f"host-{number}",
            cache=f"cache-{number}",
        ),
        python=python,
        shared="venvs/tf2.21",
        gpus=gpus,
        environment={},
        in_run=f"run/worker{number}",
        limits={},
    )


def computed(
    here: Here,
    orders: list[ProofOrder],
    began: list[int] | None = None,
    size: int = 1 << 20,
) -> dict[str, NodeAnswer]:
    def begins(number: int) -> Callable[[str], None]:
        if began is not None:
            began.append(number)
        return lambda name: None

    return compute(orders, here, size=size, begins=begins)


def alone(here: Here, says: str, limits: Mapping[str, float] | None = None) -> NodeAnswer:
    python = pretended(here.home, "python", says)
    [order] = proof_orders([member(0, python)], together=False)
    if limits:
        order = ProofOrder(**{**vars(order), "limits": limits})
    return computed(here, [order])["mnist-worker0"]


# ── pretended TensorFlows ────────────────────────────────────────────────────


def test_what_a_node_computed_is_kept_until_it_boots_again(here: Here) -> None:
    orders = proof_orders([member(0, pretended(here.home, "python", WELL))], together=False)
    began: list[int] = []
    first = computed(here, orders, began)["mnist-worker0"]
    again = computed(here, orders, began)["mnist-worker0"]
    assert first.facts["tflops"] == again.facts["tflops"] == [0.25]
    assert began == [1]
    [stamp] = here.home.glob("cache-0/proofs/*")
    facts = json.loads(stamp.read_text())
    stamp.write_text(json.dumps({**facts, "boot": "another"}))
    computed(here, orders, began)
    assert began == [1, 1]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"boot": 1}'])
def test_a_damaged_stamp_is_none(here: Here, damage: str) -> None:
    orders = proof_orders([member(0, pretended(here.home, "python", WELL))], together=False)
    stamp = here.home / orders[0].stamp
    stamp.parent.mkdir(parents=True)
    stamp.write_text(damage)
    assert computed(here, orders)["mnist-worker0"].facts["tflops"] == [0.25]


def test_a_node_that_fails_keeps_no_stamp_and_says_why(here: Here) -> None:
    answer = alone(
        here, READY + """echo oh >&2; printf '%s\\n' '{"failed": "InternalError: 999"}'; exit 1"""
    )
    [failure] = answer.failures
    assert (failure.phase, failure.words, failure.log) == (
        "matrix product",
        "InternalError: 999",
        "oh\n",
    )
    assert failure.fatal
    assert list(here.home.glob("cache-0/**/*.json")) == []


def test_a_crash_has_its_phase_and_signal(here: Here) -> None:
    [failure] = alone(here, READY + "kill -SEGV $$").failures
    assert (failure.phase, failure.signal, failure.words) == ("matrix product", 11, "")


def test_a_python_that_does_not_exist_is_a_failure(here: Here) -> None:
    [order] = proof_orders([member(0, "/no/such/python")], together=False)
    [failure] = computed(here, [order])["mnist-worker0"].failures
    assert "/no/such/python" in failure.words


def test_a_node_that_does_not_answer_is_a_failure(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_talk, "ANSWER", 0.2)
    monkeypatch.setattr(node_talk, "END", 0.2)
    here.instead["mnist-worker0"] = command("sleep", "1000")
    [failure] = alone(here, WELL).failures
    assert (failure.phase, failure.words) == ("the compute check", "no answer within 0.2 s")


def test_a_phase_beyond_its_limit_is_killed_and_named(here: Here) -> None:
    answer = alone(here, READY + "exec sleep 1000", limits={"matrix product": 0.1})
    [failure] = answer.failures
    assert (failure.phase, failure.late, failure.signal) == ("matrix product", 0.1, 9)


def test_xla_may_fail_on_a_cpu(here: Here) -> None:
    says = READY + """printf '%s\\n' '{"phase": "XLA"}' '{"failed": "E: no XLA"}'; exit 1"""
    [failure] = alone(here, says).failures
    assert (failure.phase, failure.fatal) == ("XLA", False)


def test_a_node_that_fails_ends_the_wait_of_all_others(here: Here) -> None:
    waits = pretended(here.home, "waits", READY.replace("read -r go", "cat >/dev/null"))
    fails = pretended(here.home, "fails", "echo no module >&2; exit 1")
    orders = proof_orders([member(0, waits), member(1, fails)], together=False)
    answers = computed(here, orders)
    assert answers["mnist-worker0"].failures == ()
    [failure] = answers["mnist-worker1"].failures
    assert (failure.phase, failure.log) == ("starting Python", "no module\n")


BOTH = """\
printf '%s\\n' '{"tensorflow": "2.21.0", "ready": true}'
read -r go
case $4 in
    *between*) printf '%s\\n' '{"grpc": 1.5}' '{"done": true}'; cat >/dev/null;;
    *) printf '%s\\n' '{"tflops": [0.25]}' '{"done": true}';;
esac
"""
"""A Python that computes by itself and together with others."""


def test_after_a_node_was_replaced_it_computes_and_all_reduce_again(here: Here) -> None:
    python = pretended(here.home, "python", f'echo "$4" >>asked\n{BOTH}')
    has = Accelerator(kind="T4", count=1)
    members = [member(number, python, gpus=has) for number in range(2)]
    asked = here.home / "asked"

    def parts() -> list[str]:
        answers = computed(here, proof_orders(members, together=True))
        assert all(answer.facts["tflops"] == [0.25] for answer in answers.values())
        assert all(answer.facts["grpc"] == 1.5 for answer in answers.values())
        assert not any(answer.failures for answer in answers.values())
        said = asked.read_text().splitlines() if asked.exists() else []
        asked.unlink(missing_ok=True)
        return sorted(json.loads(line)["part"] for line in said)

    assert parts() == ["between", "between", "node", "node"]
    assert parts() == []
    (here.home / members[1].in_run / "proof").unlink()  # its disk is a new one
    assert parts() == ["between", "between", "node"]


def test_an_interrupted_proof_leaves_no_process(here: Here) -> None:
    waits = pretended(here.home, "waits", READY.replace("read -r go", "sleep 1000"))
    orders = proof_orders([member(number, waits) for number in range(2)], together=False)

    def interrupted(number: int) -> Callable[[str], None]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compute(orders, here, size=1 << 20, begins=interrupted)
    eventually(lambda: not processes_in(here.home))


def test_a_client_that_hangs_up_leaves_no_process_on_the_node(here: Here) -> None:
    waits = pretended(here.home, "waits", f"{READY}touch begun; sleep 1000")
    orders = proof_orders([member(0, waits)], together=False)

    def hang_up(number: int) -> Callable[[str], None]:
        def closed() -> None:
            eventually((here.home / "begun").exists)
            [process] = here.running
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()

        threading.Thread(target=closed).start()
        return lambda name: None

    compute(orders, here, size=1 << 20, begins=hang_up)
    eventually(lambda: not processes_in(here.home))


# ── a run ────────────────────────────────────────────────────────────────────


def proved(here: Here, python: Mapping[str, str], **setup: Any) -> tuple[Run, Heard]:
    """A run on nodes with one T4 each, whose Pythons say this, by task."""
    group = NodeGroup(accelerator=Accelerator(kind="T4", count=1))
    config = ClusterConfig(
        name="mnist",
        provider="hosts",
        strategy="parameter_server",
        nodes={"worker": replace(group, count=len(python))},
        setup=Setup(tensorflow="2.21", **setup),
    )
    members = [member(number, "") for number in range(len(python))]
    run = Run(
        id="r1",
        cluster="mnist",
        command="x",
        state="starting",
        created=1.0,
        tasks=tuple(each.task for each in members),
    )
    for task, says in python.items():
        folder = here.home / paths.environment_folder("mnist", "r1", task) / "bin"
        folder.mkdir(parents=True)
        pretended(folder, "python", says)
    records, console = Records("mnist"), Heard()
    records.create()
    session = Session(
        plan=Plan(config=config, nodes=()),
        records=records,
        provider=cast("Any", None),
        store=cast("Any", None),
        console=console,
        identity=cast("Any", None),
        transport=here,
        host_keys=cast("Any", None),
        nodes=tuple(each.node for each in members),
    )
    launches = [
        TaskLaunch(task=task, command="x", environment={"KEY": Secret("s3cret"), "BATCH": "64"})
        for task in run.tasks
    ]
    return prove_nodes(session, run, launches), console


def gives(tflops: float) -> str:
    return BOTH.replace("0.25", str(tflops))


@pytest.mark.usefixtures("own_home")
def test_a_slow_node_is_named_and_the_run_goes_on_with_the_figures(here: Here) -> None:
    run, console = proved(
        here, {"worker0": gives(31.0), "worker1": gives(12.5), "worker2": gives(30.0)}
    )
    assert [(each.tflops, each.tflops_listed) for each in run.proof] == [
        ((31.0,), 65),
        ((12.5,), 65),
        ((30.0,), 65),
    ]
    assert run == Records("mnist").run("r1")
    [warning] = console.warned
    assert warning.startswith(
        "mnist-worker1: GPU 0 multiplies matrices at 12.5 TFLOP/s, its siblings at 30.5: all nodes"
    )


@pytest.mark.usefixtures("own_home")
def test_nodes_that_fail_alike_are_refused_in_one_line(here: Here) -> None:
    sees = READY.replace('"gpus": 0', '"gpus": 1')
    fails = sees + """printf '%s\\n' '{"failed": "UnknownError: DNN library"}'; exit 1"""
    with pytest.raises(PreflightError) as raised:
        proved(here, {f"worker{number}": fails for number in range(5)})
    assert raised.value.message == (
        "mnist-worker0, mnist-worker1, mnist-worker2 and 2 more: "
        "matrix product failed: UnknownError: DNN library"
    )
    assert raised.value.exit_code == 1
    assert Records("mnist").run("r1").proof != ()


@pytest.mark.usefixtures("own_home")
def test_no_secret_reaches_the_proof(here: Here) -> None:
    proved(here, {"worker0": f"env >seen\n{gives(31.0)}"})
    seen = (here.home / "seen").read_text()
    assert "BATCH=64" in seen
    assert "s3cret" not in seen


@pytest.mark.usefixtures("own_home")
def test_a_run_without_the_proof_asks_no_node(here: Here) -> None:
    run, _ = proved(here, {"worker0": "exit 1"}, prove="off")
    assert run.proof == ()
    assert here.ran == []


def processes_in(folder: Path) -> set[int]:
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cwd").readlink().is_relative_to(folder):
                found.add(int(entry.name))
    return found


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_proof_whose_program_on_the_node_is_killed_leaves_no_process(
    here: Here, tensorflow_python: Path, how: signal.Signals
) -> None:
    [order] = proof_orders([member(0, str(tensorflow_python))], together=False)

    def kill(number: int) -> Callable[[str], None]:
        os.kill(here.running[0].pid, how)
        return lambda name: None

    [failure] = compute([order], here, size=1 << 20, begins=kill)["mnist-worker0"].failures
    assert failure.phase == "the compute check"
    eventually(lambda: not processes_in(here.home))


@pytest.mark.parametrize(("line", "code"), [("exit 3", 3), ("kill -9 $$", -9)])
def test_a_process_that_ended_keeps_its_number_until_its_group_is_killed(
    line: str, code: int
) -> None:
    work = compute_proof.Work.__new__(compute_proof.Work)
    work.process = subprocess.Popen(["sh", "-c", line], start_new_session=True)
    assert work.wait() == code
    assert Path(f"/proc/{work.process.pid}").exists()
    work.kill()
    assert work.process.wait() == code


# ── the real one ─────────────────────────────────────────────────────────────


@pytest.mark.sweep(1, of="computing")
@pytest.mark.tensorflow
@pytest.mark.xdist_group("tensorflow")
def test_two_nodes_compute_and_reduce_together(here: Here, tensorflow_python: Path) -> None:
    members = [member(number, str(tensorflow_python)) for number in range(2)]
    answers = computed(here, proof_orders(members, together=True))
    for answer in answers.values():
        assert answer.failures == ()
        assert answer.facts["gpus"] == 0
        assert len(answer.facts["tflops"]) == 1
        assert answer.facts["tflops"][0] > 0
        assert answer.facts["grpc"] > 0
    assert processes_in(here.home) == set()


TWO_DEVICES = """
import json, os, sys, types
work = types.ModuleType("work")
exec(os.environ["WORK"], work.__dict__)
import tensorflow as tf
[cpu] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
devices = ["/CPU:0", "/CPU:1"]
strategy = tf.distribute.MirroredStrategy(devices)
said = {
    "tflops": work.side_by_side(devices, lambda device: work.product(tf, device, 256)),
    "gbytes": work.rate_of_sums(tf, strategy, 1 << 16, None),
}
work.side_by_side(devices, lambda device: work.convolution(tf, device, 1))
work.side_by_side(devices, lambda device: work.compiled(tf, device))
work.tell = said.update
try:
    work.side_by_side(devices, lambda device: work.same(int(device[-1]), 0, 0.5, device))
except ArithmeticError as error:
    said["words"] = str(error)
print(json.dumps(said))
"""


@pytest.mark.sweep(1, of="computing")
@pytest.mark.tensorflow
@pytest.mark.xdist_group("tensorflow")
def test_the_devices_of_a_node_compute_and_reduce_and_a_wrong_one_is_named(
    tensorflow_python: Path,
) -> None:
    """On two logical CPUs, in place of GPUs."""
    done = subprocess.run(
        [tensorflow_python, "-I", "-c", TWO_DEVICES],
        env={**os.environ, "WORK": ship.text("compute_work.py")},
        stdout=subprocess.PIPE,
        timeout=120,
        check=True,
    )
    said = json.loads(done.stdout)
    assert len(said["tflops"]) == 2
    assert min(*said["tflops"], said["gbytes"]) > 0
    assert said["device"] == "/CPU:1"
    assert said["words"] == "wrong result of the /CPU:1: 1 instead of 0"


@pytest.mark.sweep(1, of="computing")
@pytest.mark.tensorflow
@pytest.mark.xdist_group("tensorflow")
def test_a_gpu_that_tensorflow_does_not_see_is_missing(here: Here, tensorflow_python: Path) -> None:
    has = Accelerator(kind="T4", count=1)
    [order] = proof_orders([member(0, str(tensorflow_python), gpus=has)], together=False)
    answer = computed(here, [order])["mnist-worker0"]
    assert answer.facts["gpus"] == 0
    assert "sees 0 of 1 GPUs" in answer.failures[0].words


@pytest.mark.sweep(1, of="computing")
@pytest.mark.tensorflow
@pytest.mark.xdist_group("tensorflow")
def test_a_node_that_dies_between_nodes_is_named_and_its_peer_is_not_waited_for(
    here: Here, tensorflow_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorFlow itself waits for hours. What each node computes by itself is pretended."""
    monkeypatch.setattr(node_talk, "OTHERS", 1.0)
    between = f'case $4 in *between*) exec {tensorflow_python} "$@";; esac\n'
    waits = pretended(here.home, "waits", f"{between}{BOTH}")
    dies = pretended(here.home, "dies", BOTH.replace("*between*)", "*between*) exit 7;; *never*)"))
    members = [member(0, waits), member(1, dies)]
    answers = computed(here, proof_orders(members, together=True))
    [failure] = answers["mnist-worker1"].failures
    assert failure.phase == "ready"
    assert processes_in(here.home) == set()
