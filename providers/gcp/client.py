"""Client for one project: paging, retries, and waiting for operations."""

from __future__ import annotations

import copy
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

from cloudtrain.core.errors import (
    BusyError,
    CloudConfigError,
    CloudError,
    NameTakenError,
    NotFoundError,
    RateError,
    TransientError,
)
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.partial_list import NotAsked
from cloudtrain.core.retry import report_wait
from cloudtrain.providers.base.answers import typed
from cloudtrain.providers.base.http import TIMEOUT, CloudAnswer, HttpClient, require_url
from cloudtrain.providers.base.timing import Timing
from cloudtrain.providers.base.wishes import Wishes
from cloudtrain.providers.gcp import faults
from cloudtrain.providers.gcp.credentials import Credentials

GOOGLE = "https://compute.googleapis.com/compute/v1"
OVERRIDE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"
"""Environment variable of gcloud for a custom endpoint:
https://cloud.google.com/sdk/gcloud/reference/topic/configurations"""

WAITING = 150.0
"""Timeout in seconds of a call that waits for an operation; Google may take 120 s to answer it."""


def endpoint(config: ClusterConfig) -> str | None:
    """The URL of a custom Compute Engine endpoint, without a last slash; None for Google's."""
    url = config.endpoints.compute or os.environ.get(OVERRIDE)
    if not url:
        return None
    require_url(url, "use a URL such as https://compute.googleapis.com/compute/v1/")
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/compute/v1'}"


Json = dict[str, Any]
T = TypeVar("T")

OPERATION = 300.0
"""Seconds to wait for an operation."""
_PARTIAL_TOO = "returnPartialSuccess"
WISHES = ("preemptionNoticeDuration", "requestValidForDuration", "nicType", "mtu", _PARTIAL_TOO)
"""Fields that some endpoints and projects refuse, such as those that some pages call Beta."""
BUSY = 120.0
"""Seconds to wait until a resource that blocks a request is gone."""


class GcpClient:
    """Client for one project. Paths are relative to it, or start with `projects/` or `b/`. Every
    error is one of `errors`, with `what` and Google's own words. TransientError and RateError are
    raised only after many retries."""

    def __init__(self, config: ClusterConfig, timing: Timing) -> None:
        self.timing = timing
        self.endpoint = endpoint(config)
        self.service = "compute.googleapis.com"
        self.credentials = Credentials(config)
        self.url = self.endpoint or GOOGLE
        self._http = _http(TIMEOUT)
        self.described: dict[str, Json] = {}
        """Machine types that Google has described, by name: they do not change during a command."""
        self.wishes = Wishes(*WISHES)
        self._waits = True
        self._waiter = self.at(self.url, WAITING)

    def at(self, url: str, seconds: float = TIMEOUT, *, service: str = "") -> GcpClient:
        """Client for another Google service, or with another timeout, with the same credentials."""
        other = copy.copy(self)
        other.service = service or self.service
        other.url, other._http = url, _http(seconds)
        return other

    def other(self, variable: str, google: str, version: str) -> GcpClient | None:
        """Client for another service; None if only Compute Engine has a custom endpoint.

        `variable`: gcloud's for such an endpoint. `google`: the service's own. `version`: what
        either may lack at the end of its path."""
        url = os.environ.get(variable) or (None if self.endpoint else google)
        if url is None:
            return None
        end, name = f"/{version}" if version else "", urlsplit(google).hostname or ""
        return self.at(url.rstrip("/").removesuffix(end) + end, service=name)

    def brief(self, seconds: float) -> GcpClient:
        """Client for the same service that retries for these seconds at most."""
        other = copy.copy(self)
        calls = replace(self.timing.calls, within=seconds)
        other.timing = replace(self.timing, calls=calls)
        return other

    @property
    def project(self) -> str:
        return self.credentials.project

    def path(self, path: str) -> str:
        """The path from `projects/` on, the form in which resources reference each other."""
        return path if path.startswith(("projects/", "b/")) else f"projects/{self.project}/{path}"

    def get(self, what: str, path: str) -> Json:
        return self.call(what, "GET", path)

    def find(self, what: str, path: str) -> Json | None:
        """The resource; None if it does not exist."""
        try:
            return self.get(what, path)
        except NotFoundError:
            return None

    def pages(self, what: str, path: str, **params: str) -> Iterator[Json]:
        """Yield all pages of a list. Raises TransientError for an incomplete page: an unreachable
        zone may hold machines. For an aggregated list, `unreachable_places` reports that
        instead."""
        wanted: dict[str, str] = {"maxResults": "500", **params}
        while True:
            if path.startswith("aggregated/"):
                page = self._partial_page(what, path, wanted)
            else:
                page = self.call(what, "GET", path, params=wanted)
                if missing := unreachable_places(what, page):
                    raise TransientError(
                        f"{what}: the list is incomplete: {', '.join(map(str, missing))}",
                        hint="nodes there may be running: run it again once the zone answers",
                    )
            yield page
            token = page.get("nextPageToken")
            if not token:
                return
            wanted = {**wanted, "pageToken": str(token)}

    def _partial_page(self, what: str, path: str, params: Mapping[str, str]) -> Json:
        """Fetch one page with `returnPartialSuccess`: else one unreachable zone fails the list. Not
        every version of the API supports the parameter:
        https://cloud.google.com/compute/docs/reference/rest/v1/instances/aggregatedList"""
        wanted = self.wishes.without_refused({**params, _PARTIAL_TOO: "true"})
        try:
            return self.call(what, "GET", path, params=wanted)
        except CloudConfigError as error:
            if not self.wishes.refused(error, wanted):
                raise
            return self._partial_page(what, path, params)

    def call(
        self,
        what: str,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Json | None = None,
    ) -> Json:
        action = self.path(path)
        return self.timing.call(lambda: self._once(what, method, action, params, body))

    def run(
        self,
        what: str,
        method: str,
        path: str,
        *,
        body: Json | None = None,
        new_vm: bool = False,
        undo: Callable[[], None] = lambda: None,
        accepted: Callable[[], bool] | None = None,
    ) -> Json:
        """Send a call that changes something and wait for its operation, or until `accepted` says
        that the rest may take hours; call `undo` if it fails. A wish that is refused is left out.

        Raises BusyError for a transient failure, which `persist` retries. Each `run` has a new
        request ID, shared by its retries: for an old ID, Google would return an operation up to an
        hour old and create nothing."""
        sent = self.wishes.without_refused(body)
        params = {"requestId": str(uuid.uuid4())}
        try:
            operation = self.call(what, method, path, params=params, body=sent)
            operation = self._done(what, self.path(path), operation, accepted)
            error = self.failure(what, operation, self.path(path), new_vm=new_vm)
            if error is not None:
                if not isinstance(error, NameTakenError):
                    undo()
                raise error
        except CloudConfigError as error:
            if not self.wishes.refused(error, sent):
                raise
            return self.run(
                what, method, path, body=body, new_vm=new_vm, undo=undo, accepted=accepted
            )
        return operation

    def persist(self, attempt: Callable[[], T], *, within: float = BUSY) -> T:
        """Retry `attempt` while it raises BusyError, for at most `within` seconds."""

        def report(_: BusyError, __: float, taken: float) -> None:
            words = "another resource must be gone first"
            report_wait(f"waiting at most {within:.0f} s: {words}", taken=taken)

        polls = replace(self.timing.polls, within=within)
        return polls.call(attempt, on=BusyError, before_pause=report, clock=self.timing.clock)

    def _done(
        self, what: str, path: str, operation: Json, accepted: Callable[[], bool] | None
    ) -> Json:
        parts = path.split("/")  # projects/P/zones/Z, …/regions/R or …/global
        scope = "/".join(parts[: 3 if parts[2] == "global" else 4])
        latest, path = operation, f"{scope}/operations/{operation.get('name')}"

        def ask() -> Json | None:
            nonlocal latest
            if latest.get("status") != "DONE":
                latest = self._latest(what, path) if accepted else self._progress(what, path)
            enough = latest.get("status") == "DONE" or (accepted is not None and accepted())
            return latest if enough else None

        done = self.timing.until(ask, within=OPERATION)
        if done is None:
            raise TransientError(f"{what}: timed out after {OPERATION:.0f} s")
        return done

    def _progress(self, what: str, path: str) -> Json:
        """Wait for an operation. Google answers `wait` when it is done, or after two minutes. The
        rate quota allows one such call a node, not polling: /compute/docs/api/best-practices."""
        if self._waits:
            try:
                return self._waiter.call(what, "POST", f"{path}/wait")
            except NotFoundError:
                pass  # not every endpoint supports it
        latest = self._latest(what, path)
        self._waits = False
        return latest

    def _latest(self, what: str, path: str) -> Json:
        try:
            return self.get(what, path)
        except NotFoundError as error:
            raise TransientError(error.message, code=error.code) from error

    def _once(
        self,
        what: str,
        method: str,
        action: str,
        params: Mapping[str, str] | None,
        body: Json | None,
    ) -> Json:
        def send(*, renew: bool = False) -> CloudAnswer:
            headers = self.credentials.headers(renew=renew)
            return self._http.ask(
                what, self.url, method, action, headers=headers, params=params, body=body
            )

        answer = send()
        if answer.status == 401:  # the token may have been revoked before it expired
            answer = send(renew=True)
        if isinstance(answer.body, dict):
            return answer.body
        if answer.ok:
            raise TransientError(f"{what}: the response is not a JSON object")
        raise faults.of_answer(
            what,
            status=answer.status,
            headers=answer.headers,
            body=answer.text,
            path=action,
            facts=self._facts(action),
        )

    def _facts(self, path: str) -> dict[str, str]:
        """Facts that hints may name."""
        project = path.split("/")[1] if path.startswith("projects/") else "-"
        return {"api": self.service, **({} if project == "-" else {"project": project})}

    def failure(self, what: str, operation: Json, path: str, *, new_vm: bool) -> CloudError | None:
        """The error of an operation on `path`; None if it has none."""
        errors = (operation.get("error") or {}).get("errors") or []
        if errors:
            error = faults.of_operation(
                what, errors, new_vm=new_vm, path=path, facts=self._facts(path)
            )
        elif int(operation.get("httpErrorStatusCode") or 0) >= 400:
            status = int(operation["httpErrorStatusCode"])
            words = {"message": operation.get("httpErrorMessage")}
            error = faults.of_error(what, words, status=status, path=path, facts=self._facts(path))
        else:
            return None
        if isinstance(error, RateError | TransientError):
            return BusyError(error.message, hint=error.hint, code=error.code)
        return error


def _http(seconds: float) -> HttpClient:
    return HttpClient("gcp", "Google Cloud", faults.TABLE, timeout=seconds)


_PARTIAL = ("UNREACHABLE", "PARTIAL_SUCCESS", "LIST_OVERHEAD_QUOTA_EXCEED")


def unreachable_places(what: str, page: Json) -> list[NotAsked]:
    """The zones and regions missing from this page of a list, each once, with Google's
    reason: https://cloud.google.com/compute/docs/reference/rest/v1/instances/aggregatedList"""
    missing = {str(place).rpartition("/")[2]: "" for place in typed(page, "unreachables", list)}
    items = page.get("items")
    scoped = items.items() if isinstance(items, dict) else ()
    for place, part in [("", page), *scoped]:
        warning = (part.get("warning") or {}) if isinstance(part, dict) else {}
        if warning.get("code") in _PARTIAL and (place or not missing):
            words = str(warning.get("message") or warning["code"])
            missing[place.rpartition("/")[2]] = words
    return [
        NotAsked(place=place, why=f"{what}: {words or 'unreachable'}")
        for place, words in missing.items()
    ]
