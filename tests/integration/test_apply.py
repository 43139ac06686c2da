"""Steps onto nodes: what is missing and no more, proved, with no failure lost."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from cloudtrain.core.errors import NodesError, NodeUnreachable, StepFailed
from cloudtrain.core.model import Node
from cloudtrain.core.protocols import Completed
from cloudtrain.core.retry import Clock
from cloudtrain.core.shell import Command, Step, command, script
from cloudtrain.playbooks.apply import apply
from tests.support.nodes_here import HereTransport, Remembered, node, stopped_clock


def touch(name: str, *, text: str = "") -> Step:
    run = script('echo "$2" >&2; echo "$(cat)$3" >"$1"', name, f"making {name}", text)
    return Step(name=name, run=run, unless=command("test", "-f", name))


def applied(steps: Sequence[Step], nodes: Sequence[Node], transport: HereTransport) -> Remembered:
    stage = Remembered()
    apply(lambda _: steps, nodes, transport, stage, clock=Clock(monotonic=stopped_clock))
    return stage


def test_missing_steps_run_in_order_and_each_is_shown(tmp_path: Path) -> None:
    transport = HereTransport(tmp_path)
    stage = applied([touch("a"), touch("b")], [node()], transport)
    assert stage.lines == [
        ("mnist-chief0", "a"),
        ("mnist-chief0", "a: making a"),
        ("mnist-chief0", "a 0.0 s"),
        ("mnist-chief0", "b"),
        ("mnist-chief0", "b: making b"),
        ("mnist-chief0", "b 0.0 s"),
    ]
    assert stage.ended == [("mnist-chief0", "2 of 2 steps, 0.0 s")]


def test_a_second_time_is_one_question_per_node_and_runs_nothing(tmp_path: Path) -> None:
    nodes = [node(f"mnist-worker{i}") for i in range(3)]
    steps = [touch("a"), touch("b"), touch("it's; odd")]
    applied(steps, nodes, HereTransport(tmp_path))
    again = HereTransport(tmp_path)
    stage = applied(steps, nodes, again)
    assert again.ran == []
    assert sorted(again.asked) == ["mnist-worker0", "mnist-worker1", "mnist-worker2"]
    assert sorted(stage.ended) == [(one.name, "nothing to do") for one in nodes]


def test_only_the_missing_step_runs(tmp_path: Path) -> None:
    transport = HereTransport(tmp_path)
    (transport.home(node()) / "a").touch()
    stage = applied([touch("a"), touch("b")], [node()], transport)
    assert [run.arguments[4] for _, run in transport.ran] == ["b"]
    assert stage.ended == [("mnist-chief0", "1 of 2 steps, 0.0 s")]


def test_a_step_without_a_check_runs_every_time(tmp_path: Path) -> None:
    step = Step(name="count", run=script("echo x >>runs"))
    for _ in range(2):
        transport = HereTransport(tmp_path)
        applied([step], [node()], transport)
        assert transport.asked == []
    assert (transport.home(node()) / "runs").read_text() == "x\nx\n"


def test_a_steps_bytes_are_made_anew_for_each_node(tmp_path: Path) -> None:
    numbers = count()
    step = Step(
        name="put",
        run=script("cat >got"),
        unless=command("test", "-s", "got"),
        stdin=lambda: iter([b"stream ", b"%d" % next(numbers)]),
    )
    nodes = [node("a"), node("b")]
    transport = HereTransport(tmp_path)
    applied([step], nodes, transport)
    assert {(transport.home(n) / "got").read_bytes() for n in nodes} == {b"stream 0", b"stream 1"}


def test_a_failed_step_says_node_step_code_and_last_lines_and_stops_its_node(
    tmp_path: Path,
) -> None:
    text = (
        "for i in 1 2 3 4 5 6 7 8 9; do echo line $i; done; seq 90; echo 'hint: try rain'; exit 7"
    )
    failing = Step(name="dance", run=script(text), unless=command("false"))
    transport = HereTransport(tmp_path)
    with pytest.raises(StepFailed) as caught:
        applied([failing, touch("after")], [node()], transport)
    error = caught.value
    assert str(error) == "mnist-chief0: dance: exit 7\n  87\n  88\n  89\n  90"
    assert (error.node, error.step, error.step_exit_code) == ("mnist-chief0", "dance", 7)
    assert error.hint == "try rain"
    assert error.last_lines == tuple(str(i) for i in range(72, 91))
    assert not (transport.home(node()) / "after").exists()


def test_what_pip_marks_as_the_error_is_shown_and_not_the_advice_after_it(tmp_path: Path) -> None:
    said = ["Collecting a", "ERROR: Cannot install a and b", "The conflict is caused by:"]
    said += ["The user requested a==1", "b depends on a>2", "To fix this you could: …", "ERROR: no"]
    step = Step(name="pip", run=script('printf "%s\\n" "$@"; exit 1', *said))
    with pytest.raises(StepFailed) as caught:
        applied([step], [node()], HereTransport(tmp_path))
    assert str(caught.value).splitlines()[1:] == [f"  {line}" for line in said[1:5]]


def test_a_step_that_ends_well_without_its_result_has_failed(tmp_path: Path) -> None:
    step = Step(name="lie", run=command("true"), unless=command("test", "-f", "nothing"))
    with pytest.raises(StepFailed, match="lie: command succeeded, but its check still fails"):
        applied([step], [node()], HereTransport(tmp_path))


def test_the_failures_of_several_nodes_are_all_in_the_error(tmp_path: Path) -> None:
    nodes = [node(name) for name in ("a", "b", "c")]
    transport = HereTransport(tmp_path)
    (transport.home(nodes[1]) / "fine").touch()
    step = Step(name="try", run=script("exit 3"), unless=command("test", "-f", "fine"))
    with pytest.raises(NodesError) as caught:
        applied([step], nodes, transport)
    assert str(caught.value) == "a: try: exit 3\nc: try: exit 3"


def test_control_characters_of_a_node_do_not_reach_the_screen(tmp_path: Path) -> None:
    step = Step(name="s", run=script(r"printf 'a\033[2Jb\rc\377\n'; exit 1"))
    with pytest.raises(StepFailed) as caught:
        applied([step], [node()], HereTransport(tmp_path))
    assert caught.value.last_lines == ("a [2Jb", "c�")


def test_a_check_that_writes_or_reads_does_not_disturb_the_answer(tmp_path: Path) -> None:
    noisy = Step(name="n", run=command("true"), unless=script("cat; echo yn; echo y >&2; cd /"))
    transport = HereTransport(tmp_path)
    stage = applied([noisy, noisy], [node()], transport)
    assert stage.ended == [("mnist-chief0", "nothing to do")]


def test_a_node_that_cannot_answer_is_an_error_and_not_a_node_without_anything(
    tmp_path: Path,
) -> None:
    class Broken(HereTransport):
        def process(self, node: Node, command: Command):  # type: ignore[no-untyped-def]
            return super().process(node, script("echo no shell for you >&2; exit 1"))

    with pytest.raises(StepFailed, match=r"cannot run the steps' checks.*exit 1: no shell for you"):
        applied([touch("a")], [node()], Broken(tmp_path))


def shared(tmp_path: Path, text: str) -> Step:
    place = str(tmp_path / "shared")
    run = script('echo ran >>"$1.runs"; ' + text, place)
    return Step(name="venv", run=run, unless=command("test", "-f", place), once_per_host=True)


def test_nodes_of_one_host_make_a_shared_thing_once(tmp_path: Path) -> None:
    nodes = [node(f"n{i}", host="laptop") for i in range(5)]
    transport = HereTransport(tmp_path)
    stage = applied([shared(tmp_path, 'touch "$1"'), touch("own")], nodes, transport)
    assert (tmp_path / "shared.runs").read_text() == "ran\n"
    assert sorted(name for name, _ in stage.ended) == ["n0", "n1", "n2", "n3", "n4"]
    assert all((transport.home(n) / "own").exists() for n in nodes)


def test_machines_of_one_home_do_every_step_once(tmp_path: Path) -> None:
    """Such as the delivery of the code, which begins by removing what is there."""
    step = replace(shared(tmp_path, 'mkdir "$1.busy" && touch "$1"'), once_per_host=False)
    nodes = [replace(node(f"n{i}", host=f"h{i}"), home="nfs") for i in range(5)]
    applied([step], nodes, HereTransport(tmp_path))
    assert (tmp_path / "shared.runs").read_text() == "ran\n"


def test_nodes_of_one_host_take_turns_where_each_needs_its_own(tmp_path: Path) -> None:
    text = 'mkdir "$1" && touch own && rmdir "$1"'
    step = Step(
        name="line",
        run=script(text, str(tmp_path / "busy")),
        unless=command("test", "-f", "own"),
        once_per_host=True,
    )
    transport = HereTransport(tmp_path)
    applied([step], [node(f"n{i}", host="laptop") for i in range(6)], transport)
    assert sorted(name for name, _ in transport.ran) == [f"n{i}" for i in range(6)]


def test_nodes_of_several_hosts_make_it_on_each(tmp_path: Path) -> None:
    step = Step(
        name="v", run=command("touch", "v"), unless=command("test", "-f", "v"), once_per_host=True
    )
    nodes = [node("a"), node("b")]
    transport = HereTransport(tmp_path)
    applied([step], nodes, transport)
    assert sorted(name for name, _ in transport.ran) == ["a", "b"]


def test_a_shared_thing_that_fails_is_tried_and_told_once_and_stops_all_its_nodes(
    tmp_path: Path,
) -> None:
    nodes = [node(f"n{i}", host="laptop") for i in range(4)]
    transport = HereTransport(tmp_path)
    with pytest.raises(StepFailed, match="venv: exit 9"):
        applied([shared(tmp_path, "exit 9"), touch("own")], nodes, transport)
    assert (tmp_path / "shared.runs").read_text() == "ran\n"
    assert not any((transport.home(n) / "own").exists() for n in nodes)


# ── a step that may reboot its node ──────────────────────────────────────────


class Rebooting(HereTransport):
    """Its node answers again after `down` questions, from a new boot where `boots`."""

    def __init__(self, root: Path, *, down: float, boots: bool = True) -> None:
        super().__init__(root)
        self.down, self.boots = down, boots
        self.boot, self.left = 0, 0.0

    def run(self, node: Node, command: Command, **more: object) -> Completed:  # type: ignore[override]
        if "systemctl reboot" not in command.shell():
            return super().run(node, command, **more)  # type: ignore[arg-type]
        self.left, self.boot = self.down, self.boot + self.boots
        raise NodeUnreachable(node.name, "the connection broke")

    def ask(self, node: Node, script_: str, *, timeout: float = 30.0) -> Completed:
        if self.left > 0:
            self.left -= 1
            raise NodeUnreachable(node.name, "connection refused")
        if "boot_id" in script_:
            return Completed(exit_code=0, stdout=b"boot %d\n" % self.boot, stderr=b"")
        return super().ask(node, script_, timeout=timeout)


def driver(needed: int) -> Step:
    """Loaded by the `needed`-th run."""
    run = script('echo x >>runs; [ "$(wc -l <runs)" -lt "$1" ] || touch loaded', str(needed))
    return Step(name="driver", run=run, unless=command("test", "-f", "loaded"), reboots=True)


def rebooted(transport: HereTransport, step: Step) -> tuple[Remembered, list[float]]:
    stage, waits = Remembered(), [0.0]

    def sleep(seconds: float) -> bool:
        waits.append(waits[-1] + seconds)
        return False

    apply(
        lambda _: [step],
        [node()],
        transport,
        stage,
        clock=Clock(monotonic=lambda: waits[-1], sleep=sleep),
    )
    return stage, waits


def test_a_node_is_rebooted_only_where_its_step_is_not_done_without(tmp_path: Path) -> None:
    transport = Rebooting(tmp_path, down=2)
    rebooted(transport, driver(needed=1))
    assert transport.boot == 0


def test_a_rebooted_node_is_waited_for_and_its_step_tried_again(tmp_path: Path) -> None:
    transport = Rebooting(tmp_path, down=4)
    stage, waits = rebooted(transport, driver(needed=2))
    assert (transport.boot, waits[-1]) == (1, 12.0)
    assert [text for _, text in stage.lines][:3] == [
        *("driver", "reboot", "rebooting: connection refused")
    ]


def test_a_node_that_is_rebooted_once_in_vain_is_not_rebooted_again(tmp_path: Path) -> None:
    transport = Rebooting(tmp_path, down=1)
    with pytest.raises(StepFailed, match="command succeeded, but its check still fails"):
        rebooted(transport, driver(needed=9))
    assert transport.boot == 1


def test_a_node_that_does_not_come_back_is_given_up_after_ten_minutes(tmp_path: Path) -> None:
    with pytest.raises(NodeUnreachable, match="not back after a reboot within 600 s: connection r"):
        rebooted(Rebooting(tmp_path, down=10**6), driver(needed=2))


def test_a_node_that_answers_from_its_old_boot_has_not_come_back(tmp_path: Path) -> None:
    with pytest.raises(NodeUnreachable, match="within 600 s: it has not gone down yet"):
        rebooted(Rebooting(tmp_path, down=0, boots=False), driver(needed=2))


def test_ctrl_c_ends_the_wait_for_a_reboot(tmp_path: Path) -> None:
    transport = Rebooting(tmp_path, down=10**6)
    with pytest.raises(NodeUnreachable):
        apply(
            lambda _: [driver(needed=2)],
            [node()],
            transport,
            Remembered(),
            clock=Clock(monotonic=stopped_clock, sleep=lambda _: True),
        )


def test_a_note_of_a_step_stays_on_the_screen(tmp_path: Path) -> None:
    step = Step(name="one", run=command("sh", "-c", "echo installing; echo note: one still runs"))
    notes: list[str] = []
    apply(lambda _: [step], [node()], HereTransport(tmp_path), Remembered(), note=notes.append)
    assert notes == [f"{node().name}: one: one still runs"]
