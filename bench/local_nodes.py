"""What provider local costs: start, memory, first command, stream. Run it as it is."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import paramiko
import pytest

from cloudtrain.providers.local import processes
from tests.support.local_cluster import LocalCluster, local_cluster

MB = 1 << 20


def main() -> None:
    print(f"{'nodes':>6} {'create s':>9} {'again s':>8} {'destroy s':>10} {'MB a node':>10}")
    for size in (1, 8, 32, 128):
        rows = [lifetime(size) for _ in range(5)]
        start, again, destroy, memory = (min(column) for column in zip(*rows, strict=True))
        print(f"{size:>6} {start:>9.2f} {again:>8.3f} {destroy:>10.3f} {memory:>10.1f}")
    with made(0) as cluster:
        cold = [seconds(lambda: first_command(cluster)) for _ in range(20)]
        print(f"connect and first command: {statistics.median(cold) * 1000:.0f} ms (NODELAY)")
        up, down = (min(stream(cluster, way) for _ in range(5)) for way in ("up", "down"))
        print(f"50 MB to a node {up:.2f} s, from it {down:.2f} s (paramiko)")


class made:
    """A cluster in a new folder, destroyed at the end."""

    def __init__(self, workers: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._patch = pytest.MonkeyPatch()
        self.cluster = local_cluster(Path(self._folder.name), self._patch, workers=workers)

    def __enter__(self) -> LocalCluster:
        self.cluster.create()
        return self.cluster

    def __exit__(self, *_: object) -> None:
        self.cluster.destroy()
        self._patch.undo()
        self._folder.cleanup()


def lifetime(size: int) -> tuple[float, float, float, float]:
    there = made(size - 1)
    start = seconds(lambda: there.__enter__())
    again = seconds(there.cluster.create)
    memory = own_memory(there.cluster) / size
    destroy = seconds(there.cluster.destroy)
    there.__exit__()
    return start, again, destroy, memory


def own_memory(cluster: LocalCluster) -> float:
    """Megabytes in all that only these processes use, or share among themselves (PSS)."""
    total = 0
    for pid in processes.tags(lambda tag: tag.startswith(cluster.tag())):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def first_command(cluster: LocalCluster) -> None:
    with cluster.connect(cluster.nodes[0]) as client:
        client.exec_command("true")[1].channel.recv_exit_status()


def stream(cluster: LocalCluster, way: str) -> float:
    with cluster.connect(cluster.nodes[0]) as client:
        transport = client.get_transport()
        assert transport
        channel = transport.open_session()
        channel.exec_command("cat >/dev/null" if way == "up" else f"head -c {50 * MB} /dev/zero")
        return seconds(lambda: send(channel) if way == "up" else receive(channel))


def send(channel: paramiko.Channel) -> None:
    block = os.urandom(1 << 15)
    for _ in range(50 * MB // len(block)):
        channel.sendall(block)
    channel.shutdown_write()
    channel.recv_exit_status()


def receive(channel: paramiko.Channel) -> None:
    while channel.recv(1 << 18):
        pass


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
