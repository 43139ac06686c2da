"""paramiko's transport, which also keeps why the server ended the connection."""

from __future__ import annotations

import paramiko


class Transport(paramiko.Transport):
    farewell = ""
    """The server's words, such as "Too many authentication failures"; paramiko only logs them."""

    def _parse_disconnect(self, message: paramiko.Message) -> None:
        message.get_int()
        self.farewell = message.get_text()
