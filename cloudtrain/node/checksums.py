"""Computes the SHA-256 of files as they are now."""

import hashlib
import json
import os
import sys

from cloudtrain.node import client

PIECE = 1 << 20


def main() -> None:
    """Print `[line number, SHA-256]` of each file that stdin names in JSON and can be read."""
    os.chdir(client.plain(client.order()["folder"]))
    client.attend()
    for number, line in enumerate(sys.stdin.buffer):
        digest = hashlib.sha256()
        try:
            with open(client.plain(json.loads(line.decode())), "rb", buffering=0) as file:
                for piece in iter(lambda: file.read(PIECE), b""):
                    digest.update(piece)
        except OSError:
            continue
        client.tell([number, digest.hexdigest()])
