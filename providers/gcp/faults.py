"""Meanings of Google's refusals: reasons and codes as rows, and how its answers are read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cloudtrain.core import errors
from cloudtrain.identities.google import LOGIN
from cloudtrain.providers.base.faults import (
    RefusalRow,
    Table,
    denied,
    login,
    plain,
    quota,
    redacted,
    seconds,
    wrong,
)
from cloudtrain.providers.base.http import error_in

ENABLE = "run `gcloud services enable {api} --project {consumer}`, then wait a minute"
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
PLACES = (
    "your organization allows other places: `gcloud org-policies describe gcp.resourceLocations "
    "--effective --project {project}` shows which; list these in `placement` (docs/companies.md)"
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
UNKNOWN_METHOD = "unknown method"
"""Code of a NotFoundError that means the endpoint does not support the method."""
NO_QUOTA_PROJECT = "NO_QUOTA_PROJECT"
"""Our reason for SERVICE_DISABLED where gcloud's own project is meant."""
OWN_OF_GCLOUD = frozenset({"764086051850", "32555940559"})
"""Numbers of the projects of gcloud's own OAuth clients, which Google takes for the consumer if a
login has no quota project: GoogleCloudPlatform/dlp-pdf-redaction#25, read 2026-11-26."""

TABLE = Table(
    # ── Whose project, and whether it may be used: the reasons of ErrorInfo ──
    # https://github.com/googleapis/googleapis/blob/master/google/api/error_reason.proto
    denied(
        "your login names no project whose quota and services it uses: run `gcloud auth "
        "application-default set-quota-project {project}` (and, if {api} is then said to be "
        "disabled, `gcloud services enable {api} --project {project}`)",
        NO_QUOTA_PROJECT,
    ),
    # "Permission denied on 'locations/…' (or it may not exist).", ErrorInfo with the location:
    # https://docs.cloud.google.com/php/docs/reference/common-protos/latest/Api.ErrorReason
    denied(PLACES, "LOCATION_POLICY_VIOLATED LOCATION_ORG_POLICY_VIOLATED", scope="asked"),
    denied(
        BILLING,
        "BILLING_DISABLED BILLING_NOT_ENABLED INACTIVE_BILLING_STATE UREQ_PROJECT_BILLING_* "
        "ACCOUNT_DISABLED http402",
    ),
    denied(SUSPENDED, "CONSUMER_SUSPENDED GCP_SUSPENDED"),
    wrong(PROJECTS, "RESOURCE_PROJECT_INVALID CONSUMER_INVALID", scope="account"),
    # mondoohq/mql#1599 (both not found), googleapis/google-api-php-client#2422, read 2026-11-26.
    wrong(
        PROJECTS,
        words=r"The resource 'projects/[^/']+' was not found|Failed to find project"
        r"|requested project was not found|Project .*has been deleted"
        r"|Unknown project|Invalid value for project",
        scope="account",
    ),
    denied(QUOTA_PROJECT, "USER_PROJECT_DENIED"),
    denied(PERIMETER, "SECURITY_POLICY_VIOLATED"),
    denied(ENABLE, "ACCESS_NOT_CONFIGURED SERVICE_DISABLED SERVICE_NOT_ACTIVATED"),
    # ── Messages that say more than their codes ──────────────────────────────
    # "Cloud KMS error when using key …: Permission 'cloudkms.cryptoKeyVersions.useToEncrypt' denied
    # on resource … (or it may not exist).": terraform-provider-google#5103 and #15415, read
    # 2026-11-24. The caller needs no right on the key.
    denied(
        "check `disk_key`: the key must exist in the disk's region, and the project's Compute "
        "Engine service agent, service-NUMBER@compute-system.iam.gserviceaccount.com, needs "
        "roles/cloudkms.cryptoKeyEncrypterDecrypter on it (docs/companies.md)",
        words=r"Cloud KMS|cloudkms\.cryptoKeyVersions\.useTo",
    ),
    # The constraints' names, as in https://cloud.google.com/resource-manager/docs/
    # organization-policy/org-policy-constraints, read 2026-11-24
    denied(PLACES, "*", r"constraints/gcp\.(managed\.)?resourceLocations", scope="asked"),
    denied(
        "your organization requires Secure Boot, which nodes with GPUs do not have, as it refuses "
        "NVIDIA's kernel modules. Have this project exempted (docs/companies.md)",
        words=r"compute\.(managed\.)?requireShieldedVm",
    ),
    denied(
        "your organization allows images of other projects: `gcloud org-policies describe "
        "compute.trustedImageProjects --effective --project {project}` shows which; `image: "
        "ubuntu-22.04` (project ubuntu-os-cloud) works with GPUs, too (docs/companies.md)",
        words=r"compute\.(managed\.)?trustedImageProjects",
    ),
    denied(
        "your organization requires VPC flow logs, which the network that `up` creates has not: "
        "name a subnet with flow logs in `network.subnet` (docs/companies.md)",
        words=r"compute\.(managed\.)?requireVpcFlowLogs",
    ),
    denied(
        "set `network.os_login: true` (docs/private-nodes.md)",
        words=r"compute\.(managed\.)?requireOsLogin",
    ),
    denied(
        "set `network.private: true` and `network.ssh_proxy: iap`, with a subnet that has "
        "Cloud NAT (docs/private-nodes.md)",
        words=r"compute\.(managed\.)?vmExternalIpAccess",
    ),
    wrong(
        "set nodes.….disk_gb to the image's size or more",
        words="disk size cannot be smaller than the image",
        scope="asked",
    ),
    # Codes differ (EXTERNAL_RESOURCE_NOT_FOUND, SERVICE_ACCOUNT_ACCESS_DENIED and none are quoted);
    # the words are those of GoogleCloudPlatform/pubsec-declarative-toolkit#607 and
    # terraform-google-managed-instance-group#40, read 2026-11-22.
    denied(NO_ACCOUNT, words=r"of type 'serviceAccount' was not found"),
    denied(ATTACH, words=r"does not have access to service account"),
    # The messages that Google's own autoscaler knows (kubernetes/autoscaler and its GKE fork,
    # cloudprovider/gke, read 2026-11-24), there with the code CONDITION_NOT_MET among others.
    wrong(
        RESERVATION,
        words=r"Specified reservations? .* do(es)? not exist"
        r"|Could not find the given reservation|No available resources in specified reservation"
        r"|Reservation .* is incorrect for the requested|must use ReservationAffinity of",
        scope="account",
    ),
    RefusalRow(
        errors.CapacityError,
        words=r"Specified reservations? .* do(es)? not have available resources"
        r"|Cannot use reservation, it requires reservation to be in READY"
        r"|does not currently have sufficient capacity|no more capacity in the zone"
        r"|does not have enough resources available|Insufficient (reserved )?capacity"
        r"|is currently unavailable in the \S+ zone|(?i:stock-?out)"
        r"|[Ll]ocation .* is not found or access is unauthorized",
        scope="zone",
    ),
    denied(
        PERIMETER, words=r"vpcServiceControlsUniqueIdentifier|prohibited by organization's policy"
    ),
    # ── Reasons and codes: an operation's and a response's alike ─────────────
    # https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-vm-creation
    # https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-resource-availability
    RefusalRow(
        errors.CapacityError,
        "*RESOURCE_POOL_EXHAUSTED* *STOCKOUT RESOURCE_AVAILABILITY INSUFFICIENT_CAPACITY "
        "VM_MIN_COUNT_NOT_REACHED",
        scope="zone",
    ),
    quota(
        "it has no free address: `gcloud compute networks subnets expand-ip-range NAME --region "
        "{region} --prefix-length LENGTH --project {project}`, or another `network.subnet`",
        "IP_SPACE_EXHAUSTED IP_SPACE_EXHAUSTED_WITH_DETAILS",
    ),
    quota(MORE, "DAILY_LIMIT_EXCEEDED", scope="account"),
    quota(MORE, "QUOTA_EXCEEDED LIMIT_EXCEEDED", r"_ALL_REGIONS\b|\bglobally\b", scope="account"),
    quota(MORE, "QUOTA_EXCEEDED LIMIT_EXCEEDED"),
    quota(MORE, words=r"Quota limit '\w+' has been exceeded"),
    RefusalRow(
        errors.RateError,
        "RATE_LIMIT_EXCEEDED USER_RATE_LIMIT_EXCEEDED CONCURRENT_LIMIT_EXCEEDED "
        "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED RESOURCE_OPERATION_RATE_EXCEEDED RESOURCE_EXHAUSTED",
    ),
    RefusalRow(
        errors.TransientError,
        "INTERNAL* BACKEND_ERROR SERVICE_UNAVAILABLE UNAVAILABLE *TIMEOUT DEADLINE_EXCEEDED "
        "ABORTED *_BACKEND_UNAVAILABLE *_STATUS_UNAVAILABLE",
    ),
    RefusalRow(
        errors.BusyError,
        "RESOURCE_IN_USE RESOURCE_IN_USE_BY_ANOTHER_RESOURCE RESOURCE_NOT_READY http409",
    ),
    # "IP '10.0.0.2' is already being used by another resource.": hashicorp/terraform#18998 and
    # kubernetes/kubernetes#66762 quote the words and the code, read 2026-11-23.
    RefusalRow(errors.AddressTakenError, "IP_IN_USE_BY_ANOTHER_RESOURCE", scope="zone"),
    RefusalRow(
        errors.NameTakenError,
        "ALREADY_EXISTS RESOURCE_ALREADY_EXISTS DUPLICATE",
        scope="account",
        hint="choose another `name`, or delete the resource that has it",
    ),
    denied(
        "a free trial has no GPUs and no TPUs: activate the full account at "
        "https://console.cloud.google.com/billing",
        words=r"free[- ](trial|tier)",
    ),  # tensorflow/tpu#124, read 2026-11-26
    denied(
        BILLING, words=r"[Bb]illing (account|must be enabled|is disabled|disabled|to be enabled)"
    ),
    denied(SUSPENDED, words=r"has been suspended"),
    denied(QUOTA_PROJECT, words=r"does not have required permission to use project"),
    denied(ENABLE, words=r"API has not been used in project|it is disabled"),
    # A policy of one's own has its name in the words, under any code, too:
    # https://cloud.google.com/resource-manager/docs/organization-policy/creating-managing-custom-constraints
    denied(ORGANIZATION, words=r"onstraints/\w+\.|org(anization)? polic(y|ies)\b"),
    login(LOGIN, words="insufficient authentication scopes"),
    denied(
        ROLE,
        "IAM_PERMISSION_DENIED PERMISSION_DENIED PERMISSIONS_ERROR FORBIDDEN ACCESS_DENIED "
        "INSUFFICIENT_PERMISSIONS http403",
    ),
    denied(ORGANIZATION, "CONDITION_NOT_MET *ORG_POLICY_* *_RESTRICTION_VIOLAT* http412"),
    login(
        LOGIN,
        "AUTH_ERROR UNAUTHENTICATED UNAUTHORIZED LOGIN_REQUIRED EXPIRED ACCESS_TOKEN_* "
        "CREDENTIALS_MISSING ACCOUNT_STATE_INVALID http401",
    ),
    RefusalRow(
        errors.CloudConfigError,
        "INVALID INVALID_* BAD_REQUEST PARSE_ERROR REQUIRED FAILED_PRECONDITION "
        "UNSUPPORTED_OPERATION",
    ),
    RefusalRow(
        errors.NotFoundError, "NOT_FOUND *_NOT_FOUND UNIMPLEMENTED http404 http405 http410 http501"
    ),
    # ── Exceptions of google-auth, libcloud and requests ─────────────────────
    RefusalRow(
        errors.TransientError,
        raised="google.auth.exceptions.TransportError google.auth.exceptions.TimeoutError "
        "google.auth.exceptions.ResponseError",
    ),
    login(
        LOGIN,
        raised="google.auth.exceptions.* libcloud.common.google.GoogleAuthError "
        "libcloud.common.types.InvalidCredsError",
    ),
    RefusalRow(errors.TransientError, raised="libcloud.*.LibcloudError libcloud.*.BaseHTTPError"),
)
"""The first row that fits counts, so what is special comes first. A new one begins with its refusal
in tests/standins/corpus/gcp.yaml, or in tests/unit/test_gcp_faults.py if only documented."""

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
