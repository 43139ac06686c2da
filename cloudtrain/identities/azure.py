"""Identities of Azure: azure-identity's standard chain, one for the whole command, its tokens
cached until they are about to expire, and the command that cures each failure.

https://learn.microsoft.com/azure/developer/python/sdk/authentication/credential-chains"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from azure.core.exceptions import ClientAuthenticationError
from azure.core.pipeline.transport import RequestsTransport

from cloudtrain.core import errors, moments
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.network import is_loopback
from cloudtrain.core.protocols import Principal

LOGIN = "run `az login`, or set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET"
TIMEOUT = 60.0
"""Seconds without data before a request times out."""
EARLY = 300.0
"""Seconds before its expiry at which a token is renewed."""
PROCESS_LIMIT = 30.0
"""Seconds for `az` and its like to hand out a token; azure-identity's own 10 s are short for a
program that starts Python from a slow disk."""
SKEW = 300.0
"""Seconds from which a wrong clock explains a refused token (RFC 7519, 4.1.4 and 4.1.5)."""

_known: dict[object, AzureIdentity] = {}
_lock = threading.Lock()


def identity(authority: str | None = None) -> AzureIdentity:
    """The user's identity: the same one for the whole command, unless the environment or the login
    of `az` changes. `authority`: who hands out tokens; by default that of the environment."""
    import azure.identity

    environment = {n: v for n, v in os.environ.items() if n.startswith(("AZURE_", "IDENTITY_"))}
    login = Path(os.environ.get("AZURE_CONFIG_DIR", "~/.azure")).expanduser() / "azureProfile.json"
    changed = login.stat().st_mtime_ns if login.exists() else 0
    named = (os.environ.get("PATH"), tuple(sorted(environment.items())))
    key = (authority, azure.identity.DefaultAzureCredential, changed, *named)
    with _lock:
        return _known.setdefault(key, AzureIdentity(authority))


class AzureIdentity:
    """The user's credentials and tokens. Thread-safe. Raises CredentialsError; TransientError or
    RateError if the authority is unavailable; what a lost connection raises is raised as it is."""

    def __init__(self, authority: str | None) -> None:
        self._authority = authority or os.environ.get("AZURE_AUTHORITY_HOST") or None
        self._lock = threading.Lock()
        self._credential: Any = None
        self._transport: RecordingTransport | None = None
        self._tokens: dict[object, Any] = {}
        self._asked = 0
        self._failure: Exception | None = None

    def token(self, scope: str) -> str:
        return str(self.get_token(scope).token)

    def get_token(self, *scopes: str, **given: Any) -> Any:
        """A token as Azure's SDKs ask for it; a new one is requested only once for all waiting
        threads."""
        key, arrived = (scopes, *sorted(given.items())), self._asked
        with self._lock:
            found = self._tokens.get(key)
            if found is None or found.expires_on - EARLY < moments.wall():
                if self._failure is not None and self._asked > arrived:
                    raise self._failure
                try:
                    found, self._failure = self._ask(scopes, given), None
                    self._tokens[key] = found
                except Exception as failure:
                    self._failure = failure
                    raise
                finally:
                    self._asked += 1
            return found

    def forget(self, token: str) -> None:
        """Drop a cached token that the service rejected (clock skew or revocation)."""
        with self._lock:
            kept = {key: found for key, found in self._tokens.items() if found.token != token}
            if len(kept) < len(self._tokens):
                self._tokens, self._credential = kept, None

    def cured(self, error: errors.Error) -> errors.Error:
        """The refusal of a token that was just issued with what explains it: this machine's clock,
        if that is wrong."""
        behind = moments.MOMENTS.heard
        if abs(behind) < SKEW:
            return error
        wrong = moments.wrong_by(behind, "Azure")
        return error.copy_with(hint=f"{wrong}: run `sudo timedatectl set-ntp true`")

    def _ask(self, scopes: tuple[str, ...], given: dict[str, Any]) -> Any:
        # Without a handler, logging would print to stderr what our errors say anyway.
        logging.getLogger("azure.identity").addHandler(logging.NullHandler())
        try:
            credential, transport = self._chain()
            if transport is not None:
                transport.last = None
            return credential.get_token(*scopes, **given)
        except Exception as error:
            # MSAL caches a refusal for a minute.
            self._credential = None
            raise self._explained(error) from error

    def _chain(self) -> tuple[Any, RecordingTransport | None]:
        if self._credential is None:
            import azure.identity

            url = urlsplit(self._authority or "")
            plain = url.netloc if url.scheme == "http" and is_loopback(url.hostname or "") else None
            settings: dict[str, Any] = {}
            if self._authority:
                https = urlunsplit(url._replace(scheme="https")) if plain else self._authority
                settings = {"authority": https, "disable_instance_discovery": True}
            self._transport = RecordingTransport(url.netloc or "login.microsoftonline.com", plain)
            # Retries are left to the caller, by our own retry policy.
            self._credential = azure.identity.DefaultAzureCredential(
                transport=self._transport, retry_total=0, process_timeout=PROCESS_LIMIT, **settings
            )
        return self._credential, self._transport

    def _explained(self, error: Exception) -> Exception:
        """A CredentialsError for any exception but those of a lost connection."""
        asked = "token for Azure"
        if isinstance(error, errors.CloudtrainError) or _is_lost(error):
            return error
        if not isinstance(error, ClientAuthenticationError):
            # azure-identity refuses a tenant or an authority, or a file that it was told of
            hint = "check `endpoints.auth` and the AZURE_* variables"
            # What azure-identity does not foresee may repeat parts of a key.
            foreseen = isinstance(error, OSError) or type(error) is ValueError
            text = " ".join(str(error).split()) if foreseen else type(error).__name__
            return errors.CredentialsError(f"{asked}: {text}", hint=hint)
        status = self._transport.last if self._transport else None
        words = _condensed(str(error.message), asked=status is not None)
        if status == 429:
            return errors.RateError(f"{asked}: {words.text}", code="HTTP 429")
        if status == 0 or (status is not None and status >= 500):
            return errors.TransientError(f"{asked}: {words.text}", code=f"HTTP {status}")
        return errors.CredentialsError(f"{asked}: {words.text}", hint=words.hint)


def principal(token: str) -> Principal | None:
    """The identity from the token's claims. `oid` is the same in all applications of the directory:
    https://learn.microsoft.com/entra/identity-platform/access-token-claims-reference"""
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
    chain reports text only. `plain`: host:port of an emulator on this machine without TLS, which
    azure-identity would not accept."""

    def __init__(self, authority: str, plain: str | None) -> None:
        super().__init__(connection_timeout=TIMEOUT, read_timeout=TIMEOUT)
        self._authority = authority
        self._plain = plain
        self.last: int | None = None
        """HTTP status of the authority's last answer; 0 if it did not answer. For the metadata
        service, which the chain tries whether or not it exists, only the service's own errors are
        recorded."""

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


TOOLS = {
    "AzureCliCredential": "az account get-access-token",
    "AzurePowerShellCredential": "Get-AzAccessToken",
    "AzureDeveloperCliCredential": "azd auth token --scope https://management.azure.com/.default",
}
"""Credentials that come from programs with which a person logs in, and what shows the same."""
_ABSENT = re.compile(r"(?i)not (be )?found|not installed|please run|unavailable|has no value")

# https://learn.microsoft.com/entra/identity-platform/reference-error-codes, read 2026-11-26.
_CURES = (
    (
        r"AADSTS(7000222|7000215)",
        "run `az ad app credential reset --id {client}` and set AZURE_CLIENT_SECRET to the new "
        "secret's value",
    ),
    (
        r"AADSTS(700016|90002|900023|700213)|Unable to get authority configuration",
        "correct AZURE_CLIENT_ID and AZURE_TENANT_ID: `az ad sp show --id {client}` shows both",
    ),
    (
        r"AADSTS(700024|70021|700211)|\AWorkloadIdentityCredential",
        "renew the token in AZURE_FEDERATED_TOKEN_FILE; if it is new, this machine's clock is "
        "wrong: run `sudo timedatectl set-ntp true`",
    ),
    (r"AADSTS(50076|50079|50072|50074|50158)", "run `{login}`, and confirm by your second factor"),
    (r"AADSTS", "run `{login}`"),
    (
        r"\AManagedIdentityCredential|no response from the IMDS",
        f"this machine has no managed identity that answers: {LOGIN}; on a VM, `az vm identity "
        "assign` gives it one",
    ),
)


@dataclass(frozen=True)
class _Words:
    text: str
    hint: str = LOGIN


def _condensed(message: str, *, asked: bool) -> _Words:
    """Shorten the chain's message to the decisive credential, with the command that cures it. The
    decisive credential is the one whose refusal stopped the chain, or else the last configured one
    that failed."""
    attempts = re.findall(
        r"^\s+(\w+Credential): (.*(?:\n(?!\s+\w+Credential: |To mitigate).*)*)",
        message,
        re.MULTILINE,
    )
    failed = [(name, text) for name, text in attempts if name in TOOLS and not _is_absent(text)]
    if asked and attempts:
        first = str(attempts[-1][1]).splitlines()[0]
        return _Words(first, _cure(f"{attempts[-1][0]}: {first}", ""))
    if failed:
        name, text = failed[-1]
        lines = [line.strip() for line in text.splitlines()]
        advice = [line for line in lines if re.match(r"(az login|azd|Connect-AzAccount)\b", line)]
        first = next((line for line in lines if "AADSTS" in line), lines[0])
        first = re.sub(r"\s*(Trace|Correlation) ID:.*", "", first).removeprefix("ERROR: ")
        command = advice[-1].strip("`\"'") if advice else ""
        if "AADSTS" not in text and not command:
            hint = f"run `{TOOLS[name]}` by hand, which shows the same: {LOGIN.partition(' ')[2]}"
            return _Words(f"{name}: {first[:400]}", hint)
        return _Words(f"{name}: {first[:400]}", _cure(first, command))
    name, text = attempts[-1] if attempts else ("", "")
    chosen = len(attempts) == 1 and name.startswith("ManagedIdentity")
    if attempts and (chosen or not _is_absent(text)):  # the chain broke off here
        return _Words(f"{name}: {text.splitlines()[0]}", _cure(f"{name}: {text}", ""))
    if attempts:
        return _Words(f"no credentials from {', '.join(name for name, _ in attempts)}")
    return _Words(message.splitlines()[0] if message else "no credentials")


def _is_absent(text: str) -> bool:
    """True if the text is about a program that is not installed, or with which nobody logged in."""
    return (
        "AADSTS" not in text
        and not text.lstrip().startswith("ERROR")
        and bool(_ABSENT.search(text))
    )


def _cure(words: str, command: str) -> str:
    """Cure of a refusal. `command`: the login that the program itself advises."""
    client = os.environ.get("AZURE_CLIENT_ID") or "CLIENT_ID"
    for pattern, cure in _CURES:
        if re.search(pattern, words):
            return cure.format(client=client, login=command or "az login")
    return f"run `{command}`" if command else LOGIN


def _is_lost(error: Exception) -> bool:
    from azure.core.exceptions import ServiceRequestError, ServiceResponseError
    from requests import RequestException

    if isinstance(error, ServiceRequestError | ServiceResponseError | RequestException):
        return True
    return isinstance(error, OSError) and not isinstance(error, FileNotFoundError | PermissionError)
