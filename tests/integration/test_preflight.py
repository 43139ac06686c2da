"""What would hang or fail a run is found before it, on every node at once, and named."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.core.errors import PreflightError
from cloudtrain.core.model import Node
from cloudtrain.core.run_record import Environment, Task
from cloudtrain.core.shell import Command, command, script
from cloudtrain.runs.preflight import preflight
from tests.support.ports import free_ports
from tests.support.streaming_here import Here

PYTHON = sys.executable


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    here = Here(tmp_path)
    yield here
    here.close()


def cluster(count: int = 3, role: str = "worker") -> list[tuple[Task, Node]]:
    tasks, first = [], free_ports(count)
    for index, port in enumerate(range(first, first + count)):
        name = f"mnist-{role}{index}"
        node = Node(
            name=name,
            role=role,
            index=index,
            state="running",
            address="127.0.0.1",
            internal=f"127.0.0.{index % 8 + 1}",
            host=f"host-{index}",
        )
        tasks.append((Task(role=role, index=index, node=name, port=port), node))
    return tasks


def problems(tasks: list[tuple[Task, Node]], here: Here, timeout: float = 20) -> list[str]:
    with pytest.raises(PreflightError) as raised:
        preflight(tasks, here, timeout=timeout)
    return str(raised.value).splitlines()


def answering(*facts: object) -> Command:
    """A node that says just this, and stays until it may go."""
    lines = "\n".join(json.dumps(fact) for fact in facts)
    return script('read -r order; printf "%s\\n" "$1"; cat >/dev/null', lines)


def healthy(**changed: object) -> dict[str, object]:
    facts = {"listening": False, "why": "", "owner": None, "free": 10**12, "files": 10**6}
    return {**facts, "time": time.time(), **changed}


def test_a_healthy_cluster_passes_and_its_ports_are_free_again(here: Here) -> None:
    tasks = cluster()
    assert preflight(tasks, here).warnings == ()
    for task, _ in tasks:
        with socket.socket() as again:
            again.bind(("", task.port))
    assert not any(process.poll() is None for process in here.running)


def test_the_ports_are_free_again_at_once_for_the_next_attempt(here: Here) -> None:
    tasks = cluster(2)
    for _ in range(3):
        assert preflight(tasks, here).warnings == ()


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1", "127.0.0.5", "::", "::1"])
def test_a_port_in_use_on_any_address_is_named_with_its_owner(here: Here, address: str) -> None:
    tasks = cluster()
    port = tasks[1][0].port
    listen = (
        "import socket, sys; s = socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else 2);"
        "s.bind((sys.argv[1], int(sys.argv[2]))); s.listen(); print(1, flush=True); input()"
    )
    with subprocess.Popen(
        [PYTHON, "-c", listen, address, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"1\n"
        (line,) = problems(tasks, here)
        other.kill()
    assert line.startswith(f"mnist-worker1: port {port} is in use by pid {other.pid} ({PYTHON} -c")
    assert line.endswith("): choose another train.port")


def test_a_single_task_needs_no_port_and_is_only_warned(here: Here) -> None:
    tasks = cluster(1)
    with socket.socket() as other:
        other.bind(("", tasks[0][0].port))
        other.listen()
        (warning,) = preflight(tasks, here).warnings
    assert f"is in use by pid {os.getpid()}" in warning


def test_a_connection_left_in_time_wait_is_no_failure(here: Here) -> None:
    tasks = cluster(2)
    with socket.socket() as server, socket.socket() as client:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", tasks[0][0].port))
        server.listen()
        client.connect(server.getsockname())
        accepted, _ = server.accept()
        accepted.close()
    assert preflight(tasks, here).warnings == ()


def test_a_peer_behind_a_wrong_address_is_named_once_with_who_missed_it(here: Here) -> None:
    tasks = cluster(4)
    task, node = tasks[2]
    wrong = replace(node, internal="127.0.0.1.nowhere.invalid")
    nowhere = [(one, wrong if one is task else other) for one, other in tasks]
    (line,) = problems(nowhere, here)
    assert re.fullmatch(
        rf"mnist-worker2: 127\.0\.0\.1\.nowhere\.invalid port {task.port} is not reachable from"
        r" mnist-worker0, mnist-worker1, mnist-worker3 \(.+\): the nodes need an address that"
        r" they can resolve: set it in `hosts`",
        line,
    )


def test_a_peer_that_drops_packets_is_named(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener with a full queue, as a firewall that drops, answers no SYN."""
    monkeypatch.setattr("cloudtrain.runs.preflight.CONNECT_SECONDS", 0.5)
    tasks = cluster(2)
    with contextlib.ExitStack() as held:
        full = held.enter_context(socket.socket())
        full.bind(("127.0.0.2", tasks[1][0].port))
        full.listen(0)
        for _ in range(8):
            caller = held.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(full.getsockname())
        here.instead["mnist-worker1"] = answering(healthy(listening=True), {"failed": {}})
        (line,) = problems(tasks, here)
    assert "is not reachable from mnist-worker0 (no answer in 0.5 s)" in line


def test_another_program_at_a_peers_address_is_not_taken_for_it(here: Here) -> None:
    tasks = cluster(2)
    here.instead["mnist-worker1"] = answering(healthy(listening=True), {"failed": {}})
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.2", tasks[1][0].port))
        stranger.listen()
        threading.Thread(
            target=lambda: stranger.accept()[0].send(b"220 smtp\r\n"), daemon=True
        ).start()
        (line,) = problems(tasks, here)
    assert "is not reachable from mnist-worker0 (another program answers there)" in line


def test_a_refused_connection_is_named(here: Here) -> None:
    tasks = cluster(2)
    here.instead["mnist-worker1"] = answering(healthy(listening=True), {"failed": {}})
    (line,) = problems(tasks, here)
    assert "(Connection refused)" in line


def test_one_task_alone_must_have_its_port_and_reach_those_that_run(here: Here) -> None:
    (mine, peer, closed) = cluster(3)
    both = [(task, node.internal) for task, node in (peer, closed)]
    with socket.create_server(("", peer[0].port)):
        assert preflight([mine], here, running=both[:1]).warnings == ()
        with pytest.raises(PreflightError) as unreachable:
            preflight([mine], here, running=both)
        with socket.create_server(("", mine[0].port)), pytest.raises(PreflightError) as taken:
            preflight([mine], here, running=both[:1])
    assert f"port {closed[0].port} is not reachable from mnist-worker0" in str(unreachable.value)
    assert f"mnist-worker0: port {mine[0].port} is in use by" in str(taken.value)


def test_an_evaluator_is_in_nobody_elses_cluster(here: Here) -> None:
    wrong = [(task, replace(node, internal="no.invalid")) for task, node in cluster(1, "evaluator")]
    assert preflight([*cluster(2), *wrong], here).warnings == ()


def test_a_node_that_hangs_is_named_and_the_others_are_still_judged(here: Here) -> None:
    tasks = cluster(3)
    here.instead["mnist-worker0"] = answering(healthy(), {"failed": {}})
    here.instead["mnist-worker1"] = command("sleep", "60")
    here.instead["mnist-worker2"] = answering(healthy(free=10), {"failed": {}})
    lines = problems(tasks, here, timeout=4)
    assert lines == [
        "mnist-worker1: it did not answer in time: check that the node is running",
        "mnist-worker2: only 0 MB free on its disk, too little for a run: free space or raise "
        "disk_gb",
    ]


def test_a_node_that_hangs_while_it_calls_the_others_is_named(here: Here) -> None:
    tasks = cluster(2)
    here.instead["mnist-worker0"] = answering(healthy(), {"failed": {}})
    here.instead["mnist-worker1"] = answering(healthy())
    (line,) = problems(tasks, here, timeout=4)
    assert line.startswith("mnist-worker1: it did not answer in time")


def test_an_unreachable_node_is_named_once(here: Here) -> None:
    here.unreachable = frozenset({"mnist-worker1"})
    assert problems(cluster(), here) == ["mnist-worker1: no answer over SSH"]


def test_a_probe_that_breaks_says_its_last_words(here: Here) -> None:
    here.instead["mnist-worker0"] = command("sh", "-c", "echo 'sh: broken pipe dream' >&2; exit 2")
    assert problems(cluster(), here) == ["mnist-worker0: the probe failed: sh: broken pipe dream"]


def packages_of(**by_name: dict[str, str]) -> Callable[[Node], Command]:
    usual = {"python": "3.11.2", "tensorflow-cpu": "2.21.0", "keras": "3.15.1"}

    def packages(node: Node) -> Command:
        found = {**usual, **by_name.get(node.task, {})}
        lines = [f"{name}=={found[name]}" for name in found if name != "python"]
        return command("echo", json.dumps({"python": found["python"], "packages": lines}))

    return packages


def test_versions_that_differ_are_named_against_what_most_have(here: Here) -> None:
    other = packages_of(worker2={"tensorflow-cpu": "2.20.0", "python": "3"})
    with pytest.raises(PreflightError) as raised:
        preflight(cluster(), here, packages=other)
    assert str(raised.value) == (
        "mnist-worker2: tensorflow is 2.20.0 here, 2.21.0 on the other nodes:"
        " run `cloudtrain up` to make them equal"
    )


def test_other_packages_that_differ_are_only_warned_of(here: Here) -> None:
    other = packages_of(worker1={"python": "3.12.1"})
    (warning,) = preflight(cluster(), here, packages=other).warnings
    assert warning.startswith("mnist-worker1: python is 3.12.1 here, 3.11.2 on the other nodes")


def test_an_environment_that_does_not_answer_has_none_of_the_packages(here: Here) -> None:
    def packages(node: Node) -> Command:
        return command("false") if node.index == 0 else packages_of()(node)

    with pytest.raises(PreflightError, match="mnist-worker0: tensorflow is none here"):
        preflight(cluster(), here, packages=packages)


def test_what_an_image_says_before_its_packages_is_passed_over(here: Here) -> None:
    found = json.dumps({"python": "3.11.2", "packages": ["tensorflow==2.17.0"]})
    (told,) = preflight(
        cluster(1), here, packages=lambda _: command("printf", "%s\\n", "Welcome!", "{", found)
    ).environments
    assert told.packages == ("tensorflow==2.17.0",)


def test_nodes_of_one_host_are_asked_for_their_versions_once(here: Here) -> None:
    tasks = [(task, replace(node, host="one")) for task, node in cluster()]
    found = preflight(tasks, here, packages=packages_of(worker2={"extra": "1"}))
    assert found.warnings == ()
    assert sum("tensorflow" in line for line in here.ran) == 2, "worker2 has another environment"
    lines = ("tensorflow-cpu==2.21.0", "keras==3.15.1")
    assert found.environments == (
        Environment(roles=("worker",), python="3.11.2", packages=lines),
        Environment(roles=("worker",), python="3.11.2", packages=(*lines, "extra==1")),
    )


def test_a_clock_that_is_off_is_named(here: Here) -> None:
    here.instead["mnist-worker1"] = answering(healthy(time=time.time() - 100), {"failed": {}})
    (line,) = problems(cluster(), here)
    assert line.startswith("mnist-worker1: its clock is -100 s off the others'")


def test_a_clock_that_is_off_less_than_half_a_minute_passes(here: Here) -> None:
    here.instead["mnist-worker1"] = answering(healthy(time=time.time() + 20), {"failed": {}})
    assert preflight(cluster(), here).warnings == ()


def test_when_all_nodes_agree_on_another_time_this_machine_is_wrong(here: Here) -> None:
    tasks = cluster(2)
    for _, node in tasks:
        facts = healthy(time=time.time() + 3600)
        here.instead[node.name] = answering(facts, {"failed": {}})
    (warning,) = preflight(tasks, here).warnings
    assert warning == "the nodes' clocks are +3600 s off this machine's"


def test_a_disk_that_is_nearly_full_is_warned_of_once_for_each_host(here: Here) -> None:
    tasks = [(task, replace(node, host="one")) for task, node in cluster(2)]
    for _, node in tasks:
        here.instead[node.name] = answering(healthy(free=200 * 10**6), {"failed": {}})
    assert preflight(tasks, here).warnings == ("mnist-worker0: only 200 MB free on its disk",)


def test_a_node_without_python_is_named_with_what_to_install(here: Here, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sh").symlink_to("/bin/sh")
    here.paths["mnist-worker1"] = str(folder)
    assert problems(cluster(), here) == [
        "mnist-worker1: the probe failed: python3 not found (nodes need 3.6 or newer):"
        " sudo apt-get install python3"
    ]


def test_a_node_with_an_older_python_is_named_with_what_to_install(
    here: Here, tmp_path: Path
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    python = folder / "python3"
    python.write_text(
        f"""#!/bin/sh
shift 3
code="import sys; sys.version_info = (3, 5, 2)
$1"
shift
exec {sys.executable} -c "$code" "$@"
"""
    )
    python.chmod(0o755)
    here.paths["mnist-worker1"] = f"{folder}:{os.environ['PATH']}"
    assert problems(cluster(), here) == [
        "mnist-worker1: the probe failed: python3 is 3.5, but nodes need 3.6 or newer:"
        " install a newer python3"
    ]


def test_a_banner_on_stdout_is_passed_over(here: Here) -> None:
    tasks = cluster(2)
    here.instead["mnist-worker0"] = script(
        'echo Welcome; echo 7; read -r order; printf "%s\\n" "$1"; cat >/dev/null',
        json.dumps(healthy()) + '\n{"failed": {}}',
    )
    assert preflight(tasks, here).warnings == ()
