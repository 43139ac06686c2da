"""Cost of a connection through `network.ssh_proxy`, against a direct one, on this machine.

    python bench/access.py [--nodes 32] [--rounds 5]

Real OpenSSH as nodes and as jump host; az is a program that does what its tunnel does, without
Azure: what the wrapper and a local port cost, not what the service does.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from cloudtrain.core.model import Node
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.shell import command
from cloudtrain.providers.azure import ssh_service as bastion
from cloudtrain.ssh.ssh_proxy import jump_command
from cloudtrain.ssh.transport import SshTransport
from tests.support.behind import behind_jump_host
from tests.support.cloud_clis import cloud_clis
from tests.support.sshd import SshdNode, sshd_nodes

SENT = 64 << 20
PIPE = (
    "import os,select,socket,sys\ns=socket.create_connection((sys.argv[1],int(sys.argv[2])))\n"
    "while True:\n r,_,_=select.select([0,s.fileno()],[],[])\n"
    " if 0 in r:\n  d=os.read(0,65536)\n  if not d: break\n  s.sendall(d)\n"
    " if s.fileno() in r:\n  d=s.recv(65536)\n  if not d: break\n  os.write(1,d)\n"
)
"""What the smallest program in between does."""
VM = "/subscriptions/S/resourceGroups/c/providers/Microsoft.Compute/virtualMachines/"
BASTION = "/subscriptions/S/resourceGroups/n/providers/Microsoft.Network/bastionHosts/b"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    names = [f"mnist-worker{number}" for number in range(given.nodes)]
    print("| | one, cold | one, warm | 64 MB there | " + f"{given.nodes} nodes, cold |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, sshd_nodes(Path(folder), names) as servers:
        by_name = {server.node.name: server.place for server in servers}
        report("direct", servers, lambda node: (), given.rounds)
        report("a program that copies", servers, piped, given.rounds)

        def find(key: str) -> str:
            address, port = by_name[key.rpartition("/")[2]]
            return f"{address}:{port}"

        with cloud_clis(Path(folder) / "clis", find) as clis:
            os.environ.update(clis.environment)
            report("bastion (wrapper, fake az)", servers, tunneled, given.rounds)
    with (
        tempfile.TemporaryDirectory() as folder,
        behind_jump_host(Path(folder), names) as behind,
    ):
        os.environ["PATH"] = f"{behind.programs}:{os.environ['PATH']}"
        report(
            "jump host",
            behind.nodes,
            lambda node: jump_command(behind.jump.name, node.address, node.ssh_port),
            given.rounds,
        )


def piped(node: Node) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", PIPE, node.address, str(node.ssh_port))


def tunneled(node: Node) -> tuple[str, ...]:
    return bastion.command(BASTION, VM + node.name)


def report(
    what: str,
    servers: Sequence[SshdNode],
    words: Callable[[Node], tuple[str, ...]],
    rounds: int,
) -> None:
    nodes = [dataclasses.replace(each.node, ssh_proxy=words(each.node)) for each in servers]
    identity = servers[0].identity
    data, line = bytes(SENT), command("sh", "-c", "cat >/dev/null")
    cold, warm, sent, many = [], [], [], []
    for _ in range(rounds):
        with SshTransport(identity) as ssh:
            cold.append(timed(ssh.ask, nodes[0], ":"))
            warm.append(timed(ssh.ask, nodes[0], ":"))
            sent.append(timed(ssh.run, nodes[0], line, stdin=data))
        with SshTransport(identity) as ssh:
            ask = partial(_ask, ssh)
            many.append(timed(fan_out, nodes, ask, name=str))
    figures = [f"{min(cold) * 1000:.0f} ms", f"{min(warm) * 1000:.1f} ms"]
    figures += [f"{min(sent):.2f} s", f"{statistics.median(many):.2f} s"]
    print(f"| {what} | {' | '.join(figures)} |", flush=True)


def _ask(ssh: SshTransport, node: Node) -> object:
    return ssh.ask(node, ":")


def timed(work: Callable[..., object], *arguments: object, **named: object) -> float:
    begun = time.perf_counter()
    work(*arguments, **named)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
