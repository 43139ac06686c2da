"""What is shown: readable, complete, and free of control characters."""

import ast
import io
import itertools
import os
import pty
import re
import sys
import threading
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cloudtrain
from cloudtrain.console import Style, console
from cloudtrain.console.lines import LONGEST, LogLines, clean, printable
from cloudtrain.console.paced import MOST, ROOM, PacedOutput
from cloudtrain.console.plain import PlainConsole, _Lines
from cloudtrain.console.screen import FOLDED, HELD, AlikeLines, Screen, TaskOutput, counted
from tests.support.project import until
from tests.support.sources import nodes


class Clock:
    """Time that only a test moves. It begins at 06:41:07 local time."""

    def __init__(self) -> None:
        import time

        self.now = time.mktime((2026, 11, 21, 6, 41, 7, 0, 0, -1))

    def __call__(self) -> float:
        return self.now


def plain(clock: Clock | None = None) -> tuple[PlainConsole, io.StringIO, io.StringIO]:
    err, out = io.StringIO(), io.StringIO()
    return PlainConsole(err=err, out=out, clock=clock or Clock()), err, out


# ── log lines ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("Epoch 1/2", "Epoch 1/2"),
        ("a\tb", "a\tb"),
        ("dos line\r", "dos line"),
        ("  1%\r 50%\r100%", "100%"),
        (" 50%\r\r100%\r", "100%"),
        ("1/3 [=>..]\b\b\b\b\b\b\b\b\b\b\r2/3 [==>]", "2/3 [==>]"),
        ("12\b\b34", "34"),
        ("\b\bx", "x"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2K\x1b[1A\x1b[?25lhidden", "hidden"),
        ("\x1b]0;owned\x07title", "title"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bP1$r\x1b\\dcs", "dcs"),
        ("\x1bcreset\x1b(B", "reset"),
        ("\x9b2Jc1 \x9d0;x\x9c.", "c1 ."),
        ("\x1b]0;no end", "0;no end"),
        ("\x1b", ""),
        ("bell\x07 null\x00 del\x7f", "bell null del"),
        ("user\u202egnp.exe", "usergnp.exe"),
        ("Grüße, мир, 世界, 🙂", "Grüße, мир, 世界, 🙂"),
    ],
)
def test_a_line_is_shown_in_its_last_state_without_controls(written: str, shown: str) -> None:
    assert clean(written) == shown


@given(st.text(st.characters(codec="utf-8") | st.sampled_from("\x1b[]\r\b\x9b\x9d\x07;0mP\\")))
def test_no_text_ever_keeps_a_control_character(text: str) -> None:
    kept = printable(text)
    assert not [c for c in kept if (c < " " and c not in "\t\n") or "\x7f" <= c <= "\x9f"]
    assert printable(kept) == kept


@given(st.lists(st.text(st.characters(codec="utf-8"))), st.data())
def test_lines_are_the_same_wherever_the_bytes_are_cut(
    lines: list[str], data: st.DataObject
) -> None:
    written = "".join(f"{line}\n" for line in lines) + "rest"
    whole = written.encode()
    log, seen, at = LogLines(), [], 0
    while at < len(whole):
        size = data.draw(st.integers(1, 7))
        seen += log.feed(whole[at : at + size])
        at += size
    assert [*seen, *log.flush()] == [clean(line) for line in written.split("\n")]


def test_broken_utf8_is_replaced_and_ends_nothing() -> None:
    log = LogLines()
    assert log.feed(b"\xff\xfe a\nb \xe2\x82") == ["�� a"]
    assert log.feed(b"\xac\n\xe2\x82") == ["b €"]
    assert log.flush() == ["�"]
    assert log.flush() == []


def test_an_endless_line_is_shown_in_pieces_and_an_endless_bar_takes_no_memory() -> None:
    log = LogLines()
    pieces = [line for _ in range(40) for line in log.feed(b"x" * 10_000)]
    assert sum(map(len, [*pieces, *log.flush()])) == 400_000
    assert len(pieces) > 1
    for number in range(10_000):
        assert log.feed(b"\r%d%% [====]" % number) == []
        assert len(log._rest) < 40 < LONGEST
    assert log.feed(b"\n") == ["9999% [====]"]


# ── plain ────────────────────────────────────────────────────────────────────


def test_plain_stages_are_timed_lines() -> None:
    clock = Clock()
    screen, err, out = plain(clock)
    with screen.stage("nodes", 2) as stage:
        clock.now += 1.5
        stage.node("mnist-worker0", "booting")
        stage.done("mnist-chief0", "ready")
        clock.now += 6
        stage.node("mnist-worker0", "booting")
        clock.now += 4.8
        stage.done("mnist-worker0", "ready")
    screen.say("two\nlines")
    screen.warn("slow")
    assert err.getvalue().splitlines() == [
        "06:41:14 +  7.5s  nodes: 1 of 2  mnist-worker0 booting",
        "06:41:19 + 12.3s  nodes: 2 of 2, ready  12.3s",
        "06:41:19 + 12.3s  two",
        "                  lines",
        "06:41:19 + 12.3s  warning: slow",
    ]
    assert out.getvalue() == ""


def test_a_plain_stage_that_fails_says_so() -> None:
    screen, err, _ = plain()
    with pytest.raises(RuntimeError), screen.stage("nodes", 1):
        raise RuntimeError
    assert err.getvalue().splitlines()[-1].endswith("nodes: failed after 0.0s")


def test_many_nodes_do_not_make_many_lines() -> None:
    clock = Clock()
    screen, err, _ = plain(clock)
    with screen.stage("nodes", 128) as stage:
        for number in range(128):
            clock.now += 0.125
            stage.done(f"n{number}", f"10.0.0.{number}")
    lines = [line.partition("s  ")[2] for line in err.getvalue().splitlines()]
    assert lines == [
        "nodes: 40 of 128  n39 10.0.0.39",
        "nodes: 80 of 128  n79 10.0.0.79",
        "nodes: 120 of 128  n119 10.0.0.119",
        "nodes: 128 of 128  16.0s",
    ]


def test_what_all_nodes_say_at_the_end_is_told_unless_it_has_the_figures_of_one() -> None:
    assert counted({}, 0) == "done"
    assert counted({"a": "nothing new", "b": "nothing new"}, 2) == "2 of 2, nothing new"
    assert counted({"a": "1 new file", "b": "1 new file"}, 2) == "2 of 2"
    assert counted({"a": "1 new file"}, 1) == "1 of 1, 1 new file"
    assert counted({"a": "gone", "b": "kept"}, 3) == "2 of 3"


def test_task_output_goes_to_stdout_line_by_line_with_the_tasks_name() -> None:
    screen, err, out = plain()
    screen.task_output("chief0", b"Epoch 1/2\n 1%\r")
    screen.task_output("worker0", "Grü".encode()[:3])
    screen.task_output("chief0", b"99%\nlast")
    screen.task_output("worker0", "Grüße\n".encode()[3:])
    assert out.getvalue() == "chief0 │ Epoch 1/2\nchief0 │ 99%\nworker0 │ Grüße\n"
    screen.flush()
    assert out.getvalue().endswith("chief0 │ last\n")
    assert err.getvalue() == ""


def test_lines_of_many_threads_are_never_mixed() -> None:
    screen, _, out = plain()
    threads = [
        threading.Thread(
            target=lambda t=t: [
                screen.task_output(f"worker{t}", b"x" * 50 + b"\n") for _ in range(99)
            ]
        )
        for t in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(out.getvalue().splitlines()) == sorted(
        f"worker{t} │ {'x' * 50}" for t in range(8) for _ in range(99)
    )


def test_what_is_said_cannot_control_the_terminal_either() -> None:
    screen, err, _ = plain()
    screen.say("worker0: \x1b]0;owned\x07\x1b[2Jlast words")
    assert err.getvalue().endswith("worker0: last words\n")


def test_a_lost_stderr_stops_nothing() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as err:
        screen = PlainConsole(err=err, out=io.StringIO())
        with screen.stage("nodes", 1) as stage:
            stage.done("n")
        screen.say("still here")
        os.dup2(os.open(os.devnull, os.O_WRONLY), write)


def test_an_ascii_stdout_gets_an_ascii_bar() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace")
    PlainConsole(err=io.StringIO(), out=out).task_output("chief0", "Grüße\n".encode())
    out.seek(0)
    assert out.read() == "chief0 | Gr\\xfc\\xdfe\n"


def test_a_long_stage_says_what_is_new_and_the_rest_once_a_minute() -> None:
    clock = Clock()
    screen, err, _ = plain(clock)
    with screen.stage("setup", 2) as stage:
        assert isinstance(stage, _Lines)
        for second in range(70):
            for name in ("mnist-chief0", "mnist-worker0"):
                stage.node(name, "Collecting" if second < 20 else "Installing " + "x" * 600)
            clock.now += 1.0
            stage.break_silence()
        stage.done("mnist-chief0", "3 steps")
        clock.now += 10.0
    lines = [line.partition("s  ")[2] for line in err.getvalue().splitlines()]
    assert lines[0] == "setup: 0 of 2  mnist-chief0 Collecting"
    assert [line.endswith("xxx …") and len(line) < 150 for line in lines[1:2]] == [True]
    assert lines[2:] == ["setup: 1 of 2  mnist-chief0 3 steps", "setup: 1 of 2, 3 steps  80.0s"]


def test_silence_is_broken_while_a_stage_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudtrain.console.plain.BEAT", 0.01)
    err = io.StringIO()
    screen = PlainConsole(err=err, out=io.StringIO(), clock=itertools.count(0.0, 61.0).__next__)
    with screen.stage("artifacts", 2):
        until(lambda: err.getvalue().count("in progress") > 1, 20)


# ── which console ────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("term", "kind"), [("xterm", "TerminalConsole"), ("dumb", "PlainConsole"), ("", "PlainConsole")]
)
def test_a_terminal_gets_live_bars_unless_it_is_dumb(
    monkeypatch: pytest.MonkeyPatch, term: str, kind: str
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert type(console(Style())).__name__ == kind


# ── terminal ─────────────────────────────────────────────────────────────────


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(out: io.StringIO) -> tuple[Screen, Terminal]:
    from cloudtrain.console.terminal import TerminalConsole

    err = Terminal()
    return TerminalConsole(err=err, out=out, style=Style()), err


def test_on_a_terminal_task_names_are_coloured_one_colour_per_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Terminal()
    screen, _ = terminal(out)
    for task in ("chief0", "worker0", "chief0"):
        screen.task_output(task, b"\x1b[31mx\n")
    screen.flush()
    assert out.getvalue().splitlines() == [
        "\x1b[36mchief0 │ \x1b[0mx",
        "\x1b[35mworker0 │ \x1b[0mx",
        "\x1b[36mchief0 │ \x1b[0mx",
    ]


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    out = Terminal()
    screen, err = terminal(out)
    screen.task_output("chief0", b"x\n")
    screen.warn("y")
    with screen.stage("nodes", 1) as stage:
        stage.node("n", "z")
    screen.flush()
    assert out.getvalue() == "chief0 │ x\n"
    assert "\x1b[3" not in err.getvalue()
    assert "warning: y" in err.getvalue()


def test_output_that_is_sent_to_a_file_stays_plain_while_bars_are_drawn() -> None:
    out = io.StringIO()
    screen, err = terminal(out)
    with screen.stage("nodes", 2) as stage:
        stage.node("mnist-chief0", "booting")
        screen.task_output("chief0", b"line\npart")
        stage.done("mnist-chief0")
    screen.flush()
    assert out.getvalue() == "chief0 │ line\nchief0 │ part\n"
    assert "✓ " in err.getvalue()
    assert "1 of 2" in err.getvalue()


OWN_LOG = b"""\
2024-03-01 10:00:00.123456: I tensorflow/core/platform/cpu_feature_guard.cc:182] This binary is
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with
2024-03-01 10:00:00.2: E external/local_xla/xla/cuda_fft.cc:479] Unable to register cuFFT factory: A
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795440874.092680   20067 port.cc:153] oneDNN custom operations are on.
E0000 00:00:1795440874.1 20067 cuda_blas.cc:1407] Unable to register cuBLAS factory: Attempting
W0000 00:00:1795440875.0 9899 dataset.cc:997] Input of GeneratorDatasetOp::Dataset will not be \
optimized because the dataset does not implement the AsGraphDefInternal() method needed to apply it
I0000 00:00:1795440876.0 9899 coordination_service_agent.cc:460] Healthy tasks:
/job:worker/replica:0/task:1
"""
A_SCRIPTS = b"""\
Epoch 1/2
on /job:worker/replica:0/task:1
I1123 10:00:00.123456 140 train.py:30] step 1
W0000 00:00:1795440874.1 20067 collective_ops.cc:10] A worker is slow
2024-03-01 10:00:00.1: E tensorflow/core/common_runtime/base_collective_executor.cc:249] aborted
2024-03-01 10:00:00.1: W tensorflow/core/framework/op_kernel.cc:1839] OP_REQUIRES failed
"""


def test_a_terminal_hides_what_tensorflow_logs_about_itself_and_says_so_once() -> None:
    from cloudtrain.console.terminal import TerminalConsole

    out = Terminal()
    screen = TerminalConsole(err=Terminal(), out=out, style=Style(full_log=False))
    for _ in range(2):
        screen.task_output("chief0", OWN_LOG)
        screen.task_output("chief0", A_SCRIPTS)
    screen.flush()
    lines = [line.partition("│ ")[2] for line in out.getvalue().splitlines()]
    shown = [line.removeprefix("\x1b[0m") for line in lines]
    assert shown == [FOLDED, *A_SCRIPTS.decode().splitlines() * 2]


@pytest.mark.parametrize("full_log", [False, True])
def test_a_file_gets_every_line_and_so_does_a_terminal_that_asks_for_it(full_log: bool) -> None:
    from cloudtrain.console.terminal import TerminalConsole

    out = Terminal() if full_log else io.StringIO()
    screen = TerminalConsole(err=Terminal(), out=out, style=Style(full_log=full_log))
    screen.task_output("chief0", OWN_LOG)
    screen.flush()
    assert len(out.getvalue().splitlines()) == len(OWN_LOG.splitlines())


def test_what_many_tasks_print_alike_is_one_line_on_a_terminal() -> None:
    from cloudtrain.console.terminal import TerminalConsole

    for full_log, terminal_out in ((False, True), (True, True), (False, False)):
        out = Terminal() if terminal_out else io.StringIO()
        screen = TerminalConsole(err=Terminal(), out=out, style=Style(full_log=full_log))
        for task in ("chief0", *(f"worker{n}" for n in range(39))):
            screen.task_output(task, b"Epoch 1/2\n")
        screen.flush()
        shown = clean(out.getvalue().replace("\n", " ")).split(" Epoch 1/2 ")
        folded = not full_log and terminal_out
        assert len(shown) - 1 == (2 if folded else 40)
        assert ("worker ×39 │" in shown) is folded


def test_a_line_waits_only_a_moment_for_the_same_of_other_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cloudtrain.console.terminal import TerminalConsole

    for module in ("screen", "paced"):
        monkeypatch.setattr(f"cloudtrain.console.{module}.HELD", 0.01)
    out = Terminal()
    screen = TerminalConsole(err=Terminal(), out=out, style=Style(full_log=False))
    screen.task_output("worker0", b"x\n")
    until(lambda: out.getvalue().endswith("x\n"), 20)


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("xyz"), st.booleans())),
)
def test_no_line_is_lost_and_each_tasks_lines_keep_their_order(
    printed: list[tuple[str, str, bool]],
) -> None:
    lines, now, shown = AlikeLines(), 0.0, []
    for letter, line, later in printed:
        now += HELD if later else 0.0
        shown += lines.add([(f"{letter}1", line), (f"{letter}2", line), (f"{letter}3", line)], now)
        shown += lines.add([(f"{letter}2", line)], now)
    shown += lines.rest()
    for letter in "abcd":
        each = [line for one, line, _ in printed if one == letter]
        assert [line for task, line in shown if task in (f"{letter} ×3", f"{letter}1")] == each
        assert [line for task, line in shown if task in (f"{letter} ×3", f"{letter}2")] == [
            line for line in each for _ in range(2)
        ]


def test_a_terminal_skips_the_oldest_of_too_many_lines_and_says_how_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cloudtrain.console.terminal import TerminalConsole

    monkeypatch.setattr("cloudtrain.console.paced.RATE", 0)
    # Only `flush` draws: how often a thread would have is a matter of the machine's load,
    # and so is whether drawing takes longer than lines wait for the same of other tasks.
    monkeypatch.setattr(PacedOutput, "_draw_on", lambda _: None)
    monkeypatch.setattr("cloudtrain.console.screen.HELD", float("inf"))
    out = Terminal()
    screen = TerminalConsole(err=Terminal(), out=out, style=Style(full_log=False))
    chatty = b"".join(b"step %d\n" % n for n in range(10 * ROOM))
    for at in range(0, len(chatty), 1000):  # in the middle of lines
        screen.task_output("chief0", chatty[at : at + 1000])
    screen.flush()
    lines = [line.rpartition("\x1b[0m")[2] for line in out.getvalue().splitlines()]
    said = [re.fullmatch("… (.*) lines skipped here: the logs have them", line) for line in lines]
    steps = [int(line.removeprefix("step ")) for line in lines if line.startswith("step ")]
    skipped = sum(int(each[1].replace(",", "")) for each in said if each)
    assert len(steps) + skipped == 10 * ROOM
    assert skipped >= 7 * ROOM
    assert steps == sorted(steps)
    assert steps[-1] == 10 * ROOM - 1
    assert len(lines) == len(steps) + sum(map(bool, said))


@pytest.mark.parametrize("flags", [{"full_log": True}, {"full_log": False, "skips": False}])
def test_what_is_asked_for_as_a_whole_is_shown_as_a_whole(flags: dict[str, bool]) -> None:
    from cloudtrain.console.terminal import TerminalConsole

    out = Terminal()
    screen = TerminalConsole(err=Terminal(), out=out, style=Style(**flags))
    for n in range(10 * ROOM):
        screen.task_output("chief0", b"step %d\n" % n)
    screen.flush()
    lines = [line.rpartition("step ")[2] for line in out.getvalue().splitlines()]
    assert lines == [str(n) for n in range(10 * ROOM)]


def test_a_terminal_that_takes_nothing_holds_up_no_log() -> None:
    """Ctrl-S: what tasks print goes on to the logs, and a bounded part of it waits here."""
    goes_on = threading.Event()
    shown: list[tuple[str, str]] = []
    missed: list[int] = []

    def show(lines: list[tuple[str, str]], skipped: int) -> bool:
        goes_on.wait(60)
        shown.extend(lines)
        missed.append(skipped)
        return False

    paced = PacedOutput(TaskOutput(io.StringIO(), colours=False), show, skips=True)
    line = b"x" * 999 + b"\n"
    for _ in range(5 * MOST // len(line)):
        paced.add("chief0", line)
    assert paced._bytes <= MOST
    goes_on.set()
    paced.draw()
    assert sum(missed) + len(shown) == 5 * MOST // len(line)


def test_long_lines_are_left_for_the_terminal_to_fold() -> None:
    screen, err = terminal(Terminal())
    screen.say("x" * 500)
    with screen.stage("nodes", 1):
        screen.task_output("chief0", b"y" * 500 + b"\n")
        until(lambda: "y" * 500 in err.getvalue(), 20)
    assert "x" * 500 in err.getvalue()
    assert "y" * 500 in err.getvalue()


def test_a_terminal_that_goes_away_stops_nothing() -> None:
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as err:
        from cloudtrain.console.terminal import TerminalConsole

        screen = TerminalConsole(err=err, out=io.StringIO(), style=Style())
        with screen.stage("nodes", 1) as stage:
            os.close(leader)
            stage.node("n", "text")
            screen.say("still here")
        os.dup2(os.open(os.devnull, os.O_WRONLY), follower)


# ── lines below everything else ──────────────────────────────────────────────


def test_lines_stay_below_what_is_printed_and_are_gone_at_the_end() -> None:
    screen, err = terminal(Terminal())
    with screen.below(lambda: ["run r1", "worker  CPU 40 %"]):
        screen.task_output("chief0", b"Epoch 1\nEpoch 2\n")
        until(lambda: "Epoch 2" in err.getvalue(), 20)
        drawn = err.getvalue()
    after = err.getvalue()[len(drawn) :]
    assert drawn.rindex("Epoch 2") < drawn.rindex("run r1") < drawn.rindex("worker  CPU 40 %")
    assert after.endswith("\x1b[1A\x1b[2K\x1b[?25h\r"), "the lines are erased"
    screen.task_output("chief0", b"Epoch 3\n")
    assert "run r1" not in err.getvalue()[len(drawn) + len(after) :]


def test_nothing_is_kept_below_output_that_goes_elsewhere() -> None:
    screen, err = terminal(io.StringIO())
    with screen.below(lambda: ["run r1"]):
        screen.task_output("chief0", b"Epoch 1\n")
    assert "run r1" not in err.getvalue()
    lines, out, _ = plain()
    with lines.below(lambda: ["run r1"]):
        assert out.getvalue() == ""


def test_bars_and_lines_below_leave_room_for_the_echo_of_ctrl_c() -> None:
    screen, err = terminal(Terminal())
    with screen.stage("setup", 2) as stage, screen.below(lambda: ["x" * 500]):
        stage.node("mnist-chief0", "y" * 500)
        until(lambda: "yy" in err.getvalue() and "xx" in err.getvalue(), 20)
    rows = [clean(row) for row in err.getvalue().split("\n")]
    assert max(len(row) for row in rows if "xx" in row or "yy" in row) <= 80 - 3


def test_nodes_are_shown_without_the_clusters_name_and_waiting_ones_are_counted() -> None:
    screen, err = terminal(Terminal())
    with screen.stage("setup", 128) as stage:
        for index in range(64):
            stage.node(f"mnist-worker{index}", "pip install")
        until(lambda: "64 waiting" in err.getvalue(), 20)
    shown = err.getvalue()
    assert "    worker0  pip install" in shown
    assert "    … and 56 more, 64 waiting" in shown


def test_each_display_flag_is_read_by_a_console() -> None:
    folder = Path(cloudtrain.__file__).parent / "console"
    read = {
        node.attr
        for path in folder.glob("*.py")
        for node in nodes(path, ast.Attribute)
        if ast.unparse(node.value) in ("style", "self.style")
    }
    unread = [each.name for each in fields(Style) if each.name not in read]
    assert unread == [], "read it in console/: `style.NAME`"
