"""Signing in to Google from several threads: one sign-in at a time, and its outcome is for all."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import google.auth
import pytest
from google.auth.exceptions import RefreshError, TransportError

from cloudtrain.core.errors import CloudError, CredentialsError, TransientError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.identities import google as identity
from cloudtrain.providers.gcp.credentials import Credentials

CALLERS = 8


@dataclass
class Account:
    """Credentials whose refresh ends only when `callers` threads have found no valid token."""

    callers: int = 1
    failure: Exception | None = None
    token: str | None = None
    refreshes: int = 0
    askers: set[int] = field(default_factory=set)
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def valid(self) -> bool:
        with self.changed:
            self.askers.add(threading.get_ident())
            self.changed.notify_all()
            return self.token is not None

    def refresh(self, request: object) -> None:
        self.refreshes += 1
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.askers) >= self.callers, timeout=60)
        if self.failure is not None:
            raise self.failure
        self.token = f"token {self.refreshes}"

    def apply(self, headers: dict[str, str]) -> None:
        assert self.token
        headers["authorization"] = self.token


def credentials(account: Account, monkeypatch: pytest.MonkeyPatch) -> Credentials:
    monkeypatch.setattr(google.auth, "default", lambda scopes: (account, "project"))
    config = ClusterConfig(name="mnist", provider="gcp", strategy="custom", nodes={})
    made = Credentials(config)
    made.principal()  # the account is looked up now
    return made


def test_the_driver_and_the_store_look_for_credentials_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And again after a new login, or where the environment names others."""
    looked: list[object] = []
    monkeypatch.setattr(google.auth, "default", lambda scopes: (looked.append(0), "project"))
    file = tmp_path / "credentials.json"
    monkeypatch.setenv(identity.KEY_FILE, str(file))
    for number, change in enumerate(("{}", "", "{ }", ""), 1):
        if change:
            file.write_text(change)
            os.utime(file, ns=(number, number))
        identity.find()
    assert len(looked) == 2
    monkeypatch.setenv("CLOUDSDK_CORE_PROJECT", "other")
    identity.find()
    assert len(looked) == 3


def outcomes(made: Credentials) -> list[dict[str, str] | CloudError]:
    """What each of the callers gets or raises; all call at the same time."""

    def headers(_: int) -> dict[str, str] | CloudError:
        try:
            return made.headers()
        except CloudError as error:
            return error

    with ThreadPoolExecutor(CALLERS) as pool:
        return list(pool.map(headers, range(CALLERS)))


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (TransportError("no answer"), TransientError),  # type: ignore[no-untyped-call]
        (RefreshError("invalid_grant"), CredentialsError),  # type: ignore[no-untyped-call]
    ],
)
def test_callers_that_wait_for_a_sign_in_share_its_failure(
    failure: Exception, kind: type[CloudError], monkeypatch: pytest.MonkeyPatch
) -> None:
    account = Account(callers=CALLERS, failure=failure)
    found = outcomes(credentials(account, monkeypatch))
    assert account.refreshes == 1
    assert [type(each) for each in found] == [kind] * CALLERS
    assert len({id(each) for each in found}) == CALLERS


def test_callers_that_wait_for_a_sign_in_share_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account(callers=CALLERS)
    found = outcomes(credentials(account, monkeypatch))
    assert account.refreshes == 1
    assert found == [{"authorization": "token 1"}] * CALLERS


def test_a_sign_in_after_a_failed_one_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account(failure=TransportError("no answer"))  # type: ignore[no-untyped-call]
    made = credentials(account, monkeypatch)
    for tried in (1, 2):
        with pytest.raises(TransientError):
            made.headers()
        assert account.refreshes == tried
    account.failure = None
    assert made.headers() == {"authorization": "token 3"}


def test_a_renewal_replaces_a_token_that_is_still_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account(token="revoked")
    made = credentials(account, monkeypatch)
    assert made.headers() == {"authorization": "revoked"}
    assert made.headers(renew=True) == {"authorization": "token 1"}
