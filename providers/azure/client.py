"""Resource Manager client for one subscription: retries, paging, long-running operations."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

from cloudtrain.core import errors
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.retry import poll_until
from cloudtrain.identities.azure import AzureIdentity, identity
from cloudtrain.providers.azure import faults, paths
from cloudtrain.providers.azure.shared_poll import NOT_DONE, SharedPoll
from cloudtrain.providers.base.answers import objects
from cloudtrain.providers.base.http import CloudAnswer, HttpClient, Tree
from cloudtrain.providers.base.timing import Timing, require_network

ENDPOINT = "https://management.azure.com"
OPERATION = 300.0
"""Seconds to wait for an operation, except for those on VMs and groups."""
REFUSED_TOKENS = frozenset({"ExpiredAuthenticationToken", "InvalidAuthenticationToken"})
QUESTIONS = 20.0
"""Maximum polls of operations per second by all threads together; Azure accepts about 25."""
DONE = frozenset({"succeeded", "failed", "canceled", ""})

T = TypeVar("T")


def endpoint_of(config: ClusterConfig) -> str | None:
    """The configured endpoint; None for the public cloud's."""
    return config.endpoints.compute or os.environ.get("ARM_ENDPOINT") or None


class ArmClient:
    """Resource Manager client for one subscription. Thread-safe. Every method raises CloudError.
    All calls are idempotent."""

    def __init__(self, config: ClusterConfig, timing: Timing) -> None:
        self.timing = timing
        self.endpoint = (endpoint_of(config) or ENDPOINT).rstrip("/")
        self._prefix = urlsplit(self.endpoint).path
        self._authority = config.endpoints.auth
        self._subscription = config.project or os.environ.get("AZURE_SUBSCRIPTION_ID") or ""
        self.given = config.resource_group
        """Name of the user's resource group that everything is created in, if any."""
        self._http = HttpClient("azure", "Azure", faults.TABLE)
        self._watches: dict[str, SharedPoll] = {}
        self._facts: dict[str, Any] = {}
        self._versions: dict[tuple[str, str], str] = {}
        self._zonal: set[str] = set()
        """Paths of what was requested in a zone."""
        self._asking = 0
        self._lock = threading.Lock()

    @property
    def subscription(self) -> str:
        """The subscription ID of the config or environment, or the only one that is seen."""
        with self._lock:
            if self._subscription:
                return self._subscription
            found = [s for s in self.pages("/subscriptions") if s.get("subscriptionId")]
            if not found:
                raise errors.CredentialsError(
                    "these credentials see no subscription",
                    hint="run `az login`, get a role in one, or set `project` or "
                    "AZURE_SUBSCRIPTION_ID",
                )
            if len(found) > 1:
                names = [f"{s['subscriptionId']} ({s.get('displayName', '')})" for s in found]
                raise errors.CredentialsError(
                    f"these credentials see several subscriptions: {', '.join(names)}",
                    hint="set `project: ID` or AZURE_SUBSCRIPTION_ID",
                )
            self._subscription = str(found[0]["subscriptionId"])
            return self._subscription

    @property
    def _identity(self) -> AzureIdentity:
        return identity(self._authority)

    @property
    def path(self) -> str:
        return f"/subscriptions/{self.subscription}"

    def group(self, name: str) -> paths.Group:
        return paths.Group(self.subscription, name)

    def group_for(self, cluster: str, region: str) -> paths.Group:
        """The resource group of a cluster's resources in a region."""
        return self.group(self.given or paths.group_name(cluster, region))

    def token(self) -> str:
        try:
            with faults.TABLE.mapped("token for Azure"):
                return self._identity.token(f"{self.endpoint}/.default")
        except errors.CredentialsError:  # without any, a network is not what lacks
            raise
        except errors.CloudError:
            require_network(self.endpoint)
            raise

    # ── One call ─────────────────────────────────────────────────────────────

    def call(
        self,
        method: str,
        path: str,
        body: Tree | None = None,
        *,
        query: Mapping[str, str] | None = None,
        retried: type[errors.CloudError] | None = None,
    ) -> CloudAnswer:
        """Send one request, retried while it is throttled, unanswered or raises `retried`. Falls
        back to an older API version if this endpoint does not support ours yet."""
        wanted = None if "api-version=" in path else paths.version(path)
        if wanted is None:
            return self._call(method, path, body, query or {}, retried)
        key = (wanted, paths.type_of(path))
        version = self.version(path) or wanted
        given = {**(query or {}), "api-version": version}
        try:
            return self._call(method, path, body, given, retried)
        except errors.CloudError as error:
            if not faults.wants_another_version(error):
                raise
            older = paths.newest(faults.versions(error), wanted)
            if older in (None, version):
                raise
            self._versions[key] = str(older)
            given["api-version"] = str(older)
            return self._call(method, path, body, given, retried)

    def version(self, path: str) -> str | None:
        """The API version for a path: ours, or an older one that this endpoint supports."""
        wanted = paths.version(path)
        return self._versions.get((wanted or "", paths.type_of(path)), wanted)

    def _call(
        self,
        method: str,
        path: str,
        body: Tree | None,
        query: Mapping[str, str],
        retried: type[errors.CloudError] | None,
    ) -> CloudAnswer:
        url = f"{path}{'&' if '?' in path else '?'}{urlencode(query)}" if query else path
        asked = f"{method} {_short(path)}"
        if body and body.get("zones"):
            self._zonal.add(path)

        def once(token: str) -> CloudAnswer:
            headers = {"Authorization": f"Bearer {token}"}
            answer = self._http.ask(asked, self.endpoint, method, url, headers=headers, body=body)
            if answer.ok:
                return answer
            raise faults.of_answer(
                asked,
                status=answer.status,
                headers=answer.headers,
                body=answer.text,
                reach=self._reach(path),
            )

        def signed() -> CloudAnswer:
            token = self.token()
            try:
                return once(token)
            except errors.CredentialsError as error:
                if error.code not in REFUSED_TOKENS:
                    raise
                self._identity.forget(token)
                try:
                    return once(self.token())
                except errors.CredentialsError as again:
                    raise self._identity.cured(again) from again.__cause__

        return self.timing.call(signed, also=retried)

    def get(self, path: str, **query: str) -> Tree:
        body = self.call("GET", path, query=query).body or {}
        if not isinstance(body, dict):
            raise TypeError(f"GET {_short(path)} is not an object: {body!r:.60}")
        return body

    def fact(self, path: str) -> Any:
        """Content of a path, asked once: for what does not change during a command."""
        if path not in self._facts:
            self._facts[path] = self.call("GET", path).body
        return self._facts[path]

    def find(self, path: str, **query: str) -> Tree | None:
        """The resource; None if it does not exist."""
        try:
            return self.get(path, **query)
        except errors.NotFoundError:
            return None

    def pages(self, path: str, **query: str) -> list[Tree]:
        """All items of a list over all its pages."""
        answer = self.get(path, **query)
        found: list[Tree] = [*objects(answer, "value")]
        seen: set[str] = set()
        while answer.get("nextLink"):
            link = paths.local(answer["nextLink"], self._prefix)
            if link in seen:
                raise errors.TransientError(
                    f"GET {_short(path)}: the same page is returned repeatedly"
                )
            seen.add(link)
            answer = self.get(link)
            found += objects(answer, "value")
        return found

    def pages_if_told(self, path: str, **query: str) -> list[Tree]:
        """All items of a list; none where `ask_or_none` returns None."""
        return ask_or_none(lambda: self.pages(path, **query)) or []

    def rights(self, scope: str = "") -> list[Tree]:
        """This principal's actions in a scope, by default the subscription; none if not told."""
        path = f"{scope or self.path}/providers/Microsoft.Authorization/permissions"
        return errors.if_told(lambda: self.pages(path), [])

    # ── Long-running operations ──────────────────────────────────────────────

    def put(self, path: str, body: Tree) -> None:
        """Create or update a resource and wait for it; again while what it needs is not ready."""
        self.made(path, self.call("PUT", path, body, retried=errors.BusyError))

    def made(self, path: str, answer: CloudAnswer, *, within: float = OPERATION) -> None:
        """Wait for the resource of a PUT, by one list for all of its kind. Raises its error."""
        if _is_ready(answer):
            return
        kind = path.rpartition("/")[0]
        if "/providers/" in kind:
            with self._lock:
                if kind not in self._watches:
                    self._watches[kind] = SharedPoll(
                        lambda: self.pages(kind), lambda thing: state_of(thing) in DONE, self.timing
                    )
            watch, pause = self._watches[kind], answer.retry_after
            found = ask_or_none(lambda: watch.wait(path, within=within, pause=pause))
            if state_of(found) == "succeeded":
                return
        # The list does not report its state, or reports a failure without a reason.
        self.finish("PUT", path, answer, within=within)

    def delete(self, path: str, *, within: float = OPERATION) -> None:
        """Delete a resource and wait until it is gone. Deleting one that no longer exists is not an
        error; one that is still in use is retried for a while."""
        try:
            begun = self.call("DELETE", path, retried=errors.BusyError)
            self.finish("DELETE", path, begun, within=within)
        except errors.NotFoundError:
            return

    def finish(
        self, method: str, path: str, answer: CloudAnswer, *, within: float = OPERATION
    ) -> None:
        """Wait for the operation that `answer` belongs to. Raises the operation's error. Azure
        reports operations in three ways:
        https://learn.microsoft.com/azure/azure-resource-manager/management/async-operations"""
        if _is_ready(answer):
            return
        asked = f"{method} {_short(path)}"
        operation = answer.headers.get("azure-asyncoperation")
        location = answer.headers.get("location")
        polled = _Polled(answer.retry_after)
        if operation:
            reach = self._reach(path)
            known = self._until(
                asked, lambda: self._operation(asked, operation, reach, polled), within, polled
            )
        elif location and answer.status == 202:
            known = self._until(asked, lambda: self._location(location, polled), within, polled)
        elif method == "DELETE":
            known = answer.status != 202
        else:
            known = method != "PUT" or not isinstance(answer.body, dict)
        if not known and method == "DELETE":
            self._until(asked, lambda: True if self.find(path) is None else None, within)
        elif not known:
            self.settle(asked, path, within=within)

    def settle(self, asked: str, path: str, *, within: float = OPERATION) -> None:
        """Wait until the resource itself reports that it is ready. Raises the resource's error."""

        def ask() -> bool | None:
            thing = self.get(path)
            state = state_of(thing)
            if state in ("failed", "canceled"):
                told = thing["properties"]
                # The instance view has the reason if it is a VM.
                if "/virtualmachines/" in path.lower() and "instanceView" not in told:
                    view = ask_or_none(lambda: self.get(f"{path}/instanceView"))
                    thing = {"properties": {**told, "instanceView": view or {}}}
                raise faults.of_error(asked, failure_reason(thing), reach=self._reach(path))
            return True if state in DONE else None

        self._until(asked, ask, within)

    def _reach(self, path: str) -> errors.Scope:
        return "zone" if path in self._zonal else "region"

    def _operation(self, asked: str, url: str, reach: errors.Scope, polled: _Polled) -> bool | None:
        """Query an operation once: True when it has succeeded, None while it runs, False if Azure
        no longer knows it, or does not tell it to a role on one resource group."""
        answer = self._hear(url, polled)
        if answer is None:
            return False
        operation = answer.body if isinstance(answer.body, dict) else {}
        state = str(operation.get("status") or state_of(operation)).lower()
        if state in ("failed", "canceled", "cancelled"):
            error = operation.get("error") or {"code": state.capitalize()}
            raise faults.of_error(asked, error, reach=reach)
        return True if state in DONE else None

    def _location(self, url: str, polled: _Polled) -> bool | None:
        """Query a `Location` URL once: True at the operation's end; else as `_operation`."""
        answer = self._hear(url, polled)
        if answer is None:
            return False
        return None if answer.status == 202 else True

    def _hear(self, url: str, polled: _Polled) -> CloudAnswer | None:
        try:
            answer = self.call("GET", paths.local(url, self._prefix))
        except (errors.NotFoundError, errors.PermissionsError):
            return None
        polled.wait = answer.retry_after
        return answer

    def _until(
        self, asked: str, ask: Callable[[], T | None], within: float, polled: _Polled | None = None
    ) -> T:
        """Poll `ask` until it returns something other than None, and return that; no sooner than
        the last answer told. Raises TransientError on a timeout."""
        clock, polls = self.timing.clock, self.timing.polls

        def sleep(seconds: float) -> object:
            least = polled.wait if polled is not None else 0.0
            return clock.sleep(max(seconds, least, self._asking / QUESTIONS))

        polls = replace(polls, pause=polls.pause / 2, within=within)
        with self._lock:
            self._asking += 1
        try:
            found = poll_until(ask, polls, clock=replace(clock, sleep=sleep))
        finally:
            with self._lock:
                self._asking -= 1
        if found is None:
            raise errors.TransientError(f"{asked}: timed out after {within:.0f} s", code=NOT_DONE)
        return found


@dataclass
class _Polled:
    """Time until an operation may be asked for again, as the answers told:
    https://learn.microsoft.com/azure/azure-resource-manager/management/async-operations"""

    wait: float


def side_by_side(*questions: Callable[[], T]) -> list[T]:
    """Run these calls in parallel and return their results. If several fail, raises only the first
    failure: they usually have the same cause."""
    numbers = list(range(len(questions)))
    try:
        return fan_out(numbers, lambda number: questions[number](), name=str)
    except errors.NodesError as failures:
        raise next(iter(failures.failures.values())) from None


def ask_or_none(ask: Callable[[], T]) -> T | None:
    """The result of `ask`; None if this endpoint says it is unsupported, forbidden or malformed."""
    try:
        return ask()
    except errors.CloudError as error:
        if faults.is_unknown_question(error) or isinstance(
            error, errors.PermissionsError | errors.CloudConfigError
        ):
            return None
        raise


def failure_reason(thing: Tree) -> Any:
    """The provisioning error of a failed VM, or its provisioning state."""
    view = thing.get("properties", {}).get("instanceView") or {}
    for status in view.get("statuses") or ():
        prefix, _, code = str(status.get("code", "")).partition("/failed")
        if prefix == "ProvisioningState":
            return {"code": code.strip("/"), "message": status.get("message") or ""}
    state = thing.get("properties", {}).get("provisioningState", "")
    return {"code": "", "message": f"provisioning ended as {state}"}


def _is_ready(answer: CloudAnswer) -> bool:
    return answer.status in (200, 201) and state_of(answer.body) == "succeeded"


def state_of(body: Any) -> str:
    """The provisioning state of a resource or group, in lower case; "" if not reported."""
    properties = body.get("properties") if isinstance(body, dict) else None
    state = properties.get("provisioningState") if isinstance(properties, dict) else None
    return str(state or "").lower()


def _short(path: str) -> str:
    """Shorten a path for messages: `networkInterfaces/mnist-worker0`."""
    return "/".join(path.partition("?")[0].strip("/").split("/")[-2:])
