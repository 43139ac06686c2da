"""Meanings of EC2's refusals: codes and reasons as rows, and how its answers are read.

Codes: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
State reasons: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html"""

from __future__ import annotations

import re
from collections.abc import Mapping

from cloudtrain.core import errors
from cloudtrain.providers.aws import xml
from cloudtrain.providers.base.faults import (
    RefusalRow,
    Table,
    busy,
    denied,
    full,
    login,
    plain,
    quota,
    seconds,
    wrong,
)

_ELSEWHERE = "add zones or regions to `placement`, or choose another machine"
_QUOTA = (
    "request more: aws service-quotas request-service-quota-increase --region {region} "
    "--service-code ec2 --quota-code CODE --desired-value VCPUS; CODE is L-DB2E81BA for G and VT "
    "(spot L-3819A6DF), L-417A185B for P (spot L-7212CCBC), L-1216C47A for others (spot "
    "L-34B43A08)"
)
_SPOT_QUOTA = (
    "request more at Service Quotas: L-3819A6DF (G and VT spot), L-7212CCBC (P spot), "
    "L-34B43A08 (others, spot), in vCPUs; or set spot: false"
)
_LOG_IN = (
    "run `aws configure` or `aws sso login`, or set `project` (AWS_PROFILE) to another profile"
)
_SUPPORT = "see https://console.aws.amazon.com/billing for what is missing, or ask AWS Support"
_DEFAULT_VPC = "run `aws ec2 create-default-vpc --region {region}`, or set network.subnet"
KEY = (
    "often the disk's encryption key (`disk_key`, or the account's default): it must be enabled, "
    "in this region, and its policy must admit you, and for spot nodes AWSServiceRoleForEC2Spot "
    "(docs/companies.md)"
)
NO_PROFILE = "InvalidIamInstanceProfile"
"""Our code for EC2's InvalidParameterValue with such words: EC2 has no code of its own for it."""

TABLE = Table(
    # ── Messages that say more than their codes ──────────────────────────────
    # terraform-provider-aws#24281 and cluster-api-provider-aws#3439 quote the first, read
    # 2026-11-22; the second is EC2's text for a profile without a role, by general knowledge.
    denied(
        "check `identity`: `aws iam get-instance-profile --instance-profile-name NAME` must "
        "show one role; a role's name is not a profile's",
        words=r"(?i)Invalid IAM Instance Profile|has no associated IAM Roles",
        code=NO_PROFILE,
    ),
    # LinkedInLearning/learning-terraform-3087701#345 and bitnami/vms#1838 (an image).
    denied(
        "the account is on the Free plan: `cloudtrain check` lists what it may launch, or "
        "upgrade it: https://console.aws.amazon.com/billing/home#/freetier/upgrade",
        words=r"not eligible for Free Tier",
    ),
    # Of the request, so every zone answers the same: skypilot-org/skypilot#6315 (architecture),
    # hashicorp/terraform-provider-aws#19712 (ENA), RhinoSecurityLabs/cloudgoat#247 (boot mode),
    # crossplane-contrib/provider-aws#1538 (tenancy in a group), read 2026-11-26.
    wrong(
        "set image: auto and network.close: off, or choose another machine",
        words=r"(?i)architecture.* does not match|\(ENA\) is required|an AMI with a boot mode"
        r"|placement groups? (are|is) not supported|into a placement group",
        scope="account",
    ),
    # Orange-Cyberdefense/GOAD#304, 2024-11-27. AuthFailure alone would be our credentials'.
    wrong(
        "this account may not use that image: its owner shares it by `aws ec2 "
        "modify-image-attribute`, or set image: auto",
        words=r"^Not authorized for images",
        code="ImageNotShared",
    ),
    # awslabs/harmonix#22, 2023-07-18: status 401, OptInRequired.
    denied(
        "accept the terms at the address above, or choose another `image:`",
        words=r"AWS Marketplace product",
    ),
    # https://repost.aws/knowledge-center/iam-explicit-deny-errors lists what else may deny, read
    # 2026-11-26. An organization may deny one region alone.
    denied(
        "your organization denies it, whatever your own policies allow: a tag that it requires "
        "goes into `tags:`, a region that it denies out of `placement`",
        words=r"(deny in a|because no) (service|resource) control policy",
        scope="region",
    ),
    denied(
        "what these words name must allow it as well as your own policy (docs/aws.md)",
        words=r"(deny in a|because no) (permissions boundary|session policy|VPC endpoint policy)",
    ),
    denied(
        "allow iam:PassRole on the role in the instance profile of `identity` (docs/aws.md)",
        words=r"not authorized to perform: iam:PassRole",
    ),
    # ── Why EC2 ended an instance, for codes that mean something else in a response ──
    RefusalRow(errors.TransientError, "Server.InternalError", scope="zone"),
    wrong(KEY, "Client.InternalError *InvalidKMSKey* KMS* CustomerKeyHasBeenRevoked"),
    # ── Codes of responses ───────────────────────────────────────────────────
    full(
        "the reservation is full: enlarge it, or choose another one", "ReservationCapacityExceeded"
    ),
    full("check the reservation's state and dates", "InvalidCapacityReservationState"),
    wrong("check nodes.….provisioning", "InvalidCapacityReservationId*"),
    full(
        "choose another zone, or a larger subnet in network.subnet",
        "InsufficientFreeAddressesInSubnet",
    ),
    full(_ELSEWHERE, "InsufficientAddressCapacity", scope="region"),
    full("choose another zone, or set spot: false", "SpotMaxPriceTooLow"),
    full("the spot instance was preempted", "SpotInstanceTermination SpotInstanceShutdown"),
    full(
        _ELSEWHERE,
        "InsufficientInstanceCapacity InsufficientHostCapacity InsufficientCapacity* "
        "Insufficient*Capacity UnfulfillableCapacity Unsupported VolumeTypeNotAvailableInZone",
    ),
    quota(_QUOTA, "VcpuLimitExceeded InstanceLimitExceeded"),
    quota(_SPOT_QUOTA, "MaxSpotInstanceCountExceeded"),
    RefusalRow(
        errors.RateError,
        "RequestLimitExceeded BandwidthLimitExceeded *Throttl* TooManyRequestsException SlowDown "
        "PriorRequestNotComplete ConcurrentTagAccess",
    ),
    RefusalRow(
        errors.TransientError,
        "ServerInternal InternalError InternalFailure InternalServerError ServiceUnavailable "
        "ServiceUnavailableException Unavailable RequestTimeout RequestTimeoutException",
    ),
    login(
        f"set this machine's clock, or {_LOG_IN}",
        "RequestExpired *RequestHasExpired RequestTimeTooSkewed RequestInTheFuture",
    ),
    denied(
        "run once per account: aws iam create-service-linked-role --aws-service-name "
        "spot.amazonaws.com",
        "*ServiceLinkedRoleCreationNotPermitted",
    ),
    login(
        _LOG_IN,
        "AuthFailure InvalidClientTokenId UnrecognizedClientException SignatureDoesNotMatch "
        "IncompleteSignature MissingAuthenticationToken ExpiredToken ExpiredTokenException http401",
    ),
    denied(
        "attach the policy in docs/aws.md, which is enough",
        "UnauthorizedOperation AccessDenied AccessDeniedException http403",
    ),
    # runs-on/runs-on#485 quotes it, with status 400, read 2026-11-24.
    denied("set `tags:` to what your organization's tag policy allows", "TagPolicyViolation"),
    denied("turn its termination protection off", "OperationNotPermitted"),
    # UA-TECH-POWER/DDoS_terraform_aws#5, 2022-03-02: of one region, unlike the account's own check.
    denied(
        "AWS admits {region} within 4 hours: run it again, or add regions",
        "PendingVerification",
        "in this region",
        scope="region",
    ),
    denied(_SUPPORT, "OptInRequired PendingVerification Blocked AccountProblem"),
    # "Address 10.0.0.9 is in use." of RunInstances: aws/aws-cli#7178, read 2026-11-23.
    RefusalRow(errors.AddressTakenError, "InvalidIPAddress.InUse", scope="zone"),
    RefusalRow(errors.NameTakenError, "*.Duplicate", scope="region"),
    full(_ELSEWHERE, "InvalidPlacementGroup.InUse", "in another availability zone"),
    busy(
        "still in use by a resource that is being deleted: run it again",
        "DependencyViolation *InUse Incorrect*State *InProgress",
    ),
    RefusalRow(
        errors.NotFoundError,
        "IdempotentInstanceTerminated InvalidPlacementGroup.Unknown",
        scope="region",
    ),
    wrong(
        "an image id is valid in one region only, and until it is deregistered: image: auto",
        "InvalidAMIID.NotFound InvalidAMIID.Unavailable",
    ),
    wrong("check network.subnet", "InvalidSubnetID.NotFound InvalidSubnet.NotFound"),
    wrong(_DEFAULT_VPC, "DefaultVpcDoesNotExist VPCIdNotSpecified MissingInput"),
    wrong(
        "set nodes.….disk_gb to the image's size or more",
        "InvalidBlockDeviceMapping",
        "is smaller than",
    ),
    wrong(
        "check nodes.….machine, image and network against these words",
        "InvalidInstanceType InvalidParameterCombination",
    ),
    wrong(
        "the VPC's dedicated tenancy rules that machine or market out: set network.vpc",
        "DisallowedForDedicatedTenancyNetwork",
    ),
    RefusalRow(
        errors.CloudConfigError,
        "InvalidVpcID.NotFound Client.InvalidSnapshot.NotFound IdempotentParameterMismatch "
        "EncryptedVolumesNotSupported",
    ),
    # ── Codes that are too numerous ──────────────────────────────────────────
    RefusalRow(errors.NotFoundError, "*NotFound *NotFoundException http404", scope="region"),
    quota(
        "delete unused resources, or request more at Service Quotas",
        "*LimitExceeded *CountExceeded VolumeIOPSLimit",
    ),
    RefusalRow(
        errors.CloudConfigError,
        "Invalid* Unsupported* Malformed* Missing* Unknown* *Malformed ValidationError",
    ),
    # ── Exceptions of botocore ───────────────────────────────────────────────
    wrong(
        "check `endpoints`, HTTPS_PROXY, and AWS_CA_BUNDLE: a file with your CA certificates",
        scope="account",
        raised="botocore.exceptions.SSLError botocore.exceptions.InvalidProxiesConfigError",
    ),
    RefusalRow(errors.TransientError, raised="botocore.exceptions.HTTPClientError"),
    login(
        _LOG_IN, raised="botocore.exceptions.BotoCoreError libcloud.common.types.InvalidCredsError"
    ),
)
"""The first row that fits counts, so what is special comes first. A new one begins with its refusal
in tests/standins/corpus/aws.yaml, or in tests/unit/test_aws_faults.py if only documented."""

NOT_HERE = frozenset({"AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException"})
"""Error codes with which a region that is not enabled for this account rejects valid credentials:
https://docs.aws.amazon.com/IAM/latest/UserGuide/id_credentials_temp_enable-regions.html"""
UNKNOWN_ACTION = frozenset(
    {"InvalidAction", "UnsupportedOperation", "NotImplemented", "UnknownOperationException"}
)
"""Error codes of a partial EC2 endpoint for an action that it does not support."""


def of_answer(
    asked: str,
    *,
    status: int,
    headers: Mapping[str, str],
    body: str,
    reach: errors.Scope = "region",
    facts: Mapping[str, str] | None = None,
) -> errors.CloudError:
    """The error for an HTTP error response; `reach` is how far the request went."""
    code, message = _told(body)
    message = message or f"HTTP {status} without a message"
    error = TABLE.error(
        asked,
        causes=[(code, message)],
        words=_ENCODED.sub("", message),
        status=status,
        reach=reach,
        facts=facts,
        retry_after=seconds(headers),
    )
    return _with_command(error, message)


def of_reason(name: str, code: str, message: str) -> errors.CloudError | None:
    """The error for an instance that ended by itself; None if a user ended it: no failure."""
    causes = [(each, message or code) for each in (code, code.partition(".")[2]) if each]
    known = [cause for cause in causes if TABLE.row(cause[0], cause[1]) is not None]
    if not known:
        return None
    made = TABLE.error("", causes=known, words=message or code, reach="zone")
    return _with_command(made.copy_with(what=name, code=code), message)


def of_exception(asked: str, error: Exception) -> errors.CloudError:
    """The error for an exception of libcloud, requests or botocore."""
    from botocore.exceptions import ClientError

    if isinstance(error, ClientError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400))
        made = TABLE.error(asked, causes=[(code, str(error))], status=status)
        return _with_command(made, str(error))
    return TABLE.of_exception(asked, error)


def _told(body: str) -> tuple[str, str]:
    """The code and message of EC2's XML error; no code for anything else, as a proxy's page."""
    try:
        answer = xml.tree(body)
        listed = xml.items(answer, "Errors") or [xml.part(answer, "Error") or answer]
        return xml.text(listed[0], "Code"), xml.text(listed[0], "Message")
    except (ValueError, TypeError, AttributeError):  # no XML, or of another shape
        return "", plain(body)


def _with_command(error: errors.CloudError, message: str) -> errors.CloudError:
    """The error, with the command that decodes the statement that denied a call, if any."""
    encoded = _ENCODED.search(message)
    if not encoded:
        return error
    late = "after `cloudtrain up`, see the cluster's events.jsonl for the policy that denied it"
    command = f"aws sts decode-authorization-message --encoded-message {encoded[1]}"
    return error.copy_with(hint=f"{error.hint}; {late}" if error.hint else None, detail=command)


_ENCODED = re.compile(r"\s*Encoded authorization failure message: (\S+)")
"""Matches the encoded statement and policy that denied a call; decoding it needs a permission:
https://docs.aws.amazon.com/STS/latest/APIReference/API_DecodeAuthorizationMessage.html"""
