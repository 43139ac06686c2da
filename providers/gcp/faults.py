"""Meanings of Google's refusals: reasons and codes as rows, and how its answers are read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cloudtrain.core.errors import (
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
from cloudtrain.identities.google import LOGIN
from cloudtrain.providers.base import http
from cloudtrain.providers.base.faults import Fault, Refusal, Row, Table, plain, redacted, seconds

ENABLE = "run `gcloud services enable {api} --project {consumer}`, then wait a minute"
SET_QUOTA_PROJECT = (
    "your login names no project whose quota and services it uses: run `gcloud auth "
    "application-default set-quota-project {project}` (and, if {api} is then said to be disabled, "
    "`gcloud services enable {api} --project {project}`)"
)
PAID = (
    "a free trial has no GPUs and no TPUs: activate the full account at "
    "https://console.cloud.google.com/billing"
)
BILLING = (
    "link an active billing account: `gcloud billing projects link {project} --billing-account "
    "ID`, with an ID of `gcloud billing accounts list`"
)
SUSPENDED = (
    "Google has suspended the project, which its owners were written about; they can appeal: "
    "https://console.cloud.google.com/appeal?project={project}"
)
ATTACH = (
    "grant roles/iam.serviceAccountUser on the service account of `identity` to yourself "
    "(docs/gcp.md)"
)
NO_ACCOUNT = (
    "check `identity`: `gcloud iam service-accounts list` shows a project's service accounts"
)
QUOTA_PROJECT = (
    "you may not use the quota project {consumer} of your login: run `gcloud auth "
    "application-default set-quota-project {project}`, or get "
    "roles/serviceusage.serviceUsageConsumer on it"
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
PLACES = (
    "your organization allows other places: `gcloud org-policies describe gcp.resourceLocations "
    "--effective --project {project}` shows which; list these in `placement` (docs/companies.md)"
)
IMAGES = (
    "your organization allows images of other projects: `gcloud org-policies describe "
    "compute.trustedImageProjects --effective --project {project}` shows which; `image: "
    "ubuntu-22.04` (project ubuntu-os-cloud) works with GPUs, too (docs/companies.md)"
)
FLOW_LOGS = (
    "your organization requires VPC flow logs, which the network that `up` creates has not: name a "
    "subnet with flow logs in `network.subnet` (docs/companies.md)"
)
ORGANIZATION = (
    "a policy of your organization forbids it; a label that it requires goes into `tags:` "
    "(docs/companies.md)"
)
RESERVATION = (
    "`gcloud compute reservations list` shows those of the project, with their zones and machines"
)
PROJECTS = "set `project:` to the project's id, not its name or number (`gcloud projects list`)"
ROLE = (
    "roles/{role} is enough (docs/gcp.md): have an owner run `gcloud projects "
    "add-iam-policy-binding {project} --member=user:YOU@example.com --role=roles/{role}`"
)
MORE = (
    "request more at https://console.cloud.google.com/iam-admin/quotas?project={project}, or "
    "choose another placement"
)
FULL_SUBNET = (
    "it has no free address: `gcloud compute networks subnets expand-ip-range NAME --region "
    "{region} --prefix-length LENGTH --project {project}`, or another `network.subnet`"
)
UNKNOWN_METHOD = "unknown method"
"""Code of a NotFoundError that means the endpoint does not support the method."""
NO_QUOTA_PROJECT = "NO_QUOTA_PROJECT"
"""Our reason for SERVICE_DISABLED where gcloud's own project is meant."""
OWN_OF_GCLOUD = frozenset({"764086051850", "32555940559"})
"""Numbers of the projects of gcloud's own OAuth clients, which Google takes for the consumer if a
login has no quota project: GoogleCloudPlatform/dlp-pdf-redaction#25, read 2026-11-26."""

QUOTA = Fault(QuotaError, "region", MORE)
QUOTA_WIDE = Fault(QuotaError, "account", MORE)
TRANSIENT = Fault(TransientError)
BUSY = Fault(BusyError)
AUTH = Fault(CredentialsError, "account", LOGIN)


def _denied(hint: str, scope: Scope | None = "account") -> Fault:
    return Fault(PermissionsError, scope, hint)


TABLE = Table(
    # ── Whose project, and whether it may be used: the reasons of ErrorInfo ──
    # https://github.com/googleapis/googleapis/blob/master/google/api/error_reason.proto
    Row(_denied(SET_QUOTA_PROJECT), NO_QUOTA_PROJECT),
    # "Permission denied on 'locations/…' (or it may not exist).", ErrorInfo with the location:
    # https://docs.cloud.google.com/php/docs/reference/common-protos/latest/Api.ErrorReason
    Row(_denied(PLACES, None), "LOCATION_POLICY_VIOLATED LOCATION_ORG_POLICY_VIOLATED"),
    Row(
        _denied(BILLING),
        "BILLING_DISABLED BILLING_NOT_ENABLED INACTIVE_BILLING_STATE UREQ_PROJECT_BILLING_* "
        "ACCOUNT_DISABLED http402",
    ),
    Row(_denied(SUSPENDED), "CONSUMER_SUSPENDED GCP_SUSPENDED"),
    Row(Fault(CloudConfigError, "account", PROJECTS), "RESOURCE_PROJECT_INVALID CONSUMER_INVALID"),
    # mondoohq/mql#1599 (both not found), googleapis/google-api-php-client#2422, read 2026-11-26.
    Row(
        Fault(CloudConfigError, "account", PROJECTS),
        words=r"The resource 'projects/[^/']+' was not found|Failed to find project"
        r"|requested project was not found|Project .*has been deleted"
        r"|Unknown project|Invalid value for project",
    ),
    Row(_denied(QUOTA_PROJECT), "USER_PROJECT_DENIED"),
    Row(_denied(PERIMETER), "SECURITY_POLICY_VIOLATED"),
    Row(_denied(ENABLE), "ACCESS_NOT_CONFIGURED SERVICE_DISABLED SERVICE_NOT_ACTIVATED"),
    # ── Messages that say more than their codes ──────────────────────────────
    # "Cloud KMS error when using key …: Permission 'cloudkms.cryptoKeyVersions.useToEncrypt' denied
    # on resource … (or it may not exist).": terraform-provider-google#5103 and #15415, read
    # 2026-11-24. The caller needs no right on the key.
    Row(_denied(KEY), words=r"Cloud KMS|cloudkms\.cryptoKeyVersions\.useTo"),
    # The constraints' names, as in https://cloud.google.com/resource-manager/docs/
    # organization-policy/org-policy-constraints, read 2026-11-24
    Row(_denied(PLACES, None), "*", r"constraints/gcp\.(managed\.)?resourceLocations"),
    Row(_denied(SHIELDED), words=r"compute\.(managed\.)?requireShieldedVm"),
    Row(_denied(IMAGES), words=r"compute\.(managed\.)?trustedImageProjects"),
    Row(_denied(FLOW_LOGS), words=r"compute\.(managed\.)?requireVpcFlowLogs"),
    Row(
        _denied("set `network.os_login: true` (docs/private-nodes.md)"),
        words=r"compute\.(managed\.)?requireOsLogin",
    ),
    Row(
        _denied(
            "set `network.private: true` and `network.ssh_proxy: iap`, with a subnet that has "
            "Cloud NAT (docs/private-nodes.md)"
        ),
        words=r"compute\.(managed\.)?vmExternalIpAccess",
    ),
    Row(
        Fault(CloudConfigError, None, "set nodes.….disk_gb to the image's size or more"),
        words="disk size cannot be smaller than the image",
    ),
    # Codes differ (EXTERNAL_RESOURCE_NOT_FOUND, SERVICE_ACCOUNT_ACCESS_DENIED and none are quoted);
    # the words are those of GoogleCloudPlatform/pubsec-declarative-toolkit#607 and
    # terraform-google-managed-instance-group#40, read 2026-11-22.
    Row(_denied(NO_ACCOUNT), words=r"of type 'serviceAccount' was not found"),
    Row(_denied(ATTACH), words=r"does not have access to service account"),
    # The messages that Google's own autoscaler knows (kubernetes/autoscaler and its GKE fork,
    # cloudprovider/gke, read 2026-11-24), there with the code CONDITION_NOT_MET among others.
    Row(
        Fault(CloudConfigError, "account", RESERVATION),
        words=r"Specified reservations? .* do(es)? not exist"
        r"|Could not find the given reservation|No available resources in specified reservation"
        r"|Reservation .* is incorrect for the requested|must use ReservationAffinity of",
    ),
    Row(
        Fault(CapacityError, "zone"),
        words=r"Specified reservations? .* do(es)? not have available resources"
        r"|Cannot use reservation, it requires reservation to be in READY"
        r"|does not currently have sufficient capacity|no more capacity in the zone"
        r"|does not have enough resources available|Insufficient (reserved )?capacity"
        r"|is currently unavailable in the \S+ zone|(?i:stock-?out)"
        r"|[Ll]ocation .* is not found or access is unauthorized",
    ),
    Row(
        _denied(PERIMETER),
        words=r"vpcServiceControlsUniqueIdentifier|prohibited by organization's policy",
    ),
    # ── Reasons and codes: an operation's and a response's alike ─────────────
    # https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-vm-creation
    # https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-resource-availability
    Row(
        Fault(CapacityError, "zone"),
        "*RESOURCE_POOL_EXHAUSTED* *STOCKOUT RESOURCE_AVAILABILITY INSUFFICIENT_CAPACITY "
        "VM_MIN_COUNT_NOT_REACHED",
    ),
    Row(
        Fault(QuotaError, "region", FULL_SUBNET),
        "IP_SPACE_EXHAUSTED IP_SPACE_EXHAUSTED_WITH_DETAILS",
    ),
    Row(QUOTA_WIDE, "DAILY_LIMIT_EXCEEDED"),
    Row(QUOTA_WIDE, "QUOTA_EXCEEDED LIMIT_EXCEEDED", r"_ALL_REGIONS\b|\bglobally\b"),
    Row(QUOTA, "QUOTA_EXCEEDED LIMIT_EXCEEDED"),
    Row(QUOTA, words=r"Quota limit '\w+' has been exceeded"),
    Row(
        Fault(RateError),
        "RATE_LIMIT_EXCEEDED USER_RATE_LIMIT_EXCEEDED CONCURRENT_LIMIT_EXCEEDED "
        "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED RESOURCE_OPERATION_RATE_EXCEEDED RESOURCE_EXHAUSTED",
    ),
    Row(
        TRANSIENT,
        "INTERNAL* BACKEND_ERROR SERVICE_UNAVAILABLE UNAVAILABLE *TIMEOUT DEADLINE_EXCEEDED "
        "ABORTED *_BACKEND_UNAVAILABLE *_STATUS_UNAVAILABLE",
    ),
    Row(BUSY, "RESOURCE_IN_USE RESOURCE_IN_USE_BY_ANOTHER_RESOURCE RESOURCE_NOT_READY http409"),
    # "IP '10.0.0.2' is already being used by another resource.": hashicorp/terraform#18998 and
    # kubernetes/kubernetes#66762 quote the words and the code, read 2026-11-23.
    Row(Fault(AddressTakenError, "zone"), "IP_IN_USE_BY_ANOTHER_RESOURCE"),
    Row(
        Fault(
            NameTakenError, "account", "choose another `name`, or delete the resource that has it"
        ),
        "ALREADY_EXISTS RESOURCE_ALREADY_EXISTS DUPLICATE",
    ),
    Row(_denied(PAID), words=r"free[- ](trial|tier)"),  # tensorflow/tpu#124, read 2026-11-26
    Row(
        _denied(BILLING),
        words=r"[Bb]illing (account|must be enabled|is disabled|disabled|to be enabled)",
    ),
    Row(_denied(SUSPENDED), words=r"has been suspended"),
    Row(_denied(QUOTA_PROJECT), words=r"does not have required permission to use project"),
    Row(_denied(ENABLE), words=r"API has not been used in project|it is disabled"),
    # A policy of one's own has its name in the words, under any code, too:
    # https://cloud.google.com/resource-manager/docs/organization-policy/creating-managing-custom-constraints
    Row(_denied(ORGANIZATION), words=r"onstraints/\w+\.|org(anization)? polic(y|ies)\b"),
    Row(AUTH, words="insufficient authentication scopes"),
    Row(
        _denied(ROLE),
        "IAM_PERMISSION_DENIED PERMISSION_DENIED PERMISSIONS_ERROR FORBIDDEN ACCESS_DENIED "
        "INSUFFICIENT_PERMISSIONS http403",
    ),
    Row(
        _denied(ORGANIZATION),
        "CONDITION_NOT_MET *ORG_POLICY_* *_RESTRICTION_VIOLAT* http412",
    ),
    Row(
        AUTH,
        "AUTH_ERROR UNAUTHENTICATED UNAUTHORIZED LOGIN_REQUIRED EXPIRED ACCESS_TOKEN_* "
        "CREDENTIALS_MISSING ACCOUNT_STATE_INVALID http401",
    ),
    Row(
        Fault(CloudConfigError),
        "INVALID INVALID_* BAD_REQUEST PARSE_ERROR REQUIRED FAILED_PRECONDITION "
        "UNSUPPORTED_OPERATION",
    ),
    Row(
        Fault(NotFoundError), "NOT_FOUND *_NOT_FOUND UNIMPLEMENTED http404 http405 http410 http501"
    ),
    # ── Exceptions of google-auth, libcloud and requests ─────────────────────
    Row(
        TRANSIENT,
        raised="google.auth.exceptions.TransportError google.auth.exceptions.TimeoutError "
        "google.auth.exceptions.ResponseError",
    ),
    Row(
        AUTH,
        raised="google.auth.exceptions.* libcloud.common.google.GoogleAuthError "
        "libcloud.common.types.InvalidCredsError",
    ),
    Row(TRANSIENT, raised="libcloud.*.LibcloudError libcloud.*.BaseHTTPError"),
)

OF_A_NEW_VM = ("RESOURCE_NOT_READY", "RESOURCE_NOT_FOUND")
"""Codes that mean in an operation that creates a VM that the zone had no capacity after all."""
PREEMPTED = re.compile(r"preempt", re.IGNORECASE)
"""Matches the message of an UNSUPPORTED_OPERATION error if the VM was preempted during its
creation. Google also uses that code for requests that no zone supports, such as an unsupported disk
for a machine type.
"""


def of_answer(
    what: str,
    *,
    status: int,
    headers: Mapping[str, str],
    body: str,
    path: str = "",
    facts: Mapping[str, str] | None = None,
) -> CloudError:
    """The error for an HTTP error response. `path` is that of the request, and `facts` what its
    hints may name.
    """
    try:
        error = http.parse_json(body)["error"]
    except (ValueError, LookupError, TypeError):
        error = None
    return of_error(
        what,
        error,
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
) -> CloudError:
    """The error for Google's `{"code", "message", "details"}`, or a message. `text` counts without
    one.
    """
    given = error if isinstance(error, dict) else {}
    message = str(given.get("message") or (error if isinstance(error, str) else "") or text)
    reasons = [*_reasons(given)]
    told = _facts(path, facts or {}, given.get("details") or ())
    if told.get("number") in OWN_OF_GCLOUD and "SERVICE_DISABLED" in reasons:
        reasons.insert(0, NO_QUOTA_PROJECT)
    unknown = status in (405, 501) or (status == 404 and not reasons)
    made = TABLE.error(
        Refusal(
            what=what,
            causes=[(each, message) for each in reasons] or [("", message)],
            words=redacted(_localized(given.get("details") or ()) or message),
            status=status,
            asked=_asked(path, told),
            facts=told,
            retry_after=retry_after,
        )
    )
    return made.copy_with(code=UNKNOWN_METHOD) if unknown else made


def of_operation(
    what: str,
    errors: Sequence[Mapping[str, Any]],
    *,
    new_vm: bool = False,
    path: str = "",
    facts: Mapping[str, str] | None = None,
) -> CloudError:
    """The error for a failed operation. All its errors are considered: the first may only say that
    not everything was done, and the second why.
    """
    details = [d for error in errors for d in error.get("errorDetails") or ()]
    causes, words = [], []
    for error in errors:
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
        Refusal(
            what=what,
            causes=causes,
            words=redacted("; ".join(words)),
            status=400,
            asked=_asked(path, told),
            facts=told,
        )
    )
    if quota is not None and isinstance(made, QuotaError):
        made = made.copy_with(scope=_quota_scope(quota.get("dimensions") or {}))
    if isinstance(made, CapacityError):
        made.elsewhere = tuple(each for each in told.get("zonesAvailable", "").split(",") if each)
    return made


def role(project: str, *, tpus: bool = False) -> str:
    """Way to get the role that is enough."""
    return ROLE.format(project=project, role="tpu.admin" if tpus else "compute.admin")


def of_exception(what: str, error: BaseException) -> CloudError:
    """The error for an exception of google-auth, requests, the socket or libcloud."""
    return TABLE.of_exception(what, error)


def _reasons(error: Mapping[str, Any]) -> Iterator[str]:
    """Yield all codes of one HTTP error, the most specific first."""
    for each in (*_dicts(error.get("details")), *_dicts(error.get("errors"))):
        if each.get("reason"):
            yield str(each["reason"])
    if error.get("status"):
        yield str(error["status"])


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


def _asked(path: str, told: Mapping[str, str]) -> Scope:
    """Scope of a refusal whose code does not say it: the location that the refusal names, or the
    zone or region of the request.
    """
    place = told.get("location") or _place(path)
    if re.fullmatch(r"[a-z]+-[a-z]+\d+-[a-z]+\d?[a-z]?", place):
        return "zone"
    return "region" if re.fullmatch(r"[a-z]+-[a-z]+\d+", place) else "account"


def _quota_scope(dimensions: Mapping[str, str]) -> Scope:
    if "zone" in dimensions:
        return "zone"
    return "region" if "region" in dimensions else "account"


def is_unknown_question(error: NotFoundError, words: str = "The resource '") -> bool:
    """True if the endpoint does not support the request, rather than the resource being absent,
    which the API's messages say in these words.
    """
    return error.code == UNKNOWN_METHOD or words not in error.message
