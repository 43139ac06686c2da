"""Outcome of the command on a desk, kept on its disk: a later process does not run it again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from cloudtrain.core.codec import decode
from cloudtrain.state import home
from cloudtrain.state.files import write_whole


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Exit code of the command; `error` is its text, "" for none."""

    exit_code: int
    error: str = ""


def record_outcome(outcome: Outcome) -> None:
    data = json.dumps(asdict(outcome)).encode("ascii")
    write_whole(home() / "outcome.json", data)


def recorded_outcome() -> Outcome | None:
    """None while the command has not ended."""
    try:
        return decode(Outcome, json.loads((home() / "outcome.json").read_bytes()))
    except FileNotFoundError:
        return None
