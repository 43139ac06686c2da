"""Credentials and project as google-auth finds them; tokens are renewed as needed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cloudtrain.core.errors import CloudConfigError, CloudError, CredentialsError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.network import TRUST_VARIABLE, host_of, is_below, is_of_the_user
from cloudtrain.core.protocols import Principal
from cloudtrain.identities import google
from cloudtrain.providers.base.timing import require_network
from cloudtrain.providers.gcp import faults
from cloudtrain.providers.gcp.facts import FACTS

EMAIL = ("openid", "https://www.googleapis.com/auth/userinfo.email")
"""Scopes for reading the account's e-mail address; `gcloud auth application-default login` requests
both: https://cloud.google.com/sdk/gcloud/reference/auth/application-default/login"""


class Credentials:
    """Application default credentials, looked up at the first use. Thread-safe. `endpoints.auth` of
    the config overrides the token URI."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._found: tuple[Any, str | None] | None = None
        self._sign_ins = 0
        """Number of sign-ins that have ended."""
        self._failure: CloudError | None = None
        """Error of the last one."""

    @property
    def project(self) -> str:
        """The project ID. Raises CloudConfigError if none is configured, and CredentialsError."""
        named = self._config.project or os.environ.get("GOOGLE_CLOUD_PROJECT")
        if named:
            return named
        with self._lock:
            _, project = self._default()
        if not project:
            raise CloudConfigError(
                "no project is set",
                hint="set `project:` or GOOGLE_CLOUD_PROJECT, or run `gcloud config set project`",
            )
        return project

    def headers(self, *, renew: bool = False) -> dict[str, str]:
        """The authorization headers. Raises CredentialsError, TransientError."""
        ended, found = self._sign_ins, self._found
        if renew or found is None or not found[0].valid:
            found = self._signed_in(ended, renew)
        headers: dict[str, str] = {}
        with _mapped("signing in to Google"):
            found[0].apply(headers)
        return headers

    def _signed_in(self, ended: int, renew: bool) -> tuple[Any, str | None]:
        """Sign in, unless more than `ended` sign-ins have ended by now: then the outcome of the
        last one counts for this caller too, as google-auth itself retries for seconds."""
        with self._lock:
            if self._sign_ins == ended:
                self._failure = None
                try:
                    self._refresh(renew)
                except CloudError as error:
                    self._failure = error
                self._sign_ins += 1
            if self._failure is not None:
                raise self._failure.copy_with() from self._failure.__cause__
            return self._default()

    def _refresh(self, renew: bool) -> None:
        credentials, _ = self._default()
        with _mapped("signing in to Google"):
            if renew or not credentials.valid:
                _require_network(credentials)
                credentials.refresh(_direct())

    def principal(self) -> Principal | None:
        """Identify the account by its e-mail address. Raises CredentialsError, TransientError."""
        with self._lock:
            credentials, _ = self._default()
            _require_network(credentials)
            with _mapped("asking Google for the account's e-mail address"):
                email = _email(credentials)
        return Principal(id=email, name=email.partition("@")[0]) if email else None

    def _default(self) -> tuple[Any, str | None]:
        if self._found is None:
            credentials, project = google.find()
            uri = self._config.endpoints.auth
            if uri is not None and hasattr(credentials, "with_token_uri"):
                _refuse_other_issuer(credentials, uri)
                credentials = credentials.with_token_uri(uri)
            self._found = credentials, project
        return self._found


def _refuse_other_issuer(credentials: Any, uri: str) -> None:
    """Raise CredentialsError before a refresh token, which is a person's whole account and never
    ends, goes to a host that did not issue it. No file can allow that, only the environment."""
    if not getattr(credentials, "refresh_token", None):
        return
    issuer = getattr(credentials, "token_uri", None) or "https://oauth2.googleapis.com/token"
    try:
        asked, issued = host_of(uri), host_of(issuer)
        known = asked == issued or is_below(asked.name, FACTS.credential_hosts)
        known = known or is_of_the_user(asked)
    except ValueError as error:
        raise CredentialsError(f"endpoints.auth: {uri!r}: {error}") from None
    if not known:
        raise CredentialsError(
            f"endpoints.auth: {asked} did not issue the refresh token of these credentials, as "
            f"{issued} did",
            hint="use a service account that is known there, or leave `endpoints.auth` out; "
            f"{TRUST_VARIABLE} names a host of your own",
        )


def _direct() -> Any:
    """Transport with which google-auth sends requests, without redirects: one would take a refresh
    token, which is in the body of a POST, to another host (RFC 9110, 15.4.8)."""
    from google.auth.transport.requests import Request

    request = Request()
    request.session.max_redirects = 0
    return request


def _require_network(credentials: Any) -> None:
    """Refuse to sign in without a network; what a metadata server signs in needs no such host."""
    uri = getattr(credentials, "token_uri", None) or getattr(credentials, "_token_uri", None)
    if isinstance(uri, str):
        require_network(uri)


def _email(credentials: Any) -> str | None:
    """The account's e-mail address; None if unknown.

    For a service account, it is in the credentials or comes from the metadata server; for a person,
    it is in the identity token that is issued with a new access token:
    https://developers.google.com/identity/openid-connect/openid-connect#an-id-tokens-payload"""
    from google.auth import exceptions, jwt

    if getattr(credentials, "service_account_email", None) == "default":
        credentials.refresh(_direct())
    email = getattr(credentials, "service_account_email", None) or getattr(
        credentials, "account", None
    )
    if email or not getattr(credentials, "refresh_token", None):
        return str(email) if email else None
    from google.oauth2.credentials import Credentials as OfUser

    asked = OfUser(  # type: ignore[no-untyped-call]
        None,
        refresh_token=credentials.refresh_token,
        token_uri=credentials.token_uri,
        client_id=credentials.client_id,
        client_secret=credentials.client_secret,
        scopes=EMAIL,
    )
    try:
        asked.refresh(_direct())  # type: ignore[no-untyped-call]
    except exceptions.RefreshError:  # these credentials were issued for other scopes only
        return None
    decode: Any = jwt.decode
    claims = decode(asked.id_token, verify=False) if asked.id_token else {}
    return str(claims["email"]) if claims.get("email") else None


@contextmanager
def _mapped(what: str) -> Iterator[None]:
    """Raise CredentialsError with its cure, or TransientError for a lost connection."""
    try:
        yield
    except Exception as error:
        raise faults.of_exception(what, google.explained(what, error)) from error
