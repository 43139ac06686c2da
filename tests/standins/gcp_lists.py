"""Lists: filtered, sorted, in pages, over one scope or all."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from tests.standins import gcp_errors as errors
from tests.standins.gcp_api import PARTIAL, api
from tests.standins.gcp_filter import parse
from tests.standins.gcp_world import Body, Call

Item = tuple[str, Body]
"""Its scope (`zones/z`, `global`) and what is told of it."""


def page(call: Call, kind: str, items: Sequence[Item]) -> Body:
    """Of one scope."""
    shown, token = _cut(call, kind, items)
    answer: Body = {
        "kind": f"compute#{_lower(kind)}List",
        "id": f"projects/{call.world.project}/{call.scope}/{call.method.partition('.')[0]}",
        "selfLink": call.world.link(
            f"projects/{call.world.project}/{call.scope}/{call.method.partition('.')[0]}"
        ),
    }
    if shown:
        answer["items"] = [body for _, body in shown]
    if token:
        answer["nextPageToken"] = token
    return answer


def pages_of_all(
    call: Call, kind: str, items: Sequence[Item], scopes: Sequence[str], down: Sequence[str] = ()
) -> Body:
    """Of all scopes: each is in the answer, with a warning where it has nothing to show. One that
    is down fails it, unless that was asked for otherwise."""
    if down and not call.given.get(PARTIAL):
        raise errors.real("list-unreachable", scope=down[0])
    collection = call.method.partition(".")[0]
    shown, token = _cut(call, kind, items)
    told: dict[str, Body] = {}
    for scope in scopes:
        here = [body for place, body in shown if place == scope]
        told[scope] = {collection: here} if here else {"warning": _nothing(scope)}
    for scope in down:
        told[scope] = {"warning": _unreachable(scope)}
    path = f"projects/{call.world.project}/aggregated/{collection}"
    answer: Body = {
        "kind": f"compute#{_lower(kind)}AggregatedList",
        "id": path,
        "items": told,
        "selfLink": call.world.link(path),
    }
    if down:
        answer["unreachables"] = [
            call.world.link(f"projects/{call.world.project}/{scope}") for scope in down
        ]
    if token:
        answer["nextPageToken"] = token
    return answer


def _cut(call: Call, kind: str, items: Sequence[Item]) -> tuple[list[Item], str | None]:
    given: dict[str, Any] = call.given
    most = given.get("maxResults", 500)
    if not 0 <= most <= 500:
        raise errors.real("max-results-invalid", field="maxResults", value=str(most))
    chosen = sorted(items, key=lambda item: (item[0], item[1]["name"]))
    if text := given.get("filter"):
        test = parse(text, lambda path: api().has_field(kind, path))
        chosen = [item for item in chosen if test(item[1])]
    order = given.get("orderBy", "name")
    if order == "creationTimestamp desc":
        chosen.sort(key=lambda item: str(item[1].get("creationTimestamp")), reverse=True)
    elif order != "name":
        raise errors.real("order-invalid", field="orderBy", value=order)
    start = _read_token(given["pageToken"]) if "pageToken" in given else 0
    end = start + (most or 500)
    token = base64.urlsafe_b64encode(f"from {end}".encode()).decode()
    return chosen[start:end], token if end < len(chosen) else None


def _read_token(token: str) -> int:
    try:
        word, _, number = base64.urlsafe_b64decode(token).decode().partition(" ")
        if word == "from":
            return int(number)
    except ValueError:
        pass
    raise errors.real("page-token-invalid", field="pageToken", value=token)


def _lower(kind: str) -> str:
    return kind[0].lower() + kind[1:]


def _nothing(scope: str) -> Body:
    return {
        "code": "NO_RESULTS_ON_PAGE",
        "message": f"There are no results for scope '{scope}' on this page.",
        "data": [{"key": "scope", "value": scope}],
    }


def _unreachable(scope: str) -> Body:
    return {
        "code": "UNREACHABLE",
        "message": f"The scope '{scope}' is not reachable.",
        "data": [{"key": "scope", "value": scope}],
    }
