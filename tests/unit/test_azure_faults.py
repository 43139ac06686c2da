"""Every refusal of Azure, and every exception on the way to it, is one of our error classes."""

from __future__ import annotations

import json
from typing import Any

import pytest

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
from cloudtrain.providers.azure import faults

ASKED = "PUT virtualMachines/mnist-worker0"


def refusal(code: str, words: str = "its own words", status: int = 409) -> CloudError:
    body = json.dumps({"error": {"code": code, "message": words}})
    return faults.of_answer(ASKED, status=status, headers={}, body=body)


@pytest.mark.parametrize(
    ("codes", "kind", "scope"),
    [
        (
            "SkuNotAvailable AllocationFailed NotAvailableForSubscription "
            "SpotPriceGreaterThanProvidedMaxPrice",
            CapacityError,
            "region",
        ),
        (
            "ZonalAllocationFailed OverconstrainedAllocationRequest "
            "OverconstrainedZonalAllocationRequest",
            CapacityError,
            "zone",
        ),
        ("QuotaExceeded PublicIPCountLimitReached SomeNewLimitReached", QuotaError, "region"),
        ("TooManyRequests SubscriptionRequestsThrottled SomeNewThrottled", RateError, "account"),
        (
            "InternalServerError ServiceUnavailable RetryableError InternalOperationError "
            "DiskServiceInternalError VMArtifactRepositoryInternalError StorageAccountTooBusy",
            TransientError,
            "region",
        ),
        (
            "ResourceGroupBeingDeleted NicReservedForAnotherVm NicInUse "
            "PublicIPAddressCannotBeDeleted InUseSubnetCannotBeDeleted AnotherOperationInProgress "
            "InUseNetworkSecurityGroupCannotBeDeleted SomethingElseCannotBeDeleted",
            BusyError,
            "region",
        ),
        ("ResourceNotFound ResourceGroupNotFound NotFound", NotFoundError, "region"),
        ("InvalidResourceLocation PropertyChangeNotAllowed", NameTakenError, "account"),
        ("InvalidAuthenticationToken ExpiredAuthenticationToken", CredentialsError, "account"),
        (
            "AuthorizationFailed LinkedAuthorizationFailed ReadOnlyDisabledSubscription "
            "MissingSubscriptionRegistration ScopeLocked",
            PermissionsError,
            "account",
        ),
        ("RequestDisallowedByPolicy", PermissionsError, "region"),
        ("InvalidParameter ImageNotFound PlatformImageNotFound", CloudConfigError, "region"),
    ],
)
def test_each_code_is_of_its_class_with_its_reach(
    codes: str, kind: type[CloudError], scope: str
) -> None:
    for code in codes.split():
        error = refusal(code)
        assert type(error) is kind, code
        assert error.code == code
        assert error.scope == scope, code
        assert error.message == f"{ASKED}: {code}: its own words"


@pytest.mark.parametrize(
    ("code", "words", "kind", "hint"),
    [
        (
            "FailedIdentityOperation",
            "Identity operation for resource '/subscriptions/s/…/mnist-chief0' failed with error "
            "'Failed to perform resource identity operation. Status: 'BadRequest'. Response: "
            '\'{"error":{"code":"BadRequest","message":"Resource \'/subscriptions/s/…/x\' was '
            "not found.\"}}'.'.",
            PermissionsError,
            "az identity show",
        ),
        (
            "FailedIdentityOperation",
            "Failed to perform resource identity operation. Status: 'InternalServerError'.",
            TransientError,
            "",
        ),
        (
            "LinkedAuthorizationFailed",
            "The client has permission to perform action 'Microsoft.Compute/virtualMachines/write' "
            "on scope '/x'; however, it does not have permission to perform action "
            "'Microsoft.ManagedIdentity/userAssignedIdentities/assign/action' on the linked "
            "scope(s) '/y'",
            PermissionsError,
            "Managed Identity Operator",
        ),
    ],
)
def test_an_identity_that_cannot_be_attached_is_said_to_be_the_reason(
    code: str, words: str, kind: type[CloudError], hint: str
) -> None:
    error = refusal(code, words, 400)
    assert type(error) is kind
    assert hint in str(error.hint or "")


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (
            "Operation could not be completed as it results in exceeding approved "
            "standardNCSv3Family Cores quota. Additional details - "
            "Current Limit: 0, Current Usage: 0, Additional Required: 6",
            QuotaError,
        ),
        (
            "Operation 'start' is not allowed on VM 'x' since the VM is being deallocated.",
            BusyError,
        ),
        ("The VM 'x' is marked for deletion.", BusyError),
        ("Operation 'resizing' is not allowed.", CloudConfigError),
    ],
)
def test_operation_not_allowed_means_what_its_message_says(
    words: str, kind: type[CloudError]
) -> None:
    assert type(refusal("OperationNotAllowed", words)) is kind


def test_the_detail_tells_the_cause_where_the_top_tells_none() -> None:
    error: dict[str, Any] = {
        "code": "DeploymentFailed",
        "message": "At least one resource deployment operation failed.",
        "details": [
            {
                "code": "Conflict",
                "message": json.dumps(
                    {"error": {"code": "ZonalAllocationFailed", "message": "no room"}}
                ),
            }
        ],
    }
    told = faults.of_error("a", error, status=409)
    assert type(told) is CapacityError
    assert told.message == "a: ZonalAllocationFailed: no room"
    error = {"code": "QuotaExceeded", "message": "too many", "details": [{"code": "Conflict"}]}
    assert faults.of_error("a", error).message == "a: QuotaExceeded: too many"


def test_a_code_that_is_known_to_nobody_is_judged_by_its_status() -> None:
    assert type(refusal("Brandnew", status=403)) is PermissionsError
    assert type(faults.of_error("a", {"code": "Brandnew", "message": "?"})) is CloudError


@pytest.mark.parametrize(
    ("asked", "words", "kind"),
    [
        (ASKED, "The image does not support it.", CloudConfigError),
        (ASKED, "Resource is not ready. Please try again later.", BusyError),
        ("DELETE virtualMachines/mnist-worker0", "The image does not support it.", BusyError),
    ],
)
def test_a_conflict_by_a_code_that_is_known_to_nobody_is_waited_for_if_its_words_say_so(
    asked: str, words: str, kind: type[CloudError]
) -> None:
    """Or if it is of a deletion, which what still uses the resource may refuse."""
    error = faults.of_error(asked, {"code": "Brandnew", "message": words}, status=409, reach="zone")
    assert type(error) is kind
    assert (error.scope, error.hint) == ("zone", None) or kind is BusyError


def test_throttling_counts_before_the_words_that_come_with_it() -> None:
    """But not where the code says what to wait for, which is another operation."""
    assert type(refusal("OperationNotAllowed", "too many writes", status=429)) is RateError
    assert type(refusal("AnotherOperationInProgress", status=429)) is BusyError


def test_retry_after_is_read_in_each_of_its_forms() -> None:
    error = faults.of_answer("a", status=429, headers={"retry-after": "7"}, body="")
    assert error.retry_after == 7.0
    assert faults.seconds({"x-ms-retry-after-ms": "1500"}) == 1.5
    assert faults.seconds({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0.0
    assert faults.seconds({"retry-after": "soon"}) is None
    assert faults.seconds({}) is None
    words = "Nic(s) in request is reserved for another Virtual Machine for 180 seconds."
    assert refusal("NicReservedForAnotherVm", words).retry_after == 180.0


def test_what_an_endpoint_does_not_have_is_told_from_a_refusal() -> None:
    for code, status in (("ResourceNotFound", 404), ("NotImplemented", 501), ("Brandnew", 404)):
        assert faults.is_unknown_question(refusal(code, status=status))
    assert faults.is_unknown_question(faults.of_answer("a", status=501, headers={}, body=""))
    assert not faults.is_unknown_question(refusal("AuthorizationFailed", status=403))
    for code in ("NoRegisteredProviderFound", "InvalidApiVersionParameter"):
        assert not faults.is_unknown_question(refusal(code, status=400))
    assert not faults.is_unknown_question(refusal("InternalServerError", status=500))
