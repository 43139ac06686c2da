"""Tokens for Resource Manager from azure-identity's standard chain, cached until they are about
to expire.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import threading
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from azure.core.exceptions import ClientAuthenticationError
from azure.core.pipeline.transport import RequestsTransport

from cloudtrain import moments
from cloudtrain.errors import CloudError, CredentialsError, RateError, TransientError
from cloudtrain.protocols import Principal
from cloudtrain.providers.azure import faults

TIMEOUT = 60.0
"""Seconds without data before a request times out."""
EARLY = 300.0
"""Seconds before its expiry at which a token is renewed."""


class Tokens:
    """Token cache for one scope. Thread-safe."""

    def __init__(self, scope: str, authority: str | None) -> None:
        self._scope = scope
        self._authority = authority or os.environ.get("AZURE_AUTHORITY_HOST") or None
        self._lock = threading.Lock()
        self._credential: Any = None
        self._transport: RecordingTransport | None = None
        self._token: Any = None
        self._asked = 0
        self._failure: CloudError | None = None

    def get(self) -> str:
        """Return a token; a new one is requested only once for all waiting threads.

        Raises CredentialsError; TransientError or RateError if the authority is unavailable.
        """
        arrived = self._asked
        with self._lock:
            if self._token is None or self._token.expires_on - EARLY < moments.wall():
                if self._failure is not None and self._asked > arrived:
                    raise self._failure
                try:
                    self._token, self._failure = self._ask(), None
                except CloudError as failure:
                    self._failure = failure
                    raise
                finally:
                    self._asked += 1
            return str(self._token.token)

    def forget(self, token: str) -> None:
        """Drop a cached token that the service rejected (clock skew or revocation)."""
        with self._lock:
            if self._token is not None and self._token.token == token:
                self._token = self._credential = None

    def _ask(self) -> Any:
        # Without a handler, logging would print to stderr what our errors say anyway.
        logging.getLogger("azure.identity").addHandler(logging.NullHandler())
        asked = "token for Azure"
        try:
            credential, transport = self._chain()
            transport.last = None
            return credential.get_token(self._scope)
        except ClientAuthenticationError as error:
            # MSAL caches a refusal for a minute.
            self._credential = None
            status = self._transport.last if self._transport else None
            words = _condensed(str(error.message), asked=status is not None)
            if status == 429:
                raise RateError(f"{asked}: {words.text}", code="HTTP 429") from error
            if status == 0 or (status is not None and status >= 500):
                raise TransientError(f"{asked}: {words.text}", code=f"HTTP {status}") from error
            raise CredentialsError(f"{asked}: {words.text}", hint=words.hint) from error
        except ValueError as error:  # azure-identity refuses a tenant or an authority
            raise CredentialsError(
                f"{asked}: {error}", hint="check `endpoints.auth` and the AZURE_* variables"
            ) from error
        except Exception as error:
            raise faults.of_exception(asked, error) from error

    def _chain(self) -> tuple[Any, RecordingTransport]:
        if self._credential is None or self._transport is None:
            from azure.identity import DefaultAzureCredential

            url = urlsplit(self._authority or "")
            plain = url.netloc if url.scheme == "http" and is_loopback(url.hostname) else None
            settings: dict[str, Any] = {}
            if self._authority:
                https = urlunsplit(url._replace(scheme="https")) if plain else self._authority
                settings = {"authority": https, "disable_instance_discovery": True}
            self._transport = RecordingTransport(url.netloc or "login.microsoftonline.com", plain)
            # Retries are left to the caller, by our own retry policy.
            self._credential = DefaultAzureCredential(
                transport=self._transport, retry_total=0, **settings
            )
        return self._credential, self._transport


def principal(token: str) -> Principal | None:
    """Return the identity from the token's claims. `oid` is the same in all applications of the
    directory: https://learn.microsoft.com/entra/identity-platform/access-token-claims-reference
    """
    try:
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        id = str(claims["oid"])
    except (ValueError, LookupError, TypeError):
        return None
    names = ("upn", "unique_name", "preferred_username", "app_displayname", "appid", "azp", "oid")
    name = next(str(claims[each]) for each in names if claims.get(each))
    return Principal(id=id, name=name.partition("@")[0])


class RecordingTransport(RequestsTransport):  # type: ignore[misc]
    """HTTP transport that records the status of the authority's last answer, as the credential
    chain reports text only.

    `plain`: host:port of an emulator on this machine without TLS, which azure-identity would not
    accept.
    """

    def __init__(self, authority: str, plain: str | None) -> None:
        super().__init__(connection_timeout=TIMEOUT, read_timeout=TIMEOUT)
        self._authority = authority
        self._plain = plain
        self.last: int | None = None
        """HTTP status of the authority's last answer; 0 if it did not answer. For the metadata
        service, which the chain tries whether or not it exists, only the service's own errors are
        recorded.
        """

    def send(self, request: Any, **given: Any) -> Any:
        url = urlsplit(request.url)
        if url.netloc != self._authority:
            answer = super().send(request, **given)
            if answer.status_code == 429 or answer.status_code >= 500:
                self.last = int(answer.status_code)
            return answer
        if url.netloc == self._plain:
            request.url = urlunsplit(url._replace(scheme="http"))
        self.last = 0
        answer = super().send(request, **given)
        self.last = int(answer.status_code)
        return answer


def is_loopback(host: str | None) -> bool:
    return host in ("localhost", "::1") or bool(re.fullmatch(r"127(\.\d{1,3}){3}", host or ""))


TOOLS = frozenset(
    {"AzureCliCredential", "AzurePowerShellCredential", "AzureDeveloperCliCredential"}
)
"""Credentials that come from programs with which a person logs in."""


@dataclass(frozen=True)
class _Words:
    text: str
    hint: str = faults.LOG_IN


def _condensed(message: str, *, asked: bool) -> _Words:
    """Shorten the chain's message to the decisive credential, with its own advice.

    The decisive credential is the one whose refusal stopped the chain, or else the last configured
    one that failed.
    """
    attempts = re.findall(
        r"^\s+(\w+Credential): (.*(?:\n(?!\s+\w+Credential: |To mitigate).*)*)",
        message,
        re.MULTILINE,
    )
    if asked and attempts:
        return _Words(str(attempts[-1][1]).splitlines()[0])
    failed = [(name, text) for name, text in attempts if name in TOOLS and _has_failed(text)]
    if failed:
        name, text = failed[-1]
        lines = [line.strip() for line in text.splitlines()]
        advice = [line for line in lines if re.match(r"(az|azd|Connect-AzAccount)\b", line)]
        first = next((line for line in lines if "AADSTS" in line), lines[0])
        first = re.sub(r"\s*(Trace|Correlation) ID:.*", "", first).removeprefix("ERROR: ")
        command = advice[0].strip("`\"'") if advice else ""
        hint = f"run `{command}`" if command else faults.LOG_IN
        return _Words(f"{name}: {first[:400]}", hint)
    if attempts:
        return _Words(f"no credentials from {', '.join(name for name, _ in attempts)}")
    return _Words(message.splitlines()[0] if message else "no credentials")


def _has_failed(text: str) -> bool:
    """True if the text is about a credential that is installed and logged in but was refused."""
    return "AADSTS" in text or text.lstrip().startswith("ERROR")
