"""Two nodes and their names."""

from __future__ import annotations

from cloudtrain.core.model import Node

NAMES = ["mnist-chief0", "mnist-worker0"]

NODES = [
    Node(
        name=name,
        role="worker",
        index=0,
        state="running",
        address=f"127.0.0.{number}",
        internal=f"127.0.0.{number}",
        ssh_port=port,
    )
    for name, number, port in zip(NAMES, (1, 2), (22, 2222), strict=True)
]
