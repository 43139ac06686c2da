"""Acts out operations: told, listed, waited for."""

from __future__ import annotations

from tests.standins import gcp_errors as errors
from tests.standins.gcp_catalog import REGIONS, ZONES
from tests.standins.gcp_lists import page, pages_of_all
from tests.standins.gcp_world import Body, Call, Operation, acts

LONGEST = 120.0
"""Seconds that `wait` takes at most: the document says so."""


def _find(call: Call) -> Operation:
    path = f"projects/{call.world.project}/{call.scope}/operations/{call.given['operation']}"
    if path not in call.world.operations:
        raise errors.real("resource-absent", path=path)
    return call.world.operations[path]


@acts("globalOperations.get")
@acts("regionOperations.get")
@acts("zoneOperations.get")
def get(call: Call) -> Body:
    return _find(call).body


@acts("globalOperations.wait")
@acts("regionOperations.wait")
@acts("zoneOperations.wait")
def wait(call: Call) -> Body:
    operation = _find(call)
    call.world.wait(operation, LONGEST)
    return operation.body


def _scope(path: str) -> str:
    return path.partition("/operations/")[0].split("/", 2)[2]


@acts("globalOperations.list")
@acts("regionOperations.list")
@acts("zoneOperations.list")
def list_(call: Call) -> Body:
    found = [
        (_scope(path), operation.body)
        for path, operation in call.world.operations.items()
        if _scope(path) == call.scope
    ]
    return page(call, "Operation", found)


@acts("globalOperations.aggregatedList")
def list_all(call: Call) -> Body:
    scopes = ["global", *(f"regions/{r}" for r in REGIONS), *(f"zones/{z}" for z in ZONES)]
    found = [(_scope(path), operation.body) for path, operation in call.world.operations.items()]
    return pages_of_all(call, "Operation", found, scopes)
