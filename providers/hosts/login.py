"""Parts of a login that paramiko lacks: the named keys of ssh-agent, the server's last words."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import paramiko


class NamedKeys:
    """The agent's keys that belong to the named files, by their public halves beside them; all of
    its keys if no public half is there.

    Each key that a server refuses counts, so that others must not come first; and a file with a
    passphrase is of use only by the agent.
    """

    def __init__(self, files: Sequence[str]) -> None:
        self._agent = paramiko.Agent()
        self._public = {key for file in files if (key := _public_half(Path(file)))}

    def get_keys(self) -> tuple[paramiko.AgentKey, ...]:
        keys = self._agent.get_keys()
        named = tuple(key for key in keys if key.get_base64() in self._public)
        return named if self._public else keys

    def close(self) -> None:
        self._agent.close()


def _public_half(file: Path) -> str:
    with suppress(OSError, ValueError):
        words = file.with_name(f"{file.name.removesuffix('.pub')}.pub").read_text().split()
        return words[1] if len(words) > 1 else ""
    return ""


class Transport(paramiko.Transport):
    """paramiko's, which also keeps why the server ended the connection."""

    farewell = ""
    """The server's words, such as "Too many authentication failures"; paramiko only logs them."""

    def _parse_disconnect(self, message: paramiko.Message) -> None:
        message.get_int()
        self.farewell = message.get_text()
