"""What the figures of a proof mean: missing, failing and slow nodes. All figures are injected."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.core.run_record import NodeProof
from cloudtrain.runs.node_talk import Failure
from cloudtrain.runs.proof import Expected, ProofFinding, judge

TF = "tensorflow.python.framework.errors_impl"
T4 = Expected(gpus=1, kind="T4", seen=1)


def verdict(
    proofs: list[NodeProof],
    failures: list[Failure] | None = None,
    expected: Expected = T4,
    **others: Expected,
) -> tuple[ProofFinding, ...]:
    names = {proof.node for proof in proofs} | {each.node for each in failures or []}
    return judge(proofs, {name: others.get(name, expected) for name in names}, failures or [])


def of(name: str, *tflops: float, listed: float | None = 65.0) -> NodeProof:
    return NodeProof(node=name, tflops=tflops, tflops_listed=listed)


def test_nodes_of_equal_speed_are_not_named() -> None:
    assert verdict([of("a", 58.0), of("b", 55.0), of("c", 31.0)]) == ()


def test_a_node_at_half_of_its_siblings_is_named_with_both_figures() -> None:
    (found,) = verdict([of("a", 58.0), of("b", 29.0), of("c", 60.0)])
    assert not found.fatal
    assert str(found).startswith(
        "b: GPU 0 multiplies matrices at 29 TFLOP/s, its siblings at 59: all nodes wait for the"
    )


def test_of_two_nodes_the_slow_one_is_named() -> None:
    (found,) = verdict([of("a", 58.0), of("b", 20.0)])
    assert found.node == "b"


def test_one_slow_gpu_of_a_machine_is_named_by_its_number() -> None:
    expected = Expected(gpus=4, kind="A100", seen=4)
    (found,) = verdict([of("a", 250, 252, 90, 251, listed=312)], expected=expected)
    assert "GPU 2 multiplies matrices at 90 TFLOP/s, its siblings at 251" in found.text


def test_a_lone_gpu_far_below_its_datasheet_is_named() -> None:
    (found,) = verdict([of("a", 9.5)])
    assert found.text == "GPU 0 multiplies matrices at 9.5 TFLOP/s, NVIDIA lists 65"
    assert verdict([of("a", 25.0)]) == ()  # a T4 that throttles


def test_only_nodes_of_one_kind_are_siblings() -> None:
    a100 = Expected(gpus=1, kind="A100", seen=1)
    assert verdict([of("a", 58.0), of("b", 260.0, listed=312.0)], b=a100) == ()


def test_cpus_of_unknown_machines_are_not_compared() -> None:
    unknown, known = Expected(gpus=0, kind=""), Expected(gpus=0, kind="n2-standard-4")
    proofs = [of("a", 0.4, listed=None), of("b", 0.1, listed=None)]
    assert verdict(proofs, expected=unknown) == ()
    (found,) = verdict(proofs, expected=known)
    assert found.text == "its CPU multiplies matrices at 0.1 TFLOP/s, its siblings at 0.4"


def test_slow_links_between_the_gpus_of_a_node_are_named() -> None:
    proofs = [
        NodeProof(node=name, tflops=(250.0, 250.0), gpus_gbytes=rate)
        for name, rate in (("a", 230.0), ("b", 20.0), ("c", 228.0))
    ]
    (found,) = verdict(proofs, expected=Expected(gpus=2, kind="A100", seen=2))
    assert (found.node, found.fatal) == ("b", False)
    assert "reduce gradients at 20 GB/s, those of its siblings at 229" in found.text


def test_nccl_that_gets_little_of_the_network_is_named_once() -> None:
    def reduces(node: str, rate: float) -> NodeProof:
        return NodeProof(node=node, nccl_gbytes=rate, network_gbytes_listed=50.0)

    assert verdict([reduces("a", 30.0), reduces("b", 29.0)]) == ()
    (found,) = verdict([reduces("a", 4.1), reduces("b", 4.0)])
    assert (found.node, found.fatal) == ("b", False)
    assert "at 4 GB/s, the cloud lists 50 for its network" in found.text
    assert "NCCL_DEBUG" in found.hint


def test_a_missing_gpu_is_fatal_and_counted() -> None:
    failure = Failure(node="a", phase="importing TensorFlow", words="RuntimeError: sees 1 of 2")
    expected = Expected(gpus=2, kind="T4", seen=1)
    (found,) = verdict([NodeProof(node="a")], [failure], expected=expected)
    assert (found.fatal, found.text) == (True, "TensorFlow sees 1 of 2 GPUs")
    assert "nvidia-smi" in found.hint


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("InternalError: CUDA_ERROR_INVALID_PTX: a PTX JIT compilation failed", "no code for this"),
        ("UnimplementedError: DNN library is not found.", "cuDNN"),
        ("InternalError: libdevice not found at ./libdevice.10.bc", "nvidia-cuda-nvcc"),
        ("InternalError: 999 is no message that anyone knows", "setup.prove: off"),
    ],
)
def test_a_failing_phase_is_fatal_with_tensorflows_words_and_what_to_do(
    words: str, hint: str
) -> None:
    failure = Failure(node="a", phase="convolution", words=f"{TF}.{words}", device="/GPU:1")
    (found,) = verdict([NodeProof(node="a")], [failure])
    assert found.fatal
    assert found.text == f"convolution on GPU:1 failed: {words}"
    assert hint in found.hint


def test_a_crash_is_told_by_its_signal_and_last_message() -> None:
    log = "2026-11-23 03:40:01.1: I something\nFatal: the end\n"
    failure = Failure(node="a", phase="XLA", log=log, signal=11)
    (found,) = verdict([NodeProof(node="a")], [failure])
    assert found.text == "XLA failed with signal 11: Fatal: the end"


def test_a_phase_without_an_end_is_told_by_its_limit() -> None:
    failure = Failure(node="a", phase="matrix product", late=120.0, signal=9)
    (found,) = verdict([NodeProof(node="a")], [failure])
    assert found.text == "matrix product did not end within 120 s"


def test_a_node_that_only_lost_its_peer_is_not_blamed() -> None:
    phase = "all-reduce with the other nodes over gRPC"
    lost = Failure(node="a", phase=phase, words=f"{TF}.UnavailableError: reset")
    own = Failure(node="b", phase=phase, words=f"{TF}.InternalError: 999")
    assert [found.node for found in verdict([], [lost, own])] == ["b"]
    assert [found.node for found in verdict([], [lost])] == ["a"]  # rather than no one


def test_what_training_does_without_is_a_warning_after_all_that_is_fatal() -> None:
    warning = Failure(node="a", phase="all-reduce with the other nodes over NCCL", fatal=False)
    fatal = Failure(node="b", phase="convolution", words="InternalError: 999")
    assert [found.fatal for found in verdict([], [warning, fatal])] == [True, False]


def test_what_fails_both_parts_of_a_proof_is_said_once() -> None:
    failure = Failure(node="a", phase="importing TensorFlow", words="ImportError: no libstdc++")
    assert len(verdict([], [failure, failure])) == 1


rates = st.lists(st.floats(0.01, 2000.0), min_size=1, max_size=8)


@given(st.lists(rates, min_size=1, max_size=6))
def test_the_fastest_device_is_never_named_and_no_node_twice(figures: list[list[float]]) -> None:
    proofs = [of(f"n{i}", *each, listed=None) for i, each in enumerate(figures)]
    found = verdict(proofs)
    named = [each.node for each in found]
    assert len(named) == len(set(named))
    best = max(rate for each in figures for rate in each)
    assert not any(proof.tflops == (best,) for proof in proofs if proof.node in named)


@given(st.floats(1.0, 1000.0), st.integers(2, 20), st.floats(0.0, 0.5))
def test_one_slow_node_among_equals_is_always_the_one(
    rate: float, count: int, share: float
) -> None:
    proofs = [of(f"n{number}", rate, listed=None) for number in range(count)]
    slow = of("slow", rate * share, listed=None)
    assert [each.node for each in verdict([*proofs, slow])] == ["slow"]
