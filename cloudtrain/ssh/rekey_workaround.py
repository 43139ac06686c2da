"""Prevents a deadlock of paramiko's reading thread with itself, in clients and servers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import paramiko

    _Transport = paramiko.Transport
else:
    _Transport = object


class SafeRekeying(_Transport):
    """Mix-in for a paramiko.Transport, to be listed before it.

    paramiko blocks all messages while keys change (each 512 MB). Its reading thread, which answers
    the close of a channel, would wait for itself until the connection is given up after 30 s
    (paramiko 5.1.0, Transport._send_user_message).
    """

    _held: list[paramiko.Message]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._held = []

    def _send_user_message(self, data: paramiko.Message) -> None:
        if threading.current_thread() is self and not self.clear_to_send.is_set():
            self._held.append(data)
        else:
            super()._send_user_message(data)  # type: ignore[misc]

    def _parse_newkeys(self, message: paramiko.Message) -> None:
        super()._parse_newkeys(message)  # type: ignore[misc]
        held, self._held = self._held, []
        for data in held:
            self._send_user_message(data)
