"""Maps errors of EC2, libcloud, requests and botocore to our error classes.

Codes: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
State reasons: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

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
from cloudtrain.providers.aws import xml


@dataclass(frozen=True)
class Fault:
    kind: type[CloudError]
    scope: Scope = "account"
    hint: str | None = None


_ELSEWHERE = "add zones or regions to `placement`, or choose another machine"
_QUOTA = (
    "request more: aws service-quotas request-service-quota-increase --service-code ec2 "
    "--quota-code CODE --desired-value VCPUS; CODE is L-DB2E81BA for G and VT (spot L-3819A6DF), "
    "L-417A185B for P (spot L-7212CCBC), L-1216C47A for others (spot L-34B43A08)"
)
_SPOT_QUOTA = (
    "request more at Service Quotas: L-3819A6DF (G and VT spot), L-7212CCBC (P spot), "
    "L-34B43A08 (others, spot), in vCPUs; or set spot: false"
)
_LOG_IN = (
    "run `aws configure` or `aws sso login`, or set `project` (AWS_PROFILE) to another profile"
)
_POLICY = "attach the policy in docs/aws.md, which is enough"

_CAPACITY = Fault(CapacityError, "zone", _ELSEWHERE)
_RESERVATION = Fault(CloudConfigError, "region", "check nodes.….provisioning")
_LIMIT = Fault(QuotaError, "region", "delete unused resources, or request more at Service Quotas")
_RATE = Fault(RateError, "region")
_TRANSIENT = Fault(TransientError, "region")
_UNKNOWN_USER = Fault(CredentialsError, "account", _LOG_IN)
_DENIED = Fault(PermissionsError, "account", _POLICY)
_WRONG = Fault(CloudConfigError)
_ABSENT = Fault(NotFoundError, "region")
_IN_USE = Fault(
    BusyError, "region", "still in use by a resource that is being deleted: run it again"
)
_TAKEN = Fault(NameTakenError, "region")
_SUPPORT = "see https://console.aws.amazon.com/billing for what is missing, or ask AWS Support"

NO_PROFILE = "InvalidIamInstanceProfile"
"""Our code for EC2's InvalidParameterValue with such words: EC2 has no code of its own for it."""
_WORDS = (
    # terraform-provider-aws#24281 and cluster-api-provider-aws#3439 quote the first, read
    # 2026-11-22; the second is EC2's text for a profile without a role, by general knowledge.
    (
        re.compile(r"Invalid IAM Instance Profile|has no associated IAM Roles", re.IGNORECASE),
        NO_PROFILE,
        Fault(
            PermissionsError,
            "account",
            "check `identity`: `aws iam get-instance-profile --instance-profile-name NAME` must "
            "show one role; a role's name is not a profile's",
        ),
    ),
    (
        # LinkedInLearning/learning-terraform-3087701#345 and bitnami/vms#1838 (an image).
        re.compile(r"not eligible for Free Tier"),
        "",
        Fault(
            PermissionsError,
            "account",
            "the account is on the Free plan: `cloudtrain check` lists what it may launch, or "
            "upgrade it: https://console.aws.amazon.com/billing/home#/freetier/upgrade",
        ),
    ),
    # Orange-Cyberdefense/GOAD#304, 2024-11-27. AuthFailure alone would be our credentials'.
    (
        re.compile(r"^Not authorized for images"),
        "ImageNotShared",
        Fault(
            CloudConfigError,
            "region",
            "this account may not use that image: its owner shares it by `aws ec2 "
            "modify-image-attribute`, or set image: auto",
        ),
    ),
    # awslabs/harmonix#22, 2023-07-18: status 401, OptInRequired.
    (
        re.compile(r"AWS Marketplace product"),
        "",
        Fault(
            PermissionsError,
            "account",
            "accept the terms at the address above, or choose another `image:`",
        ),
    ),
    (
        re.compile(r"not authorized to perform: iam:PassRole"),
        "",
        Fault(
            PermissionsError,
            "account",
            "allow iam:PassRole on the role in the instance profile of `identity` (docs/aws.md)",
        ),
    ),
)
"""Messages that say more than their codes: pattern, our code if EC2's is too general, fault."""

KEY = (
    "often the disk's encryption key (`disk_key`, or the account's default): it must be enabled, "
    "in this region, and its policy must admit you, and for spot nodes AWSServiceRoleForEC2Spot "
    "(docs/companies.md)"
)
_SKEWED = Fault(CredentialsError, "account", f"set this machine's clock, or {_LOG_IN}")

CODES: Mapping[str, Fault] = {
    "InsufficientInstanceCapacity": _CAPACITY,
    "InsufficientHostCapacity": _CAPACITY,
    "InsufficientCapacity": _CAPACITY,
    "InsufficientCapacityOnHost": _CAPACITY,
    "InsufficientReservedInstanceCapacity": _CAPACITY,
    "InsufficientVolumeCapacity": _CAPACITY,
    "ReservationCapacityExceeded": Fault(
        CapacityError, "zone", "the reservation is full: enlarge it, or choose another one"
    ),
    "InvalidCapacityReservationState": Fault(
        CapacityError, "zone", "check the reservation's state and dates"
    ),
    "InvalidCapacityReservationId.NotFound": _RESERVATION,
    "InvalidCapacityReservationId.Malformed": _RESERVATION,
    "InsufficientFreeAddressesInSubnet": Fault(
        CapacityError, "zone", "choose another zone, or a larger subnet in network.subnet"
    ),
    "InsufficientAddressCapacity": Fault(CapacityError, "region", _ELSEWHERE),
    "UnfulfillableCapacity": _CAPACITY,
    "Unsupported": _CAPACITY,
    "DisallowedForDedicatedTenancyNetwork": Fault(
        CloudConfigError,
        "region",
        "the VPC has dedicated tenancy, which that machine or market lacks: set network.vpc",
    ),
    "InvalidParameterCombination": Fault(
        CloudConfigError, "region", "check nodes.….machine, image and network against these words"
    ),
    "VolumeIOPSLimit": _LIMIT,
    "VolumeTypeNotAvailableInZone": _CAPACITY,
    "SpotMaxPriceTooLow": Fault(CapacityError, "zone", "choose another zone, or set spot: false"),
    "SpotInstanceTermination": Fault(CapacityError, "zone", "the spot instance was preempted"),
    "SpotInstanceShutdown": Fault(CapacityError, "zone", "the spot instance was preempted"),
    "VcpuLimitExceeded": Fault(QuotaError, "region", _QUOTA),
    "InstanceLimitExceeded": Fault(QuotaError, "region", _QUOTA),
    "MaxSpotInstanceCountExceeded": Fault(QuotaError, "region", _SPOT_QUOTA),
    "VolumeLimitExceeded": _LIMIT,
    "MaxIOPSLimitExceeded": _LIMIT,
    "AddressLimitExceeded": _LIMIT,
    "NetworkInterfaceLimitExceeded": _LIMIT,
    "SecurityGroupLimitExceeded": _LIMIT,
    "RulesPerSecurityGroupLimitExceeded": _LIMIT,
    "PlacementGroupLimitExceeded": _LIMIT,
    "ResourceLimitExceeded": _LIMIT,
    "RequestLimitExceeded": _RATE,
    "Throttling": _RATE,
    "ThrottlingException": _RATE,
    "ThrottledException": _RATE,
    "RequestThrottled": _RATE,
    "RequestThrottledException": _RATE,
    "EC2ThrottledException": _RATE,
    "TooManyRequestsException": _RATE,
    "SlowDown": _RATE,
    "BandwidthLimitExceeded": _RATE,
    "PriorRequestNotComplete": _RATE,
    "ConcurrentTagAccess": _RATE,
    "ServerInternal": _TRANSIENT,
    "InternalError": _TRANSIENT,
    "InternalFailure": _TRANSIENT,
    "InternalServerError": _TRANSIENT,
    "ServiceUnavailable": _TRANSIENT,
    "ServiceUnavailableException": _TRANSIENT,
    "Unavailable": _TRANSIENT,
    "RequestTimeout": _TRANSIENT,
    "RequestTimeoutException": _TRANSIENT,
    "AuthFailure": _UNKNOWN_USER,
    "InvalidClientTokenId": _UNKNOWN_USER,
    "UnrecognizedClientException": _UNKNOWN_USER,
    "SignatureDoesNotMatch": _UNKNOWN_USER,
    "IncompleteSignature": _UNKNOWN_USER,
    "MissingAuthenticationToken": _UNKNOWN_USER,
    "ExpiredToken": _UNKNOWN_USER,
    "ExpiredTokenException": _UNKNOWN_USER,
    "RequestExpired": _SKEWED,
    "RequestTimeTooSkewed": _SKEWED,
    "RequestInTheFuture": _SKEWED,
    "UnauthorizedOperation": _DENIED,
    "AccessDenied": _DENIED,
    "AccessDeniedException": _DENIED,
    # runs-on/runs-on#485 quotes it, with status 400, read 2026-11-24.
    "TagPolicyViolation": Fault(
        PermissionsError, "account", "set `tags:` to what your organization's tag policy allows"
    ),
    "OperationNotPermitted": Fault(
        PermissionsError, "account", "turn its termination protection off"
    ),
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": Fault(
        PermissionsError,
        "account",
        "run once per account: aws iam create-service-linked-role "
        "--aws-service-name spot.amazonaws.com",
    ),
    "OptInRequired": Fault(PermissionsError, "account", _SUPPORT),
    "PendingVerification": Fault(PermissionsError, "account", _SUPPORT),
    "Blocked": Fault(PermissionsError, "account", _SUPPORT),
    "InvalidGroup.Duplicate": _TAKEN,
    "InvalidPlacementGroup.Duplicate": _TAKEN,
    "InvalidPermission.Duplicate": _TAKEN,
    # "Address 10.0.0.9 is in use." of RunInstances: aws/aws-cli#7178, read 2026-11-23.
    "InvalidIPAddress.InUse": Fault(AddressTakenError, "zone"),
    "DependencyViolation": _IN_USE,
    "InvalidGroup.InUse": _IN_USE,
    "InvalidPlacementGroup.InUse": _IN_USE,
    "InvalidNetworkInterface.InUse": _IN_USE,
    "VolumeInUse": _IN_USE,
    "IncorrectState": _IN_USE,
    "IncorrectInstanceState": _IN_USE,
    "IdempotentInstanceTerminated": _ABSENT,
    "InvalidPlacementGroup.Unknown": _ABSENT,
    "InvalidAMIID.NotFound": Fault(
        CloudConfigError, "region", "an image id is valid in one region only; set image: auto"
    ),
    "InvalidAMIID.Unavailable": _WRONG,
    "InvalidSubnetID.NotFound": Fault(CloudConfigError, "region", "check network.subnet"),
    "InvalidSubnet.NotFound": Fault(CloudConfigError, "region", "check network.subnet"),
    "InvalidVpcID.NotFound": _WRONG,
    "DefaultVpcDoesNotExist": Fault(
        CloudConfigError, "region", "run `aws ec2 create-default-vpc`, or set network.subnet"
    ),
    "VPCIdNotSpecified": Fault(
        CloudConfigError, "region", "run `aws ec2 create-default-vpc`, or set network.subnet"
    ),
    "InvalidInstanceType": Fault(CloudConfigError, "region", "check nodes.….machine"),
    "UnsupportedOperation": _WRONG,
    "UnknownParameter": _WRONG,
    "MissingParameter": _WRONG,
    "MissingAction": _WRONG,
    "MalformedQueryString": _WRONG,
    "ValidationError": _WRONG,
    "EncryptedVolumesNotSupported": _WRONG,
    "IdempotentParameterMismatch": _WRONG,
}

NOT_HERE = frozenset({"AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException"})
"""Error codes with which a region that is not enabled for this account rejects valid credentials:
https://docs.aws.amazon.com/IAM/latest/UserGuide/id_credentials_temp_enable-regions.html
"""

REASONS: Mapping[str, Fault] = {
    "Server.InternalError": Fault(TransientError, "zone"),
    "Client.InternalError": Fault(CloudConfigError, "region", KEY),
    "Client.InvalidKMSKey.InvalidState": Fault(CloudConfigError, "region", KEY),
    "Client.InvalidSnapshot.NotFound": _WRONG,
}
"""Reasons why EC2 terminated an instance, for codes that have another meaning in a call's
response.
"""

_KINDS = (
    (re.compile(r"NotFound(Exception)?$"), _ABSENT),
    (re.compile(r"LimitExceeded$"), _LIMIT),
    (re.compile(r"^Insufficient\w*Capacity"), _CAPACITY),
    (re.compile(r"^(Invalid|Unsupported|Malformed|Missing|Unknown)|Malformed$"), _WRONG),
)
"""Patterns of codes that are too numerous for a table."""

UNKNOWN_ACTION = frozenset(
    {"InvalidAction", "UnsupportedOperation", "NotImplemented", "UnknownOperationException"}
)
"""Error codes of a partial EC2 endpoint for an action that it does not support."""


def of_answer(asked: str, *, status: int, headers: Mapping[str, str], body: str) -> CloudError:
    """Return the error for an HTTP error response. Names in `headers` are in lower case."""
    code, message = _words(body)
    own, fault = next(((o, f) for p, o, f in _WORDS if p.search(message)), ("", None))
    code = own or code
    return _error(
        fault or _of_code(code) or _of_unknown_code(code, status),
        asked,
        message or f"HTTP {status} without a message",
        code=code or f"HTTP {status}",
        retry_after=seconds(headers.get("retry-after", "")),
    )


def of_reason(name: str, code: str, message: str) -> CloudError | None:
    """Return the error for an instance that ended by itself; None if a user ended it, which is no
    failure.
    """
    short = code.partition(".")[2]
    fault = REASONS.get(code) or CODES.get(short)
    return _error(fault, name, message or code, code=code) if fault else None


def of_exception(asked: str, error: Exception) -> CloudError:
    """Return the error for an exception of libcloud, requests or botocore."""
    from botocore.exceptions import ClientError
    from libcloud.common.exceptions import BaseHTTPError

    words = str(error) or type(error).__name__
    if isinstance(error, CloudError):
        return error
    if isinstance(error, ClientError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        return _error(_of_code(code) or _of_status(status), asked, words, code=code)
    if isinstance(error, BaseHTTPError):
        return _error(_of_status(error.code), asked, words, code=f"HTTP {error.code}")
    fault = next((f for kinds, f in _exceptions() if isinstance(error, kinds)), Fault(CloudError))
    return _error(fault, asked, words, code=type(error).__name__)


def _exceptions() -> tuple[tuple[tuple[type[Exception], ...], Fault], ...]:
    """Return exception classes with their errors. The first match counts, as some classes match two
    rows.
    """
    from botocore import exceptions as boto
    from libcloud.common.types import (
        InvalidCredsError,
        MalformedResponseError,
        ServiceUnavailableError,
    )
    from requests import exceptions as http

    return (
        (
            (http.SSLError, boto.SSLError),
            Fault(
                CloudError,
                "account",
                "set AWS_CA_BUNDLE or REQUESTS_CA_BUNDLE to a file with your CA certificates",
            ),
        ),
        (
            (
                http.InvalidURL,
                http.InvalidSchema,
                http.MissingSchema,
                boto.InvalidProxiesConfigError,
            ),
            Fault(CloudConfigError, "account", "check `endpoints`, AWS_ENDPOINT_URL, HTTPS_PROXY"),
        ),
        (
            (
                *(http.Timeout, http.ConnectionError, http.ChunkedEncodingError, http.RetryError),
                *(http.ContentDecodingError, http.StreamConsumedError, boto.HTTPClientError),
                *(MalformedResponseError, ServiceUnavailableError),
            ),
            _TRANSIENT,
        ),
        ((http.RequestException,), Fault(CloudError)),
        ((boto.BotoCoreError, InvalidCredsError), _UNKNOWN_USER),
        ((OSError,), _TRANSIENT),
    )


def seconds(retry_after: str) -> float | None:
    """Parse a Retry-After header, a number or a date, into seconds (RFC 9110, 10.2.3)."""
    if re.fullmatch(r"\d+(\.\d+)?", retry_after.strip()):
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - moments.now())
    except (TypeError, ValueError):
        return None


def _words(body: str) -> tuple[str, str]:
    """Return the code and message of EC2's XML error; both "" for anything else, such as a proxy's
    page.
    """
    try:
        answer = xml.tree(body)
    except ValueError:
        return "", re.sub(r"<[^>]*>|\s+", " ", body).strip()[:200]
    errors = xml.items(answer, "Errors") or [xml.part(answer, "Error") or answer]
    return xml.text(errors[0], "Code"), xml.text(errors[0], "Message")


def _of_code(code: str) -> Fault | None:
    return CODES.get(code) or next((f for p, f in _KINDS if p.search(code)), None)


def _of_unknown_code(code: str, status: int) -> Fault:
    """An answer with a code is an answer, whatever its status: the same request gets it again."""
    return Fault(CloudError, "region") if code and status >= 500 else _of_status(status)


def _of_status(status: int) -> Fault:
    if status == 429:
        return _RATE
    if status == 401:
        return _UNKNOWN_USER
    if status == 403:
        return _DENIED
    if status == 404:
        return _ABSENT
    if status == 408 or (status >= 500 and status != 501):
        return _TRANSIENT
    return _WRONG


def _error(
    fault: Fault, asked: str, words: str, *, code: str, retry_after: float | None = None
) -> CloudError:
    encoded = _ENCODED.search(words)
    hint = fault.hint
    if _BY_ORGANIZATION.search(words) and _CREATES.search(words):
        hint = f"your organization denies it; a tag that it requires goes into `tags:`; {hint}"
    if encoded and hint:
        hint += (
            "; after `cloudtrain up`, see the cluster's events.jsonl for the policy that denied it"
        )
    return fault.kind(
        f"{asked}: {_ENCODED.sub('', words)}",
        hint=hint,
        scope=fault.scope,
        code=code,
        retry_after=retry_after,
        detail=f"aws sts decode-authorization-message --encoded-message {encoded[1]}"
        if encoded
        else "",
    )


_BY_ORGANIZATION = re.compile("explicit deny in a service control policy")
_CREATES = re.compile(r"perform: (ec2:(RunInstances|Create\w+)|s3:CreateBucket)\b")
_ENCODED = re.compile(r"\s*Encoded authorization failure message: (\S+)")
"""Matches the encoded statement and policy that denied a call; decoding it needs a permission:
https://docs.aws.amazon.com/STS/latest/APIReference/API_DecodeAuthorizationMessage.html
"""
