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


def real(name: str, names: Mapping[str, str]) -> ApiError:
    """The refusal of that name in the corpus, with these names in the place of the recorded."""
    entry = recorded("gcp")[name]
    assert isinstance(entry.status, int), name
    whole = entry.json(**_of(entry, names))
    return RecordedError(entry.status, "", whole["error"]["message"], whole=whole)


def real_failure(name: str, names: Mapping[str, str], status: int = 503) -> Failure:
    """The same of an operation."""
    entry = recorded("gcp")[name]
    assert entry.status == "operation", name
    told = entry.json(**_of(entry, names))
    details = tuple(told.get("errorDetails", ()))
    return Failure(code=told["code"], message=told["message"], status=status, details=details)


def _of(entry: Recorded, names: Mapping[str, str]) -> dict[str, str]:
    return {name: given for name, given in names.items() if name in entry.names}


def answer(body: Any, code: int = 200) -> Response:
    text = json.dumps(body, indent=2)
    return Response(text, code, content_type="application/json; charset=UTF-8")


def front(message: str) -> ApiError:
    """What Google's front end says before Compute Engine sees the call."""
    return ApiError(400, "badRequest", message, "INVALID_ARGUMENT")


def invalid(field_name: str, value: object, why: str) -> ApiError:
    shown = value if isinstance(value, str) else json.dumps(value)
    message = f"Invalid value for field '{field_name}': '{shown}'. {why}"
    return ApiError(400, "invalid", message)


def bad_request(message: str) -> ApiError:
    return ApiError(400, "badRequest", message)


def required(field_name: str) -> ApiError:
    return ApiError(400, "required", f"Required field '{field_name}' not specified")


def not_found(path: str) -> ApiError:
    return ApiError(404, "notFound", f"The resource '{path}' was not found")


def already_exists(path: str) -> ApiError:
    return ApiError(409, "alreadyExists", f"The resource '{path}' already exists")


def not_ready(path: str) -> ApiError:
    return ApiError(400, "resourceNotReady", f"The resource '{path}' is not ready")


def in_use(kind: str, path: str, user: str) -> ApiError:
    message = f"The {kind} resource '{path}' is already being used by '{user}'"
    return ApiError(400, "resourceInUseByAnotherResource", message)


def changed(message: str) -> ApiError:
    header = {"location": "If-Match", "locationType": "header"}
    return ApiError(412, "conditionNotMet", message, details=header)
