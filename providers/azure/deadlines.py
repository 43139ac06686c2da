"""Ends at a date and time: scheduled deallocations of Microsoft.ComputeSchedule."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from cloudtrain.core.errors import (
    CloudConfigError,
    CloudError,
    CredentialsError,
    TransientError,
)
from cloudtrain.providers.azure import paths, requests
from cloudtrain.providers.azure.client import ArmClient, ask_or_none
from cloudtrain.providers.azure.resource_providers import DEADLINES, ResourceProviders
from cloudtrain.providers.base.answers import unix_time
from cloudtrain.providers.base.http import Tree

MOST = 100
"""Operations in one request (learn.microsoft.com/rest/api/computeschedule, read 2026-11)."""
UNKNOWN = "not known to Azure"
"""State of an operation that Azure does not report."""
PENDING = frozenset({"pendingscheduling", "scheduled", "pendingexecution", "executing", "unknown"})


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """Answer of Microsoft.ComputeSchedule to the request for an end; empty without that service."""

    operation: str = ""
    refusal: CloudError | None = None


@dataclass(frozen=True, kw_only=True)
class Report:
    """An operation as Azure reports it."""

    state: str
    at: float
    """Unix time."""


def is_at(report: Report | None, expires: float) -> bool | None:
    """True if the operation is still due at `expires`, None if Azure does not report it."""
    if report is None:
        return None
    return report.state in PENDING and abs(report.at - expires) < 60.0


class Deadlines:
    """Submits, reads and cancels such operations. Thread-safe. Raises CloudError."""

    def __init__(self, arm: ArmClient, services: ResourceProviders) -> None:
        self._arm = arm
        self._services = services

    def submit(self, vm: str, region: str, expires: float, old: str) -> Deadline:
        """Schedule the deallocation, and have Azure report it. `old` is kept beside it."""
        if not self._services.reach_far(region):
            return Deadline()
        if old and is_at(self.reported(region, [old]).get(old), expires):
            return Deadline(operation=old)
        made = self._send(region, vm, expires)
        if not made.operation:
            return made

        def ask() -> tuple[Report | None] | None:
            told = self.reported(region, [made.operation]).get(made.operation)
            return (told,) if told is None or told.state != UNKNOWN else None

        try:
            told = self._arm.timing.until(ask, within=self._arm.timing.listing)
            if told is None or is_at(told[0], expires) is False:
                text = "Azure accepted its end but reports a different one"
                raise TransientError(text, what=paths.last(vm))
        except CloudError:
            with suppress(CloudError):
                self.cancel(region, [made.operation])
            raise
        return made

    def _send(self, region: str, vm: str, expires: float) -> Deadline:
        """Submit the operation. A refusal does not fail the VM: the daily schedule remains."""
        asked = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{vm} {int(expires)}"))
        node, what = paths.last(vm), "the end at Microsoft.ComputeSchedule"
        try:
            answer = self._ask(requests.SUBMIT, region, requests.deadline([vm], expires, asked))
        except CredentialsError:
            raise
        except CloudError as refusal:
            return Deadline(refusal=refusal.copy_with(what=node, text=f"{what}: {refusal.message}"))
        words = "it named no operation"
        for result in answer.get("results") or ():
            operation = result.get("operation") or {}
            if not result.get("errorCode") and operation.get("operationId"):
                return Deadline(operation=str(operation["operationId"]))
            told = (result.get("errorCode"), result.get("errorDetails"))
            words = ": ".join(str(each) for each in told if each) or words
        return Deadline(refusal=CloudConfigError(f"{what} was refused: {words}", what=node))

    def reported(self, region: str, operations: Sequence[str]) -> dict[str, Report]:
        """Reports of Azure on these operations, by ID; none where this user may not ask."""
        found: dict[str, Report] = {}
        for first in range(0, len(operations), MOST):
            some = operations[first : first + MOST]
            answer = ask_or_none(
                partial(self._ask, requests.STATUS, region, requests.operations(some))
            )
            if answer is None:
                continue
            found |= dict.fromkeys(some, Report(state=UNKNOWN, at=0.0))
            for result in answer.get("results") or ():
                known = result.get("operation") or {}
                moment = unix_time(known.get("deadline") or known.get("deadLine"))
                state = str(known.get("state", "")).lower()
                if moment is not None and state:
                    found[str(known.get("operationId"))] = Report(state=state, at=moment)
        return found

    def withdraw(self, region: str, operation: str) -> None:
        """Cancel an operation that another replaces. Raises TransientError if it still stands: it
        would end the VM at the old time."""
        self.cancel(region, [operation])
        found = self.reported(region, [operation]).get(operation)
        if found is not None and found.state in PENDING:
            raise TransientError(f"Azure did not withdraw the old end: it is {found.state}")

    def cancel(self, region: str, operations: Sequence[str]) -> None:
        for first in range(0, len(operations), MOST):
            self._ask(
                requests.CANCEL, region, requests.operations(operations[first : first + MOST])
            )

    def _ask(self, what: str, region: str, body: Tree) -> Tree:
        path = f"{self._arm.path}/providers/{DEADLINES}/locations/{region}/{what}"
        answer = self._arm.call("POST", path, body).body
        return answer if isinstance(answer, dict) else {}
