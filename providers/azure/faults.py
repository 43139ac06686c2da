"""Maps errors of Resource Manager, libcloud, requests and azure-identity to our error classes.

Codes:
https://learn.microsoft.com/azure/azure-resource-manager/troubleshooting/common-deployment-errors
and https://learn.microsoft.com/troubleshoot/azure/virtual-machines/windows/error-messages
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

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
    kind: type[CloudError]
    scope: Scope = "account"
    hint: str | None = None


_ELSEWHERE = "add zones or regions to `placement`, or choose another machine"
_QUOTA = "request more at https://aka.ms/ProdportalCRP or by `az quota`, or add regions"
LOG_IN = "run `az login`, or set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET"
_ROLE = "assign the role in docs/azure.md by `az role assignment create`"
_REGISTER = "run `az provider register --namespace NAMESPACE`, once per subscription"
_SUPPORT = "see the Azure portal for what the subscription lacks"

_FULL = Fault(CapacityError, "region", _ELSEWHERE)
_FULL_ZONE = Fault(CapacityError, "zone", _ELSEWHERE)
_LIMIT = Fault(QuotaError, "region", _QUOTA)
_RATE = Fault(RateError)
_TRANSIENT = Fault(TransientError, "region")
_UNKNOWN_USER = Fault(CredentialsError, hint=LOG_IN)
_DENIED = Fault(PermissionsError, hint=_ROLE)
ATTACH = "assign Managed Identity Operator on the identity to yourself (docs/azure.md)"
NO_IDENTITY = (
    "check `identity`: `az identity show --ids ID` must find it, in the subscription's tenant"
)
_ATTACH = Fault(PermissionsError, hint=ATTACH)
_READ_KEY = Fault(
    PermissionsError,
    hint="get Microsoft.Compute/diskEncryptionSets/read on the set of `disk_key` "
    "(docs/companies.md)",
)
_KEY = Fault(
    PermissionsError,
    "region",
    "the identity of the disk encryption set of `disk_key` needs get, wrapKey and unwrapKey on its "
    "key in the vault (docs/companies.md)",
)
_JOIN = Fault(
    PermissionsError,
    hint="get Microsoft.Network/virtualNetworks/subnets/join/action on the subnet of "
    "`network.subnet` (docs/companies.md)",
)
_NO_IDENTITY = Fault(PermissionsError, hint=NO_IDENTITY)
_UNREGISTERED = Fault(PermissionsError, hint=_REGISTER)
_DISABLED = Fault(PermissionsError, hint=_SUPPORT)
_LOCKED = Fault(PermissionsError, hint="it is locked: run `az lock list`, then `az lock delete`")
_WRONG = Fault(CloudConfigError, "region")
# hashicorp/terraform-provider-azurerm#1145 and MicrosoftDocs/azure-docs#25359 quote both codes for
# terms that are not accepted, read 2026-11-24.
_TERMS = Fault(
    PermissionsError,
    hint="read and accept the image's terms: `az vm image terms accept --urn` with `image`",
)
_IMAGE = Fault(CloudConfigError, "region", "check `image`: publisher:offer:sku:version")
_ABSENT = Fault(NotFoundError, "region")
_IN_USE = Fault(
    BusyError, "region", "still in use by a resource that is being deleted: run it again"
)
_TAKEN = Fault(NameTakenError, hint="choose another name for the cluster, or destroy that one")

CODES: Mapping[str, Fault] = {
    "AllocationFailed": _FULL,
    "SkuNotAvailable": _FULL,
    "NotAvailableForSubscription": _FULL,
    "ZonalAllocationFailed": _FULL_ZONE,
    "OverconstrainedAllocationRequest": _FULL_ZONE,
    "OverconstrainedZonalAllocationRequest": _FULL_ZONE,
    "AllocationTimedOut": _FULL_ZONE,
    "SpotPriceTooLow": Fault(CapacityError, "region", "choose another region, or set spot: false"),
    "QuotaExceeded": _LIMIT,
    "ResourceQuotaExceeded": _LIMIT,
    "ResourcesQuotaExceeded": _LIMIT,
    "PublicIPCountLimitReached": _LIMIT,
    "PublicIPCountLimitExceededByVMScaleSet": _LIMIT,
    "StandardSkuPublicIPCountLimitReached": _LIMIT,
    "NetworkSecurityGroupCountLimitReached": _LIMIT,
    "VirtualNetworkCountLimitReached": _LIMIT,
    "NetworkInterfaceCountLimitReached": _LIMIT,
    "ResourceCountExceedsLimitDueToTemplate": _LIMIT,
    "ResourceGroupQuotaExceeded": Fault(QuotaError, "account", "delete resource groups"),
    "SubnetIsFull": Fault(QuotaError, "region", "choose a larger subnet in network.subnet"),
    "TooManyRequests": _RATE,
    "RequestsThrottled": _RATE,
    "SubscriptionRequestsThrottled": _RATE,
    "ResourceRequestsThrottled": _RATE,
    "ResourceCollectionRequestsThrottled": _RATE,
    "OperationThrottled": _RATE,
    "InternalServerError": _TRANSIENT,
    "InternalError": _TRANSIENT,
    "InternalExecutionError": _TRANSIENT,
    "InternalOperationError": _TRANSIENT,
    "NetworkingInternalOperationError": _TRANSIENT,
    "ServiceUnavailable": _TRANSIENT,
    "ServerBusy": _TRANSIENT,
    "ServerTimeout": _TRANSIENT,
    "GatewayTimeout": _TRANSIENT,
    "BadGateway": _TRANSIENT,
    "RequestTimeout": _TRANSIENT,
    "OperationTimedOut": _TRANSIENT,
    "RetryableError": _TRANSIENT,
    "VMStartTimedOut": _TRANSIENT,
    "OSProvisioningTimedOut": _TRANSIENT,
    "OSProvisioningInternalError": _TRANSIENT,
    "OperationPreempted": _TRANSIENT,
    "Canceled": _TRANSIENT,
    "AuthenticationFailed": _UNKNOWN_USER,
    "AuthenticationFailedMissingToken": _UNKNOWN_USER,
    "AuthenticationFailedInvalidHeader": _UNKNOWN_USER,
    "InvalidAuthenticationToken": _UNKNOWN_USER,
    "InvalidAuthenticationTokenTenant": Fault(
        CredentialsError, hint="for another tenant's subscription, run `az login --tenant TENANT`"
    ),
    "ExpiredAuthenticationToken": _UNKNOWN_USER,
    "Unauthorized": _UNKNOWN_USER,
    "AuthorizationFailed": _DENIED,
    "LinkedAuthorizationFailed": _DENIED,
    "LinkedAccessCheckFailed": _DENIED,
    "DenyAssignmentAuthorizationFailed": _DENIED,
    "Forbidden": _DENIED,
    "FailedIdentityOperation": _NO_IDENTITY,
    "RequestDisallowedByPolicy": Fault(
        PermissionsError,
        "region",
        "see `az policy state list` for the policy that forbids it; a tag that it requires goes "
        "into `tags:`",
    ),
    # terraform-provider-azurerm#9177 quotes it for a disk encryption set, read 2026-11-24.
    "KeyVaultAccessForbidden": _KEY,
    "RequestDisallowedByAzure": Fault(
        PermissionsError, "region", "choose a region in `placement` that this subscription may use"
    ),
    "MissingSubscriptionRegistration": _UNREGISTERED,
    "SubscriptionNotRegistered": _UNREGISTERED,
    "SubscriptionNotRegisteredForFeature": _UNREGISTERED,
    "ReadOnlyDisabledSubscription": _DISABLED,
    "DisallowedOperation": _DISABLED,
    "MarketplacePurchaseEligibilityFailed": _TERMS,
    "ResourcePurchaseValidationFailed": _TERMS,
    "SubscriptionNotFound": Fault(
        CredentialsError, hint="check `project` and AZURE_SUBSCRIPTION_ID"
    ),
    "InvalidSubscriptionId": Fault(
        CredentialsError, hint="check `project` and AZURE_SUBSCRIPTION_ID"
    ),
    "ScopeLocked": _LOCKED,
    # daniel-rhoades/acs-engine-terraform#10 quotes it for a network interface, read 2026-11-23.
    "PrivateIPAddressIsAllocated": Fault(AddressTakenError, "region"),
    # https://learn.microsoft.com/azure/azure-resource-manager/troubleshooting/common-deployment-errors
    "PrivateIPAddressNotInSubnet": _WRONG,
    "PrivateIPAddressInReservedRange": _WRONG,
    "ResourceGroupBeingDeleted": _IN_USE,
    "NicReservedForAnotherVm": _IN_USE,
    "NicInUse": _IN_USE,
    "NicInUseWithPrivateEndpoint": _IN_USE,
    "PublicIPAddressCannotBeDeleted": _IN_USE,
    "PublicIPAddressInUse": _IN_USE,
    "InUseSubnetCannotBeDeleted": _IN_USE,
    "InUseNetworkSecurityGroupCannotBeDeleted": _IN_USE,
    "InUsePublicIpAddressCannotBeDeleted": _IN_USE,
    "AnotherOperationInProgress": _IN_USE,
    "RetryableErrorDueToAnotherOperation": _IN_USE,
    "CanceledAndSupersededDueToAnotherOperation": _IN_USE,
    "ReferencedResourceNotProvisioned": _IN_USE,
    "Conflict": _IN_USE,
    "ConflictError": _IN_USE,
    "PreconditionFailed": _IN_USE,
    "AttachDiskWhileBeingDetached": _IN_USE,
    "ResourceGroupDeletionBlocked": _IN_USE,
    "ResourceGroupDeletionTimeout": _IN_USE,
    "PropertyChangeNotAllowed": _TAKEN,
    "ConflictingUserInput": _TAKEN,
    "InvalidResourceLocation": _TAKEN,
    "InvalidResourceGroupLocation": _TAKEN,
    "ResourceAvailabilityZonesCannotBeModified": _TAKEN,
    "ImageNotFound": _IMAGE,
    "PlatformImageNotFound": _IMAGE,
    "ImageVersionDeprecated": _IMAGE,
    "VMMarketplaceInvalidInput": Fault(
        CloudConfigError,
        "region",
        "check `image`; its purchase plan is read with the permission to read image versions "
        "(docs/companies.md)",
    ),
    "MarketplaceImageNotFound": _IMAGE,
    "VMSizeDoesntSupportGeneration": _IMAGE,
    "LocationNotAvailableForResourceType": Fault(CapacityError, "region", _ELSEWHERE),
    "LocationNotAvailableForResourceGroup": Fault(CloudConfigError, "region", "check `placement`"),
    "InvalidAvailabilityZone": Fault(CloudConfigError, "zone", "check `placement`"),
    "InvalidResourceReference": _WRONG,
    "NoRegisteredProviderFound": _WRONG,
    "BadRequest": _WRONG,
    "VMSizeIsNotPermittedToEnableAcceleratedNetworking": _WRONG,
    "OSProvisioningClientError": _WRONG,
    "OperationNotAllowed": _WRONG,
    "NotFound": _ABSENT,
    "ParentResourceNotFound": _ABSENT,
}

_KINDS = (
    (re.compile(r"NotFound$"), _ABSENT),
    (re.compile(r"(LimitReached|LimitExceeded|QuotaExceeded)$"), _LIMIT),
    (re.compile(r"(CannotBeDeleted|InUse|BeingDeleted)$"), _IN_USE),
    (re.compile(r"Throttled$"), _RATE),
    (re.compile(r"^(Invalid|Unsupported|Malformed|Missing|Unknown|Duplicate)"), _WRONG),
    (re.compile(r"(NotSupported|NotAllowed|NotPermitted)"), _WRONG),
)
"""Patterns of codes that are too numerous for a table."""

_MEANINGS = (
    ("OperationNotAllowed", r"quota|approved .*cores|cores limit", _LIMIT),
    ("OperationNotAllowed", r"being |in progress|marked for deletion|has to wait", _IN_USE),
    ("SkuNotAvailable", r"\bzones? '", _FULL_ZONE),
    ("BadRequest", r"\bquota\b", _LIMIT),
    ("LinkedAuthorizationFailed", r"userAssignedIdentities/assign", _ATTACH),
    ("LinkedAuthorizationFailed", r"subnets/join", _JOIN),
    ("LinkedAuthorizationFailed", r"diskEncryptionSets/", _READ_KEY),
    # Its message has the status and the answer of the identity service; Azure/azure-policy#1311
    # and Azure/aad-pod-identity#585 quote both refusals, read 2026-11-22.
    ("FailedIdentityOperation", r"Status: '(Internal|Service|TooMany|Gateway)", _TRANSIENT),
)
"""Codes with several meanings, which the message distinguishes."""

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


def versions(error: CloudError) -> tuple[str, ...]:
    """Return the API versions that an endpoint lists as supported when it refuses ours: sovereign
    clouds lag behind by months.
    """
    found = re.search(r"supported (?:api-)?versions are '([^']*)'", error.message, re.IGNORECASE)
    return tuple(re.findall(r"\d{4}-\d\d-\d\d(?:-\w+)?", found[1])) if found else ()


def wants_another_version(error: CloudError) -> bool:
    return error.code in _OLDER and bool(versions(error))


def is_unknown_question(error: CloudError) -> bool:
    """True if this endpoint does not support the request."""
    return isinstance(error, NotFoundError) or error.code in _UNKNOWN_HERE


def of_answer(asked: str, *, status: int, headers: Mapping[str, str], body: str) -> CloudError:
    """Return the error for an HTTP error response. Names in `headers` are in lower case."""
    wait = seconds(headers)
    try:
        parsed = json.loads(body)
        error = parsed["error"]
    except (ValueError, KeyError, TypeError):
        words = re.sub(r"<[^>]*>|\s+", " ", body).strip()[:200]
        words = words or f"HTTP {status} without a message"
        return _error(_of_status(status), asked, words, code=f"HTTP {status}", retry_after=wait)
    return of_error(asked, error, status=status, retry_after=wait)


def of_error(
    asked: str, error: Any, *, status: int = 0, retry_after: float | None = None
) -> CloudError:
    """Return the error for ARM's `{"code", "message", "details"}` in a response, an operation or a
    VM's status.
    """
    code, words = _cause(error)
    found = _of_code(code, words) or _of_status(status)
    if status in (408, 429) or (status >= 500 and status != 501):
        # Permanent refusals have a status of 400 to 499, whatever text comes with other statuses,
        # unless the code itself names what to wait for, as in 429 AnotherOperationInProgress.
        firm = issubclass(found.kind, CapacityError | QuotaError | BusyError)
        found = found if firm else _of_status(status)
    wait = retry_after if retry_after is not None else _seconds_in(words)
    code = code or (f"HTTP {status}" if status else "")
    return _error(found, asked, words or code, code=code, retry_after=wait)


def of_exception(asked: str, error: Exception) -> CloudError:
    """Return the error for an exception of libcloud, requests or azure-core."""
    from libcloud.common.exceptions import BaseHTTPError

    if isinstance(error, CloudError):
        return error
    words = str(error) or type(error).__name__
    if isinstance(error, BaseHTTPError):
        return _error(_of_status(error.code), asked, words, code=f"HTTP {error.code}")
    fault = next((f for kinds, f in _exceptions() if isinstance(error, kinds)), Fault(CloudError))
    return _error(fault, asked, words, code=type(error).__name__)


def _exceptions() -> tuple[tuple[tuple[type[Exception], ...], Fault], ...]:
    """Return exception classes with their errors. The first match counts, as some classes match two
    rows.
    """
    from azure.core import exceptions as azure
    from libcloud.common.types import (
        InvalidCredsError,
        MalformedResponseError,
        ServiceUnavailableError,
    )
    from requests import exceptions as http
    from urllib3.exceptions import HTTPError

    certificates = Fault(
        CloudError, hint="set REQUESTS_CA_BUNDLE to a file with your CA certificates"
    )
    return (
        ((http.SSLError,), certificates),
        (
            (http.InvalidURL, http.InvalidSchema, http.MissingSchema, http.InvalidProxyURL),
            Fault(CloudConfigError, hint="check `endpoints`, ARM_ENDPOINT, HTTPS_PROXY"),
        ),
        ((azure.ClientAuthenticationError, InvalidCredsError), _UNKNOWN_USER),
        (
            (
                *(http.Timeout, http.ConnectionError, http.ChunkedEncodingError, http.RetryError),
                *(http.ContentDecodingError, http.StreamConsumedError, MalformedResponseError),
                *(azure.ServiceRequestError, azure.ServiceResponseError, azure.DecodeError),
                *(
                    azure.IncompleteReadError,
                    azure.TooManyRedirectsError,
                    azure.StreamConsumedError,
                ),
                *(azure.HttpResponseError, HTTPError, ServiceUnavailableError),
            ),
            _TRANSIENT,
        ),
        ((http.RequestException, azure.AzureError), Fault(CloudError)),
        ((OSError,), _TRANSIENT),
    )


def seconds(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait: `Retry-After` in seconds or as a date (RFC 9110, 10.2.3), or
    Azure's own header in milliseconds.
    """
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        if re.fullmatch(r"\d+(\.\d+)?", headers.get(name, "").strip()):
            return float(headers[name]) / 1000
    value = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", value):
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - moments.now())
    except (TypeError, ValueError):
        return None


def _seconds_in(words: str) -> float | None:
    """Parse the seconds in "… is reserved for another Virtual Machine for 180 seconds …"."""
    found = re.search(r"\b(?:for|after|in) (\d{1,3}) seconds\b", words)
    return float(found[1]) if found else None


def _cause(error: Any) -> tuple[str, str]:
    """Return the code and message of an error, taken from the detail with the real cause if the top
    level only wraps it.
    """
    causes = list(_walk(error))
    if not causes:
        return "", str(error)[:500]
    code, words = causes[0]
    if code in _WRAPPERS or _of_code(code, words) is None:
        for inner, inner_words in causes[1:]:
            if inner not in _WRAPPERS and _of_code(inner, inner_words) is not None:
                return inner, inner_words or words
    if code in _ENVELOPES:
        code, words = next(((c, w) for c, w in causes[1:] if w), (code, words))
    return code, words


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


def _of_code(code: str, words: str) -> Fault | None:
    for name, pattern, fault in _MEANINGS:
        if code == name and re.search(pattern, words, re.IGNORECASE):
            return fault
    return CODES.get(code) or next((f for p, f in _KINDS if p.search(code)), None)


def _of_status(status: int) -> Fault:
    if status == 429:
        return _RATE
    if status == 401:
        return _UNKNOWN_USER
    if status == 403:
        return _DENIED
    if status == 404:
        return _ABSENT
    if status in (409, 412):
        return _IN_USE
    if status == 408 or (status >= 500 and status != 501):
        return _TRANSIENT
    return _WRONG if status else Fault(CloudError)


def _error(
    fault: Fault, asked: str, words: str, *, code: str, retry_after: float | None = None
) -> CloudError:
    named = words if not code or code in words or code.startswith("HTTP") else f"{code}: {words}"
    named = re.sub(r"\s+", " ", named).strip()
    return fault.kind(
        f"{asked}: {named}", hint=fault.hint, scope=fault.scope, code=code, retry_after=retry_after
    )
