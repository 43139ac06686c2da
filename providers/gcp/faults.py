"""Meanings of Google's refusals: reasons and codes as rows, and how its answers are read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cloudtrain.core import errors
from cloudtrain.identities.google import LOGIN
from cloudtrain.providers.base.faults import Table, plain, redacted, seconds
from cloudtrain.providers.base.http import error_in

ATTACH = (
    "grant roles/iam.serviceAccountUser on the service account of `identity` to yourself "
    "(docs/gcp.md)"
)
NO_ACCOUNT = (
    "check `identity`: `gcloud iam service-accounts list` shows a project's service accounts"
)
RESERVATION = (
    "`gcloud compute reservations list` shows those of the project, with their zones and machines"
)
ROLE = (
    "roles/{role} is enough (docs/gcp.md): have an owner run `gcloud projects "
    "add-iam-policy-binding {project} --member=user:YOU@example.com --role=roles/{role}`"
)
MORE = (
    "request more at https://console.cloud.google.com/iam-admin/quotas?project={project}, or "
    "choose another placement"
)
UNKNOWN_METHOD = "unknown method"
"""Code of a NotFoundError that means the endpoint does not support the method."""
NO_QUOTA_PROJECT = "NO_QUOTA_PROJECT"
"""Our reason for SERVICE_DISABLED where gcloud's own project is meant."""
OWN_OF_GCLOUD = frozenset({"764086051850", "32555940559"})
"""Numbers of the projects of gcloud's own OAuth clients, which Google takes for the consumer if a
login has no quota project: GoogleCloudPlatform/dlp-pdf-redaction#25, read 2026-11-26."""

TABLE = Table(
    file=Path(__file__).with_name("faults.yaml"),
    ATTACH=ATTACH,
    LOGIN=LOGIN,
    MORE=MORE,
    NO_ACCOUNT=NO_ACCOUNT,
    RESERVATION=RESERVATION,
    ROLE=ROLE,
)

OF_A_NEW_VM = ("RESOURCE_NOT_READY", "RESOURCE_NOT_FOUND")
"""Codes that mean in an operation that creates a VM that the zone had no capacity after all."""
PREEMPTED = re.compile(r"preempt", re.IGNORECASE)
"""Matches the message of an UNSUPPORTED_OPERATION error if the VM was preempted during its
creation. Google also uses that code for requests that no zone supports, such as an unsupported disk
for a machine type."""


def of_answer(
    what: str,
    *,
    status: int,
    headers: Mapping[str, str],
    body: str,
    path: str = "",
    facts: Mapping[str, str] | None = None,
) -> errors.CloudError:
    """The error for an HTTP error response. `path`: the request's; `facts`: what hints may name."""
    return of_error(
        what,
        error_in(body),
        status=status,
        text=plain(body),
        path=path,
        facts=facts,
        retry_after=seconds(headers),
    )


def of_error(
    what: str,
    error: Any,
    *,
    status: int,
    text: str = "",
    path: str = "",
    facts: Mapping[str, str] | None = None,
    retry_after: float | None = None,
) -> errors.CloudError:
    """The error for Google's `{"code", "message", "details"}`, a message, or else `text`."""
    given = error if isinstance(error, dict) else {}
    message = str(given.get("message") or (error if isinstance(error, str) else "") or text)
    parts = (*_dicts(given.get("details")), *_dicts(given.get("errors")))
    reasons = [str(each["reason"]) for each in parts if each.get("reason")]  # most specific first
    reasons += [str(given["status"])] if given.get("status") else []
    told = _facts(path, facts or {}, given.get("details") or ())
    if told.get("number") in OWN_OF_GCLOUD and "SERVICE_DISABLED" in reasons:
        reasons.insert(0, NO_QUOTA_PROJECT)
    unknown = status in (405, 501) or (status == 404 and not reasons)
    made = TABLE.error(
        what,
        causes=[(each, message) for each in reasons] or [("", message)],
        words=redacted(_localized(given.get("details") or ()) or message),
        status=status,
        reach=_asked(path, told),
        facts=told,
        retry_after=retry_after,
    )
    return made.copy_with(code=UNKNOWN_METHOD) if unknown else made


def of_operation(
    what: str,
    listed: Sequence[Mapping[str, Any]],
    *,
    new_vm: bool = False,
    path: str = "",
    facts: Mapping[str, str] | None = None,
) -> errors.CloudError:
    """The error for a failed operation. All its errors are considered: the first may only say that
    not everything was done, and the second why."""
    details = [d for error in listed for d in error.get("errorDetails") or ()]
    causes, words = [], []
    for error in listed:
        code, message = str(error.get("code", "")), str(error.get("message", ""))
        causes.append((code, message))
        words.append(_localized(error.get("errorDetails") or ()) or message or code)
        preempted = code == "UNSUPPORTED_OPERATION" and PREEMPTED.search(message)
        if new_vm and (code in OF_A_NEW_VM or preempted):
            causes[-1] = ("STOCKOUT", message)
    causes.sort(key=lambda cause: cause[0] == "VM_MIN_COUNT_NOT_REACHED")
    told = _facts(path, facts or {}, details)
    quota = next((d["quotaInfo"] for d in details if d.get("quotaInfo")), None)
    made = TABLE.error(
        what,
        causes=causes,
        words=redacted("; ".join(words)),
        status=400,
        reach=_asked(path, told),
        facts=told,
    )
    if quota is not None and isinstance(made, errors.QuotaError):
        made = made.copy_with(scope=_quota_scope(quota.get("dimensions") or {}))
    if isinstance(made, errors.CapacityError):
        made.elsewhere = tuple(each for each in told.get("zonesAvailable", "").split(",") if each)
    return made


def role(project: str, *, tpus: bool = False) -> str:
    """Way to get the role that is enough."""
    return ROLE.format(project=project, role="tpu.admin" if tpus else "compute.admin")


of_exception = TABLE.of_exception


def _dicts(given: Any) -> list[Mapping[str, Any]]:
    return [each for each in given or () if isinstance(each, dict)]


def _facts(path: str, facts: Mapping[str, str], details: Any) -> dict[str, str]:
    """Facts that Google adds in ErrorInfo, and those of the request."""
    told = dict(facts)
    told.setdefault("consumer", told.get("project", "PROJECT"))
    for each in _dicts(details):
        info = each.get("errorInfo") or each
        metadata = info.get("metadata") or info.get("metadatas") or {}
        told |= {str(k): str(v) for k, v in metadata.items() if v and k != "consumer"}
        if str(metadata.get("consumer", "")).startswith("projects/"):
            told["number"] = told["consumer"] = str(metadata["consumer"]).partition("/")[2]
    told["api"] = told.get("service") or told.get("api", "compute.googleapis.com")
    told["role"] = "tpu.admin" if told["api"].startswith("tpu.") else "compute.admin"
    place = _place(path)
    if place:
        told.setdefault("region", re.sub(r"-[a-z]$", "", place))
    return told


def _localized(details: Any) -> str:
    """Google's message for the user, which it sends besides the one for programs."""
    for each in _dicts(details):
        message = (each.get("localizedMessage") or {}).get("message")
        if message or str(each.get("@type", "")).endswith("LocalizedMessage"):
            return str(message or each.get("message") or "")
    return ""


def _place(path: str) -> str:
    found = re.search(r"(?:^|/)(?:zones|regions|locations)/([a-z]+-[a-z]+\d+(?:-[a-z])?)\b", path)
    return found[1] if found else ""


def _asked(path: str, told: Mapping[str, str]) -> errors.Scope:
    """Scope where no code says it: the location that the refusal names, or the request's place."""
    place = told.get("location") or _place(path)
    if re.fullmatch(r"[a-z]+-[a-z]+\d+-[a-z]+\d?[a-z]?", place):
        return "zone"
    return "region" if re.fullmatch(r"[a-z]+-[a-z]+\d+", place) else "account"


def _quota_scope(dimensions: Mapping[str, str]) -> errors.Scope:
    if "zone" in dimensions:
        return "zone"
    return "region" if "region" in dimensions else "account"


def is_unknown_question(error: errors.NotFoundError, words: str = "The resource '") -> bool:
    """True if the endpoint does not support the request, rather than the resource being absent,
    which the API's messages say in these words."""
    return error.code == UNKNOWN_METHOD or words not in error.message
