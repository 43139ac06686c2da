"""Asks the cloud's metadata service for a token of this node's identity, and discards it."""

import json
import time
from typing import Any

PAUSE = 1.0
"""Seconds between two tries."""
CONNECT = 5.0
"""Seconds for each request."""


class Refused(Exception):
    """The service answered, but not with a token."""


def refusal(how: "dict[str, Any]") -> str:
    """Why no token can be had; empty if one can. Never contains a token.

    `how` is a TokenQuery of cloud.py with `seconds`: for how long to try, as a new identity is not
    known to the service at once.
    """
    deadline = time.monotonic() + how["seconds"]
    while True:
        why = tried(how)
        if not why or time.monotonic() >= deadline:
            return why
        time.sleep(PAUSE)


def tried(how: "dict[str, Any]") -> str:
    headers = dict(how["headers"])
    path = how["path"]
    try:
        if how["token_path"]:
            session = asked(how, "PUT", how["token_path"], how["token_headers"])
            headers[how["token_header"]] = session
        if how["listed"]:
            path += asked(how, "GET", path, headers).split("\n")[0].strip()
        answer = json.loads(asked(how, "GET", path, headers))
        if not answer.get(how["key"]):
            # AWS says so with status 200:
            # https://docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot_iam-ec2.html
            words = " ".join(str(answer.get(name, "")) for name in ("Code", "Message")).strip()
            return words or "the answer has no {}".format(how["key"])
        if (
            how["scope"]
            and how["scope"] not in asked(how, "GET", how["scopes_path"], headers).split()
        ):
            return "this VM was not created with the scope {}".format(how["scope"])
    except Refused as error:
        return str(error)
    except OSError as error:
        return "{} does not answer ({})".format(how["address"], error)
    except (ValueError, AttributeError):
        return "the answer of {}{} is no JSON object".format(how["address"], path)
    return ""


def asked(how: "dict[str, Any]", method: str, path: str, headers: "dict[str, str]") -> str:
    """Raises OSError without an answer, and Refused for any status but 200; such answers have no
    token.
    """
    import http.client  # only here: it takes longer than the rest of the probe's start
    import urllib.parse

    target = urllib.parse.urlsplit(how["address"])
    connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=CONNECT)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        body = answer.read().decode("utf-8", "replace")  # type: str
    except http.client.HTTPException as error:
        raise OSError(type(error).__name__) from error
    finally:
        connection.close()
    if answer.status != 200:
        words = " ".join(body.split())[:200]
        raise Refused(f"HTTP {answer.status} for {path} {words}".strip())
    return body
