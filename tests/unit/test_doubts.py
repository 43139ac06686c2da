"""Whether a success was earned: by the end of a log, by the checkpoints that landed, by nothing."""

from __future__ import annotations

import pytest

from cloudtrain.diagnosis.doubts import SHORT, incomplete, swallowed, untrained

RAISED = (
    "Traceback (most recent call last):\n"
    '  File "/home/u/train.py", line 40, in main\n'
    "    model.fit(data, callbacks=[checkpoint])\n"
    "tensorflow.python.framework.errors_impl.NotFoundError: From /job:ps/replica:0/task:0:\n"
    "ckpt/ckpt-1_temp; No such file or directory [Op:SaveV2]\n"
)
STEPS = "Epoch 1/2\n10/10 - 1s - loss: 0.5\n"


def text_of(log: str) -> str:
    doubt = swallowed("chief0", log.encode())
    return "" if doubt is None else doubt.text


@pytest.mark.parametrize(
    "after",
    ["", "training failed\n", "cleaning up\nElapsed: 12 s\n", "E0000 00:00:1.2 3 a.cc:1] bye\n"],
)
def test_a_log_that_ends_in_a_traceback_casts_doubt_on_exit_0(after: str) -> None:
    assert text_of(STEPS + RAISED + after) == (
        "chief0 exited with 0 after NotFoundError: From /job:ps/replica:0/task:0: "
        "ckpt/ckpt-1_temp; No such file or directory [Op:SaveV2]"
    )


def test_its_hint_is_that_of_a_failure() -> None:
    doubt = swallowed("chief0", (STEPS + RAISED).encode())
    assert doubt is not None
    assert "experimental_io_device" in str(doubt.hint)


@pytest.mark.parametrize(
    "log",
    [
        RAISED + STEPS,
        STEPS + RAISED + "step 12: ok\n",
        STEPS + RAISED + "final loss 0.25\n",
        STEPS + RAISED + "retrying in 2 s\nthe model is there\n",
        STEPS + "WARNING:root:upload failed, will retry\n" + RAISED + "bye\n",
        STEPS + RAISED + "Saved the model to output/model\n",
        STEPS + RAISED + "falling back to the CPU\n",
        STEPS + RAISED + "".join(f"file {number} read\n" for number in range(40)),
        STEPS + "Exception ignored in: <function A.__del__ at 0x7f>\n" + RAISED,
        STEPS,
        "hello\n",
        "",
        "a line that says Error somewhere\n",
        "no error was found\n0 errors\n",
        "accuracy of the test 'No such file or directory' is 0.5\n",
        "Traceback is a word\n",
        "ERROR:root:the learning rate is odd\n",
        "WARNING: the plot failed: No module named 'matplotlib'\n",
        "0 errors, Permission denied 0 times\n",
        "3 downloads failed\n",
    ],
)
def test_a_log_in_which_the_script_went_on_casts_none(log: str) -> None:
    assert text_of(log) == ""


@pytest.mark.parametrize(
    "line",
    [
        "ERROR:root:training failed: NotFoundError: a/ckpt-1_temp; No such file or directory",
        "ResourceExhaustedError: OOM when allocating tensor",
        "2026-01-01 10:00:00 CRITICAL trainer: No space left on device",
        "Training failed: [Errno 28] No space left on device",
        "caught: tensorflow.errors.ResourceExhaustedError: OOM when allocating tensor",
    ],
)
def test_a_known_message_at_the_very_end_casts_doubt_also_without_a_traceback(line: str) -> None:
    assert text_of(f"{STEPS}{line}\ndone\n").startswith("chief0 exited with 0 after ")
    assert line.endswith(text_of(f"{STEPS}{line}\ndone\n").partition(" after ")[2])
    assert text_of(f"{line}\n{STEPS}") == ""


def test_the_last_of_several_errors_is_named() -> None:
    second = RAISED.replace("NotFoundError", "InternalError")
    assert "after InternalError" in text_of(STEPS + RAISED + second)


# ── Checkpoints ──────────────────────────────────────────────────────────────


def checkpoint(prefix: str, parts: int = 1) -> set[str]:
    data = {f"{prefix}.data-{part:05d}-of-{parts:05d}" for part in range(parts)}
    return {*data, f"{prefix}.index"}


def said_of(mine: set[str], others: set[str] = frozenset()) -> str:  # type: ignore[assignment]
    doubt = incomplete("chief0", mine, mine | others)
    return "" if doubt is None else doubt.text


def test_a_part_that_was_never_merged_is_named() -> None:
    part = "ckpt/checkpoint-model-keras_temp/part-00001-of-00002.data-00000-of-00001"
    assert said_of({part, "ckpt/checkpoint"}) == (
        f"chief0 left an incomplete checkpoint: {part} is a part that was never merged"
    )
    assert "never merged" in said_of({"m/model.ckpt-0_temp_d56/part-00000-of-00002.index"})


def test_a_checkpoint_without_all_its_data_or_its_index_is_named() -> None:
    half = checkpoint("ckpt/ckpt-5", 3) - {"ckpt/ckpt-5.data-00001-of-00003"}
    assert said_of(half).endswith("ckpt/ckpt-5 lacks data-00001-of-00003")
    assert said_of({"a/variables.data-00000-of-00001"}).endswith("a/variables lacks its index")


@pytest.mark.parametrize(
    ("mine", "others"),
    [
        (checkpoint("ckpt/ckpt-5", 3), set()),
        (checkpoint("ckpt/ckpt-5") | {"ckpt/ckpt-4.data-00000-of-00002"}, set()),
        (checkpoint("ckpt/ckpt-5") | {"ckpt/ckpt-5_temp/part-00000-of-00001.index"}, set()),
        ({"ckpt/ckpt-5.index", "ckpt/ckpt-5.data-00000-of-00002"}, checkpoint("ckpt/ckpt-5", 2)),
        ({"faiss/words.index", "output/model.keras", "part-00000-of-00010"}, set()),
        ({"data/train.tfrecord-00000-of-00010"}, set()),
        (set(), {"ckpt/ckpt-5.index"}),
    ],
)
def test_what_is_whole_or_replaced_or_of_another_kind_is_not_named(
    mine: set[str], others: set[str]
) -> None:
    assert said_of(mine, others) == ""


# ── Nothing ──────────────────────────────────────────────────────────────────


def text_of_nothing(log: bytes, files: int, seconds: float, *, tensorflow: bool) -> str:
    logs = {"chief0": b"", "worker0": log}
    doubt = untrained("chief0", logs, files=files, seconds=seconds, tensorflow=tensorflow)
    return "" if doubt is None else doubt.text


def test_seconds_without_a_step_or_a_file_are_said() -> None:
    words = "chief0 exited with 0 after 3 s, without a step in its log"
    assert text_of_nothing(b"hello\n", 0, 3.4, tensorflow=True).startswith(words)
    assert text_of_nothing(b"", 0, 3.4, tensorflow=False).startswith(words)


@pytest.mark.parametrize("tensorflow", [True, False])
@pytest.mark.parametrize(
    ("log", "files", "seconds"),
    [
        (b"Epoch 1/3\n", 0, 3.0),
        (b"loss: 0.5\n", 0, 3.0),
        (b"accuracy 0.9\n", 0, 3.0),
        (b"", 1, 3.0),
        (b"", 0, SHORT),
    ],
)
def test_a_step_a_file_or_a_minute_are_enough(
    log: bytes, files: int, seconds: float, tensorflow: bool
) -> None:
    assert text_of_nothing(log, files, seconds, tensorflow=tensorflow) == ""


def test_a_script_without_tensorflow_may_only_print() -> None:
    assert text_of_nothing(b"hello\n", 0, 3.0, tensorflow=False) == ""
