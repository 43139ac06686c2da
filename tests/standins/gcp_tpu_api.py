"""The Cloud TPU API's own description of itself, by its discovery document (tpu.v2.json)."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.standins.gcp_api import Api, Method
from tests.standins.gcp_errors import ApiError, real

PREFIX = "/v2/"
IN_PATH = {"type": "string", "location": "path", "required": True}
STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
}


class TpuError(ApiError):
    """In the form of Google's newer APIs: a status, and details instead of errors[]."""

    def __init__(
        self, code: int, message: str, status: str = "", details: tuple[Any, ...] = ()
    ) -> None:
        super().__init__(code, "", message, status or STATUSES.get(code, "UNKNOWN"))
        self.told = details

    def body(self) -> dict[str, Any]:
        error: dict[str, Any] = {"code": self.code, "message": self.message, "status": self.status}
        return {"error": {**error, **({"details": list(self.told)} if self.told else {})}}


def refused(entry: str, /, **names: object) -> TpuError:
    """A refusal of the corpus, in this form."""
    error = real(entry, **names).body()["error"]
    details = tuple(error.get("details", ()))
    return TpuError(error["code"], error["message"], error.get("status", ""), details)


def as_tpu_error(error: ApiError) -> TpuError:
    return TpuError(error.code, error.message)


def not_acted_out(what: str) -> TpuError:
    return TpuError(501, f"This stand-in does not act out {what}")


class TpuApi(Api):
    """The document's methods by their flat paths, `projects/{projectsId}/locations/…`."""

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__({**document, "resources": {}})
        self.methods = [_method(told) for told in _methods(document["resources"])]
        self._patterns = [(_pattern(method.path), method) for method in self.methods]

    def route(self, verb: str, url_path: str) -> tuple[Method, dict[str, str]]:
        path = url_path.removeprefix(PREFIX)
        for pattern, method in self._patterns:
            found = pattern.fullmatch(path)
            if found and method.verb == verb:
                return method, found.groupdict()
        raise refused("tpu-method-unknown", verb=verb, url_path=url_path)


def _methods(resources: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for resource in resources.values():
        yield from resource.get("methods", {}).values()
        yield from _methods(resource.get("resources", {}))


def _method(told: dict[str, Any]) -> Method:
    path = told["flatPath"].removeprefix("v2/")
    in_path = dict.fromkeys(re.findall(r"\{(\w+)\}", path), IN_PATH)
    given = told.get("parameters", {}).items()
    return Method(
        id=told["id"].replace("tpu.projects.locations.", "tpu."),
        verb=told["httpMethod"],
        path=path,
        parameters={**in_path, **{k: v for k, v in given if v["location"] != "path"}},
        request=told.get("request", {}).get("$ref"),
        response=told.get("response", {}).get("$ref"),
    )


def _pattern(path: str) -> re.Pattern[str]:
    escaped = re.escape(path).replace(r"\{", "{").replace(r"\}", "}")
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/:]+)", escaped))


@functools.cache
def tpu_api() -> TpuApi:
    import googleapiclient.discovery_cache

    folder = Path(googleapiclient.discovery_cache.__file__).parent / "documents"
    return TpuApi(json.loads((folder / "tpu.v2.json").read_text()))
