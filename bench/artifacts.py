"""What landing costs beside cp, tar, rsync and scp. Writes bench/artifacts.md: run it as it is."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from cloudtrain.core import paths  # noqa: E402
from cloudtrain.core.protocols import Transport  # noqa: E402
from cloudtrain.ssh.transport import SshTransport  # noqa: E402
from cloudtrain.stores import open_store  # noqa: E402
from tests.support.landing_parts import RUN, Cluster  # noqa: E402
from tests.support.sshd import SshdNode, sshd_node  # noqa: E402

RUNS = 3
SETS = {
    "1,000 × 100 kB": (1000, 100_000),
    "10,000 × 1 kB": (10_000, 1000),
    "1 × 512 MB": (1, 1 << 29),
}


def main() -> None:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name, sshd_node(Path(name) / "node") as node:
        columns = {title: column(Path(name), node, *size) for title, size in SETS.items()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    lines = [
        "# Landing beside other ways to copy files",
        "",
        f"Made by `python bench/artifacts.py`: {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, load average {load:.1f} at the start (other work on "
        f"the machine: ratios more than figures). Best of {RUNS}, seconds; "
        "then the time as a multiple of the first row's in its group. Ours lists, computes SHA-256 "
        "on both sides, syncs each file to the disk (fsync) and writes the manifest; of the others "
        "none does, but where it says so. The source is in the page cache.",
        "",
        f"| | {' | '.join(SETS)} |",
        "|---|" + "---|" * len(SETS),
    ]
    firsts: list[float] = []
    for row in next(iter(columns.values())):
        times = [column[row] for column in columns.values()]
        if row.startswith("**"):
            firsts = times
        cells = [f"{t:.2f} · {t / first:.2f} ×" for t, first in zip(times, firsts, strict=True)]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    lines += ["", f"This process held at most {peak:.0f} MB, all of the above included.", ""]
    (Path(__file__).parent / "artifacts.md").write_text("\n".join(lines))
    print("\n".join(lines))


def column(folder: Path, node: SshdNode, count: int, size: int) -> dict[str, float]:
    here = Cluster(folder / "here", workers=0)
    away = node.home / paths.work_folder("mnist", RUN, "chief0")
    for work in (here.work("chief0"), away):
        fill(work / "output", count, size)
    source, target = here.work("chief0") / "output", folder / "target"
    options = ["-F", "none", "-i", str(node.identity.private_key), "-o", "IdentitiesOnly=yes"]
    options += ["-o", f"UserKnownHostsFile={node.identity.known_hosts}"]
    port, where = str(node.node.ssh_port), f"{node.node.user}@{node.node.address}"
    ssh = ["ssh", *options, "-p", port]
    rows: dict[str, Callable[[], object]] = {
        "**a node here, no network: ours**": lambda: landing(here, here.transport, target),
        "cp -a": lambda: run("cp", "-a", source, target),
        "cp -a, then sync": lambda: [run("cp", "-a", source, target), run("sync", "-f", target)],
        "tar to tar": lambda: pipe(["tar", "-cC", str(source), "."], target),
        "tar to tar, SHA-256 of both sides, sync": lambda: checked_tar(source, target),
        "**a node over SSH: ours**": lambda: over_ssh(here, node, target),
        "tar over ssh": lambda: pipe([*ssh, where, f"tar -cC {away}/output ."], target),
        "rsync -a over ssh": lambda: run(
            "rsync", "-a", "-e", " ".join(ssh), f"{where}:{away}/output/", target
        ),
        "scp -r": lambda: run("scp", "-qr", *options, "-P", port, f"{where}:{away}/output", target),
    }
    times = {}
    for name, work in rows.items():
        best = float("inf")
        for _ in range(RUNS):
            shutil.rmtree(target, ignore_errors=True)
            os.sync()
            start = time.monotonic()
            work()
            best = min(best, time.monotonic() - start)
        times[name] = best
    times["ours again, nothing changed"] = again(here, node, target)
    shutil.rmtree(away)
    shutil.rmtree(folder / "here")
    return times


def fill(folder: Path, count: int, size: int) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        with (folder / f"{number:05}").open("wb") as file:
            for _ in range(max(1, size >> 20)):
                file.write(os.urandom(min(size, 1 << 20)))


def landing(cluster: Cluster, transport: Transport, target: Path, *, final: bool = True) -> None:
    cluster.land(final=final, transport=transport, store=open_store(target.as_uri()))


def over_ssh(cluster: Cluster, node: SshdNode, target: Path, *, final: bool = True) -> None:
    cluster.nodes = {"chief0": replace(node.node)}
    with SshTransport(node.identity) as transport:
        landing(cluster, transport, target, final=final)


def again(cluster: Cluster, node: SshdNode, target: Path) -> float:
    shutil.rmtree(target, ignore_errors=True)
    over_ssh(cluster, node, target)
    start = time.monotonic()
    over_ssh(cluster, node, target, final=False)
    return time.monotonic() - start


def checked_tar(source: Path, target: Path) -> None:
    sums = "find . -type f -print0 | sort -z | xargs -0 sha256sum > /dev/null"
    beside = threading.Thread(target=run, args=("sh", "-c", f"cd {source} && {sums}"))
    beside.start()
    pipe(["tar", "-cC", str(source), "."], target)
    run("sh", "-c", f"cd {target} && {sums}")
    run("sync", "-f", target)
    beside.join()


def pipe(command: list[str], target: Path) -> None:
    target.mkdir()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as sender:
        subprocess.run(["tar", "-xC", str(target)], stdin=sender.stdout, check=True)
    assert sender.returncode == 0


def run(*words: str | Path) -> None:
    subprocess.run([str(word) for word in words], check=True)


if __name__ == "__main__":
    main()
