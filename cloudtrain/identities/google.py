"""Identities of Google: application default credentials, and the command that cures each failure.

https://cloud.google.com/docs/authentication/application-default-credentials"""

from __future__ import annotations

import json
import os
import re
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from cloudtrain.core.errors import CloudtrainError, CredentialsError

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
"""OAuth scope; tokens with a narrower scope cannot be downscoped for nodes."""
KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_LOGIN = "gcloud auth application-default login"
LOGIN = f"run `{_LOGIN}`, or set {KEY_FILE}"
_LOCK = threading.Lock()
_CLOCK = re.compile(r"Invalid JWT: Token must be a short-lived|iat and exp|Token used too early")


def find() -> tuple[Any, str | None]:
    """The application default credentials and their project, without a request. Raises
    CredentialsError. They are looked up once, as google-auth starts `gcloud` each time to ask for
    the project, and again when their file or the environment has changed."""
    import google.auth

    try:
        file = _file()
        written = file.stat().st_mtime_ns if file.is_file() else 0
        with _LOCK:
            return _found(google.auth.default, written, *sorted(os.environ.items()))
    except Exception as error:
        raise explained("looking for Google credentials", error) from error


@lru_cache(maxsize=1)
def _found(default: Callable[..., tuple[Any, str | None]], *_: object) -> tuple[Any, str | None]:
    with warnings.catch_warnings():
        # It warns about user credentials without a quota project, which few calls need.
        warnings.simplefilter("ignore", UserWarning)
        return default(scopes=(SCOPE,))


def explained(what: str, error: Exception) -> Exception:
    """A CredentialsError for any exception of a sign-in but those of a lost connection. A key's own
    text is not shown: what google-auth does not foresee may repeat parts of it."""
    from google.auth import exceptions

    if isinstance(error, CloudtrainError) or _is_lost(error):
        return error
    words = "a key cannot be read"
    if isinstance(error, exceptions.GoogleAuthError):
        # Some have the answer, or the error that caused them, as a second argument.
        parts = [str(part).partition(" Details: ")[0] for part in error.args]
        words = ": ".join(part for part in parts[:2] if not part.startswith(("{", "<")))
    path, given = _file(), None
    with suppress(OSError, ValueError):  # secrets in it are not used
        given = json.loads(path.read_text("utf-8"))
    given = given if isinstance(given, dict) else {}
    cure = _cure(str(error), {**given, "file": str(path)} if path.exists() else given)
    return CredentialsError(f"{what}: {words}", hint=cure, code=type(error).__name__)


def _is_lost(error: Exception) -> bool:
    from google.auth import exceptions
    from requests import RequestException

    lost = (exceptions.TransportError, exceptions.TimeoutError, exceptions.ResponseError)
    if isinstance(error, (*lost, RequestException)) or getattr(error, "retryable", False):
        return True
    return isinstance(error, OSError) and not isinstance(error, FileNotFoundError | PermissionError)


def _cure(words: str, given: dict[str, Any]) -> str:
    """Way to renew credentials of this kind, by what is in the `file` that describes them."""
    file, kind = str(given.get("file", "")), str(given.get("type", ""))
    named = os.environ.get(KEY_FILE)
    if named and not Path(named).is_file():
        return f"{KEY_FILE} names no file: correct it, or `unset {KEY_FILE}` and run `{_LOGIN}`"
    if kind == "service_account":
        email = given.get("client_email", "EMAIL")
        if _CLOCK.search(words):
            return "this machine's clock is wrong: run `sudo timedatectl set-ntp true`"
        return (
            f"the key in {file} is not valid (any more): run `gcloud iam service-accounts keys "
            f"create {file} --iam-account {email}`"
        )
    if kind == "impersonated_service_account":
        url = str(given.get("service_account_impersonation_url", ""))
        target = url.rpartition("/")[2].partition(":")[0] or "TARGET"
        if "invalid_grant" in words:
            return f"run `{_LOGIN} --impersonate-service-account={target}`"
        if "SERVICE_DISABLED" in words or "has not been used in project" in words:
            return "run `gcloud services enable iamcredentials.googleapis.com --project PROJECT`"
        return (
            f"you may not act as {target}: have an owner run `gcloud iam service-accounts "
            f"add-iam-policy-binding {target} --member=user:YOU@example.com "
            "--role=roles/iam.serviceAccountTokenCreator`, or run "
            f"`{_LOGIN}` without --impersonate-service-account"
        )
    if kind.startswith("external_account"):
        source = given.get("credential_source") or {}
        where = source.get("file") or source.get("url") or source.get("environment_id") or file
        return (
            f"renew the token of {where}, which {file} exchanges at {given.get('audience', '')}; "
            f"`gcloud auth login --cred-file={file}` shows the same answer"
        )
    if file and kind != "authorized_user":
        return f"correct {file}, or `unset {KEY_FILE}` and run `{_LOGIN}`"
    return f"run `{_LOGIN}`" if kind else LOGIN


def _file() -> Path:
    from google.auth import _cloud_sdk

    ours = _cloud_sdk.get_application_default_credentials_path()  # type: ignore[no-untyped-call]
    return Path(os.environ.get(KEY_FILE) or str(ours))
