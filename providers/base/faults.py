"""One engine for what clouds refuse: a table's rows tell what a code means, and how far it reaches.

Each cloud's `faults` has its rows, and reads its own form of an answer into a `Refusal`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from fnmatch import fnmatchcase

from cloudtrain.core import moments
from cloudtrain.core.errors import (
    BusyError,
    CapacityError,
    CloudConfigError,
    CloudError,
    CredentialsError,
    NotFoundError,
    QuotaError,
    RateError,
    Scope,
    TransientError,
)


@dataclass(frozen=True)
class Fault:
    """Meaning of a refusal."""

    error: type[CloudError]
    scope: Scope | None = None
    """How far it reaches; None: as far as what was asked."""
    hint: str | None = None
    """What to do, best a command to paste: `{project}` and the like are the refusal's `facts`, or
    in capitals what nobody knows."""


@dataclass(frozen=True)
class Row:
    """One row of a table. The first one that fits counts, so what is special comes first."""

    fault: Fault
    codes: str = ""
    """Codes, separated by blanks, in any case and with or without underscores; `*` and `?` stand
    for letters. `http404`: of an answer without a code. None: any code, for `words` that mean the
    same with all of them."""
    words: str = ""
    """Pattern that the cloud's message must match."""
    code: str = ""
    """Our code, where the cloud's is too general."""
    raised: str = ""
    """Full names of exceptions, separated by blanks, by which libraries say the same."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """One refusal, whatever the form in which it came."""

    what: str
    """What was asked, for the message."""
    causes: Sequence[tuple[str, str]] = ()
    """Its codes, each with its message, the most telling first."""
    words: str = ""
    """What the user reads; by default the message of the cause that counts."""
    status: int = 0
    asked: Scope = "account"
    """How far a request reached, or the location that the answer names."""
    facts: Mapping[str, str] = field(default_factory=dict)
    retry_after: float | None = None


class Table:
    """The rows of one cloud, before those that all clouds share."""

    def __init__(self, *rows: Row) -> None:
        self._rows = [
            (row, tuple(map(_key, row.codes.split())), re.compile(row.words))
            for row in (*rows, *SHARED)
        ]

    def row(self, code: str, words: str = "") -> Row | None:
        """The first row that fits this code and message."""
        key = _key(code)
        for row, patterns, pattern in self._rows:
            fits = any(fnmatchcase(key, each) for each in patterns)
            if (fits or (row.words and not patterns)) and pattern.search(words):
                return row
        return None

    def error(self, refusal: Refusal) -> CloudError:
        code, words, row = self._told(refusal)
        fault = row.fault
        words = refusal.words or words or (f"HTTP {refusal.status}" if refusal.status else code)
        return fault.error(
            f"{refusal.what}: {' '.join(words.split())}",
            hint=fault.hint.format_map(_Facts(refusal.facts)) if fault.hint else None,
            scope=fault.scope or refusal.asked,
            code=row.code or code or f"HTTP {refusal.status}",
            retry_after=refusal.retry_after,
        )

    def _told(self, refusal: Refusal) -> tuple[str, str, Row]:
        """The code that counts, its message, and what it means.

        An answer with a code is an answer, whatever its status: with a server error, too, it says
        what failed, and the same request gets it again. Only a 429 counts before a code that does
        not say what to wait for.
        """
        for code, words in refusal.causes:
            row = self.row(code, words)
            if row is None or (refusal.status == 429 and not issubclass(row.fault.error, _FIRM)):
                continue
            return code, words, row
        code, words = next(iter(refusal.causes), ("", ""))
        if code and refusal.status >= 500 and refusal.status != 501:
            return code, words, _UNKNOWN
        row = self.row(f"http{refusal.status}")
        return code, words, row or _UNKNOWN

    @contextmanager
    def mapped(self, what: str) -> Iterator[None]:
        """Map exceptions that are raised inside to CloudError."""
        try:
            yield
        except CloudError:
            raise
        except Exception as error:
            raise self.of_exception(what, error) from error

    def of_exception(self, what: str, error: BaseException, **facts: str) -> CloudError:
        """The error for an exception, by the first row with one of its classes."""
        if isinstance(error, CloudError):
            return error
        names = [f"{c.__module__}.{c.__qualname__}" for c in type(error).__mro__]
        status = getattr(error, "code", 0) if _HTTP in names else 0
        raised = (r for r, _, _ in self._rows if _overlaps(names, r.raised.split()))
        row = (self.row(f"http{status}") if status else None) or next(raised, _UNKNOWN)
        fault = Fault(TransientError) if getattr(error, "retryable", False) else row.fault
        return fault.error(
            f"{what}: {redacted(_words_of(error))}",
            hint=fault.hint.format_map(_Facts(facts)) if fault.hint else None,
            scope=fault.scope or "account",
            code=f"HTTP {status}" if status else type(error).__name__,
        )


def redacted(words: str) -> str:
    """Remove private values: a cloud repeats a rejected value in its message, and a VM's first-boot
    data contains a private key.
    """
    words = re.sub(r"-----BEGIN .*?(-----END [^-]*-----|\Z)", "***", words, flags=re.DOTALL)
    words = re.sub(r"'[^']{200,}'|\"[^\"]{200,}\"", "'…'", words)
    words = " ".join(words.split())
    return words if len(words) <= 600 else f"{words[:600]}…"


def plain(body: str) -> str:
    """The text of an answer that is not in the cloud's form, such as a proxy's page."""
    return re.sub(r"<[^>]*>|\s+", " ", body).strip()[:200]


def seconds(headers: Mapping[str, str]) -> float | None:
    """The seconds to wait: `Retry-After`, a number or a date (RFC 9110, 10.2.3), or Azure's own
    headers, in milliseconds.
    """
    told = {name.lower(): value.strip() for name, value in headers.items()}
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        if re.fullmatch(r"\d+(\.\d+)?", told.get(name, "")):
            return float(told[name]) / 1000
    value = told.get("retry-after", "")
    if re.fullmatch(r"\d+(\.\d+)?", value):
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - moments.now())
    except (TypeError, ValueError):
        return None


def _words_of(error: BaseException) -> str:
    """An exception's message, without the whole response that google-auth appends."""
    first = error.args[0] if error.args else ""
    words = first if isinstance(first, str) else str(error)
    return words or type(error).__name__


def _overlaps(names: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)


class _Facts(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return name.upper()


def _key(code: str) -> str:
    return code.replace("_", "").lower()


_UNKNOWN = Row(Fault(CloudError))
_HTTP = "libcloud.common.exceptions.BaseHTTPError"
_FIRM = (BusyError, CapacityError, QuotaError, RateError)
_PASSING = Fault(TransientError)
SHARED = (
    Row(Fault(CredentialsError, "account"), "http401"),
    Row(Fault(RateError), "http429"),
    Row(Fault(NotFoundError), "http404"),
    Row(Fault(CloudConfigError), "http501"),
    Row(_PASSING, "http408 http425 http5??"),
    Row(Fault(CloudConfigError), "http3?? http4??"),
    Row(
        Fault(
            CloudConfigError,
            "account",
            "set REQUESTS_CA_BUNDLE (AWS: AWS_CA_BUNDLE) to a file with your CA certificates",
        ),
        raised="requests.exceptions.SSLError",
    ),
    Row(
        Fault(
            CloudConfigError,
            "account",
            "check `endpoints`, the cloud's own variable for it (docs/config.md) and HTTPS_PROXY",
        ),
        raised="requests.exceptions.InvalidURL requests.exceptions.InvalidSchema "
        "requests.exceptions.MissingSchema requests.exceptions.InvalidHeader "
        "requests.exceptions.TooManyRedirects",
    ),
    Row(
        _PASSING,
        raised="requests.exceptions.Timeout requests.exceptions.ConnectionError "
        "requests.exceptions.ChunkedEncodingError requests.exceptions.RetryError "
        "requests.exceptions.ContentDecodingError requests.exceptions.StreamConsumedError "
        "urllib3.exceptions.HTTPError "
        "libcloud.common.types.MalformedResponseError "
        "libcloud.common.types.ServiceUnavailableError",
    ),
    Row(Fault(CloudError), raised="requests.exceptions.RequestException"),
    Row(_PASSING, raised="builtins.OSError"),
)
