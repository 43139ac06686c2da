"""boto3's descriptions of services are read once for each process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.loaders import JSONFileLoader, create_loader

COMMON = ("iam", "scheduler", "service-quotas", "sts")
"""Services that the commands themselves ask by boto3."""


@pytest.fixture(autouse=True, scope="session")
def models_are_read_once() -> Iterator[None]:
    """Every new session reads them anew, a third of the time of a test of AWS: EC2's takes 0.2 s.
    botocore itself keeps what it has read for as long as its session lives."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JSONFileLoader, "load_file", once(JSONFileLoader.load_file))
        yield


@pytest.fixture(autouse=True)
def no_session_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """boto3's own one keeps the credentials of the test that first used it."""
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)


def read_before_forks() -> None:
    """For all sessions of this process and of those that it forks."""
    JSONFileLoader.load_file = once(JSONFileLoader.load_file)
    loader = create_loader()
    for name in ("endpoints", "partitions", "sdk-default-configuration", "_retry"):
        loader.load_data(name)
    for service in COMMON:
        loader.load_service_model(service, "service-2")


def once(load: Any) -> Any:
    read: dict[str, Any] = {}

    def load_file(self: JSONFileLoader, path: str) -> Any:
        if (found := read.get(path)) is None and (found := load(self, path)) is not None:
            read[path] = found
        return found

    return load_file
