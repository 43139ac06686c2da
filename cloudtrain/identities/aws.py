"""Identities of AWS: boto3's credential chain, with the AWS CLI's own cache of sessions.

Sources of credentials: https://docs.aws.amazon.com/sdkref/latest/guide/standardized-credentials.html
"""

from __future__ import annotations

import functools
import os
import shlex
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from cloudtrain.core import moments, recorder
from cloudtrain.core.errors import CloudtrainError, CredentialsError, Error

CLOUD = __name__.rpartition(".")[2]
"""As configs name it: this module is called like its cloud."""

CACHE = "~/.aws/cli/cache"
"""Where the AWS CLI keeps sessions of roles, MFA and SSO, under keys that botocore derives alike
(awscli/customizations/assumerole.py)."""

PROCESS_LIMIT = 60.0
"""Seconds for a `credential_process`, which may wait for a login in a browser; one that hung is not
started again for as long."""

SKEW = 240.0
"""Seconds from which a wrong clock explains a refused signature: AWS takes 5 minutes (IAM user
guide, "Signature Version 4 request elements"), and a `Date` says when it was answered."""

_known: dict[object, AwsIdentity] = {}
_lock = threading.Lock()


def identity(profile: str | None) -> AwsIdentity:
    """The identity of a profile, None for the default: the same one for the whole command, unless
    the environment or the user's files change."""
    environment = {n: v for n, v in os.environ.items() if n.startswith("AWS_") or n == "HOME"}
    key = (profile, tuple(sorted(environment.items())), *map(_changed, _files()))
    with _lock:
        return _known.setdefault(key, AwsIdentity(profile))


def _files() -> tuple[str, str]:
    """The paths of the user's config and credentials."""
    return (
        os.environ.get("AWS_CONFIG_FILE", "~/.aws/config"),
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    )


def _profile_variable() -> str:
    """The profile of the environment (botocore/configprovider.py has this order)."""
    return os.environ.get("AWS_DEFAULT_PROFILE") or os.environ.get("AWS_PROFILE") or ""


def _changed(path: str) -> int:
    try:
        return Path(path).expanduser().stat().st_mtime_ns
    except OSError:
        return 0


class AwsIdentity:
    """One profile's session and credentials. Thread-safe. Raises CredentialsError."""

    def __init__(self, profile: str | None) -> None:
        self.profile = profile
        self._lock = threading.RLock()
        self._session: Any = None
        self._found: Any = None
        self._may_ask = False
        self._hung: tuple[float, Exception] | None = None
        """When a process hung (since boot), and what was raised."""

    def session(self) -> Any:
        """boto3's session, whose clients sign with `credentials()` of the moment."""
        with self._lock:
            if self._session is None:
                try:
                    self._session = self._new_session()
                except Exception as error:
                    raise self._explained(error) from error
            return self._session

    def client(self, service: str, **given: Any) -> Any:
        """boto3's client of a service, made by this session."""
        from botocore.exceptions import BotoCoreError

        session = self.session()
        try:
            return session.client(service, **given)
        except BotoCoreError as error:  # a region or a setting of the profile
            raise self._explained(error) from error

    def credentials(self) -> Any:
        """Current credentials, frozen. botocore renews those that expire. Failures are not kept:
        the next call looks again."""
        try:
            with self._lock:
                if self._hung and moments.since_boot() - self._hung[0] < PROCESS_LIMIT:
                    raise self._hung[1]
                if self._found is None:
                    self._found = self._load()
                found = self._found
            return found.get_frozen_credentials()
        except Exception as error:
            with self._lock:
                self._found = None
                is_new = self._hung is None or error is not self._hung[1]
                if is_new and isinstance(error.__cause__, subprocess.TimeoutExpired):
                    self._hung = moments.since_boot(), error
            raise self._explained(error) from error

    def ask_ahead(self) -> None:
        """Ask for an MFA code now, if this profile needs one: nothing is drawn yet, and the main
        thread may ask."""
        if threading.current_thread() is threading.main_thread() and self._needs_code():
            with self._lock:
                self._may_ask = sys.stdin is not None and sys.stdin.isatty()
                try:
                    self.credentials()
                finally:
                    self._may_ask = False

    def cured(self, error: Error) -> Error:
        """A refusal of our credentials with the command that cures it."""
        behind = moments.MOMENTS.heard
        if abs(behind) >= SKEW:
            wrong = moments.wrong_by(behind, "AWS")
            return error.copy_with(hint=f"{wrong}: run `sudo timedatectl set-ntp true`")
        return error.copy_with(hint=self._renewal())

    def _new_session(self) -> Any:
        import boto3
        import botocore.session
        from botocore.credentials import CredentialResolver

        core = botocore.session.Session(profile=self.profile)
        core.register_component("credential_provider", CredentialResolver([_Provider(self)]))
        parsers = core.get_component("response_parser_factory")
        parsers.set_parser_defaults(timestamp_parser=moment)
        core.register("after-call", heard)
        core.register("after-call", functools.partial(recorder.of_botocore, CLOUD))
        return boto3.Session(botocore_session=core)

    def _load(self) -> Any:
        """Ask botocore's chain. Raises whatever it raises."""
        from botocore.credentials import create_credential_resolver

        core = self.session()._session
        cache = _cache_class()(str(Path(CACHE).expanduser()))
        chain = create_credential_resolver(core, cache=cache)
        role = chain.get_provider("assume-role")
        role._prompter = self._mfa_code
        builder = role._profile_provider_builder
        made = builder._create_process_provider
        builder._create_process_provider = lambda *given: _limited(made(*given))
        _limited(chain.get_provider("custom-process"))
        found = chain.load_credentials()
        if found is None:
            raise CredentialsError(
                "no AWS credentials found"
                + (f" for profile {self.profile}" if self.profile else ""),
                hint=f"run `{self._command('aws login')}`, `{self._command('aws configure')}` or "
                f"`{self._command('aws sso login')}`, or set `project` (AWS_PROFILE) to another "
                "profile",
                code="NoCredentials",
            )
        return found

    def _mfa_code(self, prompt: str) -> str:
        """Ask for an MFA code while `ask_ahead` allows it: later, lines are drawn and threads would
        ask at once."""
        from getpass import getpass

        if self._may_ask:
            return getpass(prompt)
        raise CredentialsError(
            f"{self._name} needs an MFA code", hint=self._session_by_cli(), code="MFA"
        )

    def _session_by_cli(self) -> str:
        return (
            f"run `{self._command('aws sts get-caller-identity')}`, which asks for the code and "
            f"keeps the session in {CACHE}, then run it again"
        )

    @property
    def _name(self) -> str:
        profile = self.profile or _profile_variable()
        return f"AWS profile {profile}" if profile else "AWS"

    def _command(self, words: str) -> str:
        return f"{words} --profile {shlex.quote(self.profile)}" if self.profile else words

    @property
    def _profile(self) -> str:
        given = self.profile or _profile_variable()
        return given or "default"

    def _setting(self, name: str, profile: str = "") -> str:
        """A setting of the profile in ~/.aws/config, "" if it has none."""
        with suppress(Exception):
            profiles = self.session()._session.full_config["profiles"]
            return str(profiles.get(profile or self._profile, {}).get(name) or "")
        return ""

    def _needs_code(self) -> bool:
        """True if the profile's role, or that of a profile that it begins with, needs MFA."""
        profile, seen = self._profile, set()
        while profile and profile not in seen:
            if self._setting("mfa_serial", profile):
                return True
            seen.add(profile)
            profile = self._setting("source_profile", profile)
        return False

    def _renewal(self) -> str:
        """Way to renew credentials of this source."""
        method = str(getattr(self._found, "method", "") or "")
        if method == "sso" or self._setting("sso_start_url") or self._setting("sso_session"):
            return f"run `{self._command('aws sso login')}`"
        if method == "login" or self._setting("login_session"):
            return f"run `{self._command('aws login')}`"
        if method == "env":
            return (
                "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN anew, or unset "
                "all three and run `aws login`"
            )
        process = self._setting("credential_process")
        if process:
            return f"run the `credential_process` of {_files()[0]} by hand: {process}"
        if self._setting("mfa_serial"):
            return self._session_by_cli()
        return (
            f"run `{self._command('aws configure')}` with a valid key or "
            f"`{self._command('aws login')}`, or set `project` (AWS_PROFILE) to another profile"
        )

    def _explained(self, error: Exception) -> Exception:
        """A CredentialsError for any exception except those of a lost connection."""
        from botocore import exceptions as boto

        if isinstance(error, CloudtrainError) or _is_lost(error):
            return error
        code, words = type(error).__name__, " ".join(str(error).split())
        if isinstance(error, boto.ClientError):
            code = str(error.response.get("Error", {}).get("Code", code))
        elif not isinstance(error, boto.BotoCoreError):
            words = f"{code}: {words}"
        cure = self._cure(error)
        found = CredentialsError(f"{self._name}: {words}", hint=cure, code=code)
        return found if cure else self.cured(found)

    def _cure(self, error: Exception) -> str | None:
        """Cure of a failure of one source; None for the source's usual renewal."""
        from botocore import exceptions as boto

        config = _files()[0]
        if isinstance(error, boto.MissingDependencyException):
            return 'run `pip install "botocore[crt]"`, which `aws login` needs, then run it again'
        if isinstance(error, boto.ProfileNotFound):
            return "`aws configure list-profiles` shows the profiles"
        if isinstance(error, boto.InvalidRegionError | boto.NoRegionError):
            return f"correct `region` of that profile in {config}, or AWS_DEFAULT_REGION"
        if isinstance(error, boto.ConfigParseError):
            return "correct that file: https://docs.aws.amazon.com/cli/latest/userguide/cli-configure-files.html"
        if isinstance(error, boto.RefreshWithMFAUnsupportedError):
            return self._session_by_cli()
        if isinstance(error, boto.PartialCredentialsError | boto.InvalidConfigError):
            role = ": a role needs `source_profile`" if self._setting("role_arn") else ""
            return f"complete that profile in {config}{role}"
        words = str(error)
        if "MultiFactorAuthentication" in words or "TokenCode" in words:
            return "wait for the next code of the MFA device (six digits), then run it again"
        if isinstance(error, boto.ClientError) and self._web_identity():
            return f"renew the token in {self._web_identity()} (AWS_WEB_IDENTITY_TOKEN_FILE)"
        if isinstance(error, boto.ClientError) and self._setting("role_arn"):
            return (
                f"the role's trust policy must admit you: {self._setting('role_arn')}; "
                f"`{self._command('aws sts get-caller-identity')}` shows the same answer"
            )
        if isinstance(error, OSError) and self._web_identity():
            return f"AWS_WEB_IDENTITY_TOKEN_FILE must be readable: {self._web_identity()}"
        return None

    def _web_identity(self) -> str:
        return self._setting("web_identity_token_file") or os.environ.get(
            "AWS_WEB_IDENTITY_TOKEN_FILE", ""
        )


def moment(value: object) -> Any:
    """Parse a timestamp of an answer. botocore's own way takes three quarters of the time in which
    it reads a listing: 45 of 62 ms for 1,000 objects (botocore 1.44.8, 2026-11-27)."""
    if isinstance(value, str) and value[10:11] == "T" and value.endswith("Z"):
        with suppress(ValueError):
            return datetime.fromisoformat(f"{value[:-1]}+00:00")
    from botocore.utils import parse_timestamp

    return parse_timestamp(value)


class _Provider:
    """The only source that our sessions ask: it hands out what `AwsIdentity.credentials` finds."""

    METHOD = CANONICAL_NAME = "cloudtrain"

    def __init__(self, its: AwsIdentity) -> None:
        self._its = its

    def load(self) -> Any:
        from botocore.credentials import Credentials

        its = self._its

        class Current(Credentials):  # type: ignore[misc]
            method = _Provider.METHOD
            access_key = property(lambda _: its.credentials().access_key)
            secret_key = property(lambda _: its.credentials().secret_key)
            token = property(lambda _: its.credentials().token)
            account_id = property(lambda _: getattr(its.credentials(), "account_id", None))

            def __init__(self) -> None:
                """Hold nothing."""

            def get_frozen_credentials(self) -> Any:
                return its.credentials()

        return Current()


def _is_lost(error: Exception) -> bool:
    """True if a service did not answer, or failed by itself: the same may work again."""
    from botocore import exceptions as boto

    if isinstance(error, boto.ClientError):
        return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) >= 500
    return isinstance(error, boto.ConnectionError | boto.HTTPClientError)


def _cache_class() -> Any:
    from botocore.utils import JSONFileCache

    class Cache(JSONFileCache):  # type: ignore[misc]
        """The CLI's cache; without it where its folder cannot be written."""

        def __setitem__(self, key: str, value: Any) -> None:
            with suppress(OSError):
                Path(self._working_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
                super().__setitem__(key, value)

    return Cache


def _limited(provider: Any) -> Any:
    """Give a `credential_process` PROCESS_LIMIT seconds: botocore itself would wait for ever."""
    provider._popen = _Limited
    return provider


class _Limited(subprocess.Popen[bytes]):
    def communicate(self, *_: Any, **__: Any) -> tuple[bytes, bytes]:
        from botocore.exceptions import CredentialRetrievalError

        try:
            return super().communicate(timeout=PROCESS_LIMIT)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise CredentialRetrievalError(
                provider="custom-process", error_msg=f"no answer within {PROCESS_LIMIT:.0f} s"
            ) from error


def heard(http_response: Any, **_: Any) -> None:
    """Hear AWS's clock; another service that speaks its API may have a wrong one."""
    if ".amazonaws." in http_response.url:
        date = http_response.headers.get("Date")
        moments.hear(date, asked=moments.since_boot(), who="AWS")
