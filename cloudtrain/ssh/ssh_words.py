"""paramiko's errors in the words of somebody who reads about SSH, not about its library."""

from __future__ import annotations

import re

_WORDS = (
    (
        r"SSH protocol banner|Invalid SSH banner",
        "what listens there is no SSH server, or busy",
    ),
    (r"No existing session|SSH session not active", "the server closed the connection"),
    (r"Incompatible ssh (?:peer|server)", "it shares no algorithm with this program"),
    (r"Key-exchange timed out|Negotiation failed|Timeout opening channel", "no answer in time"),
    (r"Unable to connect to", "nothing listens for SSH there, or it cannot be reached"),
    (r"No authentication methods available", "it takes no login by a key"),
    (r"Unable to open channel", "it opens no further channel (MaxSessions)"),
    (r"Illegal info|Bad host key|Signature verification", "the server breaks the SSH protocol"),
)
"""Messages of paramiko 5.0 (transport.py, client.py, auth_handler.py; read)."""


def in_words(error: BaseException) -> str:
    """Plain text of an error. An unknown message stays as it is; an error without one, such as
    EOFError, reads as a closed connection.
    """
    text = str(error).partition("\n")[0]
    found = next((words for pattern, words in _WORDS if re.search(pattern, text)), None)
    if found is not None:
        return found
    own = getattr(error, "strerror", None)
    return str(own or text or "the connection was closed")
