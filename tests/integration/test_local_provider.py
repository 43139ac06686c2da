"""Local nodes from creation to the last process: found, revived, destroyed, whatever crashed."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.core.errors import CloudtrainError, LeftoverError, NodeUnreachable, UsageError
from cloudtrain.core.events import Event, NodeRequested
from cloudtrain.core.shell import Secret
from cloudtrain.providers.local import processes, trash
from tests.support.fakes import eventually, facts_of, make_plan, no_journal
from tests.support.local_cluster import LocalCluster, local_cluster
from tests.support.processes import words


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    cluster = local_cluster(tmp_path, monkeypatch, workers=1)
    yield cluster
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "KILL_SECONDS", 10.0)
        cluster.destroy()


def run(cluster: LocalCluster, command: str) -> bytes:
    """On the chief."""
    with cluster.connect(cluster.nodes[0]) as client:
        _, out, error = client.exec_command(command)
        assert out.channel.recv_exit_status() == 0, error.read()
        return out.read()


def daemon(cluster: LocalCluster, command: str) -> int:
    """A process on the chief that outlives its session; its pid here."""
    script = f"cd; {command} >/dev/null 2>&1 </dev/null & sleep 0; echo $!"
    return cluster.pid(cluster.nodes[0], int(run(cluster, script)))


def tagged(cluster: LocalCluster, node: str = "") -> dict[int, str]:
    return processes.tags(lambda tag: tag.startswith(cluster.tag(node)))


def servers(cluster: LocalCluster, node: str = "") -> list[int]:
    tags = tagged(cluster, node)
    return [pid for pid in tags if any("fork_server" in word for word in words(pid))]


def gone(pid: int) -> bool:
    return not processes._alive(pid)


def working_in(folder: Path) -> list[int]:
    """Processes whose working folder is, or was, below this one: tagged or not."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink().is_relative_to(folder):
                found.append(int(process.name))
    return found


def states(cluster: LocalCluster) -> dict[str, str]:
    return {node.name: node.state for node in cluster.provider.nodes(cluster.name)}


def test_nodes_share_this_machine_and_nothing_else(cluster: LocalCluster, tmp_path: Path) -> None:
    chief, worker = cluster.create()
    assert chief.host == worker.host == "localhost"
    assert chief.shared_cache == worker.shared_cache == str(tmp_path / "cache")
    assert chief.cache == worker.cache
    assert Path(chief.cache).is_dir()
    assert chief.internal == chief.address != worker.address
    assert cluster.folder(chief).stat().st_mode & 0o777 == 0o700


def test_each_process_of_a_node_bears_the_tag_of_that_node(cluster: LocalCluster) -> None:
    chief, worker = cluster.create()
    assert len(servers(cluster, chief.name)) == len(servers(cluster, worker.name)) == 1
    assert len(tagged(cluster)) == 2


def test_an_address_follows_from_the_name_and_a_taken_one_is_passed_over(
    cluster: LocalCluster,
) -> None:
    seed = f"{cluster.provider._digest}/{cluster.name}"
    first, second = processes.addresses(seed, 0)[:2]
    with socket.create_server(first):
        chief, _ = cluster.create()
    assert (chief.address, chief.ssh_port) == second


def test_another_port_is_taken_where_the_usual_one_is_in_use(cluster: LocalCluster) -> None:
    seed = f"{cluster.provider._digest}/{cluster.name}"
    taken = [place for place in processes.addresses(seed, 0) if place[1] == 2222]
    listeners = [socket.create_server(place) for place in taken]
    chief, worker = cluster.create()
    for listener in listeners:
        listener.close()
    assert (chief.ssh_port, worker.ssh_port) == (22022, 2222)
    assert run(cluster, "echo here") == b"here\n"


def test_clusters_that_name_no_port_have_ports_of_their_own(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {node.task_ports for node in cluster.create()}
    (tmp_path / "elsewhere").mkdir()
    port = cluster.plan.nodes[0].port
    other = local_cluster(tmp_path / "elsewhere", monkeypatch, workers=2, port=port)
    try:
        second = {node.task_ports for node in other.create()}
    finally:
        other.destroy()
    kept = [port for ports in (*first, *second) for port in ports]
    assert len(kept) == len(set(kept)) == 4 * (len(first) + len(second))
    cluster.destroy()
    assert min(port for node in cluster.create() for port in node.task_ports) <= min(kept)


def test_a_port_that_is_in_use_is_not_kept_and_a_node_that_comes_back_has_its_own(
    cluster: LocalCluster,
) -> None:
    (free, *_), *_ = (node.task_ports for node in cluster.create())
    cluster.destroy()
    with socket.create_server(("", free)):
        nodes = cluster.create()
        assert free not in {port for node in nodes for port in node.task_ports}
    for pid in servers(cluster, nodes[0].name):
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: states(cluster)[nodes[0].name] == "stopped")
    assert cluster.create()[0].task_ports == nodes[0].task_ports


def test_with_a_port_in_the_file_none_are_kept(cluster: LocalCluster) -> None:
    train = replace(cluster.plan.config.train, port=12_345)
    cluster.plan = replace(cluster.plan, config=replace(cluster.plan.config, train=train))
    assert {node.task_ports for node in cluster.create()} == {()}


def test_a_killed_server_is_a_stopped_node_that_comes_back_with_its_disk(
    cluster: LocalCluster,
) -> None:
    chief, worker = cluster.create()
    sleeper = daemon(cluster, "echo kept > disk; exec setsid sleep 1000")
    (server,) = servers(cluster, chief.name)
    os.kill(server, signal.SIGKILL)
    eventually(lambda: gone(server) and gone(sleeper))  # the first process of its namespace
    assert states(cluster) == {chief.name: "stopped", worker.name: "running"}
    entries: list[str] = []
    again = cluster.provider.create(
        cluster.plan, cluster.identity, lambda event: entries.append(facts_of(event)["node"])
    )
    assert again == (chief, worker)
    assert entries == [chief.name]
    assert run(cluster, "cat disk") == b"kept\n"


def test_a_terminated_server_takes_all_that_runs_on_its_node_with_it(
    cluster: LocalCluster,
) -> None:
    chief, worker = cluster.create()
    sleepers = [daemon(cluster, f"{how} setsid sleep 1000") for how in ("", "env -i")]
    (server,) = servers(cluster, chief.name)
    os.kill(server, signal.SIGTERM)
    eventually(lambda: all(gone(pid) for pid in (server, *sleepers)))
    assert tagged(cluster, chief.name) == {}
    assert states(cluster) == {chief.name: "stopped", worker.name: "running"}


def test_a_frozen_server_is_a_running_node_that_does_not_answer(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    chief, worker = cluster.create()
    (server,) = servers(cluster, chief.name)
    os.kill(server, signal.SIGSTOP)
    assert states(cluster) == {chief.name: "running", worker.name: "running"}
    monkeypatch.setattr(processes, "START_SECONDS", 0.3)
    with pytest.raises(NodeUnreachable, match="mnist-chief0: no SSH server answers at 127"):
        cluster.create()
    assert not gone(server)


def test_a_node_whose_destruction_was_cut_off_can_be_started_again(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create()
    run(cluster, "echo precious > model")

    def freeze_and_die(matches: Callable[[str], bool]) -> dict[int, str]:
        processes._freeze(matches, time.monotonic() + 5)
        raise InterruptedError("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(processes, "kill", freeze_and_die)
        with pytest.raises(InterruptedError):
            cluster.destroy()
    assert set(states(cluster).values()) == {"stopped"}
    cluster.create()
    assert run(cluster, "cat model") == b"precious\n"


@pytest.mark.parametrize(
    "command",
    [
        "setsid sleep 1000",
        "env -i setsid sleep 1000",
        "env -i setsid sh -c 'sleep 1000; true'",
        "setsid sh -c 'kill -STOP $$'",
        "sh -c 'trap \"\" TERM HUP INT; sleep 1000; sleep 1000'",
        # It ends by itself, so that a destroy that is broken does not flood the machine.
        "sh -c 'for i in $(seq 300); do setsid sleep 100 & sleep 0.01; done'",
        "env -i sh -c 'for i in $(seq 300); do setsid sleep 100 & sleep 0.01; done'",
    ],
)
def test_destroy_ends_every_kind_of_process(cluster: LocalCluster, command: str) -> None:
    cluster.create()
    pid = daemon(cluster, command)
    cluster.destroy()
    assert gone(pid)
    assert tagged(cluster) == {}
    assert working_in(cluster.home) == []
    assert not (cluster.home / "local" / cluster.name).exists()


def test_destroy_finds_processes_whose_server_is_dead(cluster: LocalCluster) -> None:
    cluster.create()
    pid = daemon(cluster, "setsid sleep 1000")
    for server in servers(cluster):
        os.kill(server, signal.SIGKILL)
    cluster.destroy()
    assert gone(pid)


def test_destroy_finds_processes_whose_folder_is_deleted(cluster: LocalCluster) -> None:
    chief, worker = cluster.create()
    from cloudtrain.providers.local.folders import remove

    remove(cluster.home / "local" / cluster.name)
    assert [held.cluster for held in cluster.provider.sweep()] == [cluster.name]
    assert states(cluster) == {chief.name: "stopped", worker.name: "stopped"}
    cluster.destroy()
    assert tagged(cluster) == {}
    assert cluster.provider.sweep() == ()


def test_destroy_deletes_what_was_made_read_only(cluster: LocalCluster) -> None:
    cluster.create()
    run(cluster, "mkdir -p a/b && touch a/b/c && chmod 0500 a/b && chmod 0 a")
    cluster.destroy()
    assert not (cluster.home / "local" / cluster.name).exists()


def test_many_files_are_deleted_with_their_folder_and_those_behind_a_link_are_not(
    tmp_path: Path,
) -> None:
    from cloudtrain.providers.local.folders import AT_ONCE, remove

    for folder in (tmp_path / "node", tmp_path / "node/a/b", tmp_path / "theirs"):
        folder.mkdir(parents=True)
        for number in range(3 * AT_ONCE):
            (folder / str(number)).touch()
    (tmp_path / "node/a/link").symlink_to(tmp_path / "theirs")
    remove(tmp_path / "node")
    assert not (tmp_path / "node").exists()
    assert len(list((tmp_path / "theirs").iterdir())) == 3 * AT_ONCE


def test_a_node_of_many_files_is_gone_before_they_are_deleted(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create()
    run(cluster, "mkdir -p a/b && touch a/b/1 a/b/2 a/b/3 && chmod 0500 a/b")
    monkeypatch.setattr(trash, "FEW", 2)
    cluster.destroy()
    local = cluster.home / "local"
    assert not (local / cluster.name).exists()
    eventually(lambda: list(local.iterdir()) == [])


def test_a_deletion_that_was_killed_is_named_and_taken_up(cluster: LocalCluster) -> None:
    left = cluster.home / "local" / trash.NAME / "e3b0c442"
    left.mkdir(parents=True)
    (left / "file").touch()
    found = cluster.provider.sweep()
    assert found == ()
    assert list(map(str, found.foreign)) == [
        f"{left.parent} still has files of 1 deleted node, which are being deleted"
    ]
    eventually(lambda: not left.parent.exists())
    assert cluster.provider.sweep().not_asked == ()


def test_what_cannot_be_moved_is_deleted_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "node" / "home").mkdir(parents=True)
    monkeypatch.setattr(trash, "FEW", 0)
    monkeypatch.setattr(Path, "mkdir", full)
    trash.discard(tmp_path / "node", tmp_path / trash.NAME)
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_survives_is_named(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create()
    (server,) = servers(cluster, "mnist-chief0")
    send = processes._send
    monkeypatch.setattr(processes, "KILL_SECONDS", 0.2)
    with monkeypatch.context() as patch:
        patch.setattr(processes, "_send", lambda pid, n: pid == server or send(pid, n))
        with pytest.raises(LeftoverError, match=rf"process {server} \(.*/mnist/mnist-chief0\)"):
            cluster.destroy()
    assert [held.cluster for held in cluster.provider.sweep()] == [cluster.name]


@pytest.mark.parametrize("garbage", [None, b"", b"{", b"[1]", b'{"port": "x"}', b"\xff"])
def test_a_half_made_folder_is_a_stopped_node(cluster: LocalCluster, garbage: bytes | None) -> None:
    folder = cluster.home / "local" / cluster.name / "mnist-worker0"
    folder.mkdir(parents=True)
    if garbage is not None:
        (folder / "node.json").write_bytes(garbage)
    (node,) = cluster.provider.nodes(cluster.name)
    assert (node.role, node.index, node.state) == ("worker", 0, "stopped")
    cluster.create()
    assert states(cluster) == {"mnist-chief0": "running", "mnist-worker0": "running"}
    cluster.destroy()
    assert cluster.provider.sweep() == ()


def test_the_error_of_a_server_that_ends_says_why(cluster: LocalCluster) -> None:
    keys = dict(cluster.identity.host_keys)
    keys["mnist-chief0"] = replace(keys["mnist-chief0"], private=Secret("nonsense"))
    broken = replace(cluster.identity, host_keys=keys)
    with pytest.raises(NodeUnreachable, match="not a valid") as raised:
        cluster.provider.create(cluster.plan, broken, no_journal)
    assert "nonsense" not in str(raised.value)
    assert tagged(cluster) == {}


def test_an_interrupted_creation_leaves_nothing(cluster: LocalCluster) -> None:
    def interrupt(event: Event, /) -> None:
        if event == NodeRequested(node="mnist-worker0"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cluster.provider.create(cluster.plan, cluster.identity, interrupt)
    assert tagged(cluster) == {}
    assert cluster.provider.sweep() == ()


def test_a_creation_interrupted_while_servers_start_leaves_nothing(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(process: subprocess.Popen[bytes], text: bytes = b"", **_: object) -> None:
        assert process.stdin
        if text:
            process.stdin.write(text)
            process.stdin.flush()
            eventually(lambda: tagged(cluster, "mnist-chief0"))
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "communicate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cluster.create()
    assert tagged(cluster) == {}
    assert cluster.provider.sweep() == ()


def test_a_cache_that_cannot_be_made_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = local_cluster(tmp_path, monkeypatch)
    (tmp_path / "cache").touch()
    with pytest.raises(CloudtrainError, match="cannot create the nodes' cache"):
        cluster.create()
    assert cluster.provider.sweep() == ()


@pytest.mark.parametrize("name", ["..", ".", "a/b", "", "/etc"])
def test_a_name_that_leads_elsewhere_is_refused(cluster: LocalCluster, name: str) -> None:
    with pytest.raises(UsageError, match="not a valid cluster name"):
        cluster.provider.destroy(name, no_journal)


def test_another_system_is_refused_before_anything_is_made(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    findings = {finding.what: finding for finding in cluster.provider.check(make_plan())}
    assert not findings["system"].ok
    with pytest.raises(UsageError, match="`provider: local` needs Linux; this is darwin"):
        cluster.create()
    assert not cluster.home.exists()


def test_data_sets_of_the_user_are_seen_on_each_node_and_outlive_it(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "user" / ".keras" / "datasets" / "mnist.npz"
    data.parent.mkdir(parents=True)
    data.write_text("downloaded")
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    for node in cluster.create():
        seen = cluster.folder(node) / "home" / ".keras" / "datasets" / "mnist.npz"
        assert seen.read_text() == "downloaded"
    cluster.destroy()
    assert data.read_text() == "downloaded"
