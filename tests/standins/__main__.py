"""A stand-in to play with: `python -m tests.standins aws`, then `cloudtrain up` beside it."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import threading

from tests.standins.cloud import DESCRIPTIONS, Cloud, running
from tests.standins.faults import EVER


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.standins", description=__doc__)
    parser.add_argument("cloud", choices=sorted(DESCRIPTIONS))
    parser.add_argument("--port", type=int, default=0, help="by default any free one")
    parser.add_argument("--nodes", action="store_true", help="real nodes behind the VMs (root)")
    parser.add_argument("--delay", type=float, metavar="S", help="seconds per operation")
    parser.add_argument("--latency", type=float, metavar="S", help="seconds per call")
    parser.add_argument("--json", action="store_true", help="one line; ends with its stdin")
    given = parser.parse_args()
    nodes = _nodes() if given.nodes else None
    with running(given.cloud, given.port, nodes) as cloud:
        if given.delay is not None:
            cloud.set(delay=given.delay)
        if given.latency:
            cloud.fault("delay", action="*", seconds=given.latency, times=EVER)
        if given.json:
            told = {"url": cloud.url, "environment": cloud.environment}
            print(json.dumps({**told, "endpoints": cloud.endpoints}), flush=True)
            sys.stdin.read()
        else:
            _for_a_person(cloud)


def _for_a_person(cloud: Cloud) -> None:
    for name, value in cloud.environment.items():
        print(f"export {name}={shlex.quote(value)}")
    print(f"# placement: [{', '.join(cloud.placement)}]")
    print(f"# what it holds: curl -k {cloud.url}/_standin/holdings", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        print("# what it held:", *cloud.holdings(), sep="\n# ")


def _nodes() -> object:
    from tests.standins.nodes import Nodes

    return Nodes()


if __name__ == "__main__":
    main()
