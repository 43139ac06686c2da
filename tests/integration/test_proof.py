"""Nodes compute before a run: what they say is understood, what fails is named, nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from cloudtrain.model import Accelerator, Node
from cloudtrain.run_record import Task
from cloudtrain.runs import proof_talk
from cloudtrain.runs.proof import Member, proof_orders
from cloudtrain.runs.proof_talk import Answer, ProofOrder, compute
from tests.support.fakes import eventually
from tests.support.streaming_here import Here, free_ports

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
    [port] = free_ports(1)
    return Member(
        task=Task(role="worker", index=number, node=name, port=port),
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
) -> dict[str, Answer]:
    def begins(number: int) -> Callable[[str], None]:
        if began is not None:
            began.append(number)
        return lambda name: None

    return compute(orders, here, size=size, begins=begins)


def alone(here: Here, says: str, limits: Mapping[str, float] | None = None) -> Answer:
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
    assert failure.phase == "the proof"
    eventually(lambda: not processes_in(here.home))


# ── the real one ─────────────────────────────────────────────────────────────


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


@pytest.mark.tensorflow
@pytest.mark.xdist_group("tensorflow")
def test_a_gpu_that_tensorflow_does_not_see_is_missing(here: Here, tensorflow_python: Path) -> None:
    has = Accelerator(kind="T4", count=1)
    [order] = proof_orders([member(0, str(tensorflow_python), gpus=has)], together=False)
    answer = computed(here, [order])["mnist-worker0"]
    assert answer.facts["gpus"] == 0
    assert "sees 0 of 1 GPUs" in answer.failures[0].words


@pytest.mark.tensorflow
@pytest.mark.xdist_group("tensorflow")
def test_a_node_that_dies_between_nodes_is_named_and_its_peer_is_not_waited_for(
    here: Here, tensorflow_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof_talk, "OTHERS", 1.0)
    dies = pretended(
        here.home,
        "dies",
        f"""case $4 in *between*) ;; *) exec {tensorflow_python} "$@";; esac\n"""
        """printf '%s\\n' '{"tensorflow": "2.21.0", "ready": true}'\nread -r go; exit 7""",
    )
    members = [member(0, str(tensorflow_python)), member(1, dies)]
    began = time.monotonic()
    answers = computed(here, proof_orders(members, together=True))
    [failure] = answers["mnist-worker1"].failures
    assert failure.phase == "ready"
    assert time.monotonic() - began < 120  # TensorFlow itself waits for hours
    assert processes_in(here.home) == set()
