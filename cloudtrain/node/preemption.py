"""Asks the cloud whether it is about to preempt this node."""

import http.client
import json
import re
import urllib.parse
from typing import Any


def preempted(how: "dict[str, Any]", name: str) -> bool:
    """True if the cloud has announced that it will preempt this node; `how` is a Preemption of
    cloud.py.
    """
    address, headers = how["address"], dict(how["headers"])
    if how["token_path"]:
        token = asked(address, "PUT", how["token_path"], how["token_headers"])
        headers[how["token_header"]] = token
    answer = asked(address, "GET", how["path"], headers)
    if not how["event_type"]:
        return bool(how["answer"] and re.fullmatch(how["answer"], answer))
    try:
        events = json.loads(answer)["Events"]
        return any(e["EventType"] == how["event_type"] and name in e["Resources"] for e in events)
    except (ValueError, KeyError, TypeError):
        return False


def asked(address: str, method: str, place: str, headers: "dict[str, str]") -> str:
    """Return the answer of a metadata address; empty if it does not answer. Azure takes up to two
    minutes for its first answer.
    """
    target = urllib.parse.urlsplit(address)
    connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=150)
    try:
        connection.request(method, place, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()
    return body.decode("utf-8", "replace") if answer.status == 200 else ""
