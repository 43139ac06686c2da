"""Stand-ins for gcloud, aws and az: they take the documented arguments, and connect by TCP.

Run as one of these names, with `CLOUD_CLIS` naming the folder that `cloud_clis` made. What they
check is what the real ones define: `start-iap-tunnel` of the Google Cloud SDK
(surface/compute/start_iap_tunnel.py), StartSession of botocore's service model, `az network bastion
tunnel` of azure-cli-extensions (src/bastion/azext_bastion/_params.py, custom.py, tunnel.py).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

NAMES = ("gcloud", "aws", "az", "session-manager-plugin")

SAID = {
    # google-github-actions/ssh-compute#44
    "gcloud": "ERROR: (gcloud.compute.start-iap-tunnel) Error while connecting "
    "[4033: 'not authorized'].",
    # aws/session-manager-plugin#5 has the form; AccessDeniedException is AWS' common error
    "aws": "\nAn error occurred (AccessDeniedException) when calling the StartSession operation: "
    "User: arn:aws:iam::123456789012:user/me is not authorized to perform: ssm:StartSession",
    # azext_bastion/custom.py
    "az": "ERROR: Bastion Host SKU must be Standard or Premium and Native Client must be enabled.",
}
NO_PLUGIN = (
    "\nSessionManagerPlugin is not found. Please refer to SessionManager Documentation here: "
    "http://docs.aws.amazon.com/console/systems-manager/session-manager-plugin-not-found"
)
NOT_UP_YET = {
    "gcloud": "ERROR: (gcloud.compute.start-iap-tunnel) Error while connecting [4003: 'failed to "
    "connect to backend'].",
    "aws": "\nAn error occurred (TargetNotConnected) when calling the StartSession operation: "
    "i-0 is not connected.",
    "az": "",
}


@dataclass
class CloudClis:
    """The programs in `folder`, which must come first in PATH."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            "CLOUD_CLIS": str(self.folder),
            "PATH": f"{self.folder}:{os.environ['PATH']}",
        }

    def calls(self) -> list[list[str]]:
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def set(self, fault: str) -> None:
        """`refused`, `hangs`, `dies` (after what starts a session), or "" for none."""
        (self.folder / "fault").write_text(fault)


@contextlib.contextmanager
def cloud_clis(folder: Path, find: Callable[[str], str]) -> Iterator[CloudClis]:
    """Programs that connect to `find(what is named)`, an address and port or "" for none."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {name} "$@"\n')
        program.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as directory:
        (folder / "directory").write_text(str(directory.getsockname()[1]))
        threading.Thread(target=_answer, args=(directory, find), daemon=True).start()
        try:
            yield CloudClis(folder)
        finally:
            with contextlib.suppress(OSError):
                directory.shutdown(socket.SHUT_RDWR)


def _answer(directory: socket.socket, find: Callable[[str], str]) -> None:
    while True:
        try:
            visitor, _ = directory.accept()
        except OSError:
            return
        with visitor, visitor.makefile("rw") as lines:
            try:
                found = find(lines.readline().strip())
            except Exception as error:  # noqa: BLE001 - a visitor is told, and the rest goes on
                found = f"? {error}"
            lines.write(f"{found}\n")
            lines.flush()


# ── As a program ─────────────────────────────────────────────────────────────

FOLDER = Path(os.environ.get("CLOUD_CLIS", "/nonexistent"))


def main(name: str, arguments: list[str]) -> None:
    with (FOLDER / "calls").open("a") as calls:
        calls.write(json.dumps([name, *arguments]) + "\n")
    {"gcloud": gcloud, "aws": aws, "az": az}[name](arguments)


def gcloud(arguments: list[str]) -> None:
    if arguments == ["version"]:
        print("Google Cloud SDK 502.0.0")
        return
    if arguments[:2] != ["compute", "start-iap-tunnel"]:
        fail(2, f"ERROR: (gcloud) Invalid choice: {arguments[:2]}")
    parser = argparse.ArgumentParser("gcloud compute start-iap-tunnel", allow_abbrev=False)
    parser.add_argument("instance_name")
    parser.add_argument("instance_port", type=int)
    parser.add_argument("--zone", required=True)
    parser.add_argument("--project", required=True)
    parser.add_argument("--local-host-port")
    parser.add_argument("--listen-on-stdin", action="store_true", required=True)
    parser.add_argument("--verbosity", choices=["debug", "info", "warning", "error", "critical"])
    parser.add_argument("--quiet", action="store_true")
    given = parser.parse_args(arguments[2:])
    assert given.instance_port == 22
    carry(reach("gcloud", given.instance_name), sys.stdin.fileno(), sys.stdout.fileno())


def aws(arguments: list[str]) -> None:
    if arguments == ["--version"]:
        print("aws-cli/2.22.0 Python/3.12.6 Linux/6.1.0 exe/x86_64.debian.12")
        return
    if arguments[:2] != ["ssm", "start-session"]:
        fail(252, f"aws: error: argument operation: Invalid choice: {arguments[:2]}")
    parser = argparse.ArgumentParser("aws ssm start-session", allow_abbrev=False)
    for name in ("--target", "--document-name", "--parameters", "--region"):
        parser.add_argument(name, required=True)
    for name in ("--profile", "--reason"):
        parser.add_argument(name)
    given = parser.parse_args(arguments[2:])
    assert given.document_name == "AWS-StartSSHSession"
    assert given.parameters == "portNumber=22"
    assert given.target.startswith("i-")
    if shutil.which("session-manager-plugin") is None:
        fail(255, NO_PLUGIN)
    carry(reach("aws", given.target), sys.stdin.fileno(), sys.stdout.fileno())


def az(arguments: list[str]) -> None:
    if arguments[:2] == ["extension", "show"]:
        print('"1.4.0"')
        return
    if arguments[:3] != ["network", "bastion", "tunnel"]:
        fail(2, f"ERROR: {arguments[:3]} is misspelled or not recognized by the system.")
    parser = argparse.ArgumentParser("az network bastion tunnel", allow_abbrev=False)
    for names in (("--name", "-n"), ("--resource-group", "-g"), ("--target-resource-id",)):
        parser.add_argument(*names, required=True)
    parser.add_argument("--resource-port", required=True)
    parser.add_argument("--port", type=int, required=True)
    for name in ("--timeout", "--subscription", "--target-ip-address"):
        parser.add_argument(name)
    given = parser.parse_args(arguments[3:])
    assert given.resource_port == "22"
    assert "/virtualMachines/" in given.target_resource_id
    fault("az")
    with socket.create_server(("localhost", given.port)) as door:
        print(f"Opening tunnel on port: {given.port}", file=sys.stderr)
        print("Ctrl + C to close", file=sys.stderr, flush=True)
        while True:  # one connection at a time: Azure/azure-cli#24600
            visitor, _ = door.accept()
            with visitor:
                carry(reach("az", given.target_resource_id), visitor.fileno(), visitor.fileno())


def fault(name: str) -> None:
    path = FOLDER / "fault"
    wanted = path.read_text() if path.exists() else ""
    if wanted == "refused":
        fail(1, SAID[name])
    if wanted == "hangs":
        time.sleep(600)


def reach(name: str, key: str) -> socket.socket:
    fault(name)
    port = int((FOLDER / "directory").read_text())
    with socket.create_connection(("127.0.0.1", port)) as asked, asked.makefile("rw") as lines:
        lines.write(f"{key}\n")
        lines.flush()
        place = lines.readline().strip()
    address, _, ssh_port = place.rpartition(":")
    try:
        return socket.create_connection((address, int(ssh_port)), 5)
    except (OSError, ValueError):
        fail(1, NOT_UP_YET[name])


def carry(connection: socket.socket, own: int, out: int) -> None:
    path = FOLDER / "fault"
    limit = 5000 if path.exists() and path.read_text() == "dies" else None
    passed = 0
    with connection:
        while True:
            ready, _, _ = select.select([own, connection.fileno()], [], [])
            if own in ready:
                data = os.read(own, 65536)
                if not data:
                    return
                connection.sendall(data)
            if connection.fileno() in ready:
                data = connection.recv(65536)
                if not data:
                    return
                os.write(out, data)
                passed += len(data)
            if limit is not None and passed > limit:
                fail(1, "the network is down")


def fail(code: int, text: str) -> NoReturn:
    print(text, file=sys.stderr, flush=True)
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
