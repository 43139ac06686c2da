"""One engine for what clouds refuse: a table's rows tell what a code means, and how far it reaches.

Each cloud's faults.yaml has its rows, and its `faults` reads its own form of an answer. A refusal
for each row is in tests/standins/corpus/CLOUD.yaml, or in tests/unit/test_CLOUD_faults.py."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY
from email.utils import parsedate_to_datetime
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Literal

from cloudtrain.core import errors, moments
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.yaml_table import pattern_of, read_table


@dataclass(frozen=True)
class RefusalRow:
    """Meaning of a refusal. The first row that fits counts, so what is special comes first."""

    error: type[errors.CloudError]
    codes: str = ""
    """Codes, separated by blanks, in any case and with or without underscores; `*` and `?` stand
    for letters. `http404`: of an answer without a code. None: any code, for `words` that mean the
    same with all of them."""
    words: str = ""
    """Pattern that the cloud's message must match."""
    _: KW_ONLY
    scope: errors.Scope | None = None
    """How far it reaches; None: as far as what was asked."""
    hint: str | None = None
    """What to do, best a command to paste: `{project}` and the like are the refusal's `facts`, or
    in capitals what nobody knows."""
    code: str = ""
    """Our code, where the cloud's is too general."""
    raised: str = ""
    """Full names of exceptions, separated by blanks, by which libraries say the same."""


@dataclass(frozen=True)
class Kind:
    """Makes rows of one class of errors with a hint."""

    error: type[errors.CloudError]
    reaches: errors.Scope

    def __call__(
        self,
        hint: str,
        codes: str = "",
        words: str = "",
        *,
        scope: errors.Scope | Literal["asked"] | None = None,
        code: str = "",
        raised: str = "",
    ) -> RefusalRow:
        """A row. `scope`: by default that of the kind; `asked`: as far as what was asked."""
        reach = None if scope == "asked" else scope or self.reaches
        return RefusalRow(
            self.error, codes, words, scope=reach, hint=hint, code=code, raised=raised
        )


denied = Kind(errors.PermissionsError, "account")
login = Kind(errors.CredentialsError, "account")
wrong = Kind(errors.CloudConfigError, "region")
full = Kind(errors.CapacityError, "zone")
quota = Kind(errors.QuotaError, "region")
busy = Kind(errors.BusyError, "region")
KINDS = {
    **{"denied": denied, "login": login, "wrong": wrong, "full": full},
    **{"quota": quota, "busy": busy},
}


def rows_of(file: Path, texts: Mapping[str, str]) -> Iterator[RefusalRow]:
    """Rows of a cloud's faults.yaml: each begins with its kind and hint, or with `error` and the
    name of the class. `texts`: hints by the names that stand for them."""
    for given in read_table(file):
        (kind, first), *rest = given.items()
        row = {**dict(rest), "words": pattern_of(given.get("words", ""))}
        if kind == "error":
            yield RefusalRow(getattr(errors, first), **row)
        else:
            yield KINDS[kind](texts.get(first, first), **row)


class Table:
    """The rows of one cloud, of a file too, before those that all clouds share; read when they are
    first needed. `texts`: hints that the file's rows name."""

    def __init__(self, *rows: RefusalRow, file: Path | None = None, **texts: str) -> None:
        self._given, self._file, self._texts = rows, file, texts

    @cached_property
    def _rows(self) -> Sequence[tuple[RefusalRow, Sequence[str], re.Pattern[str]]]:
        read = rows_of(self._file, self._texts) if self._file is not None else ()
        return [
            (row, tuple(map(_key, row.codes.split())), re.compile(row.words))
            for row in (*self._given, *read, *SHARED)
        ]

    def row(self, code: str, words: str = "") -> RefusalRow | None:
        """The first row that fits this code and message."""
        key = _key(code)
        for row, patterns, pattern in self._rows:
            fits = any(fnmatchcase(key, each) for each in patterns)
            if (fits or (row.words and not patterns)) and pattern.search(words):
                return row
        return None

    def error(
        self,
        what: str,
        *,
        causes: Sequence[tuple[str, str]] = (),
        words: str = "",
        status: int = 0,
        reach: errors.Scope = "account",
        facts: Mapping[str, str] | None = None,
        retry_after: float | None = None,
    ) -> errors.CloudError:
        """The error for a refusal, whatever the form in which it came.

        `what`: what was asked, for the message. `causes`: its codes, each with its message, the
        most telling first. `words`: what the user reads; by default the message of the cause that
        counts. `reach`: how far the request went, or the location that the answer names."""
        code, message, row = self._told(causes, status)
        words = words or message or (f"HTTP {status}" if status else code)
        code = row.code or code or f"HTTP {status}"
        return _error(row, what, words, code, reach, facts or {}, retry_after)

    def _told(self, causes: Sequence[tuple[str, str]], status: int) -> tuple[str, str, RefusalRow]:
        """The code that counts, its message, and what it means. An answer with a code is an answer,
        whatever its status: with a server error, too, it says what failed, and the same request
        gets it again. Only a 429 counts before a code that does not say what to wait for."""
        for code, words in causes:
            row = self.row(code, words)
            if row is not None and (status != 429 or issubclass(row.error, _FIRM)):
                return code, words, row
        code, words = next(iter(causes), ("", ""))
        if code and status >= 500 and status != 501:
            return code, words, _UNKNOWN
        return code, words, self.row(f"http{status}") or _UNKNOWN

    @contextmanager
    def mapped(self, what: str) -> Iterator[None]:
        """Map exceptions that are raised inside to CloudError."""
        try:
            yield
        except errors.CloudError:
            raise
        except Exception as error:
            raise self.of_exception(what, error) from error

    def of_exception(self, what: str, error: BaseException) -> errors.CloudError:
        """The error for an exception, by the first row with one of its classes."""
        if isinstance(error, errors.CloudError):
            return error
        names = [f"{c.__module__}.{c.__qualname__}" for c in type(error).__mro__]
        status = getattr(error, "code", 0) if _HTTP in names else 0
        raised = (
            row
            for row, _, _ in self._rows
            if any(fnmatchcase(name, each) for each in row.raised.split() for name in names)
        )
        row = (self.row(f"http{status}") if status else None) or next(raised, _UNKNOWN)
        row = RefusalRow(errors.TransientError) if getattr(error, "retryable", False) else row
        code = f"HTTP {status}" if status else type(error).__name__
        first = error.args[0] if error.args else ""  # google-auth appends the whole response
        words = (first if isinstance(first, str) else str(error)) or type(error).__name__
        return _error(row, what, redacted(words), code, "account", {})


def _error(
    row: RefusalRow,
    what: str,
    words: str,
    code: str,
    reach: errors.Scope,
    facts: Mapping[str, str],
    retry_after: float | None = None,
) -> errors.CloudError:
    text = " ".join(words.split())
    return row.error(
        f"{what}: {text}" if what else text,
        hint=row.hint.format_map(_Facts(facts)) if row.hint else None,
        scope=row.scope or reach,
        code=code,
        retry_after=retry_after,
    )


def redacted(words: str) -> str:
    """Remove private values: a cloud repeats a rejected value in its message, and a VM's first-boot
    data contains a private key."""
    words = re.sub(r"-----BEGIN .*?(-----END [^-]*-----|\Z)", "***", words, flags=re.DOTALL)
    words = re.sub(r"'[^']{200,}'|\"[^\"]{200,}\"", "'…'", words)
    words = " ".join(words.split())
    return words if len(words) <= 600 else f"{words[:600]}…"


def plain(body: str) -> str:
    """The text of an answer that is not in the cloud's form, such as a proxy's page."""
    return re.sub(r"<[^>]*>|\s+", " ", body).strip()[:200]


def seconds(headers: Mapping[str, str]) -> float | None:
    """The seconds of `Retry-After` (number or date: RFC 9110, 10.2.3) or Azure's own, in ms."""
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


class _Facts(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return name.upper()


def _key(code: str) -> str:
    return code.replace("_", "").lower()


_UNKNOWN = RefusalRow(errors.CloudError)
_HTTP = "libcloud.common.exceptions.BaseHTTPError"
_FIRM = (errors.BusyError, errors.CapacityError, errors.QuotaError, errors.RateError)
SHARED = (
    RefusalRow(errors.CredentialsError, "http401", scope="account"),
    RefusalRow(errors.RateError, "http429"),
    RefusalRow(errors.NotFoundError, "http404"),
    RefusalRow(errors.CloudConfigError, "http501"),
    RefusalRow(errors.TransientError, "http408 http425 http5??"),
    RefusalRow(errors.CloudConfigError, "http3?? http4??"),
    wrong(
        "set REQUESTS_CA_BUNDLE (AWS: AWS_CA_BUNDLE) to a file with your CA certificates",
        scope="account",
        raised="requests.exceptions.SSLError",
    ),
    wrong(
        "check `endpoints`, the cloud's own variable for it (docs/config.md) and HTTPS_PROXY",
        scope="account",
        raised="requests.exceptions.InvalidURL requests.exceptions.InvalidSchema "
        "requests.exceptions.MissingSchema requests.exceptions.InvalidHeader "
        "requests.exceptions.TooManyRedirects",
    ),
    RefusalRow(
        errors.TransientError,
        raised="requests.exceptions.Timeout requests.exceptions.ConnectionError "
        "requests.exceptions.ChunkedEncodingError requests.exceptions.RetryError "
        "requests.exceptions.ContentDecodingError requests.exceptions.StreamConsumedError "
        "urllib3.exceptions.HTTPError "
        "libcloud.common.types.MalformedResponseError "
        "libcloud.common.types.ServiceUnavailableError",
    ),
    RefusalRow(errors.CloudError, raised="requests.exceptions.RequestException"),
    RefusalRow(errors.TransientError, raised="builtins.OSError"),
)
