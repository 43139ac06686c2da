"""Refusals as Azure Resource Manager words them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from werkzeug.wrappers import Response

from tests.standins.refusals import recorded

Body = dict[str, Any]

BY_STATUS = {
    400: "BadRequest",
    401: "AuthenticationFailed",
    403: "AuthorizationFailed",
    404: "ResourceNotFound",
    408: "RequestTimeout",
    409: "Conflict",
    412: "PreconditionFailed",
    429: "TooManyRequests",
    500: "InternalServerError",
    502: "BadGateway",
    503: "ServiceUnavailable",
    504: "GatewayTimeout",
}


class Refusal(Exception):
    """What a call is refused with, or what an operation fails with."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        target: str | None = None,
        details: Sequence[Body] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.target = target
        self.details = tuple(details)
        self.headers = dict(headers or {})

    def error(self) -> Body:
        """The inner part, as an operation's status shows it too."""
        found: Body = {"code": self.code, "message": self.message}
        if self.target:
            found["target"] = self.target
        if self.details:
            found["details"] = list(self.details)
        return found

    def response(self) -> Response:
        text = json.dumps({"error": self.error()})
        response = Response(text, self.status, content_type="application/json; charset=utf-8")
        response.headers.update({"x-ms-failure-cause": "gateway", **self.headers})
        return response


def real(entry: str, /, **names: object) -> Refusal:
    """The refusal of that name in the corpus, with these names in the place of the recorded."""
    recording = recorded("azure")[entry]
    told = recording.json(**names)
    error = told.get("error", told)
    status = recording.status if isinstance(recording.status, int) else 409
    return Refusal(
        status,
        error["code"],
        error["message"],
        target=error.get("target"),
        details=error.get("details", ()),
        headers=dict(recording.headers),
    )


def of_status(status: int, code: str, message: str) -> Refusal:
    return Refusal(status, code or BY_STATUS.get(status, "BadRequest"), message)


def wanted_by_test(name: str, code: str) -> Refusal:
    return Refusal(409, code, f"A test wanted '{name}' to fail: {code}.")


def not_acted_out(what: str) -> Refusal:
    """For what the real one knows and this one does not: better than to ignore it."""
    return Refusal(501, "NotActedOut", f"The stand-in does not act out {what}.")
