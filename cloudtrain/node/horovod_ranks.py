"""Starts the Horovod ranks of a worker's node and waits for them.

Run by the Python that has Horovod installed. Works like `horovodrun --gloo`, with Horovod's own
placement and rendezvous, but needs no SSH between the nodes: each node starts its own ranks.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from ipaddress import ip_address

import psutil
from horovod.runner.common.util.hosts import SlotInfo, get_host_assignments, parse_hosts
from horovod.runner.gloo_run import create_slot_env_vars
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

GRACE = 5.0
"""Seconds between TERM and KILL for the other ranks of this node when one has failed."""


def main() -> int:
    """Arguments: `node:slots,…` of all nodes, this node's name, the first node's address and port,
    the address of any other node, and a rank's shell line."""
    hosts, me, address, port, peer, line = sys.argv[1:]
    everywhere = parse_hosts(hosts)
    slots = get_host_assignments(everywhere, sum(host.slots for host in everywhere))
    mine = [slot for slot in slots if slot.hostname == me]
    if mine[0].rank == 0:
        serve(address, int(port), slots)
    else:
        wait_for(address, int(port))
    network = interface(peer)
    environment = {
        "HOROVOD_GLOO_IFACE": network,
        "NCCL_SOCKET_IFNAME": network,
        **os.environ,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
    }
    ranks = [start(line, {**environment, **create_slot_env_vars(slot)}) for slot in mine]
    copiers = [copier(mine[index], rank) for index, rank in enumerate(ranks) if len(ranks) > 1]
    code = outcome(ranks)
    for thread in copiers:
        thread.join()
    return code if code >= 0 else 128 - code


def serve(address: str, port: int, slots: "list[SlotInfo]") -> None:
    """Serve the rendezvous, where ranks learn each other's addresses, while this process lives."""
    try:
        ip_address(address)  # a machine's own name often resolves to its loopback
        server = RendezvousHTTPServer((address, port), RendezvousHandler, False)
    except (ValueError, OSError):  # also for a router's address, which is not this machine's
        server = RendezvousHTTPServer(("", port), RendezvousHandler, False)
    server.init(slots)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def wait_for(address: str, port: int) -> None:
    """Wait for the rendezvous: Horovod itself tries three times within two seconds and gives up."""
    limit = time.monotonic() + float(os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"])
    while True:
        try:
            socket.create_connection((address, port), timeout=2).close()
            return
        except OSError as error:
            if time.monotonic() > limit:
                sys.exit(f"Horovod's rendezvous at {address}:{port} does not answer: {error}")
            time.sleep(0.2)


def interface(peer: str) -> str:
    """The network interface on the route to another node. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, 9))
        own = probe.getsockname()[0]
    name: str
    for name, addresses in psutil.net_if_addrs().items():
        if any(its.address == own for its in addresses):
            return name
    return "lo"  # loopback addresses such as 127.0.0.2


def start(line: str, environment: "dict[str, str]") -> "subprocess.Popen[bytes]":
    alone = environment["HOROVOD_LOCAL_SIZE"] == "1"
    return subprocess.Popen(
        [shutil.which("bash") or "/bin/sh", "-c", line],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=None if alone else subprocess.PIPE,
        stderr=None if alone else subprocess.STDOUT,
        start_new_session=True,
    )


def copier(slot: SlotInfo, rank: "subprocess.Popen[bytes]") -> threading.Thread:
    """Prefix each line with its rank, if several ranks share a log."""

    def copy() -> None:
        for line in rank.stdout or ():
            sys.stdout.buffer.write(b"[%d] %s" % (slot.rank, line))
            sys.stdout.buffer.flush()

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    return thread


def outcome(ranks: "list[subprocess.Popen[bytes]]") -> int:
    """Exit code of the first rank that failed, else 0; ends the others, which may be waiting."""
    while True:
        codes = [rank.poll() for rank in ranks]
        failed = next((code for code in codes if code), 0)
        if failed or None not in codes:
            break
        time.sleep(0.1)
    limit = time.monotonic() + GRACE
    for number in (signal.SIGTERM, signal.SIGKILL):
        left = [rank for rank in ranks if rank.poll() is None]
        for rank in left:
            os.killpg(rank.pid, number)
        while any(rank.poll() is None for rank in left) and time.monotonic() < limit:
            time.sleep(0.05)
    return failed


if __name__ == "__main__":
    sys.exit(main())
