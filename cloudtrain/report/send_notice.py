"""Sends one notice, and retries: a process of its own, which nothing waits for.

Its order comes on stdin, so that the URL, a secret, is in no process list: `{"url", "body",
"headers", "command", "given"}`. What came of it is printed, without the URL. It imports the
standard library alone, as what starts it may end at any moment."""

import http.client
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

PAUSES = (2.0, 8.0, 30.0, 120.0, 600.0)
"""Seconds before each further try."""
TIMEOUT = 20.0
AGENT = {"User-Agent": "cloudtrain"}
"""Discord answers 403 to urllib's own: https://github.com/discord/discord-api-docs/issues/4908"""
COMMAND_TIMEOUT = 300.0


class Unredirected(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: it could lead to a host that the user never named."""

    def redirect_request(self, *_: object) -> None:
        return None


def post(url: str, body: bytes, headers: "dict[str, str]") -> "tuple[str, bool]":
    """The problem, empty if none, and whether another try may help."""
    request = urllib.request.Request(url, data=body, headers={**AGENT, **headers}, method="POST")
    try:
        with urllib.request.build_opener(Unredirected).open(request, timeout=TIMEOUT):
            return "", False
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code}", error.code in (408, 425, 429) or error.code >= 500
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        return str(reason), True


def run(command: "list[str]", given: str) -> str:
    """The problem, empty if none."""
    try:
        done = subprocess.run(command, input=given.encode(), timeout=COMMAND_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return f"exit code {done.returncode}" if done.returncode else ""


def main() -> None:
    order = json.load(sys.stdin)
    os.chdir(order["folder"])
    if order["command"]:
        fault = run(order["command"], order["given"])
        print(f"{order['what']}: command: {fault or 'done'}", flush=True)
    if not order["url"]:
        return
    for pause in (*PAUSES, None):
        fault, again = post(order["url"], order["body"].encode(), order["headers"])
        print(f"{order['what']}: {fault or 'sent'}", flush=True)
        if not again or pause is None:
            return
        time.sleep(pause)


if __name__ == "__main__":
    main()
