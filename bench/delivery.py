"""Seconds to bring 2,000 files of 50 MB to 8 nodes: the code playbook beside tar, rsync and scp.

    python bench/delivery.py --runs 3

Each figure is one whole process for all nodes side by side, imports and connections included: to
nodes of `provider: local`, and to OpenSSH's sshd. Ours also reads and hashes every file, proves on
the node that all arrived, and has a digest for a name; the others do none of it. `unchanged` is a
second call with nothing to send. All tools take turns within each round.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from cloudtrain.config import load  # noqa: E402
from cloudtrain.core.model import Identity, Node  # noqa: E402
from cloudtrain.providers.local.provider import LocalProvider  # noqa: E402
from cloudtrain.ssh.keys import load_identity, ssh_config  # noqa: E402
from tests.support.sshd import sshd_nodes  # noqa: E402

CLUSTER = "delivery"
THERE = "delivered"
OURS = "cloudtrain"
OURS_CODE = """
import json, sys
from pathlib import Path
from cloudtrain.playbooks.apply import apply
from cloudtrain.core.codec import decode
from cloudtrain.config import load
from cloudtrain.ssh.keys import load_identity
from cloudtrain.core.model import Node
from cloudtrain.playbooks import code
from cloudtrain.ssh.transport import SshTransport

class Silent:
    def node(self, name, text): pass
    def done(self, name, text=""): pass

config, nodes, identity = map(Path, sys.argv[1:])
there = [decode(Node, facts) for facts in json.loads(nodes.read_text())]
source = code.resolve(load(config))
with SshTransport(load_identity(identity)) as transport:
    apply(lambda node: code.steps(source, "delivery"), there, transport, Silent())
"""
MODERN = (
    "-o KexAlgorithms=curve25519-sha256,curve25519-sha256@libssh.org "
    "-o Ciphers=aes128-gcm@openssh.com"
)


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Nodes of one kind, in each tool's own words."""

    kind: str
    folder: Path
    nodes: Sequence[Node]
    identity: Identity
    homes: Sequence[Path]

    def describe(self) -> None:
        self.folder.mkdir()
        (self.folder / "config").write_text(ssh_config(self.identity, self.nodes))
        (self.folder / "nodes.json").write_text(json.dumps([asdict(node) for node in self.nodes]))

    def clear(self) -> None:
        """Nothing delivered, nothing left to write to the disk."""
        for home in self.homes:
            for name in (".cloudtrain", THERE):
                shutil.rmtree(home / name, ignore_errors=True)
        os.sync()

    def delivered(self) -> list[int]:
        """Files on each node."""
        return [
            sum(len(files) for _, _, files in os.walk(place))
            for home in self.homes
            for place in (home / THERE, *(home / ".cloudtrain" / CLUSTER / "code").glob("*"))
            if place.is_dir()
        ]


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A command line for all nodes, and whether a second one leaves out what is there."""

    name: str
    line: Callable[[Nodes], list[str]]
    compares: bool


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended
    load = os.getloadavg()[0]
    cold: dict[tuple[str, str], list[float]] = {}
    warm: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="ct") as place:
        folder = Path(place)
        source = folder / "source"
        _fill(source, options.files, options.megabytes)
        config = folder / "delivery.yaml"
        config.write_text(json.dumps(_config(options.nodes, source)))  # JSON is YAML too
        tools = _tools(source, config)
        with _local(folder, config, options.nodes) as local, _sshd(folder, options.nodes) as sshd:
            for number in range(options.runs):
                for nodes in (local, sshd):
                    turn = number % len(tools)
                    for tool in tools[turn:] + tools[:turn]:
                        _measure(tool, nodes, options.files, cold, warm)
                print(f"round {number + 1} of {options.runs} done", file=sys.stderr)
    kinds = [local.kind, sshd.kind]
    report = "".join(_report([tool.name for tool in tools], kinds, options, load, cold, warm))
    options.output.write_text(report, encoding="utf-8")
    print(report)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--megabytes", type=int, default=50)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "delivery.md")
    return parser.parse_args()


def _measure(
    tool: Tool,
    nodes: Nodes,
    files: int,
    cold: dict[tuple[str, str], list[float]],
    warm: dict[tuple[str, str], list[float]],
) -> None:
    nodes.clear()
    key = tool.name, nodes.kind
    cold.setdefault(key, []).append(_wall(tool.line(nodes)))
    counts = nodes.delivered()
    if counts != [files] * len(nodes.nodes):
        sys.exit(f"{tool.name} delivered {counts} files to nodes of {nodes.kind}")
    if tool.compares:
        warm.setdefault(key, []).append(_wall(tool.line(nodes)))


def _wall(line: list[str]) -> float:
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG")}
    began = time.perf_counter()
    done = subprocess.run(
        line,
        env={**kept, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"{line[:2]} failed:\n{(done.stderr or done.stdout).decode()[-4000:]}")
    return seconds


# ── what is sent, and where ──────────────────────────────────────────────────


def _fill(source: Path, files: int, megabytes: int) -> None:
    """Half random, half text, so that compression is worth neither nothing nor everything."""
    size = megabytes * 1_000_000 // files
    words = random.Random(1)
    for number in range(files):
        place = source / f"package{number // 100}"
        place.mkdir(parents=True, exist_ok=True)
        text = f"# file {number}\n".encode() * (size // 2)
        data = words.randbytes(size // 2)
        (place / f"module{number}.py").write_bytes(data + text[: size - len(data)])


def _config(nodes: int, source: Path) -> Mapping[str, object]:
    return {
        "name": CLUSTER,
        "provider": "local",
        "strategy": "custom",
        "nodes": {"worker": {"count": nodes}},
        "code": {"path": str(source)},
        "train": {"command": "true"},
    }


@contextmanager
def _local(folder: Path, config: Path, count: int) -> Iterator[Nodes]:
    """Made by `cloudtrain up` of the same config without its code."""
    home = folder / "home"
    bare = folder / "bare.yaml"
    bare.write_text(json.dumps({**_config(count, folder), "code": {}}))

    def cloudtrain(*words: str) -> None:
        environment = {**os.environ, "CLOUDTRAIN_HOME": str(home), "PYTHONPATH": str(ROOT)}
        line = [sys.executable, "-m", "cloudtrain", *words]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"cloudtrain {words[0]} failed:\n{done.stderr[-4000:]}")

    try:
        cloudtrain("up", str(bare))
        nodes = LocalProvider(load(bare), home=home, cache=folder / "cache").nodes(CLUSTER)
        made = Nodes(
            kind="provider local",
            folder=folder / "local",
            nodes=nodes,
            identity=load_identity(home / "clusters" / CLUSTER),
            homes=[home / "local" / CLUSTER / node.name / "home" for node in nodes],
        )
        made.describe()
        yield made
    finally:
        cloudtrain("down", CLUSTER, "--discard", "--yes")


@contextmanager
def _sshd(folder: Path, count: int) -> Iterator[Nodes]:
    place = folder / "servers"
    with sshd_nodes(place, [f"{CLUSTER}-worker{number}" for number in range(count)]) as servers:
        made = Nodes(
            kind="OpenSSH sshd",
            folder=folder / "sshd",
            nodes=[server.node for server in servers],
            identity=servers[0].identity,
            homes=[server.home for server in servers],
        )
        made.describe()
        yield made


# ── the tools ────────────────────────────────────────────────────────────────


def _tools(source: Path, config: Path) -> list[Tool]:
    """All that are here, ours first."""

    def ours(nodes: Nodes) -> list[str]:
        identity = nodes.identity.private_key.parent
        places = (config, nodes.folder / "nodes.json", identity)
        return [sys.executable, "-c", OURS_CODE, *map(str, places)]

    def tar(options: str) -> Callable[[Nodes], list[str]]:
        unpack = f"mkdir {THERE} && tar -xf - -C {THERE}"
        return _side_by_side(
            f'tar -cf - -C "$source" . | ssh -F "$config" {options} {{}} "{unpack}"'
        )

    tools = [
        Tool(name=OURS, line=ours, compares=True),
        Tool(name="tar over ssh", line=_with(source, tar("")), compares=False),
        Tool(
            name="tar over ssh, AES-GCM and curve25519",
            line=_with(source, tar(MODERN)),
            compares=False,
        ),
        Tool(
            name="rsync -a",
            line=_with(
                source, _side_by_side(f'rsync -a -e "ssh -F $config" "$source/" {{}}:{THERE}/')
            ),
            compares=True,
        ),
        Tool(
            name="scp -r",
            line=_with(source, _side_by_side(f'scp -qrF "$config" "$source" {{}}:{THERE}')),
            compares=False,
        ),
    ]
    return [tool for tool in tools if tool.name == OURS or shutil.which(tool.name.split()[0])]


def _side_by_side(job: str) -> Callable[[Nodes], list[str]]:
    """One shell that starts the job for every node and fails where one of them does."""

    def line(nodes: Nodes) -> list[str]:
        jobs = [f'{job.replace("{}", node.name)} & jobs="$jobs $!"' for node in nodes.nodes]
        waits = "for job in $jobs; do wait $job || exit 1; done"
        script = "\n".join(["source=$1 config=$2", *jobs, waits])
        return ["/bin/sh", "-c", script, "sh"]

    return line


def _with(source: Path, line: Callable[[Nodes], list[str]]) -> Callable[[Nodes], list[str]]:
    return lambda nodes: [*line(nodes), str(source), str(nodes.folder / "config")]


# ── the report ───────────────────────────────────────────────────────────────


def _report(
    tools: Sequence[str],
    kinds: Sequence[str],
    options: argparse.Namespace,
    load: float,
    cold: Mapping[tuple[str, str], list[float]],
    warm: Mapping[tuple[str, str], list[float]],
) -> Iterator[str]:
    yield f"# {options.files:,} files of {options.megabytes} MB to {options.nodes} nodes\n\n"
    yield (
        f"Made by `python bench/delivery.py --runs {options.runs}`: {os.cpu_count()} cores, "
        f"{platform.system()}, Python {platform.python_version()}, {_version('ssh', '-V')}, "
        f"{_version('rsync', '--version')}, load average {load:.1f} at the start. Medians in "
        "seconds, best in brackets, then the ratio of the medians to ours (above 1: ours is "
        "faster). Whole processes, all nodes side by side; tar and scp know no `unchanged`: they "
        "send all of it again.\n\n"
    )
    yield "| | " + " | ".join(f"{kind}, cold | {kind}, unchanged" for kind in kinds) + " |\n"
    yield "|---|" + "---|" * 2 * len(kinds) + "\n"
    for tool in tools:
        cells = [_cell(tool, kind, figures) for kind in kinds for figures in (cold, warm)]
        yield f"| {f'**{tool}**' if tool == OURS else tool} | " + " | ".join(cells) + " |\n"


def _cell(tool: str, kind: str, figures: Mapping[tuple[str, str], list[float]]) -> str:
    if (tool, kind) not in figures:
        return "–"
    seconds = figures[tool, kind]
    median, ours = statistics.median(seconds), statistics.median(figures[OURS, kind])
    ratio = "" if tool == OURS else f" · {median / ours:.2f} ×"
    return f"{median:.2f} ({min(seconds):.2f}){ratio}"


def _version(program: str, option: str) -> str:
    """The first words that it says of itself."""
    if not shutil.which(program):
        return f"no {program}"
    done = subprocess.run([program, option], capture_output=True, text=True, check=False)
    return " ".join((done.stdout or done.stderr).split(",")[0].split()[:3])


if __name__ == "__main__":
    main()
