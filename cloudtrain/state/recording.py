"""Opens the file of `--record`, with the key of this machine's placeholders."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.recorder import Recorder, recording
from cloudtrain.state.files import make_folder, write_whole
from cloudtrain.state.folder import home

KEY = "record.key"
"""In the folder of the state: with it, a name can be compared with its placeholder."""


@contextmanager
def recorded_to(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Append what clouds answer to this file. Why it cannot be written is said, not raised."""
    with recording(Recorder(path, _key(), say)):
        yield


def _key() -> bytes:
    path = home() / KEY
    try:
        if not path.exists():
            make_folder(path.parent)
            write_whole(path, secrets.token_bytes(32))
        return path.read_bytes()
    except (OSError, CloudtrainError):
        return secrets.token_bytes(32)  # placeholders of this command alone
