"""The root cause of a failed attempt, judged on what TensorFlow 2.21 really printed.

`data/failures/<case>.<task>.log` are the ends of real logs: docs/failures.md.
"""

import ast
import json
import re
import signal
from dataclasses import fields, replace
from pathlib import Path
from string import Formatter
from typing import Any, cast, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cloudtrain
from cloudtrain.core.run_record import CAUSES, Cause, CauseFacts, CauseKind, Task
from cloudtrain.diagnosis import hints
from cloudtrain.diagnosis.hints import hint_for
from cloudtrain.runs.limits import LIMITS
from cloudtrain.runs.root_cause import (
    Observation,
    find_root_cause,
    is_certain,
)
from cloudtrain.runs.state_machine import is_retryable
from cloudtrain.training.log_text import LINES_SHOWN, headline, last_lines, own_frame
from tests.support.sources import walked

LOGS = Path(__file__).parents[1] / "data" / "failures"
RAISED = b'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: no\n'
LOST_PEER = (
    b"Traceback (most recent call last):\n"
    b"tensorflow.python.framework.errors_impl.UnavailableError: Socket closed\n"
)


def task(name: str) -> Task:
    role, index = name.rstrip("0123456789"), int(name[-1])
    return Task(role=role, index=index, node=f"mnist-{name}", port=8900)


def log(case: str, name: str) -> bytes:
    return (LOGS / f"{case}.{name}.log").read_bytes()


def of_case(case: str, exits: dict[str, int | None], frozen: str = "") -> list[Observation]:
    """The tasks of a case in the order in which they ended."""
    return [
        Observation(
            task=task(name),
            exit_code=code,
            ended=None if code is None else float(moment),
            frozen=name == frozen,
            log=log(case, name),
        )
        for moment, (name, code) in enumerate(exits.items())
    ]


def cause_of(*observations: Observation) -> Cause:
    cause = find_root_cause(observations)
    assert cause is not None
    return cause


def exited(name: str, code: int, *, at: float = 0.0, log: bytes = b"") -> Observation:
    return Observation(task=task(name), exit_code=code, ended=at, log=log)


# ── What TensorFlow really printed ───────────────────────────────────────────


def test_a_killed_worker_is_the_cause_although_the_others_were_seen_first() -> None:
    seen = of_case("mirrored_worker1_killed", {"chief0": 1, "worker0": 1, "worker1": -9})
    cause = cause_of(*seen)
    assert (cause.task, cause.node, cause.kind) == ("worker1", "mnist-worker1", "signal")
    assert (cause.text, cause.exit_code) == ("killed by SIGKILL", -9)
    assert cause.collateral == ("chief0", "worker0")
    assert is_retryable(cause)


def test_a_killed_chief_is_the_cause() -> None:
    seen = of_case("mirrored_chief0_killed", {"worker0": 1, "worker1": 1, "chief0": 137})
    assert cause_of(*seen).task == "chief0"


def test_a_worker_that_aborts_is_the_cause() -> None:
    seen = of_case("mirrored_worker1_aborts", {"chief0": 1, "worker0": 1, "worker1": -6})
    assert cause_of(*seen).text == "killed by SIGABRT"


def test_a_frozen_worker_is_the_cause_although_it_never_ends() -> None:
    exits = {"chief0": 1, "worker0": 1, "worker1": None}
    cause = cause_of(*of_case("mirrored_worker1_frozen", exits, frozen="worker1"))
    assert (cause.task, cause.kind, cause.exit_code) == ("worker1", "frozen", None)
    assert is_retryable(cause)


def test_a_frozen_chief_is_the_cause_although_it_never_ends() -> None:
    exits = {"worker0": 1, "worker1": 1, "chief0": None}
    cause = cause_of(*of_case("mirrored_chief0_frozen", exits, frozen="chief0"))
    assert cause.task == "chief0"


@pytest.mark.parametrize(
    ("case", "guilty"),
    [("mirrored_worker1_raises", "worker1"), ("mirrored_chief0_raises", "chief0")],
)
def test_the_task_whose_script_raises_is_the_cause_whoever_ended_first(
    case: str, guilty: str
) -> None:
    names = [name for name in ("chief0", "worker0", "worker1") if name != guilty]
    cause = cause_of(*of_case(case, dict.fromkeys([*names, guilty], 1)))
    assert cause.task == guilty
    assert cause.text == "exit code 1: ValueError: labels outside of the range of the classes"
    assert cause.last_lines[-1] == "ValueError: labels outside of the range of the classes"
    assert not is_retryable(cause)


def test_a_worker_that_exits_without_a_word_is_the_cause() -> None:
    seen = of_case("mirrored_worker1_exits_3", {"chief0": 1, "worker0": 1, "worker1": 3})
    assert cause_of(*seen).text == "exit code 3"


def test_a_rank_whose_peer_has_gone_is_not_the_cause() -> None:
    seen = of_case("horovod_worker1_exits_3", {"worker0": 1, "worker1": 3})
    cause = cause_of(*seen)
    assert (cause.task, cause.text) == ("worker1", "exit code 3")
    assert cause.collateral == ("worker0",)


def test_one_worker_that_lacks_its_data_is_the_cause_and_the_hint_says_so() -> None:
    seen = of_case("mirrored_worker1_lacks_data", {"worker1": 1, "chief0": 1, "worker0": 1})
    cause = cause_of(*seen)
    assert cause.task == "worker1"
    assert cause.hint is not None
    assert "the path is missing on that node" in cause.hint


def test_others_that_wait_for_ever_do_not_hide_the_one_that_lacks_a_module() -> None:
    exits = {"chief0": None, "worker0": None, "worker1": 1}
    seen = of_case("mirrored_worker1_lacks_a_module", exits)
    assert is_certain(seen)
    cause = cause_of(*seen)
    assert cause.task == "worker1"
    assert cause.collateral == ()
    assert cause.hint is not None
    assert cause.hint.startswith("add the package of `nosuchmodule` to `setup.packages`")


def test_a_killed_ps_is_the_cause_and_the_chief_collateral() -> None:
    exits = {"chief0": 1, "ps0": -9, "worker0": None, "worker1": None}
    cause = cause_of(*of_case("ps_ps0_killed", exits))
    assert (cause.task, cause.collateral) == ("ps0", ("chief0",))


def test_what_is_shown_of_the_chief_of_a_killed_ps_is_its_error_not_native_chatter() -> None:
    shown = last_lines(log("ps_ps0_killed", "chief0"))
    assert any("UnavailableError: recvmsg:Connection reset by peer" in line for line in shown)
    assert not any("context.cc" in line for line in shown)


def test_a_rank_that_alone_evaluates_hears_that_the_other_had_finished() -> None:
    seen = of_case("mirrored_only_worker0_evaluates", {"worker1": 0, "worker0": 1})
    cause = cause_of(*(replace(one, ended=(one.ended or 0) * 12.0) for one in seen))
    assert cause.hint == (
        "worker1 had finished (exit 0, 12 s before) while worker0 was still in a collective at "
        "train.py:20: evaluate and save on every rank, or give every rank as many batches"
    )
    assert (cause.task, cause.finished_before) == ("worker0", ("worker1",))
    assert not is_retryable(cause), "it would finish first again"


def test_a_rank_with_a_batch_less_hears_so_whether_or_not_the_others_had_finished() -> None:
    failed = exited("worker1", 1, at=9, log=log("mirrored_worker1_has_a_batch_less", "worker1"))
    assert "as many batches" in str(cause_of(failed, Observation(task=task("worker0"))).hint)
    assert "worker0 had finished (exit 0, 4 s before)" in str(
        cause_of(failed, exited("worker0", 0, at=5)).hint
    )


def test_several_peers_that_had_finished_are_named_together() -> None:
    chief = exited("chief0", 1, at=20, log=log("mirrored_only_worker0_evaluates", "worker0"))
    hint = cause_of(chief, exited("worker0", 0, at=5), exited("worker1", 0, at=8)).hint
    assert str(hint).startswith("worker0, worker1 had finished (exit 0, 12 to 15 s before) while")


def test_a_ps_that_had_finished_is_named_to_the_chief_that_lost_it() -> None:
    chief = exited("chief0", 1, at=9, log=log("ps_ps0_killed", "chief0"))
    assert "server.join()" in str(cause_of(chief, exited("ps0", 0, at=3)).hint)


def test_an_error_of_its_own_is_not_blamed_on_a_peer_that_had_finished() -> None:
    raised = exited("worker0", 1, at=9, log=RAISED)
    assert cause_of(raised, exited("worker1", 0, at=3)).finished_before == ()
    stopped = Observation(task=task("worker1"), exit_code=0, ended=3.0, stopped=True)
    lost = exited("worker0", 1, at=9, log=LOST_PEER)
    assert cause_of(lost, stopped).finished_before == ()
    assert cause_of(lost, exited("worker1", 0, at=10)).finished_before == (), "it ended later"


HINTS = [
    ("mirrored_worker0_port_taken", "worker0", "train.port"),
    ("mirrored_with_bare_keras", "chief0", "import `tensorflow.keras`, not `keras`"),
    ("ps_with_keras_3", "chief0", "setup.keras: legacy"),
    ("ps_saves_on_another_disk", "chief0", "experimental_io_device"),
    ("estimator_on_2_21", "chief0", 'setup.tensorflow: "2.15"'),
    ("mirrored_file_sharding", "chief0", "AutoShardPolicy.DATA"),
]


@pytest.mark.parametrize(("case", "name", "hint"), HINTS)
def test_a_known_message_comes_with_what_to_do_next(case: str, name: str, hint: str) -> None:
    cause = cause_of(exited(name, 1, log=log(case, name)))
    assert cause.kind == "exit"
    assert hint in str(cause.hint)


def test_the_message_behind_a_graph_execution_error_is_the_headline() -> None:
    assert headline(log("ps_saves_on_another_disk", "chief0")).startswith(
        "NotFoundError: Graph execution error: (0) NOT_FOUND:"
    )


@pytest.mark.parametrize(
    ("lines", "head"),
    [
        (
            "tensorflow.python.framework.errors_impl.NotFoundError: From "
            "/job:ps/replica:0/task:0:\nckpt-1_temp; No such file or directory [Op:SaveV2]",
            "NotFoundError: From /job:ps/replica:0/task:0: ckpt-1_temp; No such file or directory "
            "[Op:SaveV2]",
        ),
        ("ValueError: these are missing:\n\n  a, b", "ValueError: these are missing: a, b"),
        ("ValueError: nothing follows:", "ValueError: nothing follows:"),
        ("KeyError: 'a: b'\nmore", "KeyError: 'a: b'"),
    ],
)
def test_a_message_that_ends_at_a_colon_has_what_follows(lines: str, head: str) -> None:
    assert headline(f"Traceback (most recent call last):\n{lines}\n".encode()) == head


def test_the_scripts_own_line_is_shown_however_deep_the_libraries_stack_is() -> None:
    deep = "".join(
        f'  File "/e/lib/python3.11/site-packages/tf/a.py", line {n}, in f\n    f()\n'
        for n in range(20)
    )
    mine = '  File "/home/u/.cloudtrain/m/runs/r/chief0/code/lib/loop.py", line 7, in step'
    log = f"Traceback (most recent call last):\n{mine}\n    fit()\n{deep}ValueError: no\n"
    assert mine in last_lines(log.encode())
    assert len(last_lines(log.encode())) == LINES_SHOWN
    frame = own_frame(log)
    assert frame is not None
    assert frame.place == "lib/loop.py:7"


def test_the_stack_that_is_not_available_is_no_headline() -> None:
    assert headline(log("mirrored_file_sharding", "chief0")).startswith(
        "InvalidArgumentError: Graph execution error: Could not apply FILE based sharding: the "
        "dataset only has 1 file(s), which is not enough for the required 2 shards"
    )


MESSAGES = json.loads((Path(__file__).parents[1] / "data" / "gpu_messages.json").read_text("utf-8"))
MISLEADING = ("the path is missing on that node", "add the package of")


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message["hint"][0][:30])
def test_a_message_of_a_gpu_or_of_data_has_a_hint_that_helps(message: dict[str, Any]) -> None:
    number = signal.SIGABRT if "SIGABRT" in message["from"] else None
    hint = hint_for("exit", f"Epoch 1/5\n{message['log']}\n".encode(), number)
    assert hint is not None
    for words in message["hint"]:
        assert words in hint
    assert not any(words in hint for words in MISLEADING)


def test_the_usual_chatter_of_tensorflow_on_a_gpu_is_no_error_with_a_hint() -> None:
    chatter = (
        "2026-01-10 11:12:13.141516: E external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc:92]"
        " Unable to register cuDNN factory: Attempting to register factory for plugin cuDNN when"
        " one has already been registered\n"
        "2026-01-10 11:12:14.141516: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT"
        " Warning: Could not find TensorRT\n"
    )
    assert hint_for("exit", f"{chatter}ValueError: my own\n".encode()) is None


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("ModuleNotFoundError: No module named 'tensorflow'", "setup.tensorflow"),
        ("ModuleNotFoundError: No module named 'tensorflow_core'", 'setup.tensorflow: "2.1"'),
        ("ModuleNotFoundError: No module named 'tensorflow.contrib'", "or port the script"),
        ("ValueError: decay is deprecated in the new Keras optimizer", "optimizers.legacy"),
        ("ValueError: The `batch_size` argument must be divisible by 3", "number of replicas"),
        (
            "ValueError: The filepath provided must end in `.keras` (Keras model format). Received:"
            " filepath=ckpt",
            "setup.keras: legacy",
        ),
        ("ValueError: Cannot convert '1' to a shape.", "setup.keras: legacy"),
        ("python3: can't open file '/home/x/t.py': [Errno 2] No such file", "train.dir"),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/home/x/d.csv'",
            "`/home/x/d.csv`",
        ),
        ('FileNotFoundError: [Errno 2] No such file or directory: "/x\'s/d"', "`/x's/d` is not on"),
        ("cat: /home/x/data.csv: No such file or directory", "`code.path` or `data:`, and name it"),
        ("NotFoundError: /home/x/d.csv; No such file or directory", "`/home/x/d.csv` is not on"),
        ("cat: data.csv: No such file or directory", "deliver it with `code:`"),
        ("sh: 1: pyton: not found", "train.command"),
        ("t.py: error: unrecognized arguments: --job-dir x", "`--job-dir x`"),
        ("t.py: error: the following arguments are required: --out", "add `--out`"),
        ("OSError: [Errno 28] No space left on device", "disk_gb"),
        ("PermissionError: [Errno 13] Permission denied: '/data'", "`{output}`"),
        ("sh: 1: /root/.venv/bin/python: Permission denied", "may not execute"),
        ("bash: line 1: ./train.sh: Permission denied", "`./train.sh`"),
        ("KeyError: 'TF_CONFIG'", "train.tf_config: true"),
        (
            'ValueError: If "cluster" is set in TF_CONFIG, it must have one "chief" node.',
            "train.tf_config: estimator",
        ),
        (
            "InternalError: Collective ops is aborted by: Collective instance 122 expected type 1",
            "train.checkpoints",
        ),
        ("KeyError: 'worker'", "expects a `worker`"),
        ("OSError: [Errno 98] Address already in use", "in the script or its arguments"),
        ("ValueError: Couldn't find trained model at ./m/ckpt.", "./m/ckpt is on the disk"),
        ("ValueError: Can't load save_path when it is None.", "`shared`"),
        ("urllib.error.URLError: <urlopen error [Errno -2] Name or service not known>", "deliver"),
        ("ResourceExhaustedError: OOM when allocating tensor", "smaller batch"),
        ("AttributeError: module 'numpy' has no attribute 'int'.", "numpy<2"),
        ("TBNotInstalledError: TensorBoard is not installed, missing", "tensorboard"),
        ("ValueError: Argument(s) not recognized: {'lr': 0.1}", "setup.keras: legacy"),
        ("AttributeError: 'Mean' object has no attribute 'reset_states'.", "setup.keras: legacy"),
        ("AttributeError: 'X' object has no attribute 'experimental_run_v2'", "2.15"),
    ],
)
def test_each_known_line_has_its_hint(line: str, hint: str) -> None:
    assert hint in str(hint_for("exit", f"Epoch 1/5\n{line}\n".encode()))


PAGE = (Path(__file__).parents[2] / "docs" / "failures.md").read_text("utf-8")


def rows_of(heading: str) -> list[list[str]]:
    """Cells of the first table of a section of docs/failures.md."""
    section = re.split(r"\n##+ ", PAGE.partition(f"\n## {heading}\n")[2])[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def listed_hints() -> list[list[str]]:
    """Messages, and what their hint says, of docs/failures.md and tests/data/hint_messages.md."""
    section = re.split(r"\n##+ ", PAGE.partition("\n## Hints\n")[2])[0]
    others = (LOGS.parent / "hint_messages.md").read_text("utf-8")
    items = [*section.split("\n- ")[1:], *others.split("\n- ")[1:]]
    found = [" ".join(item.split()) for item in items]
    assert len(found) > 30
    return [item.split(" → ") for item in found]


@pytest.mark.parametrize(("messages", "words"), listed_hints())
def test_each_listed_message_has_that_hint(messages: str, words: str) -> None:
    for message in re.findall(r"`([^`]+)`", messages):
        log = f"Epoch 1/5\n{message}\n".encode()
        hint = hint_for(cause_of(exited("chief0", 1, log=log)).kind, log)
        for word in re.findall(r"`([^`]+)`", words):
            where = "its `hint` in CAUSES, or its row of diagnosis/hints.yaml"
            assert word in str(hint), f"{message}: {where} does not say {word}"


def test_names_in_the_braces_of_a_hint_are_texts() -> None:
    found = [hint for subject in hints.rows().values() for _, hint in subject]
    named = {name or "" for hint in found for _, name, *_ in Formatter().parse(hint)}
    unknown = {name for name in named if name.isidentifier()} - hints.texts().keys()
    assert unknown == set(), "add it to `texts` of diagnosis/hints.yaml"


def test_each_hint_and_cause_of_a_log_is_tried_by_a_message() -> None:
    """Of this file, the page, tests/data/hint_messages.md, gpu_messages.json or a real log."""
    said = [text for node in walked(Path(__file__)) for text in literals(node)]
    said += [text for messages, _ in listed_hints() for text in re.findall(r"`([^`]+)`", messages)]
    said += [message["log"] for message in MESSAGES]
    said += [path.read_text("utf-8", "replace") for path in LOGS.glob("*.log")]
    rows = [pattern for subject in hints.rows().values() for pattern, _ in subject]
    rows += [facts.log for facts in CAUSES.values() if facts.log is not None]
    untried = [row for row in rows if not any(re.search(row, text) for text in said)]
    assert untried == [], "add a message to tests/data/hint_messages.md"


def literals(node: ast.AST) -> list[str]:
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, bytes):
        return [value.decode("utf-8", "replace")]
    return [value] if isinstance(value, str) else []


def test_each_kind_of_cause_has_a_row_on_the_page() -> None:
    """In one order: CAUSES, the kinds of the type, the rows of the page."""
    on_page = [
        kind
        for row in rows_of("Which task is the cause")
        for kind in re.findall(r"`(\w+)`", row[2])
    ]
    assert [*CAUSES] == [*get_args(CauseKind)], (
        "CauseKind and CAUSES in core/run_record.py, in one order"
    )
    assert {*CAUSES} - {*on_page} == set(), "add a row to docs/failures.md"
    assert [*dict.fromkeys(on_page)] == [*CAUSES], "rows of docs/failures.md"
    for row in rows_of("Which task is the cause"):
        again = CAUSES[cast("CauseKind", re.findall(r"`(\w+)`", row[2])[0])].again
        said = {"yes": "yes", "never": "no"}.get(again, "")
        assert row[3].startswith(said), f"docs/failures.md, retried: {row}"


def test_each_kind_of_cause_is_found_by_something() -> None:
    product = Path(cloudtrain.__file__).parent
    code = "".join(
        path.read_text("utf-8") for path in product.rglob("*.py") if path.name != "run_record.py"
    )
    lacking = [
        kind
        for kind, facts in CAUSES.items()
        if facts.log is None and kind not in LIMITS and f'"{kind}"' not in code
    ]
    assert lacking == [], f"give it a `log`, or a row of runs/limits.LIMITS; or {OUTSIDE}"
    unread = [kind for kind, facts in CAUSES.items() if facts.log is not None and not facts.logged]
    assert unread == [], "without `logged`, its `log` is not read"


LOGGED: dict[CauseKind, bytes] = {}
"""Kind of cause with a `log` → a log that shows it, as its program prints it."""


def test_each_kind_of_cause_that_a_log_shows_is_read_from_one() -> None:
    kinds = {kind for kind, facts in CAUSES.items() if facts.log is not None}
    assert kinds == {*LOGGED}, "add a log with it to LOGGED here"
    read = {kind: cause_of(exited("worker0", 1, log=log)).kind for kind, log in LOGGED.items()}
    assert read == {kind: kind for kind in LOGGED}, f"another kind's `log` fits; {OUTSIDE}"


OUTSIDE = (
    "if it is killed from outside, do as `oom` does: a mark of node/watcher.py, told by "
    "node/follower.py, read by runs/task_commands.py into TaskView and Observation, and judged by "
    "root_cause._kind_and_text"
)


def test_what_a_node_reports_of_a_killed_task_arrives() -> None:
    """Each mark of the watcher is told by the follower and read, each fact of a task observed."""
    node, runs = (Path(cloudtrain.__file__).parent / name for name in ("node", "runs"))
    watcher = (node / "watcher.py").read_text("utf-8")
    tools = (node / "task_watcher.sh").read_text("utf-8")
    marks = {*re.findall(r"^   FOLDER/(\w+) ->", watcher, re.MULTILINE)}
    made = re.findall(r'\bmark\(self\.folder, "(\w+)"', watcher)
    made += re.findall(r'ln -sn "[^"]*" "\$folder/(\w+)"', tools)
    assert marks == {*made}, f"node/watcher.py, its head: {OUTSIDE}"
    marks -= {"task", "exit"}
    follower = (node / "follower.py").read_text("utf-8")
    reader = (runs / "task_commands.py").read_text("utf-8")
    lacking = [mark for mark in marks if f"/{mark}" not in follower or f'"{mark}"' not in reader]
    assert lacking == [], OUTSIDE
    (observed,) = (
        node
        for node in walked(runs / "root_cause.py")
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Observation"
    )
    given = {each.arg for each in observed.keywords}
    assert {each.name for each in fields(Observation)} - given == set(), OUTSIDE


def test_each_kind_of_cause_is_named_in_a_test() -> None:
    tests = "".join(
        path.read_text("utf-8") for path in Path(__file__).parents[1].rglob("test_*.py")
    )
    lacking = [kind for kind in CAUSES if f'"{kind}"' not in tests]
    assert lacking == [], "add a test with such a cause: here, or in test_state_machine.py"


def test_a_cause_that_a_line_of_the_log_shows_is_a_name_and_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = CauseFacts(words="code {code}: no license", log=r"NoLicense\b", hint="buy one")
    monkeypatch.setitem(cast("dict[str, CauseFacts]", CAUSES), "license", row)
    cause = cause_of(
        exited("worker0", 1, log=b"Traceback (most recent call last):\nNoLicense: 3\n")
    )
    assert (cause.kind, cause.text, cause.hint) == ("license", "code 1: no license", "buy one")
    assert cause_of(exited("worker0", 1, log=b"ValueError: NoLicense2")).kind == "exit"


@pytest.mark.parametrize(
    ("code", "kind"),
    [(-6, "license"), (134, "license"), (-11, "license"), (-9, "signal"), (-15, "signal")],
)
def test_a_log_says_why_a_program_crashed_and_never_why_it_was_killed(
    monkeypatch: pytest.MonkeyPatch, code: int, kind: str
) -> None:
    """Whoever kills it writes nothing there: what it says was before, and was survived."""
    row = CauseFacts(words="code {code}: no license", log=r"NoLicense\b", hint="buy one")
    monkeypatch.setitem(cast("dict[str, CauseFacts]", CAUSES), "license", row)
    killed = exited("chief0", code, at=2, log=b"terminate called: NoLicense\n")
    cause = cause_of(exited("worker0", 1, at=1, log=RAISED), killed)
    assert (cause.task, cause.kind, cause.collateral) == ("chief0", kind, ("worker0",))
    assert (cause.hint == "buy one") is (kind == "license")


# ── Kinds and their order ────────────────────────────────────────────────────


def test_a_lost_node_goes_before_everything_else() -> None:
    cause = cause_of(
        exited("chief0", -9, at=1),
        Observation(task=task("worker0"), frozen=True),
        Observation(task=task("worker1"), lost=True),
    )
    assert (cause.task, cause.kind) == ("worker1", "lost")
    assert cause.text == "its node mnist-worker1 no longer answers"
    assert is_retryable(cause)


def test_a_preempted_node_is_said_to_be_preempted() -> None:
    cause = cause_of(Observation(task=task("worker1"), lost=True, announced="preempted"))
    assert cause.text == "its node mnist-worker1 was preempted"


def test_a_signal_goes_before_an_error_of_its_own_that_came_earlier() -> None:
    cause = cause_of(exited("chief0", 1, at=1, log=RAISED), exited("worker0", -9, at=2))
    assert cause.task == "worker0"


def test_of_two_errors_the_first_by_time_is_the_cause() -> None:
    second, first = exited("chief0", 1, at=2, log=RAISED), exited("worker0", 1, at=1, log=RAISED)
    assert cause_of(second, first).task == "worker0"


def test_a_crash_while_winding_up_after_a_lost_peer_is_collateral() -> None:
    cause = cause_of(exited("chief0", -6, at=2, log=LOST_PEER), exited("worker0", 1, log=RAISED))
    assert (cause.task, cause.collateral) == ("worker0", ("chief0",))


def test_an_error_raised_while_a_lost_peer_was_handled_is_collateral() -> None:
    chained = LOST_PEER + (
        b"\nDuring handling of the above exception, another exception occurred:\n\n"
    )
    cause = cause_of(
        exited("chief0", 1, at=1, log=chained + RAISED), exited("worker0", 1, at=2, log=RAISED)
    )
    assert cause.task == "worker0"


def test_a_lost_peer_that_was_survived_does_not_make_a_later_error_collateral() -> None:
    survived = b"E0000 00:00:1795244979.2 1 a.cc:1] Failed to send RPC to coordination service\n"
    assert is_certain([exited("chief0", 1, log=survived + LOST_PEER + b"Epoch 9\n" + RAISED)])


def test_only_collateral_exits_leave_the_cause_open_and_name_the_first() -> None:
    seen = [exited("chief0", 1, at=2, log=LOST_PEER), exited("worker0", 1, at=1, log=LOST_PEER)]
    assert not is_certain(seen)
    cause = cause_of(*seen)
    assert cause.task == "worker0"
    assert "check the network" in str(cause.hint)
    assert is_retryable(cause)


def test_a_task_that_never_came_up_is_the_cause_before_those_that_gave_up_on_it() -> None:
    waiting = Observation(task=task("worker1"), started=False, log=b"importing\n")
    cause = cause_of(exited("chief0", 1, log=LOST_PEER), waiting)
    assert (cause.task, cause.kind) == ("worker1", "not_started")
    assert cause.text == "its port 8900 never opened"
    assert cause.last_lines == ("importing",)
    assert not is_retryable(cause)


def test_a_task_that_is_still_starting_decides_nothing() -> None:
    assert not is_certain([Observation(task=task("chief0"), started=False)])


def test_what_this_program_ended_itself_is_no_cause() -> None:
    stopped = Observation(task=task("chief0"), exit_code=-9, stopped=True)
    assert find_root_cause([stopped, exited("worker0", 0)]) is None
    assert cause_of(stopped, exited("worker0", 1, log=RAISED)).collateral == ()


def test_a_frozen_task_that_was_then_ended_is_still_the_frozen_one() -> None:
    ended = Observation(task=task("worker0"), frozen=True, stopped=True, exit_code=-9)
    assert cause_of(ended, exited("chief0", 1, log=LOST_PEER)).kind == "frozen"


def test_nothing_failed_where_all_exited_0_or_run_on() -> None:
    assert find_root_cause([exited("chief0", 0), Observation(task=task("worker0"))]) is None


# ── Once more or not ─────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("code", "retryable"),
    [
        *((code, True) for code in (-9, 137, -15, 143, 42, -11)),
        *((code, False) for code in (1, 2, 127, 255)),
    ],
)
def test_an_exit_is_retried_by_its_code(code: int, retryable: bool) -> None:
    assert is_retryable(cause_of(exited("worker0", code, log=RAISED))) is retryable


def test_the_users_own_codes_are_retried() -> None:
    cause = cause_of(exited("worker0", 7, log=RAISED))
    assert is_retryable(cause, retry_exit_codes=(7,))
    assert not is_retryable(cause, retry_exit_codes=(8,))


@pytest.mark.parametrize("code", [-9, 137])
def test_a_task_killed_for_want_of_memory_is_not_retried(code: int) -> None:
    cause = cause_of(Observation(task=task("worker0"), exit_code=code, oom=True))
    assert (cause.kind, cause.exit_code) == ("oom", -9)
    assert cause.text == "the kernel killed it: out of memory"
    assert "smaller batch" in str(cause.hint)
    assert not is_retryable(cause)


# ── Logs of any kind ─────────────────────────────────────────────────────────


def test_a_progress_bar_shows_what_it_showed_last() -> None:
    assert last_lines(b"1/9 [>..]\b\b\b\b9/9 [===]\r\n") == ("9/9 [===]",)


def test_an_exception_far_above_the_end_is_still_shown() -> None:
    body = "".join(f"  detail {number}\n" for number in range(50))
    shown = last_lines(b"Traceback (most recent call last):\nOSError: no disk\n" + body.encode())
    assert shown[0] == "OSError: no disk"
    assert len(shown) == LINES_SHOWN


def test_an_exception_ignored_at_exit_does_not_hide_the_real_one() -> None:
    ignored = b"Exception ignored in: <function f>\n" + LOST_PEER
    assert headline(RAISED + ignored) == "ValueError: no"


@given(st.binary(max_size=400), st.integers(-70, 300), st.booleans())
def test_no_log_and_no_exit_code_breaks_the_judgement(
    data: bytes, code: int, started: bool
) -> None:
    seen = Observation(task=task("chief0"), exit_code=code, log=data, started=started)
    cause = find_root_cause([seen])
    assert (cause is None) == (code == 0)
    if cause is not None:
        is_retryable(cause)


def test_a_node_that_does_not_answer_is_why_its_peers_lost_a_peer() -> None:
    """Seen by a cut of 30 s: the peers exit after 10 to 15 s, its task has not ended at all."""
    silent = Observation(task=task("chief0"), silent=True)
    peer = Observation(task=task("worker0"), exit_code=1, ended=9.0, log=LOST_PEER)
    cause = cause_of(silent, peer)
    assert (cause.task, cause.kind, cause.collateral) == ("chief0", "lost", ("worker0",))
    assert cause.text == "its node mnist-chief0 did not answer when its peers gave it up"
    assert is_retryable(cause)


def test_a_node_that_does_not_answer_hides_no_failure_of_another_task() -> None:
    silent = Observation(task=task("chief0"), silent=True)
    own = Observation(task=task("worker0"), exit_code=1, ended=9.0, log=RAISED)
    assert (cause_of(silent, own).task, cause_of(silent, own).collateral) == ("worker0", ())
    assert find_root_cause([silent]) is None
    assert not is_certain([silent])


def test_a_lost_peer_is_retried_also_where_the_last_lines_do_not_say_it() -> None:
    """Seen with an Estimator on TensorFlow 2.15 under a cut of 30 s: the message stands in the
    first of two chained exceptions, and the second ends with the places of its operations.
    """
    aborted = (
        b"Traceback (most recent call last):\n"
        b"tensorflow.python.framework.errors_impl.DeadlineExceededError: at a node\n"
        b"Collective ops is aborted by: Deadline Exceeded\n\n"
        b"During handling of the above exception, another exception occurred:\n\n"
        b"Traceback (most recent call last):\n"
        b"tensorflow.python.framework.errors_impl.DeadlineExceededError: Graph execution error:\n"
    )
    places = b"".join(b'  File "a.py", line %d, in f\n' % number for number in range(60))
    cause = cause_of(
        Observation(task=task("chief0")),
        Observation(task=task("worker0"), exit_code=1, ended=9.0, log=aborted + places),
    )
    assert "Collective ops" not in "\n".join(cause.last_lines)
    assert cause.lost_peer
    assert is_retryable(cause)
