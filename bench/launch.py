"""Seconds to run a trivial command on N nodes: cloudtrain beside its peers, in one run.

    python -m venv peers && peers/bin/pip install -r bench/requirements.txt
    python bench/launch.py --peers-env peers --nodes 2 8 32 128 --runs 3

Every node is an OpenSSH sshd of this machine. Cold is a whole process with all its imports; warm is
a second call over connections that are open. All tools take turns within each round.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from cloudtrain.ssh.keys import ssh_config  # noqa: E402
from tests.support.sshd import SshdNode, children_of_all, eventually, sshd_nodes  # noqa: E402

OURS = "cloudtrain"
OURS_CODE = """
import json, sys, time
from pathlib import Path
from cloudtrain.core.codec import decode
from cloudtrain.core.parallel import fan_out
from cloudtrain.ssh.keys import load_identity
from cloudtrain.core.model import Node
from cloudtrain.core.shell import command
from cloudtrain.ssh.transport import SshTransport

folder, warm = Path(sys.argv[1]), len(sys.argv) > 2
nodes = [decode(Node, facts) for facts in json.loads((folder / "nodes.json").read_text())]
with SshTransport(load_identity(folder.parent / "identity")) as ssh:
    def run(node): assert ssh.run(node, command("true")).exit_code == 0
    def ask(node): assert ssh.ask(node, "true").exit_code == 0
    def timed(call):
        began = time.perf_counter()
        fan_out(nodes, call, name=lambda node: node.name)
        return time.perf_counter() - began
    timed(run)
    if warm:
        timed(ask)
        print(json.dumps({"warm": timed(ask), "channel": timed(run)}))
"""
FABRIC_CODE = """
import json, sys, time
from pathlib import Path
from fabric import ThreadingGroup
folder, warm = Path(sys.argv[1]), len(sys.argv) > 2
nodes = json.loads((folder / "nodes.json").read_text())
group = ThreadingGroup(
    *(f"{node['user']}@{node['address']}:{node['ssh_port']}" for node in nodes),
    connect_kwargs={"key_filename": str(folder.parent / "identity" / "key")},
)
group.run("true", hide=True, in_stream=False)
if warm:
    began = time.perf_counter()
    group.run("true", hide=True, in_stream=False)
    print(json.dumps({"warm": time.perf_counter() - began}))
"""
PARALLEL_SSH_CODE = """
import json, sys, time
from pathlib import Path
from pssh.clients import ParallelSSHClient
from pssh.config import HostConfig
folder, warm = Path(sys.argv[1]), len(sys.argv) > 2
nodes = json.loads((folder / "nodes.json").read_text())
client = ParallelSSHClient(
    [node["address"] for node in nodes], pkey=str(folder.parent / "identity" / "key"),
    host_config=[HostConfig(port=node["ssh_port"], user=node["user"]) for node in nodes],
    pool_size=len(nodes), allow_agent=False, identity_auth=False,
)
def run():
    output = client.run_command("true")
    client.join(output)
    assert [host.exit_code for host in output] == [0] * len(nodes)
run()
if warm:
    began = time.perf_counter()
    run()
    print(json.dumps({"warm": time.perf_counter() - began}))
"""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """`cold` is one command line; `warm` runs and gives its figure, where the tool has any."""

    name: str
    cold: Callable[[Path, int], list[str]]
    warm: Callable[[Path, int], float] | None = None


def main() -> None:
    options = _options()
    options.load = os.getloadavg()[0]
    tools = _tools(options.peers_env)
    cold: dict[tuple[str, int], list[float]] = {}
    warm: dict[tuple[str, int], list[float]] = {}
    floors: dict[int, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="ct") as place:
        folder = Path(place)
        names = [f"n{number}" for number in range(max(options.nodes))]
        with sshd_nodes(folder, names) as servers:
            for count in options.nodes:
                _describe(folder / f"size{count}", servers[:count])
            for number in range(options.runs):
                for count in options.nodes:
                    size = folder / f"size{count}"
                    turn = number % len(tools)
                    for tool in tools[turn:] + tools[:turn]:
                        before = _cpu(servers[:count])
                        cold.setdefault((tool.name, count), []).append(
                            _wall(tool.cold(size, count), size)
                        )
                        _await_quiet(servers[:count])
                        if tool.name == OURS:
                            after = _cpu(servers[:count])
                            floors.setdefault(count, []).append(
                                (after[0] - before[0], after[1] - before[1])
                            )
                        if tool.warm is not None:
                            warm.setdefault((tool.name, count), []).append(tool.warm(size, count))
                            _await_quiet(servers[:count])
                    print(f"round {number + 1}, {count} nodes done", file=sys.stderr)
    report = _report([tool.name for tool in tools], options, cold, warm, floors)
    options.output.write_text(report)
    print(report)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_AsWritten)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 8, 32, 128])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--peers-env", type=Path, help="virtual environment of the peers")
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "launch.md")
    return parser.parse_args()


class _AsWritten(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of the module's docstring."""


def _tools(peers: Path | None) -> list[Tool]:
    """All that are here, ours first."""
    ours = [sys.executable, "-c", OURS_CODE]
    tools = [_python_tool(OURS, ours)]
    if peers is not None:
        programs = peers.resolve() / "bin"
        python = str(programs / "python")
        tools += [
            _python_tool("fabric ThreadingGroup", [python, "-c", FABRIC_CODE]),
            _python_tool("parallel-ssh", [python, "-c", PARALLEL_SSH_CODE]),
            Tool(
                name="pyinfra",
                cold=lambda size, count: [
                    *(str(programs / "pyinfra"), "-y", "--parallel", str(count)),
                    *(str(size / "pyinfra_inventory.py"), "exec", "--", "true"),
                ],
            ),
            Tool(
                name="clush",
                cold=lambda size, count: [
                    *(str(programs / "clush"), "-S", "-f", str(count), "-o", f"-F {size}/config"),
                    *("-w", ",".join((size / "names").read_text().split()), "true"),
                ],
            ),
            Tool(
                name="ansible raw",
                cold=lambda size, count: _ansible(programs, size, count, "-o ControlMaster=no"),
                warm=lambda size, count: _warm_by_master(
                    lambda options: _ansible(programs, size, count, options), size
                ),
            ),
        ]
    if shutil.which("ssh"):
        tools += [
            Tool(
                name="OpenSSH in parallel",
                cold=lambda size, count: _openssh(size, ""),
                warm=lambda size, count: _warm_by_master(
                    lambda options: _openssh(size, options), size
                ),
            ),
            Tool(
                name="OpenSSH, curve25519",
                cold=lambda size, count: _openssh(size, "-o KexAlgorithms=curve25519-sha256"),
            ),
        ]
    return tools


def _python_tool(name: str, line: list[str]) -> Tool:
    def warm(size: Path, count: int) -> float:
        output = subprocess.run(
            [*line, str(size), "warm"], check=True, capture_output=True, text=True, env=_env(size)
        ).stdout
        return float(json.loads(output)["warm"])

    return Tool(name=name, cold=lambda size, count: [*line, str(size)], warm=warm)


def _ansible(programs: Path, size: Path, count: int, options: str) -> list[str]:
    """Its own `ssh_args` would come first and keep masters of its own for a minute."""
    return [
        *("env", f"ANSIBLE_SSH_ARGS=-F {size}/config {options}"),
        *(str(programs / "ansible"), "all", "-i", str(size / "names"), "-f", str(count)),
        *("-m", "raw", "-a", "true"),
    ]


def _openssh(size: Path, options: str) -> list[str]:
    names = (size / "names").read_text().split()
    jobs = "\n".join(f'ssh -F "$0" {options} {name} true & jobs="$jobs $!"' for name in names)
    script = f"{jobs}\nfor job in $jobs; do wait $job || exit 1; done"
    return ["/bin/sh", "-c", script, f"{size}/config"]


def _warm_by_master(line: Callable[[str], list[str]], size: Path) -> float:
    """The second of two whole processes that share connections through OpenSSH's ControlMaster."""
    with tempfile.TemporaryDirectory(prefix="cm") as sockets:
        options = f"-o ControlMaster=auto -o ControlPersist=60 -o ControlPath={sockets}/%n"
        try:
            _wall(line(options), size)
            return _wall(line(options), size)
        finally:
            for socket in Path(sockets).iterdir():
                subprocess.run(
                    ["ssh", "-O", "exit", "-o", f"ControlPath={socket}", socket.name],
                    capture_output=True,
                    check=False,
                )


def _wall(line: list[str], size: Path) -> float:
    # A file, as a ControlMaster in the background would keep a pipe open.
    with (size / "output").open("wb") as output:
        began = time.perf_counter()
        done = subprocess.run(
            line,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env=_env(size),
            check=False,
        )
        seconds = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"{line[:3]} failed:\n{(size / 'output').read_text()[-4000:]}")
    return seconds


def _env(size: Path) -> dict[str, str]:
    """No agent, no settings of the user."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG")}
    quiet = {"ANSIBLE_LOCALHOST_WARNING": "False", "ANSIBLE_DEPRECATION_WARNINGS": "False"}
    return {**kept, **quiet, "HOME": str(size), "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}


def _describe(size: Path, servers: list[SshdNode]) -> None:
    """The same nodes in each tool's own words."""
    size.mkdir()
    nodes = [server.node for server in servers]
    identity = servers[0].identity
    (size / "names").write_text("".join(f"{node.name}\n" for node in nodes))
    (size / "config").write_text(ssh_config(identity, nodes))
    (size / "nodes.json").write_text(json.dumps([asdict(node) for node in nodes]))
    hosts = [
        (
            node.name,
            {
                "ssh_hostname": node.address,
                "ssh_port": node.ssh_port,
                "ssh_user": node.user,
                "ssh_key": str(identity.private_key),
                "ssh_known_hosts_file": str(identity.known_hosts),
            },
        )
        for node in nodes
    ]
    (size / "pyinfra_inventory.py").write_text(f"nodes = {hosts!r}\n")


def _cpu(servers: list[SshdNode]) -> tuple[float, float]:
    """CPU seconds so far: of the servers with their ended sessions, and of our ended children."""
    ticks = 0
    for server in servers:
        stat = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(int(field) for field in stat[11:15])
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ticks / os.sysconf("SC_CLK_TCK"), own.ru_utime + own.ru_stime


def _await_quiet(servers: list[SshdNode]) -> None:
    """Sessions of the last call have ended, so that they are not in the next one's time."""

    def quiet() -> bool:
        children = children_of_all()
        return not any(children.get(server.pid) for server in servers)

    eventually(quiet, seconds=60)


def _report(
    tools: list[str],
    options: argparse.Namespace,
    cold: dict[tuple[str, int], list[float]],
    warm: dict[tuple[str, int], list[float]],
    floors: dict[int, list[tuple[float, float]]],
) -> str:
    sizes = options.nodes
    cores = os.cpu_count() or 1
    head = "| | " + " | ".join(f"{size} nodes" for size in sizes) + " |\n"
    rule = "|---|" + "---|" * len(sizes) + "\n"
    lines = [
        "# A trivial command on N nodes\n\n",
        f"Made by `python bench/launch.py --nodes {' '.join(map(str, sizes))} "
        f"--runs {options.runs}` with the peers of bench/requirements.txt: {cores} cores, "
        f"{platform.system()}, Python {platform.python_version()}; every node an OpenSSH sshd on "
        f"loopback, load average {options.load:.1f} at the start. "
        "Best of the runs in seconds, median in brackets, then the ratio to ours.\n\n",
        "## Cold: a whole process, imports and connections included\n\n",
        head,
        rule,
        *(_row(tool, sizes, cold) for tool in tools),
        _floor_row("sshd's own CPU / cores", sizes, cold, floors, cores, lambda cpu: cpu[0]),
        _floor_row("… and our CPU / cores", sizes, cold, floors, cores, lambda cpu: sum(cpu)),
        "\n## Warm: a second call over open connections\n\n",
        "Ours: a script in the persistent shell. Ansible and OpenSSH: a second process over "
        "ControlMaster. The others have no such mode of their own.\n\n",
        head,
        rule,
        *(_row(tool, sizes, warm) for tool in tools if (tool, sizes[0]) in warm),
    ]
    return "".join(lines)


def _row(tool: str, sizes: list[int], figures: dict[tuple[str, int], list[float]]) -> str:
    cells = []
    for size in sizes:
        best, ours = min(figures[tool, size]), min(figures[OURS, size])
        ratio = "" if tool == OURS else f" · {best / ours:.1f} ×"
        cells.append(f"{best:.3f} ({statistics.median(figures[tool, size]):.3f}){ratio}")
    name = f"**{tool}**" if tool == OURS else tool
    return f"| {name} | " + " | ".join(cells) + " |\n"


def _floor_row(
    name: str,
    sizes: list[int],
    cold: dict[tuple[str, int], list[float]],
    floors: dict[int, list[tuple[float, float]]],
    cores: int,
    part: Callable[[tuple[float, float]], float],
) -> str:
    cells = []
    for size in sizes:
        floor = min(part(cpu) for cpu in floors[size]) / cores
        cells.append(f"{floor:.3f} · ours is {min(cold[OURS, size]) / floor:.2f} × of it")
    return f"| floor: {name} | " + " | ".join(cells) + " |\n"


if __name__ == "__main__":
    main()
