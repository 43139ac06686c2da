"""Shared access signatures: the right to write or read one blob for a limited time.

The SDK's own signatures are not used: they are only for its newest version of the service, whose
user delegation keys an emulator or an older private cloud does not support.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlencode

from cloudtrain.core import moments
from cloudtrain.core.shell import Secret

VERSION = "2020-12-06"
"""Version of the service. Since 2019-12-12, a request may have 5,000 MiB and a block 4,000 MiB."""

WRITE, READ = "cw", "r"

WEEK = 7 * 86400.0
"""Maximum validity of a user delegation key, in seconds."""

SKEW = 900.0
"""Seconds by which clocks may differ, as the service's documentation advises."""

REFUSED = 60.0
"""Seconds for which a refusal is cached."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """Signing key in base64. `facts`: the fields of a user delegation key that the signature
    includes.
    """

    value: Secret
    facts: Mapping[str, str] = field(default_factory=dict)
    expires: float = float("inf")
    """Unix time at which the key, and every signature by it, expires."""


def blob_sas(
    account: str,
    container: str,
    blob: str,
    key: Key,
    *,
    expires: float,
    https: bool,
    right: str = WRITE,
) -> str:
    """Return a query string that lets its bearer create and write this blob, or read it, and
    nothing else.

    It has no start time, so that it is valid at once even if clocks differ. `https`: valid only
    over TLS. https://learn.microsoft.com/rest/api/storageservices/create-service-sas
    https://learn.microsoft.com/rest/api/storageservices/create-user-delegation-sas
    """
    start, end = "", _text(min(expires, key.expires))
    protocol = "https" if https else ""
    policy, address, snapshot, scope, answer = "", "", "", "", [""] * 5
    # After the key's facts: on whose behalf, and the correlation id of the customer's log.
    by = [*key.facts.values(), "", "", ""] if key.facts else [policy]
    name = f"/blob/{account}/{container}/{blob}"
    about = [address, protocol, VERSION, "b", snapshot, scope, *answer]
    signed = "\n".join([right, start, end, name, *by, *about])
    digest = hmac.digest(base64.b64decode(key.value.reveal()), signed.encode(), hashlib.sha256)
    told = {"sv": VERSION, "sr": "b", "sp": right, "se": end, "spr": protocol, **key.facts}
    told["sig"] = base64.b64encode(digest).decode()
    return urlencode({name: value for name, value in told.items() if value})


class DelegationKey:
    """Signs with a user delegation key that the service issues, requested as rarely as possible."""

    def __init__(self, service: Any, clock: Callable[[], float] = moments.now) -> None:
        self._service, self._clock = service, clock
        self._lock = threading.Lock()
        self._key: Key | None = None
        self._refusal: Exception | None = None
        self._refused_until = 0.0

    def key(self, lasts: float) -> Key:
        """Return a key that is valid for at least `lasts` seconds, or nearly a week. Raises the
        service's refusal.
        """
        with self._lock:
            now = self._clock()
            if self._refusal is not None and now < self._refused_until:
                raise self._refusal
            if self._key is None or self._key.expires < now + min(lasts, WEEK - 4 * SKEW):
                self._key = self._asked(now)
            return self._key

    def _asked(self, now: float) -> Key:
        expires = now + WEEK - 2 * SKEW
        try:
            got = self._service.get_user_delegation_key(_moment(now - SKEW), _moment(expires))
        except Exception as error:
            self._refusal, self._refused_until = error, now + REFUSED
            raise
        facts = {
            "skoid": got.signed_oid,
            "sktid": got.signed_tid,
            "skt": got.signed_start,
            "ske": got.signed_expiry,
            "sks": got.signed_service,
            "skv": got.signed_version,
        }
        return Key(value=Secret(got.value), facts=facts, expires=expires)


class AccountKey:
    """Signs with the key of the account itself, unless the account turned out to refuse it."""

    def __init__(self, value: str, other: DelegationKey, is_refused: Callable[[], bool]) -> None:
        self._key, self._other, self._is_refused = Key(value=Secret(value)), other, is_refused

    def key(self, lasts: float) -> Key:
        return self._other.key(lasts) if self._is_refused() else self._key


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(int(seconds), timezone.utc)


def _text(seconds: float) -> str:
    return _moment(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")
