"""Every refusal of Google, libcloud, requests and google-auth has its class, and its reach."""

from __future__ import annotations

import json
import re
from pathlib import Path

import libcloud as library
import libcloud.compute.types as compute_types
import pytest
import requests
from google.auth import exceptions as google
from libcloud.common import exceptions as http
from libcloud.common import google as libcloud
from libcloud.common import types

from cloudtrain.core.errors import (
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
    TransientError,
)
from cloudtrain.providers.gcp import faults


@pytest.mark.parametrize(
    ("code", "words", "hint"),
    [
        (
            "EXTERNAL_RESOURCE_NOT_FOUND",
            "The resource 'x@p.iam.gserviceaccount.com' of type 'serviceAccount' was not found.",
            "gcloud iam service-accounts list",
        ),
        (
            "SERVICE_ACCOUNT_ACCESS_DENIED",
            "The user does not have access to service account 'x@p.iam.gserviceaccount.com'.  "
            "User: 'me@p.example'.  Ask a project owner to grant you the iam.serviceAccountUser "
            "role on the service account",
            "roles/iam.serviceAccountUser",
        ),
    ],
)
def test_a_service_account_that_cannot_be_attached_is_said_to_be_the_reason(
    code: str, words: str, hint: str
) -> None:
    of_operation = faults.of_operation("making", [{"code": code, "message": words}], new_vm=True)
    of_answer = faults.of_error("asking", {"message": words}, status=400)
    for error in (of_operation, of_answer):
        assert (type(error), error.exit_code) == (PermissionsError, 4)
        assert hint in str(error.hint)


FIXTURES = Path(library.__file__).parent / "test/compute/fixtures/gce"

# The table of the facts that the drivers were built from, in Google's own spellings.
MEANINGS = {
    "ZONE_RESOURCE_POOL_EXHAUSTED": (CapacityError, "zone"),
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": (CapacityError, "zone"),
    "insufficientCapacity": (CapacityError, "zone"),
    "resource_availability": (CapacityError, "zone"),
    "VM_MIN_COUNT_NOT_REACHED": (CapacityError, "zone"),
    "QUOTA_EXCEEDED": (QuotaError, "region"),
    "quotaExceeded": (QuotaError, "region"),
    "RESOURCE_OPERATION_RATE_EXCEEDED": (RateError, "account"),
    "rateLimitExceeded": (RateError, "account"),
    "userRateLimitExceeded": (RateError, "account"),
    "IAM_PERMISSION_DENIED": (PermissionsError, "account"),
    "forbidden": (PermissionsError, "account"),
    "accessNotConfigured": (PermissionsError, "account"),
    "SERVICE_DISABLED": (PermissionsError, "account"),
    "alreadyExists": (NameTakenError, "account"),
    "RESOURCE_ALREADY_EXISTS": (NameTakenError, "account"),
    "resourceInUseByAnotherResource": (BusyError, "account"),
    "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE": (BusyError, "account"),
    "resourceNotReady": (BusyError, "account"),
    "authError": (CredentialsError, "account"),
    "invalid": (CloudConfigError, "account"),
    "backendError": (TransientError, "account"),
    "notFound": (NotFoundError, "account"),
}


def answered(status: int, body: str) -> CloudError:
    return faults.of_answer("asking", status=status, headers={}, body=body)


def refused(status: int, reason: str = "", message: str = "no", **more: object) -> CloudError:
    error = {"code": status, "message": message, **more}
    if reason:
        error["errors"] = [{"domain": "global", "reason": reason, "message": message}]
    return faults.of_error("asking", error, status=status)


@pytest.mark.parametrize(("reason", "meaning"), MEANINGS.items())
def test_a_reason_means_the_same_in_an_answer_and_in_an_operation(
    reason: str, meaning: tuple[type[CloudError], str]
) -> None:
    for error in (
        refused(403, reason),
        faults.of_operation("asking", [{"code": reason, "message": "no"}]),
    ):
        assert (type(error), error.scope) == meaning
        assert error.code == reason
        assert str(error) == "asking: no"


@pytest.mark.parametrize("code", ["RESOURCE_NOT_READY", "RESOURCE_NOT_FOUND"])
def test_an_operation_that_makes_a_vm_fails_by_these_for_want_of_room(code: str) -> None:
    told = [{"code": code, "message": "no"}]
    made = faults.of_operation("making", told, new_vm=True)
    assert (type(made), made.scope) == (CapacityError, "zone")
    assert not isinstance(faults.of_operation("making", told), CapacityError)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("Instance 'm-chief0' was preempted while it was created.", CapacityError),
        ("VM was Preempted during creation", CapacityError),
        ("The operation could not be completed because of a stockout.", CapacityError),
        ("A n1-standard-4 VM is currently unavailable in the us-east4-a zone.", CapacityError),
        ("[pd-balanced, g4-standard-48] features are not compatible.", CloudConfigError),
        ("Instances with guest accelerators do not support live migration.", CloudConfigError),
    ],
)
def test_an_operation_that_is_not_supported_is_want_of_room_only_where_it_was_preempted(
    words: str, kind: type[CloudError]
) -> None:
    told = [{"code": "UNSUPPORTED_OPERATION", "message": words}]
    assert type(faults.of_operation("making", told, new_vm=True)) is kind


@pytest.mark.parametrize(
    ("status", "reason", "message", "hint"),
    [
        (
            403,
            "accountDisabled",
            "The account for bucket has been disabled.",
            "billing projects link",
        ),
        (403, "inactiveBillingState", "Not in good standing", "link an active billing account"),
        (
            403,
            "forbidden",
            "This API method requires billing to be enabled. Please enable billing on project #1",
            "link an active billing account",
        ),
        (
            403,
            "USER_PROJECT_DENIED",
            "Caller does not have required permission to use project other-1.",
            "set-quota-project",
        ),
        (
            403,
            "forbidden",
            "Prohibited by organization's policy. vpcServiceControlsUniqueIdentifier: aB3",
            "VPC Service Controls",
        ),
        (
            404,
            "notFound",
            "The resource 'projects/mnist-prd' was not found",
            "gcloud projects list",
        ),
        (404, "notFound", "Failed to find project mnist-prd", "gcloud projects list"),
        (
            403,
            "forbidden",
            'Operation denied by org policy: ["customConstraints/custom.noGpus": "No GPUs."]',
            "a policy of your organization",
        ),
        (400, "failedPrecondition", "constraints/compute.disableX violated", "a policy of your"),
        (403, "RESOURCE_USAGE_RESTRICTION_VIOLATED", "no", "a policy of your organization"),
    ],
)
def test_a_refusal_is_not_blamed_on_the_role_where_it_has_another_reason(
    status: int, reason: str, message: str, hint: str
) -> None:
    error = refused(status, reason, message)
    assert isinstance(error, PermissionsError | CloudConfigError)
    assert not isinstance(error, NotFoundError)
    assert hint in str(error.hint)


def test_every_http_status_has_a_class() -> None:
    kinds = {s: type(answered(s, "<html>")) for s in range(300, 600)}
    assert CloudError not in kinds.values()
    transient = {status for status, kind in kinds.items() if kind is TransientError}
    assert transient == {408, 425, *range(500, 600)} - {501}
    assert [status for status, kind in kinds.items() if kind is RateError] == [429]
    assert [status for status, kind in kinds.items() if kind is CredentialsError] == [401]
    assert [status for status, kind in kinds.items() if kind is PermissionsError] == [402, 403, 412]
    assert {kinds[status] for status in (301, 400, 413, 422)} == {CloudConfigError}


@pytest.mark.parametrize("status", [404, 405, 501])
def test_an_endpoint_that_does_not_know_the_question_is_told_from_a_thing_that_is_missing(
    status: int,
) -> None:
    unknown = answered(status, "Not Found")
    assert isinstance(unknown, NotFoundError)
    assert faults.is_unknown_question(unknown)
    missing = refused(
        404, "notFound", "The resource 'projects/p/zones/z/machineTypes/m' was not found"
    )
    assert isinstance(missing, NotFoundError)
    assert not faults.is_unknown_question(missing)


def test_the_projects_own_quota_of_gpus_reaches_over_all_regions() -> None:
    words = "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally."
    for error in (
        refused(403, "quotaExceeded", words),
        faults.of_operation("making", [{"code": "QUOTA_EXCEEDED", "message": words}]),
    ):
        assert (type(error), error.scope) == (QuotaError, "account")
    regional = refused(
        403, "quotaExceeded", "Quota 'CPUS' exceeded. Limit: 24.0 in region us-east4."
    )
    assert regional.scope == "region"


def test_the_cause_is_told_where_it_comes_second() -> None:
    error = faults.of_operation(
        "making",
        [
            {"code": "VM_MIN_COUNT_NOT_REACHED", "message": "Requested minimum count of 1 VMs"},
            {"code": "QUOTA_EXCEEDED", "message": "Quota 'CPUS' exceeded."},
        ],
    )
    assert isinstance(error, QuotaError)
    assert "Requested minimum" in str(error)
    assert "CPUS" in str(error)


def test_a_zone_that_one_may_not_use_is_a_zone_without_room() -> None:
    error = refused(403, "forbidden", "Location us-east4-q is not found or access is unauthorized.")
    assert (type(error), error.scope) == (CapacityError, "zone")


def test_a_disk_smaller_than_its_image_is_a_mistake_of_the_config() -> None:
    words = "Requested disk size cannot be smaller than the image size (50 GB)"
    assert isinstance(refused(400, "invalid", words), CloudConfigError)


def test_an_api_that_is_off_says_how_to_turn_it_on() -> None:
    words = "Compute Engine API has not been used in project 1 before or it is disabled."
    error = refused(403, "accessNotConfigured", words)
    assert isinstance(error, PermissionsError)
    assert "gcloud services enable compute.googleapis.com" in str(error.hint)


def test_the_reason_in_the_details_goes_before_the_general_one() -> None:
    detail = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "SERVICE_DISABLED"}
    error = refused(403, "forbidden", details=[detail])
    assert error.code == "SERVICE_DISABLED"


def test_a_reason_counts_whatever_the_status() -> None:
    assert isinstance(refused(503, "backendError"), TransientError)
    assert isinstance(refused(503, "insufficientCapacity"), CapacityError)
    assert isinstance(refused(503, "invalid"), CloudConfigError)


def test_a_value_that_google_repeats_is_not_shown() -> None:
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\\nc2VjcmV0\\n-----END OPENSSH PRIVATE KEY-----"
    for message in (
        f"Invalid value for field 'resource.metadata.items[0].value': '#cloud-config {key}'.",
        f"Invalid value: {key[:60]}",
        f"Invalid value: '{'c2VjcmV0' * 40}'",
    ):
        assert "c2VjcmV0" not in str(refused(400, "invalid", message))
    assert len(str(refused(400, "invalid", "x" * 10_000))) < 700


def subclasses(kind: type) -> list[type]:
    found = [kind]
    for below in kind.__subclasses__():
        found += subclasses(below)
    return found


def example(kind: type[BaseException]) -> BaseException:
    """One of that class, whatever its constructor asks for."""
    error = kind.__new__(kind)
    error.args = ("what it said",)
    for name, value in {
        "http_code": 0,
        "code": 0,
        "value": "v",
        "body": "",
        "driver": None,
    }.items():
        if not hasattr(error, name):
            setattr(error, name, value)
    error.__dict__.setdefault("message", "what it said")
    return error


OURS = {
    libcloud.JsonParseError: TransientError,
    libcloud.GoogleAuthError: CredentialsError,
    types.InvalidCredsError: CredentialsError,
    types.ServiceUnavailableError: TransientError,
    http.RateLimitReachedError: RateError,
    google.DefaultCredentialsError: CredentialsError,
    google.RefreshError: CredentialsError,
    google.TransportError: TransientError,
    requests.exceptions.ConnectionError: TransientError,
    requests.exceptions.ReadTimeout: TransientError,
    requests.exceptions.ChunkedEncodingError: TransientError,
    requests.exceptions.SSLError: CloudConfigError,
    requests.exceptions.InvalidURL: CloudConfigError,
    ConnectionResetError: TransientError,
}


@pytest.mark.parametrize(("foreign", "own"), OURS.items())
def test_these_exceptions_mean_this(foreign: type[BaseException], own: type[CloudError]) -> None:
    assert type(faults.of_exception("asking", example(foreign))) is own


ALL_FOREIGN = [
    kind
    for top in (
        types.LibcloudError,
        http.BaseHTTPError,
        google.GoogleAuthError,
        requests.RequestException,
    )
    for kind in subclasses(top)
    if kind.__module__.startswith(
        ("libcloud.common", "libcloud.compute.types", "google.auth", "requests")
    )
]


def test_no_exception_of_the_libraries_is_left_without_a_class() -> None:
    for kind in ALL_FOREIGN:
        error = faults.of_exception("asking", example(kind))
        known = type(error) is not CloudError or issubclass(kind, requests.RequestException)
        assert known, kind
        assert issubclass(type(error), CloudError), kind
        assert str(error).startswith("asking: "), kind


def test_the_exceptions_of_libcloud_that_are_looked_at_are_all_that_it_has() -> None:
    assert {compute_types.DeploymentError, libcloud.GoogleBaseError} < set(ALL_FOREIGN)


def test_a_sign_in_that_may_be_tried_again_is() -> None:
    passing = google.RefreshError("busy", retryable=True)
    assert isinstance(faults.of_exception("signing in", passing), TransientError)


RECORDED = [
    path for path in sorted(FIXTURES.glob("*.json")) if re.search(r'"error"\s*:', path.read_text())
]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_what_google_answered_to_libcloud_has_a_class(path: Path) -> None:
    """Recorded by libcloud's authors."""
    body = json.loads(path.read_text())
    error = body["error"]
    if "code" in error:
        made = faults.of_error("asking", error, status=int(error["code"]))
        assert made.code in {e["reason"] for e in error["errors"]}
    else:
        made = faults.of_operation("asking", error["errors"])
        assert made.code in {e["code"] for e in error["errors"]}
    assert type(made) is not CloudError
    assert made.message != "asking: "


def test_there_are_recorded_refusals() -> None:
    assert RECORDED


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("Specified reservations [mine] do not exist.", CloudConfigError),
        ("No available resources in specified reservations 'mine'", CloudConfigError),
        (
            "Specified reservation 'mine' does not have available resources for the request.",
            CapacityError,
        ),
        ("Cannot use reservation, it requires reservation to be in READY state", CapacityError),
        (
            "Zone does not currently have sufficient capacity for the requested resources.",
            CapacityError,
        ),
    ],
)
def test_what_google_says_of_a_reservation_tells_what_it_is(words: str, kind: type) -> None:
    """Whatever its code, of which CONDITION_NOT_MET is one."""
    told = [{"code": "CONDITION_NOT_MET", "message": words}]
    given = {"message": words, "errors": [{"reason": "conditionNotMet"}]}
    for error in (
        faults.of_operation("making", told, new_vm=True),
        faults.of_error("making", given, status=412),
    ):
        assert type(error) is kind
        assert error.scope == ("zone" if kind is CapacityError else "account")
