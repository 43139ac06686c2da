"""Google's refusals: `{"error": {"code", "message", "errors": [{"domain", "reason", …}]}}`.

The shape and the reasons are those of https://cloud.google.com/compute/docs/api/how-tos/errors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from werkzeug.wrappers import Response

from tests.standins.refusals import Recorded, recorded

REASONS = {
    400: "badRequest",
    401: "authError",
    403: "forbidden",
    404: "notFound",
    409: "alreadyExists",
    412: "conditionNotMet",
    429: "rateLimitExceeded",
    500: "internalError",
    501: "notImplemented",
    503: "backendError",
}
"""What stands in `errors[0].reason` where nothing more exact is known."""

STATUS_TEXTS = {400: "BAD REQUEST", 403: "FORBIDDEN", 404: "NOT FOUND", 409: "CONFLICT"}
STATUS_TEXTS |= {500: "INTERNAL SERVER ERROR", 503: "SERVICE UNAVAILABLE"}
"""`httpErrorMessage` of a failed operation."""


@dataclass
class ApiError(Exception):
    """A call that is refused at once."""

    code: int
    reason: str
    message: str
    status: str | None = None
    """Only Google's front end gives it, in words such as INVALID_ARGUMENT."""
    details: dict[str, Any] = field(default_factory=dict)
    """More members of `errors[0]`."""

    def body(self) -> dict[str, Any]:
        limits = ("rateLimitExceeded", "quotaExceeded", "userRateLimitExceeded")
        first = {
            "message": self.message,
            "domain": "usageLimits" if self.reason in limits else "global",
            "reason": self.reason,
            **self.details,
        }
        error: dict[str, Any] = {"code": self.code, "message": self.message, "errors": [first]}
        if self.status:
            error["status"] = self.status
        return {"error": error}

    def response(self) -> Response:
        return answer(self.body(), self.code)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why an operation that was accepted ends without its work."""

    code: str
    message: str
    status: int
    details: tuple[dict[str, Any], ...] = ()

    def fields(self) -> dict[str, Any]:
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.details:
            error["errorDetails"] = list(self.details)
        return {
            "error": {"errors": [error]},
            "httpErrorStatusCode": self.status,
            "httpErrorMessage": STATUS_TEXTS.get(self.status, "ERROR"),
        }


@dataclass
class RecordedError(ApiError):
    """A call that is refused as a real one was."""

    whole: dict[str, Any] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        return self.whole


def real(entry: str, /, **names: object) -> ApiError:
    """The refusal of that name in the corpus, with these names in the place of the recorded."""
    told = recorded("gcp")[entry]
    assert isinstance(told.status, int), entry
    whole = told.json(**_of(told, names))
    return RecordedError(told.status, "", whole["error"]["message"], whole=whole)


def real_failure(entry: str, /, *, status: int = 503, **names: object) -> Failure:
    """The same of an operation."""
    told = recorded("gcp")[entry]
    assert told.status == "operation", entry
    error = told.json(**_of(told, names))
    details = tuple(error.get("errorDetails", ()))
    return Failure(code=error["code"], message=error["message"], status=status, details=details)


def _of(told: Recorded, names: Mapping[str, object]) -> dict[str, object]:
    return {name: given for name, given in names.items() if name in told.names}


def answer(body: Any, code: int = 200) -> Response:
    text = json.dumps(body, indent=2)
    return Response(text, code, content_type="application/json; charset=UTF-8")


def at_once(failure: Failure, status: int, reason: str) -> ApiError:
    """What an operation would have ended with, as the answer to the call."""
    return ApiError(status, reason, failure.message)


def of_status(status: int, code: str, message: str) -> ApiError:
    return ApiError(status, code or REASONS.get(status, "backendError"), message)


def wanted_by_test(told: Mapping[str, Any]) -> Failure:
    details = tuple(told.get("errorDetails", ()))
    return Failure(
        code=told["code"], message=told["message"], status=told["status"], details=details
    )


def not_acted_out(what: str) -> ApiError:
    """For what the real one knows and this one does not: better than to ignore it."""
    return ApiError(501, "notImplemented", f"This stand-in does not act out {what}")
