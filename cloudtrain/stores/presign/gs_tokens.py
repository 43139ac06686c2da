"""Tokens with which a node can create objects in Google Cloud Storage, or read one, and nothing
else.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from datetime import timezone
from functools import partial
from typing import Any

from cloudtrain.core import moments
from cloudtrain.core.shell import Secret

ROLE = "inRole:roles/storage.objectCreator"
"""Role that can only create objects. It cannot read, list, delete or replace them (replacing needs
storage.objects.delete): https://cloud.google.com/storage/docs/access-control/iam-roles
"""

READER = "inRole:roles/storage.objectViewer"
"""Role that can read objects; with a condition on their names, it cannot list them."""

SPARE = 900.0
"""Minimum remaining validity, in seconds, of a token that is given to a node."""

REFUSED = 300.0
"""Seconds before a retry after a refusal."""

CONNECT = 10.0


class DownscopedTokens:
    """Tokens downscoped by a Credential Access Boundary, one for each folder, kept in memory.

    They are valid as long as the token from which they derive, at most an hour:
    https://cloud.google.com/iam/docs/downscoping-short-lived-credentials
    """

    def __init__(
        self,
        credentials: Any,
        bucket: str,
        opens: Callable[[Any, str], object],
        clock: Callable[[], float] = moments.now,
    ) -> None:
        """`opens` begins an upload of a key with the given credentials, and raises an exception if
        refused.
        """
        self._credentials, self._bucket = credentials, bucket
        self._opens, self._clock = opens, clock
        self._tokens: dict[str, tuple[Secret | None, float]] = {}
        self._locks: dict[str, threading.Lock] = {}

    def token(self, folder: str) -> Secret | None:
        """Return a token for all keys that start with `folder`; None if Google issues none or the
        bucket does not accept it.
        """
        with self._locks.setdefault(folder, threading.Lock()):
            token, until = self._tokens.get(folder, (None, 0.0))
            if self._clock() >= until:
                token, until = self._made(folder)
                self._tokens[folder] = (token, until)
            return token

    def reading(self, key: str) -> Secret | None:
        """Return a token for reading this key; None if Google issues none."""
        token, until = self._asked(key, READER)
        return token if until > self._clock() else None

    def reading_below(
        self, start: str, key: str, opens: Callable[[Any, str], object]
    ) -> Secret | None:
        """Return a token for reading all keys that begin with `start`; None if Google issues none
        or the bucket does not accept it, which is checked once on `key`.
        """
        name = f"{READER} {start}"
        with self._locks.setdefault(name, threading.Lock()):
            token, until = self._tokens.get(name, (None, 0.0))
            if self._clock() >= until:
                token, until = self._asked(start, READER)
                refused = token is None or until <= self._clock()
                if token is None or refused or not self._is_taken(token.reveal(), key, opens):
                    token, until = None, self._clock() + REFUSED
                self._tokens[name] = (token, until)
            return token

    def _made(self, folder: str) -> tuple[Secret | None, float]:
        token, until = self._asked(folder, ROLE)
        key = f"{folder}.cloudtrain-{uuid.uuid4().hex}"
        refused = token is None or until <= self._clock()
        if token is None or refused or not self._is_taken(token.reveal(), key, self._opens):
            return None, self._clock() + REFUSED
        return token, until

    def _asked(self, start: str, role: str) -> tuple[Secret | None, float]:
        """Request a token for keys with this prefix. Returns it with the time until which it may be
        given to nodes.
        """
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request

        scoped = self._scoped(start, role)
        try:
            scoped.refresh(partial(Request(), timeout=CONNECT))
            # google-auth's times are naive, in UTC.
            return Secret(scoped.token), scoped.expiry.replace(
                tzinfo=timezone.utc
            ).timestamp() - SPARE
        except (GoogleAuthError, ValueError, AttributeError):  # also: no JSON, no time
            return None, 0.0

    def _scoped(self, folder: str, role: str) -> Any:
        from google.auth import downscoped as untyped

        downscoped: Any = untyped
        rule = downscoped.AccessBoundaryRule(
            available_resource=f"//storage.googleapis.com/projects/_/buckets/{self._bucket}",
            available_permissions=[role],
            availability_condition=downscoped.AvailabilityCondition(within(self._bucket, folder)),
        )
        return downscoped.Credentials(
            source_credentials=self._credentials,
            credential_access_boundary=downscoped.CredentialAccessBoundary([rule]),
            universe_domain=self._credentials.universe_domain,
        )

    def _is_taken(self, token: str, key: str, opens: Callable[[Any, str], object]) -> bool:
        """True if the bucket accepts the token; a bucket without uniform access accepts none.

        Checked once: for writing, by beginning an upload that leaves nothing behind.
        """
        from google.api_core.exceptions import GoogleAPIError
        from google.auth.exceptions import GoogleAuthError
        from google.oauth2 import credentials as untyped

        made: Any = untyped
        universe = self._credentials.universe_domain
        alone = made.Credentials(token, universe_domain=universe)
        try:
            opens(alone, key)
        except (GoogleAPIError, GoogleAuthError, OSError):  # OSError: those of requests
            return False
        return True


def within(bucket: str, folder: str) -> str:
    """Return the CEL condition that limits access to `folder`; strings in CEL are written as in
    JSON.
    """
    start = f"projects/_/buckets/{bucket}/objects/{folder}"
    return f"resource.name.startsWith({json.dumps(start, ensure_ascii=False)})"
