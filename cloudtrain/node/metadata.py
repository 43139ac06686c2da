"""Asks the cloud's metadata service of a preemption of this node, or for a token of its identity.

`how` is a Preemption or a TokenQuery of core/cloud.py. A token is discarded, and never in a text.
"""

import json
import re
import time

TYPE_CHECKING = False  # `typing` takes longer to import than all the rest
if TYPE_CHECKING:
    from typing import Any

PAUSE = 1.0
"""Seconds between two tries."""
CONNECT = 5.0
"""Seconds for each request for a token."""
PATIENT = 150.0
"""The same for a notice: Azure takes up to two minutes for its first answer."""


class Refused(Exception):
    """The service answered, but not with what it was asked for."""


def preempted(how: "dict[str, Any]", name: str) -> bool:
    """True if the cloud has announced that it will preempt this node."""
    try:
        answer = asked(how, "GET", how["path"], with_session(how, PATIENT), PATIENT)
        if not how["event_type"]:
            return bool(how["answer"] and re.fullmatch(how["answer"], answer))
        events = json.loads(answer)["Events"]
        return any(e["EventType"] == how["event_type"] and name in e["Resources"] for e in events)
    except (Refused, OSError, ValueError, KeyError, TypeError):
        return False


def refusal(how: "dict[str, Any]") -> str:
    """Reason why no token can be had; empty if one can. Tries for the `seconds` of `how`, as a new
    identity is not known to the service at once."""
    deadline = time.monotonic() + how["seconds"]
    while True:
        why = tried(how)
        if not why or time.monotonic() >= deadline:
            return why
        time.sleep(PAUSE)


def tried(how: "dict[str, Any]") -> str:
    path = how["path"]
    try:
        headers = with_session(how)
        if how["listed"]:
            path += asked(how, "GET", path, headers).split("\n")[0].strip()
        answer = json.loads(asked(how, "GET", path, headers))
        if not answer.get(how["key"]):
            # AWS says so with status 200:
            # https://docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot_iam-ec2.html
            text = " ".join(str(answer.get(name, "")) for name in ("Code", "Message")).strip()
            return text or "the answer has no {}".format(how["key"])
        scope = how["scope"]
        if scope and scope not in asked(how, "GET", how["scopes_path"], headers).split():
            return f"this VM was not created with the scope {scope}"
    except Refused as error:
        return str(error)
    except OSError as error:
        return "{} does not answer ({})".format(how["address"], error)
    except (ValueError, AttributeError):
        return "the answer of {}{} is no JSON object".format(how["address"], path)
    return ""


def with_session(how: "dict[str, Any]", seconds: float = CONNECT) -> "dict[str, str]":
    """Headers of a request, with the token of a session if the service gives one."""
    headers = dict(how["headers"])
    if how["token_path"]:
        token = asked(how, "PUT", how["token_path"], how["token_headers"], seconds)
        headers[how["token_header"]] = token
    return headers


def asked(
    how: "dict[str, Any]",
    method: str,
    path: str,
    headers: "dict[str, str]",
    seconds: float = CONNECT,
) -> str:
    """Ask once. Raises OSError without an answer, and Refused for any status but 200."""
    import http.client  # only here: it takes longer than the rest of the probe's start
    import urllib.parse

    target = urllib.parse.urlsplit(how["address"])
    connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=seconds)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        body = answer.read().decode("utf-8", "replace")  # type: str
    except http.client.HTTPException as error:
        raise OSError(type(error).__name__) from error
    finally:
        connection.close()
    if answer.status != 200:
        text = " ".join(body.split())[:200]
        raise Refused(f"HTTP {answer.status} for {path} {text}".strip())
    return body
