"""Maps Google's errors: each reason or code becomes a class of `errors` with a scope."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import mktime_tz, parsedate_tz
from typing import Any

from google.auth import exceptions as google
from libcloud.common import exceptions as http
from libcloud.common import google as libcloud
from libcloud.common import types
from requests import exceptions as requests

from cloudtrain import moments
from cloudtrain.errors import (
    AddressTakenError,
    BusyError,
    CapacityError,
    CloudConfigError,
    CloudError,
    CredentialsError,
    NameTakenError,
    NotFoundError,
    PermissionsError,
    QuotaError,
    RateError,
    Scope,
    TransientError,
)


@dataclass(frozen=True)
class Fault:
    """One row of the tables below. If `scope` is None, it is derived from the message."""

    error: type[CloudError]
    scope: Scope | None = "account"
    hint: str | None = None


LOGIN = "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS"
ENABLE = "run `gcloud services enable compute.googleapis.com --project PROJECT`, then wait a minute"
BILLING = "link an active billing account: https://console.cloud.google.com/billing"
ATTACH = (
    "grant roles/iam.serviceAccountUser on the service account of `identity` to yourself "
    "(docs/gcp.md)"
)
NO_ACCOUNT = (
    "check `identity`: `gcloud iam service-accounts list` shows a project's service accounts"
)
GOOGLE_CLOSED = "see https://console.cloud.google.com/billing for why it was disabled"
QUOTA_PROJECT = (
    "you may not use the quota project: run `gcloud auth application-default set-quota-project "
    "PROJECT`, or get roles/serviceusage.serviceUsageConsumer on it"
)
PERIMETER = (
    "a VPC Service Controls perimeter of your organization forbids it: its administrators find it "
    "by that identifier and can admit this machine with an access level"
)
KEY = (
    "check `disk_key`: the key must exist in the disk's region, and the project's Compute Engine "
    "service agent, service-NUMBER@compute-system.iam.gserviceaccount.com, needs "
    "roles/cloudkms.cryptoKeyEncrypterDecrypter on it (docs/companies.md)"
)
SHIELDED = (
    "your organization requires Secure Boot, which nodes with GPUs do not have, as it refuses "
    "NVIDIA's kernel modules. Have this project exempted (docs/companies.md)"
)
ORGANIZATION = (
    "a policy of your organization forbids it; a label that it requires goes into `tags:` "
    "(docs/companies.md)"
)
RESERVATION = (
    "`gcloud compute reservations list` shows those of the project, with their zones and machines"
)
PROJECTS = "set `project:` to the project's id, not its name or number (`gcloud projects list`)"
ROLE = "grant roles/compute.admin on the project, which is enough (docs/gcp.md)"
TPU_ROLE = "grant roles/compute.admin and roles/tpu.admin on the project (docs/gcp.md)"
MORE = (
    "request more at https://console.cloud.google.com/iam-admin/quotas, or choose another placement"
)
UNKNOWN_METHOD = "unknown method"
"""Code of a NotFoundError that means the endpoint does not support the method."""

CAPACITY = Fault(CapacityError, "zone")
QUOTA = Fault(QuotaError, None, MORE)
RATE = Fault(RateError)
TRANSIENT = Fault(TransientError)
BUSY = Fault(BusyError)
NAME = Fault(NameTakenError, hint="choose another `name`, or delete the resource that has it")
PERMISSION = Fault(PermissionsError, hint=ROLE)
DISABLED = Fault(PermissionsError, hint=ENABLE)
AUTH = Fault(CredentialsError, hint=LOGIN)
CONFIG = Fault(CloudConfigError)
NOT_FOUND = Fault(NotFoundError)

CODES: dict[str, Fault] = {
    # Operation error codes and HTTP reasons alike: `quotaExceeded` is `QUOTA_EXCEEDED`.
    # https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-vm-creation
    # https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-resource-availability
    "ZONE_RESOURCE_POOL_EXHAUSTED": CAPACITY,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": CAPACITY,
    "RESOURCE_POOL_EXHAUSTED": CAPACITY,
    "STOCKOUT": CAPACITY,
    "INSUFFICIENT_CAPACITY": CAPACITY,
    "VM_MIN_COUNT_NOT_REACHED": CAPACITY,
    "QUOTA_EXCEEDED": QUOTA,
    "LIMIT_EXCEEDED": QUOTA,
    "DAILY_LIMIT_EXCEEDED": Fault(QuotaError, "account", MORE),
    "RATE_LIMIT_EXCEEDED": RATE,
    "USER_RATE_LIMIT_EXCEEDED": RATE,
    "CONCURRENT_LIMIT_EXCEEDED": RATE,
    "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED": RATE,
    "RESOURCE_OPERATION_RATE_EXCEEDED": RATE,
    "RESOURCE_EXHAUSTED": RATE,
    "INTERNAL_ERROR": TRANSIENT,
    "INTERNAL": TRANSIENT,
    "BACKEND_ERROR": TRANSIENT,
    "SERVICE_UNAVAILABLE": TRANSIENT,
    "UNAVAILABLE": TRANSIENT,
    "TIMEOUT": TRANSIENT,
    "DEADLINE_EXCEEDED": TRANSIENT,
    "ABORTED": TRANSIENT,
    "RESOURCE_IN_USE": BUSY,
    "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE": BUSY,
    "RESOURCE_NOT_READY": BUSY,
    # "IP '10.0.0.2' is already being used by another resource.": hashicorp/terraform#18998 and
    # kubernetes/kubernetes#66762 quote the words and the code, read 2026-11-23.
    "IP_IN_USE_BY_ANOTHER_RESOURCE": Fault(AddressTakenError, "zone"),
    "ALREADY_EXISTS": NAME,
    "RESOURCE_ALREADY_EXISTS": NAME,
    "DUPLICATE": NAME,
    "IAM_PERMISSION_DENIED": PERMISSION,
    "PERMISSION_DENIED": PERMISSION,
    "PERMISSIONS_ERROR": PERMISSION,
    "FORBIDDEN": PERMISSION,
    "INSUFFICIENT_PERMISSIONS": PERMISSION,
    "ACCESS_DENIED": PERMISSION,
    "CONDITION_NOT_MET": Fault(PermissionsError, hint=ORGANIZATION),
    "BILLING_DISABLED": Fault(PermissionsError, hint=BILLING),
    "BILLING_NOT_ENABLED": Fault(PermissionsError, hint=BILLING),
    "INACTIVE_BILLING_STATE": Fault(PermissionsError, hint=BILLING),
    "ACCOUNT_DISABLED": Fault(PermissionsError, hint=GOOGLE_CLOSED),
    "USER_PROJECT_DENIED": Fault(PermissionsError, hint=QUOTA_PROJECT),
    "SECURITY_POLICY_VIOLATED": Fault(PermissionsError, hint=PERIMETER),
    "ACCESS_NOT_CONFIGURED": DISABLED,
    "SERVICE_DISABLED": DISABLED,
    "AUTH_ERROR": AUTH,
    "UNAUTHENTICATED": AUTH,
    "UNAUTHORIZED": AUTH,
    "LOGIN_REQUIRED": AUTH,
    "EXPIRED": AUTH,
    "ACCESS_TOKEN_EXPIRED": AUTH,
    "ACCESS_TOKEN_SCOPE_INSUFFICIENT": AUTH,
    "INVALID": CONFIG,
    "INVALID_USAGE": CONFIG,
    "INVALID_ARGUMENT": CONFIG,
    "INVALID_FIELD_VALUE": CONFIG,
    "INVALID_PARAMETER": CONFIG,
    "BAD_REQUEST": CONFIG,
    "PARSE_ERROR": CONFIG,
    "REQUIRED": CONFIG,
    "FAILED_PRECONDITION": CONFIG,
    "UNSUPPORTED_OPERATION": CONFIG,
    "NOT_FOUND": NOT_FOUND,
    "RESOURCE_NOT_FOUND": NOT_FOUND,
    "UNIMPLEMENTED": NOT_FOUND,
}

OF_A_NEW_VM: dict[str, Fault] = {
    # In an operation that creates a VM, these codes mean that the zone had no capacity after all.
    "RESOURCE_NOT_READY": CAPACITY,
    "RESOURCE_NOT_FOUND": CAPACITY,
}
PREEMPTED = re.compile(r"preempt", re.IGNORECASE)
"""Matches the message of an UNSUPPORTED_OPERATION error if the VM was preempted during its
creation. Google also uses that code for requests that no zone supports, such as an unsupported disk
for a machine type.
"""

STATUSES: dict[int, Fault] = {
    # Used if no reason is known. Any other 4xx is an error in the request.
    401: AUTH,
    402: Fault(PermissionsError, hint=BILLING),
    403: PERMISSION,
    404: NOT_FOUND,
    405: NOT_FOUND,
    408: TRANSIENT,
    409: BUSY,
    410: NOT_FOUND,
    412: CODES["CONDITION_NOT_MET"],
    425: TRANSIENT,
    429: RATE,
    501: NOT_FOUND,
}

_WORDS = (
    # "Cloud KMS error when using key …: Permission 'cloudkms.cryptoKeyVersions.useToEncrypt' denied
    # on resource … (or it may not exist).": terraform-provider-google#5103 and #15415, read
    # 2026-11-24. The caller needs no right on the key.
    (
        re.compile(r"Cloud KMS|cloudkms\.cryptoKeyVersions\.useTo"),
        Fault(PermissionsError, hint=KEY),
    ),
    # https://cloud.google.com/compute/shielded-vm/docs/shielded-vm#organization-policy
    (re.compile(r"constraints/compute\.requireShieldedVm"), Fault(PermissionsError, hint=SHIELDED)),
    # The operation's codes differ (EXTERNAL_RESOURCE_NOT_FOUND, SERVICE_ACCOUNT_ACCESS_DENIED and
    # none are quoted); the words are those of GoogleCloudPlatform/pubsec-declarative-toolkit#607
    # and terraform-google-managed-instance-group#40, read 2026-11-22.
    (
        re.compile(r"of type 'serviceAccount' was not found"),
        Fault(PermissionsError, hint=NO_ACCOUNT),
    ),
    (
        re.compile(r"does not have access to service account"),
        Fault(PermissionsError, hint=ATTACH),
    ),
    (re.compile(r"[Ll]ocation .* is not found or access is unauthorized"), CAPACITY),
    # The messages that Google's own autoscaler knows (kubernetes/autoscaler and its GKE fork,
    # cloudprovider/gke, read 2026-11-24), there with the code CONDITION_NOT_MET among others.
    (
        re.compile(
            r"Specified reservations? .* do(es)? not exist"
            r"|Could not find the given reservation|No available resources in specified reservation"
            r"|Reservation .* is incorrect for the requested|must use ReservationAffinity of"
        ),
        Fault(CloudConfigError, hint=RESERVATION),
    ),
    (
        re.compile(
            r"Specified reservations? .* do(es)? not have available resources"
            r"|Cannot use reservation, it requires reservation to be in READY"
            r"|does not currently have sufficient capacity"
        ),
        CAPACITY,
    ),
    (
        re.compile(
            r"does not have enough resources available|currently unavailable in the"
            r"|no more capacity in the zone|Insufficient (reserved )?capacity"
        ),
        CAPACITY,
    ),
    (re.compile(r"Quota limit '\w+' has been exceeded"), QUOTA),
    (re.compile(r"API has not been used in project|it is disabled"), DISABLED),
    (
        re.compile(r"vpcServiceControlsUniqueIdentifier|prohibited by organization's policy"),
        Fault(PermissionsError, hint=PERIMETER),
    ),
    # The constraints' names, as in https://cloud.google.com/resource-manager/docs/
    # organization-policy/org-policy-constraints, read 2026-11-24
    (
        re.compile(r"compute\.(managed\.)?requireOsLogin"),
        Fault(PermissionsError, hint="set `network.os_login: true` (docs/private-nodes.md)"),
    ),
    (
        re.compile(r"compute\.(managed\.)?vmExternalIpAccess"),
        Fault(
            PermissionsError,
            hint="set `network.private: true` and `network.ssh_proxy: iap`, with a subnet that has "
            "Cloud NAT (docs/private-nodes.md)",
        ),
    ),
    (
        re.compile(r"does not have required permission to use project"),
        Fault(PermissionsError, hint=QUOTA_PROJECT),
    ),
    (
        re.compile(r"[Bb]illing (account|must be enabled|is disabled|to be enabled)"),
        Fault(PermissionsError, hint=BILLING),
    ),
    (
        re.compile(
            r"The resource 'projects/[^/']+' was not found|Failed to find project|Unknown project"
        ),
        Fault(CloudConfigError, hint=PROJECTS),
    ),
)
"""Patterns of messages whose meaning overrides that of the code."""


def of_answer(
    what: str, status: int, body: Any, headers: Mapping[str, str] | None = None, *, text: str = ""
) -> CloudError:
    """Return the error for an HTTP error response. `body` is its JSON, or None."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        words = error if isinstance(error, str) else text
        code = UNKNOWN_METHOD if status in (404, 405, 501) else str(status)
        return _error(what, _of_status(status), code, words or f"HTTP {status}", headers)
    codes = _codes_of(error)
    words = str(error.get("message") or f"HTTP {status}")
    known = next((code for code in codes if _key(code) in _BY_KEY), None)
    code = known or next(iter(codes), str(status))
    kind = _of_words(words) or (_BY_KEY[_key(known)] if known else _of_status(status))
    if status >= 500 and status != 501 and kind in (CONFIG, NOT_FOUND):
        kind = TRANSIENT
    if status in (405, 501):
        code = UNKNOWN_METHOD
    return _error(what, kind, code, words, headers)


def of_operation(
    what: str, errors: Sequence[Mapping[str, Any]], *, new_vm: bool = False
) -> CloudError:
    """Return the error for a failed operation. All its errors are considered: the first may only
    say that not everything was done, and the second why.
    """
    table = {**_BY_KEY, **({_key(k): v for k, v in OF_A_NEW_VM.items()} if new_vm else {})}
    found = []
    for error in errors:
        code, words = str(error.get("code", "")), str(error.get("message", ""))
        kind = _of_words(words) or table.get(_key(code), CONFIG)
        if new_vm and code == "UNSUPPORTED_OPERATION" and PREEMPTED.search(words):
            kind = CAPACITY
        found.append((kind, code))
    telling = [f for f in found if f[1] != "VM_MIN_COUNT_NOT_REACHED"] or found
    kind, code = next((f for f in telling if _key(f[1]) in table), telling[0])
    words = "; ".join(str(e.get("message") or e.get("code")) for e in errors)
    return _error(what, kind, code, words)


def of_exception(what: str, error: BaseException) -> CloudError:
    """Return the error for an exception of google-auth, requests, the socket or libcloud."""
    code = type(error).__name__
    if isinstance(error, libcloud.GoogleBaseError | http.BaseHTTPError | types.ProviderError):
        status = int(getattr(error, "http_code", 0) or 0)
        if isinstance(error, http.BaseHTTPError):
            status = int(error.code)
        reason = str(getattr(error, "code", ""))
        kind = _BY_KEY.get(_key(reason)) or _LIBCLOUD.get(code) or _of_status(status)
        return _error(what, kind, reason or code, str(error), getattr(error, "headers", None))
    for known, kind in _EXCEPTIONS:
        if isinstance(error, known):
            if getattr(error, "retryable", False):
                kind = TRANSIENT
            return _error(what, kind, code, _words_of(error))
    return _error(what, TRANSIENT, code, _words_of(error))


FOREIGN: tuple[type[Exception], ...] = (
    google.GoogleAuthError,
    requests.RequestException,
    http.BaseHTTPError,
    types.LibcloudError,
    OSError,
)
"""All exceptions that libcloud's connection and google-auth raise."""

_ENDPOINT = "check `endpoints.compute` or CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"
_EXCEPTIONS: tuple[tuple[type[BaseException], Fault], ...] = (
    # The first match counts: subclasses come before their base classes.
    (google.TransportError, TRANSIENT),
    (google.TimeoutError, TRANSIENT),
    (google.ResponseError, TRANSIENT),
    (google.GoogleAuthError, AUTH),
    (
        requests.SSLError,
        Fault(CloudConfigError, hint="set REQUESTS_CA_BUNDLE to your CA certificates"),
    ),
    (requests.InvalidURL, Fault(CloudConfigError, hint=_ENDPOINT)),
    (requests.InvalidSchema, Fault(CloudConfigError, hint=_ENDPOINT)),
    (requests.MissingSchema, Fault(CloudConfigError, hint=_ENDPOINT)),
    (requests.TooManyRedirects, Fault(CloudConfigError, hint=_ENDPOINT)),
    (requests.InvalidHeader, CONFIG),
    (requests.RequestException, TRANSIENT),
    (libcloud.GoogleAuthError, AUTH),
    (types.MalformedResponseError, TRANSIENT),
    (types.LibcloudError, TRANSIENT),
    (OSError, TRANSIENT),
)
_LIBCLOUD = {
    "QuotaExceededError": QUOTA,
    "ResourceExistsError": NAME,
    "ResourceInUseError": BUSY,
    "ResourceNotFoundError": NOT_FOUND,
    "InvalidRequestError": CONFIG,
    "JsonParseError": TRANSIENT,
    "InvalidCredsError": AUTH,
    "ServiceUnavailableError": TRANSIENT,
}


def _error(
    what: str, kind: Fault, code: str, words: str, headers: Mapping[str, str] | None = None
) -> CloudError:
    words = _redacted(words)
    return kind.error(
        f"{what}: {words}",
        hint=kind.hint,
        scope=kind.scope or ("account" if _GLOBAL.search(words) else "region"),
        code=code,
        retry_after=_retry_after(headers or {}),
    )


_GLOBAL = re.compile(r"_ALL_REGIONS|\bglobally\b")


def _redacted(words: str) -> str:
    """Remove private values: Google repeats a rejected value in its message, and a VM's metadata
    contains a private key.
    """
    words = re.sub(r"-----BEGIN .*?(-----END [^-]*-----|\Z)", "***", words, flags=re.DOTALL)
    words = re.sub(r"'[^']{200,}'|\"[^\"]{200,}\"", "'…'", words)
    words = " ".join(words.split())
    return words if len(words) <= 600 else f"{words[:600]}…"


def _words_of(error: BaseException) -> str:
    """Return the message of an exception, without the full response that google-auth appends."""
    return str(error.args[0] if error.args else "") or type(error).__name__


def _key(code: str) -> str:
    return code.replace("_", "").lower()


_BY_KEY = {_key(code): kind for code, kind in CODES.items()}


def _codes_of(error: Mapping[str, Any]) -> list[str]:
    """Return all codes of one HTTP error, the most specific first."""
    found = []
    for detail in error.get("details") or ():
        if isinstance(detail, dict):
            found.append(detail.get("reason"))
    for each in error.get("errors") or ():
        if isinstance(each, dict):
            found.append(each.get("reason"))
    found.append(error.get("status"))
    return [str(code) for code in found if code]


def _of_status(status: int) -> Fault:
    if status in STATUSES:
        return STATUSES[status]
    return CONFIG if 300 <= status < 500 else TRANSIENT


def _of_words(words: str) -> Fault | None:
    return next((kind for pattern, kind in _WORDS if pattern.search(words)), None)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Parse the Retry-After header, a number or a date, into seconds (RFC 9110, 10.2.3)."""
    value = {k.lower(): v for k, v in headers.items()}.get("retry-after", "").strip()
    if value.isdecimal():
        return float(value)
    date = parsedate_tz(value)
    return max(0.0, mktime_tz(date) - moments.now()) if date else None


def is_unknown_question(error: NotFoundError, words: str = "The resource '") -> bool:
    """True if the endpoint does not support the request, rather than the resource being absent,
    which the API's messages say in these words.
    """
    return error.code == UNKNOWN_METHOD or words not in error.message
