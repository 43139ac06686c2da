"""Programs for nodes whose pauses are shorter than a user's, as a test must not wait for them."""

from __future__ import annotations

import re

import pytest

from cloudtrain.core import ship

PAUSES = {
    ("client.py", "EVERY"): 0.1,  # heartbeats
    ("horovod_ranks.py", "GRACE"): 0.5,  # between SIGTERM and SIGKILL
    ("web.py", "PAUSE"): 0.02,  # before the second try
}


def hurry_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent to nodes from now on, in this process."""
    whole = ship.text

    def text(name: str) -> str:
        found = whole(name)
        for (file, constant), seconds in PAUSES.items():
            if file == name:
                line = rf"^{constant} = .*$"
                found, count = re.subn(line, f"{constant} = {seconds}", found, flags=re.MULTILINE)
                assert count == 1, f"{name} has no {constant}"
        return found

    monkeypatch.setattr(ship, "text", text)
    monkeypatch.setattr(ship, "_source", ship._source.__wrapped__)
