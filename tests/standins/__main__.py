"""A stand-in to play with: `python -m tests.standins aws`, then `cloudtrain up` beside it."""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from tests.standins.cloud import DESCRIPTIONS, Cloud, running
from tests.standins.faults import EVER


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.standins", description=__doc__)
    parser.add_argument("cloud", choices=sorted(DESCRIPTIONS))
    parser.add_argument("--port", type=int, default=0, help="by default any free one")
    parser.add_argument("--nodes", action="store_true", help="real nodes behind the VMs (root)")
    parser.add_argument(
        "--node-files", type=Path, metavar="FOLDER", help="laid over each node's disk: etc/pip.conf"
    )
    parser.add_argument("--store", action="store_true", help="the cloud's object store, too")
    parser.add_argument("--delay", type=float, metavar="S", help="seconds per operation")
    parser.add_argument("--latency", type=float, metavar="S", help="seconds per call")
    parser.add_argument("--json", action="store_true", help="one line; ends with its stdin")
    given = parser.parse_args()
    if given.node_files is not None and not (given.nodes and given.node_files.is_dir()):
        parser.error("--node-files wants --nodes and a folder")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` ignores it
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as stack:
        nodes = stack.enter_context(_nodes(given.node_files)) if given.nodes else None
        store = stack.enter_context(_store(given.cloud)) if given.store else None
        cloud = stack.enter_context(running(given.cloud, given.port, nodes))
        if store is not None:
            cloud.environment = {**store.environment, **cloud.environment}
        if given.delay is not None:
            cloud.set(delay=given.delay)
        if given.latency:
            cloud.fault("delay", action="*", seconds=given.latency, times=EVER)
        if given.json:
            told = {"url": cloud.url, "environment": cloud.environment}
            print(json.dumps({**told, "endpoints": cloud.endpoints}), flush=True)
            with suppress(KeyboardInterrupt):
                sys.stdin.read()
        else:
            _for_a_person(cloud, store.uri if store else None)


def _for_a_person(cloud: Cloud, store: str | None) -> None:
    for name, value in cloud.environment.items():
        print(f"export {name}={shlex.quote(value)}")
    print(f"# placement: [{', '.join(cloud.placement)}]")
    if store:
        print(f"# artifacts: {{store: {store}}}")
    print(f"# what it holds: curl -k {cloud.url}/_standin/holdings", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        print("# what it held:", *cloud.holdings(), sep="\n# ")


def _nodes(files: Path | None) -> Any:
    from tests.standins.nodes import Nodes

    return Nodes(files=files)


def _store(cloud: str) -> Any:
    from tests.standins.stores import KINDS

    return KINDS[DESCRIPTIONS[cloud].store]()


if __name__ == "__main__":
    main()
