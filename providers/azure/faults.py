"""Meanings of Resource Manager's refusals: codes as rows, and how its answers are read.

Codes:
https://learn.microsoft.com/azure/azure-resource-manager/troubleshooting/common-deployment-errors
and https://learn.microsoft.com/troubleshoot/azure/virtual-machines/windows/error-messages"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cloudtrain.core import errors
from cloudtrain.identities.azure import LOGIN
from cloudtrain.providers.base.faults import Table, plain, seconds
from cloudtrain.providers.base.http import error_in

ATTACH = "assign Managed Identity Operator on the identity to yourself (docs/azure.md)"
NO_IDENTITY = (
    "check `identity`: `az identity show --ids ID` must find it, in the subscription's tenant"
)

INSUFFICIENT_CLAIMS = "InsufficientClaims"
"""Our code for a token that lacks what the claims in `WWW-Authenticate` demand, such as a second
factor: https://learn.microsoft.com/entra/identity-platform/claims-challenge"""

TABLE = Table(
    file=Path(__file__).with_name("faults.yaml"),
    ATTACH=ATTACH,
    LOGIN=LOGIN,
    NO_IDENTITY=NO_IDENTITY,
)

_WRAPPERS = frozenset(
    {
        *("DeploymentFailed", "InvalidTemplateDeployment", "ResourceDeploymentFailure"),
        *("ResourceOperationFailure", "MultipleErrorsOccurred", "OperationFailed"),
        *("BadRequest", "Conflict", "NotFound", "Forbidden", "VMProvisioningFailed"),
    }
)
"""Codes that are less specific than the first of their `details`."""

_ENVELOPES = frozenset({"DeploymentFailed", "InvalidTemplateDeployment"})
"""Codes that mean nothing by themselves."""

_UNKNOWN_HERE = frozenset(
    {
        *("NotImplemented", "InvalidResourceType", "InvalidResourceNamespace", "NotSupported"),
        *("MethodNotAllowed", "HTTP 404", "HTTP 405", "HTTP 501"),
    }
)
"""Error codes of a partial Azure endpoint for a request that it does not support."""


_OLDER = frozenset(
    {"NoRegisteredProviderFound", "InvalidApiVersionParameter", "InvalidResourceType"}
)


def versions(error: errors.CloudError) -> tuple[str, ...]:
    """API versions that an endpoint lists as it refuses ours: sovereign clouds lag by months."""
    found = re.search(r"supported (?:api-)?versions are '([^']*)'", error.message, re.IGNORECASE)
    return tuple(re.findall(r"\d{4}-\d\d-\d\d(?:-\w+)?", found[1])) if found else ()


def wants_another_version(error: errors.CloudError) -> bool:
    return error.code in _OLDER and bool(versions(error))


def refuses_boot(error: errors.CloudError) -> bool:
    """True if the security profile of a VM was refused: its type, or for this image or size."""
    return bool(re.search(r"(?i)security ?type|Trusted ?Launch", error.message))


def is_unknown_question(error: errors.CloudError) -> bool:
    """True if this endpoint does not support the request."""
    return isinstance(error, errors.NotFoundError) or error.code in _UNKNOWN_HERE


def of_answer(
    asked: str,
    *,
    status: int,
    headers: Mapping[str, str],
    body: str,
    reach: errors.Scope = "region",
) -> errors.CloudError:
    """The error for an HTTP error response; `reach`: how far the request went."""
    wait = seconds(headers)
    facts = _challenge(headers.get("www-authenticate", ""))
    error = error_in(body)
    if isinstance(error, dict):
        return of_error(asked, error, status=status, retry_after=wait, reach=reach, facts=facts)
    words = plain(body) or f"HTTP {status} without a message"
    return TABLE.error(asked, words=words, status=status, reach=reach, retry_after=wait)


def of_error(
    asked: str,
    error: Any,
    *,
    status: int = 0,
    retry_after: float | None = None,
    reach: errors.Scope = "region",
    facts: Mapping[str, str] | None = None,
) -> errors.CloudError:
    """The error for ARM's `{"code", "message", "details"}`, wherever it stands."""
    causes = list(_walk(error)) or [("", str(error)[:500])]
    first = causes[0]
    if first[0] in _ENVELOPES:
        first = next((cause for cause in causes[1:] if cause[1]), first)
    causes = [c for c in causes if c[0] not in _WRAPPERS] + [first]
    told = {**(facts or {}), **_named(first[1])}
    if told.get("claims"):
        causes.insert(0, (INSUFFICIENT_CLAIMS, first[1]))
    code, words = next((c for c in causes if TABLE.row(*c) is not None), first)
    words = words or first[1]
    if code and status == 409 and not (asked.startswith("DELETE ") or _PASSES.search(words)):
        status = 400  # a code that nobody knows is an answer, and waiting does not change it
    if retry_after is None and (found := _RESERVED_FOR.search(words)):
        retry_after = float(found[1])
    named = words if not code or code in words else f"{code}: {words}"
    return TABLE.error(
        asked,
        causes=[(code, words)],
        words=named,
        status=status,
        reach=reach,
        facts=told,
        retry_after=retry_after,
    )


of_exception = TABLE.of_exception


def _challenge(header: str) -> dict[str, str]:
    """The claims that a token lacks, and the tenant that gives such tokens."""
    if "insufficient_claims" not in header:
        return {}
    found = re.search(r'claims="([\w+/=-]+)"', header)  # base64, which no shell interprets
    return {"claims": found[1] if found else "CLAIMS", **_named(header)}


def _named(words: str) -> dict[str, str]:
    """Parts of a message that belong into its hint, by name."""
    tenant = re.search(r"https://login\.[\w.]+/([0-9a-fA-F-]{36})", words)
    namespace = re.search(r"namespace '(Microsoft\.\w+)'", words)
    feature = re.search(r"(?:feature '?|')Microsoft\.Compute/(\w+)\b(?!/)", words)
    found = {"tenant": tenant, "namespace": namespace, "feature": feature}
    return {name: match[1] for name, match in found.items() if match}


_RESERVED_FOR = re.compile(r"\b(?:for|after|in) '?(\d{1,3})'? seconds\b")
"""As in "… is reserved for another Virtual Machine for 180 seconds …"."""
_PASSES = re.compile(r"(?i)\bbeing\b|in progress|\bretry|\bagain\b|\bwait\b|\blater\b|not ready")


def _walk(error: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(error, dict):
        return
    words = str(error.get("message") or "")
    code = str(error.get("code") or "")
    yield code, words
    # Some services put the whole error that they received, as JSON, into the message.
    if words.lstrip().startswith("{"):
        try:
            nested = json.loads(words)
        except ValueError:
            nested = None
        if isinstance(nested, dict):
            yield from _walk(nested.get("error", nested))
    for detail in error.get("details") or ():
        yield from _walk(detail)
