"""Who computes what before a run, what `status` shows of it, and what NVIDIA lists."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain import config
from cloudtrain.catalog import gpus
from cloudtrain.cli.run_lines import proof_lines
from cloudtrain.core.codec import decode
from cloudtrain.core.errors import ConfigError
from cloudtrain.core.model import Accelerator, Node
from cloudtrain.core.run_record import NodeProof, Run, Task, run_to_json
from cloudtrain.runs.node_talk import ProofOrder
from cloudtrain.runs.proof import Member, proof_orders

LOCAL = "provider: local\nstrategy: mirrored\nnodes: {chief: {}}\n"


def member(
    role: str, index: int, *, host: str = "", gpus: str = "", shared: str = "venvs/tf2.21"
) -> Member:
    name = f"mnist-{role}{index}"
    kind, _, count = gpus.partition(":")
    return Member(
        task=Task(role=role, index=index, node=name, port=8900 + index),
        node=Node(
            name=name,
            role=role,
            index=index,
            state="running",
            address="1.2.3.4",
            internal=f"10.0.0.{index + 1}",
            host=host,
        ),
        python="env/bin/python",
        shared=shared,
        gpus=Accelerator(kind=kind, count=int(count)) if gpus else None,
        environment={},
        in_run=f".cloudtrain/mnist/runs/r1/{role}{index}",
        limits={},
    )


def orders(*members: Member, together: bool = True) -> dict[str, ProofOrder]:
    return {each.node.task: each for each in proof_orders(members, together=together)}


def cluster_of(order: ProofOrder) -> list[str]:
    workers: list[str] = json.loads(order.tf_config)["cluster"]["worker"]
    return workers


def test_nodes_with_gpus_compute_alone_and_together_on_their_tasks_ports() -> None:
    found = orders(member("chief", 0, gpus="T4:2"), member("worker", 1, gpus="T4:2"))
    for rank, order in enumerate(found.values()):
        assert (order.own, order.gpus) == (True, 2)
        assert json.loads(order.tf_config)["task"] == {"type": "worker", "index": rank}
        assert cluster_of(order) == ["10.0.0.1:8900", "10.0.0.2:8901"]
        assert order.stamp.startswith(".cloudtrain/mnist/runs/r1/")


def test_nodes_with_different_numbers_of_gpus_do_not_reduce_together() -> None:
    found = orders(member("chief", 0, gpus="T4:2"), member("worker", 1, gpus="T4:1"))
    assert [order.tf_config for order in found.values()] == ["", ""]


def test_an_evaluator_and_a_ps_compute_alone() -> None:
    found = orders(member("chief", 0), member("worker", 1), member("ps", 2), member("evaluator", 3))
    assert [bool(order.tf_config) for order in found.values()] == [True, True, False, False]


def test_a_node_without_gpus_beside_those_with_them_computes_alone() -> None:
    found = orders(
        member("chief", 0), member("worker", 1, gpus="T4:1"), member("worker", 2, gpus="T4:1")
    )
    assert found["chief0"].tf_config == ""
    assert cluster_of(found["worker1"]) == ["10.0.0.2:8901", "10.0.0.3:8902"]


def test_nodes_of_one_machine_compute_once_and_two_of_them_reduce() -> None:
    here = [member("chief", 0, host="here")]
    here += [member("worker", number, host="here") for number in range(1, 4)]
    found = orders(*here)
    assert [(name, order.own) for name, order in found.items()] == [
        ("chief0", True),
        ("worker1", False),
    ]
    assert len({order.stamp for order in found.values()}) == 2
    alone = orders(*here, together=False)
    assert list(alone) == ["chief0"]


def test_one_machine_with_two_environments_is_two() -> None:
    found = orders(
        member("chief", 0, host="here"), member("worker", 1, host="here", shared="venvs/b")
    )
    assert [order.own for order in found.values()] == [True, True]


def test_a_cluster_of_another_name_finds_what_this_one_computed_on_cpus() -> None:
    first = orders(member("chief", 0, host="here"))["chief0"]
    other = member("chief", 0, host="here")
    other = replace(other, node=replace(other.node, name="other-chief0"), in_run="elsewhere")
    [second] = proof_orders([other], together=False)
    assert (first.stamp, first.key) == (second.stamp, second.key)


def test_variables_that_change_how_tensorflow_computes_are_proved_anew() -> None:
    def stamp(**environment: str) -> str:
        [order] = orders(replace(member("chief", 0), environment=environment)).values()
        return order.stamp

    assert stamp(XLA_FLAGS="--xla_gpu_autotune_level=0") != stamp()
    assert stamp(BATCH="64", TF_CONFIG="{}") == stamp()


# ── the file ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "prove"), [("auto", "auto"), ("off", "off"), ("false", "off"), ('"off"', "off")]
)
def test_the_file_can_switch_it_off(tmp_path: Path, text: str, prove: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(LOCAL + f"setup: {{prove: {text}}}\n", encoding="utf-8")
    assert config.load(path).setup.prove == prove


@pytest.mark.parametrize("text", ["on", "true", "never", "1"])
def test_the_file_has_no_other_word_for_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(LOCAL + f"setup: {{prove: {text}}}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"setup\.prove: must be auto or off"):
        config.load(path)


# ── the record ───────────────────────────────────────────────────────────────


def run(*proofs: NodeProof) -> Run:
    tasks = tuple(
        Task(role="worker", index=number, node=proof.node, port=8900)
        for number, proof in enumerate(proofs)
    )
    return Run(
        id="r1", cluster="mnist", command="x", state="running", created=1.0, tasks=tasks,
        proof=proofs,
    )  # fmt: skip


def test_figures_are_in_the_record_and_an_older_one_has_none() -> None:
    whole = run(NodeProof(node="a", tflops=(0.25,), grpc_gbytes=1.5))
    record = json.loads(json.dumps(run_to_json(whole)))
    assert decode(Run, record) == whole
    del record["proof"]
    assert decode(Run, record).proof == ()


def test_status_shows_what_each_node_gives_and_should_give() -> None:
    t4 = NodeProof(
        node="a",
        tflops=(58.11,),
        tflops_listed=65.0,
        grpc_gbytes=1.1,
        nccl_gbytes=11.24,
        network_gbytes_listed=12.5,
    )
    a100 = NodeProof(
        node="b",
        tflops=(251.2, 249.9),
        tflops_listed=312.0,
        gpus_gbytes=231.0,
        gpus_gbytes_listed=300.0,
    )
    assert list(proof_lines(run(t4, a100, NodeProof(node="c", tflops=(0.0812,))))) == [
        "compute check: worker0 58.1 TFLOP/s of 65, with the others 1.1 GB/s over gRPC,"
        " 11.2 GB/s with NCCL of 12.5",
        "compute check: worker1 2 × 250 to 251 TFLOP/s of 312, its GPUs 231 GB/s of 300",
        "compute check: worker2 0.0812 TFLOP/s",
    ]


def test_status_has_one_line_for_many_nodes_of_a_kind() -> None:
    fast = [
        NodeProof(node=f"n{i}", tflops=(55.0 + i,), tflops_listed=65.0, nccl_gbytes=5.0)
        for i in range(9)
    ]
    assert list(proof_lines(run(*fast, NodeProof(node="silent")))) == [
        "compute check: 9 nodes 55 to 63 TFLOP/s of 65, with the others 5 GB/s with NCCL"
    ]


# ── the table ────────────────────────────────────────────────────────────────


def test_every_rate_has_its_source() -> None:
    for rate in (row.rate for row in gpus.GPUS if row.rate):
        assert rate.source.startswith("https://")
        assert rate.tflops > 0
        assert rate.link > 0


def test_a_rate_is_found_under_any_name_of_the_gpu() -> None:
    t4 = gpus.rate("nvidia-tesla-t4")
    assert t4 is not None
    assert t4.tflops == 65
    assert gpus.rate("T9000") is None
