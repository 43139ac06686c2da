"""Every refusal of AWS, and every exception on the way to it, is one of our error classes."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType
from xml.sax.saxutils import escape

import botocore.exceptions
import libcloud
import libcloud.common.exceptions
import libcloud.common.types
import libcloud.compute.types
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
from cloudtrain.providers.aws import faults, listing, xml
from cloudtrain.providers.base.answers import unix_time
from tests.support.foreign_errors import raised


def refusal(code: str, message: str = "its own words", status: int = 400) -> CloudError:
    body = (
        '<?xml version="1.0"?><Response xmlns="http://example.org/any"><Errors><Error>'
        f"<Code>{code}</Code><Message>{escape(message)}</Message></Error></Errors></Response>"
    )
    return faults.of_answer("RunInstances in us-east-1", status=status, headers={}, body=body)


@pytest.mark.parametrize(
    ("codes", "kind", "scope"),
    [
        (
            "InsufficientInstanceCapacity InsufficientHostCapacity Unsupported SpotMaxPriceTooLow "
            "ReservationCapacityExceeded InvalidCapacityReservationState UnfulfillableCapacity "
            "InsufficientReservedInstanceCapacity InsufficientVolumeCapacity",
            CapacityError,
            "zone",
        ),
        (
            "VcpuLimitExceeded InstanceLimitExceeded MaxSpotInstanceCountExceeded "
            "VolumeLimitExceeded AddressLimitExceeded SomeNewLimitExceeded VolumeIOPSLimit "
            "ResourceCountExceeded",
            QuotaError,
            "region",
        ),
        ("RequestLimitExceeded Throttling", RateError, "region"),
        ("ServerInternal ServiceUnavailable InternalError Unavailable", TransientError, "region"),
        ("InvalidInstanceID.NotFound InvalidGroup.NotFound", NotFoundError, "region"),
        ("InvalidGroup.Duplicate", NameTakenError, "region"),
        (
            "DependencyViolation InvalidPlacementGroup.InUse VolumeInUse IncorrectState "
            "CreditSpecificationUpdateInProgress",
            BusyError,
            "region",
        ),
        (
            "AuthFailure ExpiredToken SignatureDoesNotMatch InvalidSecurity.RequestHasExpired",
            CredentialsError,
            "account",
        ),
        (
            "UnauthorizedOperation OptInRequired PendingVerification AccountProblem",
            PermissionsError,
            "account",
        ),
        (
            "InvalidAMIID.NotFound InvalidAMIID.Unavailable InvalidSubnetID.NotFound "
            "InvalidCapacityReservationId.NotFound CustomerKeyHasBeenRevoked",
            CloudConfigError,
            "region",
        ),
        ("InvalidParameterValue MissingParameter InvalidAMIID.Malformed", CloudConfigError, None),
    ],
)
def test_each_code_is_of_its_class_however_wide_it_reaches(
    codes: str, kind: type[CloudError], scope: str | None
) -> None:
    for code in codes.split():
        # EC2 answers some of its capacity errors with status 500: the code counts.
        for status in (400, 500):
            error = refusal(code, status=status)
            assert type(error) is kind, code
            assert error.code == code
            assert scope in (None, error.scope), code
            assert error.message == "RunInstances in us-east-1: its own words"


@pytest.mark.parametrize(
    ("code", "words", "own", "hint"),
    [
        (
            "InvalidParameterValue",
            "Value (trainer) for parameter iamInstanceProfile.name is invalid. Invalid IAM "
            "Instance Profile name",
            faults.NO_PROFILE,
            "aws iam get-instance-profile",
        ),
        (
            "InvalidParameterValue",
            "IAM Instance Profile arn:aws:iam::123456789012:instance-profile/trainer has no "
            "associated IAM Roles",
            faults.NO_PROFILE,
            "must show one role",
        ),
        (
            "UnauthorizedOperation",
            "You are not authorized to perform this operation. User: u is not authorized to "
            "perform: iam:PassRole on resource: r",
            "UnauthorizedOperation",
            "allow iam:PassRole",
        ),
    ],
)
def test_an_identity_that_cannot_be_attached_is_said_to_be_the_reason(
    code: str, words: str, own: str, hint: str
) -> None:
    error = refusal(code, words)
    assert (type(error), error.exit_code, error.code) == (PermissionsError, 4, own)
    assert hint in str(error.hint)


def test_the_blob_that_iam_adds_is_no_part_of_the_message() -> None:
    told = "You are not authorized. Encoded authorization failure message: abcdefghijk"
    error = refusal("UnauthorizedOperation", told)
    assert error.message.endswith("You are not authorized.")
    assert error.detail.endswith(" abcdefghijk")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("Server.InsufficientInstanceCapacity", CapacityError),
        ("Server.SpotInstanceTermination", CapacityError),
        ("Server.SpotInstanceShutdown", CapacityError),
        ("Server.InternalError", TransientError),
        ("Client.VolumeLimitExceeded", QuotaError),
        ("Client.InternalError", CloudConfigError),
        ("Client.InvalidSnapshot.NotFound", CloudConfigError),
        ("Client.UserInitiatedShutdown", None),
        ("Client.InstanceInitiatedShutdown", None),
        ("Server.ScheduledStop", None),
        ("", None),
    ],
)
def test_why_an_instance_was_given_up(code: str, kind: type[CloudError] | None) -> None:
    error = faults.of_reason("mnist-worker0", code, "")
    assert (type(error) if error else None) is kind
    if error is not None:
        assert (error.what, error.message) == ("mnist-worker0", f"mnist-worker0: {error.text}")
        assert "mnist" not in error.text


# ── Exceptions ───────────────────────────────────────────────────────────────

SOMETHING_ELSE = CloudError


def exceptions(module: ModuleType) -> dict[str, type[Exception]]:
    found = inspect.getmembers(module, inspect.isclass)
    return {
        name: kind
        for name, kind in found
        if issubclass(kind, Exception) and not issubclass(kind, Warning)
        if kind.__module__.split(".")[0] in ("requests", "libcloud", "botocore")
    }


def test_every_exception_of_botocore_is_about_credentials_or_the_network() -> None:
    """It is asked for credentials, and for two auxiliary services that may fail."""
    boto = botocore.exceptions
    expected: dict[type[Exception], type[CloudError]] = {
        boto.SSLError: CloudConfigError,
        boto.ClientError: CloudConfigError,
        boto.InvalidProxiesConfigError: CloudConfigError,
        boto.HTTPClientError: TransientError,
        boto.BotoCoreError: CredentialsError,
        boto.ClientError: CloudConfigError,
        Exception: SOMETHING_ELSE,
    }
    for name, kind in exceptions(boto).items():
        made = raised(kind)
        made.response = {"Error": {"Code": "InvalidSomething"}}  # type: ignore[attr-defined]
        base = next(base for base in expected if issubclass(kind, base))
        error = faults.of_exception("credentials", made)
        assert type(error) is expected[base], name


# ── libcloud's recorded answers ──────────────────────────────────────────────


def recorded(name: str) -> str:
    folder = Path(libcloud.__file__).parent / "test" / "compute" / "fixtures" / "ec2"
    return (folder / name).read_text()


def test_a_recorded_reservation_is_read_whatever_its_namespace() -> None:
    answer = xml.tree(recorded("describe_instances.xml"))
    found = listing.instances(xml.items(answer, "reservationSet"))
    assert [xml.text(each, "instanceId") for each in found] == ["i-4382922a", "i-8474834a"]
    assert xml.text(xml.part(found[0], "instanceState"), "name") == "stopped"
    assert unix_time(xml.text(found[0], "launchTime"))


def test_a_recorded_security_group_is_read_with_its_rules() -> None:
    answer = xml.tree(recorded("describe_security_groups.xml"))
    groups = xml.items(answer, "securityGroupInfo")
    rules = [rule for group in groups for rule in xml.items(group, "ipPermissions")]
    ports = {(xml.text(r, "ipProtocol"), xml.text(r, "fromPort")) for r in rules}
    assert ("tcp", "80") in ports


def test_recorded_instances_that_are_not_ours_are_left_alone() -> None:
    answer = xml.tree(recorded("describe_instances.xml"))
    for each in listing.instances(xml.items(answer, "reservationSet")):
        assert listing.to_vm(each, "us-east-1", private=False) is None


def test_the_recorded_error_of_an_idempotency_mismatch_is_told_by_its_code() -> None:
    body = recorded("run_instances_idem_mismatch.xml")
    error = faults.of_answer("RunInstances in x", status=400, headers={}, body=body)
    assert error.code == "IdempotentParameterMismatch"


@pytest.mark.parametrize(
    ("code", "words", "status", "kind", "hint"),
    [
        (
            "AuthFailure",
            "Not authorized for images: [ami-03a5b89a2fbe7dd3d]",
            400,
            CloudConfigError,
            "modify-image-attribute",
        ),
        (
            "OptInRequired",
            "In order to use this AWS Marketplace product you need to accept terms and subscribe. "
            "To do so please visit https://aws.amazon.com/marketplace/pp?sku=4q59bftpyoueme916",
            401,
            PermissionsError,
            "accept the terms",
        ),
        (
            "OptInRequired",
            "You are not subscribed to this service.",
            401,
            PermissionsError,
            "billing",
        ),
        (
            "DisallowedForDedicatedTenancyNetwork",
            "The specified instance type is not supported",
            400,
            CloudConfigError,
            "network.vpc",
        ),
        ("InvalidParameterCombination", "Any two.", 400, CloudConfigError, "nodes"),
        (
            "InvalidParameterCombination",
            "The specified instance type is not eligible for Free Tier.",
            400,
            PermissionsError,
            "upgrade",
        ),
        (
            "UnauthorizedOperation",
            "x because no service control policy allows the ec2:RunInstances action",
            403,
            PermissionsError,
            "out of `placement`",
        ),
        (
            "UnauthorizedOperation",
            "x with an explicit deny in a permissions boundary",
            403,
            PermissionsError,
            "must allow it as well",
        ),
    ],
)
def test_words_that_say_more_than_their_code_have_a_way_out(
    code: str, words: str, status: int, kind: type[CloudError], hint: str
) -> None:
    error = refusal(code, words, status)
    assert type(error) is kind
    assert hint in str(error.hint)


def test_an_answer_with_a_code_is_an_answer_whatever_its_status() -> None:
    assert type(refusal("SomethingNobodyKnows", status=503)) is CloudError
    assert isinstance(refusal("", status=503), TransientError)
    assert isinstance(refusal("InternalError", status=500), TransientError)


@pytest.mark.parametrize(
    "body",
    [
        "<Response><Errors>x</Errors></Response>",
        "<Response><Errors><Error>x</Error></Errors></Response>",
        "<Response><Errors><Error><Code><a/></Code></Error></Errors></Response>",
        "<Response><Errors><Error><Message><b>x</b></Message></Error></Errors></Response>",
    ],
)
def test_an_error_of_another_shape_is_told_by_its_status(body: str) -> None:
    error = faults.of_answer("RunInstances in x", status=503, headers={}, body=body)
    assert isinstance(error, TransientError)
