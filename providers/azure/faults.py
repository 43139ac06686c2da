"""Meanings of Resource Manager's refusals: codes as rows, and how its answers are read.

Codes:
https://learn.microsoft.com/azure/azure-resource-manager/troubleshooting/common-deployment-errors
and https://learn.microsoft.com/troubleshoot/azure/virtual-machines/windows/error-messages"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from cloudtrain.core import errors
from cloudtrain.identities.azure import LOGIN
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
from cloudtrain.providers.base.http import error_in

_ELSEWHERE = "add zones or regions to `placement`, or choose another machine"
ATTACH = "assign Managed Identity Operator on the identity to yourself (docs/azure.md)"
NO_IDENTITY = (
    "check `identity`: `az identity show --ids ID` must find it, in the subscription's tenant"
)

_MORE = "request more at https://aka.ms/ProdportalCRP or by `az quota`, or add regions"
_WAIT = "still in use by a resource that is being deleted: run it again"
INSUFFICIENT_CLAIMS = "InsufficientClaims"
"""Our code for a token that lacks what the claims in `WWW-Authenticate` demand, such as a second
factor: https://learn.microsoft.com/entra/identity-platform/claims-challenge"""

TABLE = Table(
    # ── Codes with several meanings, which the message distinguishes ─────────
    quota(_MORE, "OperationNotAllowed BadRequest", r"(?i)\bquota\b|approved .*cores|cores limit"),
    busy(_WAIT, "OperationNotAllowed", r"(?i)being |in progress|marked for deletion|has to wait"),
    # Under InvalidTemplateDeployment, InvalidParameter and OperationNotAllowed, too:
    # hwdsl2/setup-ipsec-vpn#1170, PaloAltoNetworks/azure-applicationgateway#1, read 2026-11-26.
    full(
        _ELSEWHERE, words=r"(?i)requested (VM )?(size|tier)\b.* not (be )?available", scope="asked"
    ),
    # https://learn.microsoft.com/azure/virtual-machines/error-codes-spot, read 2026-11-26.
    wrong("set spot: false, or choose another machine", "AzureSpot*", scope="account"),
    # Both forms are in microsoft/AzureTRE#4323 and hashicorp/terraform-provider-azurerm#17185.
    wrong(
        "run `az feature register --namespace Microsoft.Compute --name {feature}`, then wait",
        words=r"(?i)feature\b.* is not (enabled for|registered)|not registered with feature",
        scope="account",
    ),
    # Many issues quote it with either code, as skypilot-org/skypilot#2219, read 2026-11-26.
    wrong(
        "set nodes.….disk_gb to the image's size or more",
        "OperationNotAllowed InvalidParameter",
        r"(?i)disk size .* is smaller than",
    ),
    # kubernetes-sigs/image-builder#1875 quotes it for a size of series 6, read 2026-11-26.
    wrong(
        "this machine boots from NVMe alone, the image from SCSI alone: take an image with "
        "`DiskControllerTypes` SCSI, NVMe (docs/azure.md), or a machine of series 5",
        "InvalidParameter",
        "(?i)disk controller types",
    ),
    # MicrosoftDocs/azure-docs-cli#5403 and Azure/azure-cli#31699 have both forms of the second
    # factor that Azure demands since 2025-10-01 for what creates and deletes, read 2026-11-26.
    login(
        "run `az logout`, then `az login`, and confirm by your second factor; a script needs "
        "a service principal or a managed identity",
        "RequestDisallowedByPolicy RequestDisallowedByAzure",
        r"(?i)\bMFA\b|multi-?\s?factor",
    ),
    # Azure/OpenShift#41 and Azure/AKS#2040: the right is there, whatever the action that it names.
    denied(
        "it is in a subscription of another tenant, which that one must admit",
        "LinkedAuthorizationFailed",
        "current tenant .* is not authorized",
    ),
    denied(ATTACH, "LinkedAuthorizationFailed", r"(?i)userAssignedIdentities/assign"),
    denied(
        "get Microsoft.Network/virtualNetworks/subnets/join/action on the subnet of "
        "`network.subnet` (docs/companies.md)",
        "LinkedAuthorizationFailed",
        r"(?i)subnets/join",
    ),
    denied(
        "get Microsoft.Compute/diskEncryptionSets/read on the set of `disk_key` "
        "(docs/companies.md)",
        "LinkedAuthorizationFailed",
        r"(?i)diskEncryptionSets/",
    ),
    # Its message has the status and the answer of the identity service; Azure/azure-policy#1311
    # and Azure/aad-pod-identity#585 quote both refusals, read 2026-11-22.
    RefusalRow(
        errors.TransientError,
        "FailedIdentityOperation",
        r"Status: '(Internal|Service|TooMany|Gateway)",
        scope="region",
    ),
    # https://learn.microsoft.com/azure/cost-management-billing/manage/subscription-states
    denied(
        "`az account list --all --output table` shows its state: renew it in the portal under "
        "Subscriptions (a free trial that ended, a spending limit, a payment that failed)",
        "ReadOnlyDisabledSubscription DisallowedOperation SubscriptionDisabled "
        "*SpendingLimitReached VMStoppedToWarnSubscription",
    ),
    # ── Capacity and quota ───────────────────────────────────────────────────
    full(_ELSEWHERE, "AllocationFailed SkuNotAvailable NotAvailableForSubscription", scope="asked"),
    full(
        _ELSEWHERE,
        "ZonalAllocationFailed OverconstrainedAllocationRequest "
        "OverconstrainedZonalAllocationRequest AllocationTimedOut",
    ),
    full("choose another region, or set spot: false", "SpotPrice*", scope="asked"),
    full(_ELSEWHERE, "LocationNotAvailableForResourceType", scope="region"),
    quota("delete resource groups", "ResourceGroupQuotaExceeded", scope="account"),
    quota("choose a larger subnet in network.subnet", "SubnetIsFull"),
    quota(
        _MORE,
        "ResourcesQuotaExceeded PublicIPCountLimitExceededByVMScaleSet "
        "ResourceCountExceedsLimitDueToTemplate *LimitReached *LimitExceeded *QuotaExceeded",
    ),
    RefusalRow(errors.RateError, "TooManyRequests *Throttled http429", scope="account"),
    # ── What passes ──────────────────────────────────────────────────────────
    RefusalRow(
        errors.TransientError,
        "*Internal*Error ServiceUnavailable ServerBusy *TooBusy ServerTimeout GatewayTimeout "
        "BadGateway RequestTimeout *TimedOut RetryableError OperationPreempted Canceled",
        scope="region",
    ),
    # ── Who asks ─────────────────────────────────────────────────────────────
    login("run `az login --tenant {tenant} --claims-challenge {claims}`", INSUFFICIENT_CLAIMS),
    login("run `az login --tenant {tenant}`", "InvalidAuthenticationTokenTenant"),
    login(
        "`az account list --all --output table` lists those of this login: set `project` "
        "(AZURE_SUBSCRIPTION_ID) to one, or run `az login --tenant` with the tenant it is in",
        "SubscriptionNotFound InvalidSubscriptionId",
    ),
    login(
        LOGIN,
        "AuthenticationFailed AuthenticationFailedMissingToken AuthenticationFailedInvalidHeader "
        "InvalidAuthenticationToken ExpiredAuthenticationToken Unauthorized http401",
    ),
    denied(  # https://learn.microsoft.com/azure/role-based-access-control/troubleshooting
        "assign the role in docs/azure.md by `az role assignment create`; one that was just "
        "assigned takes effect after up to ten minutes",
        "AuthorizationFailed LinkedAuthorizationFailed LinkedAccessCheckFailed Forbidden http403",
    ),
    denied(
        "a deny assignment forbids it, which only what made it can lift; a role cannot",
        "DenyAssignmentAuthorizationFailed",
    ),
    denied(NO_IDENTITY, "FailedIdentityOperation"),
    denied(
        "see `az policy state list` for the policy that forbids it; a tag that it requires "
        "goes into `tags:`",
        "RequestDisallowedByPolicy",
        scope="region",
    ),
    # terraform-provider-azurerm#9177 quotes it for a disk encryption set, read 2026-11-24.
    denied(
        "the identity of the disk encryption set of `disk_key` needs get, wrapKey and "
        "unwrapKey on its key in the vault (docs/companies.md)",
        "KeyVaultAccessForbidden",
        scope="region",
    ),
    # MicrosoftLearning/dp-203-azure-data-engineer#146 has the command, read 2026-11-26.
    denied(
        "choose a region in `placement` that this subscription may use: `az policy assignment "
        "show --name sys.regionrestriction --query parameters.listOfAllowedLocations.value`",
        "RequestDisallowedByAzure",
        scope="region",
    ),
    denied(
        "run `az provider register --namespace {namespace}`, once per subscription",
        "MissingSubscriptionRegistration SubscriptionNotRegistered*",
    ),
    # hashicorp/terraform-provider-azurerm#1145 and MicrosoftDocs/azure-docs#25359 quote both codes
    # for terms that are not accepted, read 2026-11-24.
    denied(
        "read and accept the image's terms: `az vm image terms accept --urn` with `image`",
        "MarketplacePurchaseEligibilityFailed ResourcePurchaseValidationFailed",
    ),
    denied("it is locked: run `az lock list`, then `az lock delete`", "ScopeLocked"),
    # ── What is in the way ───────────────────────────────────────────────────
    # daniel-rhoades/acs-engine-terraform#10 quotes it for a network interface, read 2026-11-23.
    RefusalRow(errors.AddressTakenError, "PrivateIPAddressIsAllocated", scope="region"),
    busy(
        _WAIT,
        "*BeingDeleted *InProgress NicReservedForAnotherVm NicInUseWithPrivateEndpoint "
        "*CannotBeDeleted *InUse Conflict ConflictError ConflictingConcurrentWriteNotAllowed "
        "RetryableErrorDueToAnotherOperation "
        "CanceledAndSupersededDueToAnotherOperation ReferencedResourceNotProvisioned "
        "PreconditionFailed AttachDiskWhileBeingDetached ResourceGroupDeletion* http409 http412",
    ),
    RefusalRow(
        errors.NameTakenError,
        "PropertyChangeNotAllowed ConflictingUserInput InvalidResourceLocation "
        "InvalidResourceGroupLocation ResourceAvailabilityZonesCannotBeModified",
        scope="account",
        hint="choose another name for the cluster, or destroy that one",
    ),
    # ── What the config says ─────────────────────────────────────────────────
    wrong(
        "check `image`; its purchase plan is read with the permission to read image versions "
        "(docs/companies.md)",
        "VMMarketplaceInvalidInput",
    ),
    wrong(
        "check `image`: publisher:offer:sku:version",
        "*ImageNotFound ImageVersionDeprecated VMSizeDoesntSupportGeneration "
        "SubscriptionNotAuthorizedForImage",
    ),
    wrong("check `placement`", "LocationNotAvailableForResourceGroup"),
    wrong("check `placement`", "InvalidAvailabilityZone", scope="zone"),
    RefusalRow(errors.NotFoundError, "*NotFound http404", scope="region"),
    RefusalRow(
        errors.CloudConfigError,
        "BadRequest OSProvisioningClientError NoRegisteredProviderFound Invalid* Unsupported* "
        "Malformed* Missing* Unknown* "
        "Duplicate* *NotSupported* *NotAllowed* *NotPermitted*",
        scope="region",
    ),
    # ── Exceptions of azure-core ─────────────────────────────────────────────
    login(
        LOGIN,
        raised="azure.core.exceptions.ClientAuthenticationError "
        "libcloud.common.types.InvalidCredsError",
    ),
    RefusalRow(
        errors.TransientError,
        scope="region",
        raised="azure.core.exceptions.ServiceRequestError "
        "azure.core.exceptions.ServiceResponseError azure.core.exceptions.DecodeError "
        "azure.core.exceptions.IncompleteReadError azure.core.exceptions.TooManyRedirectsError "
        "azure.core.exceptions.StreamConsumedError azure.core.exceptions.HttpResponseError",
    ),
    RefusalRow(errors.CloudError, raised="azure.core.exceptions.AzureError"),
)
"""The first row that fits counts, so what is special comes first. A new one begins with its refusal
in tests/standins/corpus/azure.yaml, or in tests/unit/test_azure_faults.py if only documented."""

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


def versions(error: errors.CloudError) -> tuple[str, ...]:
    """API versions that an endpoint lists as it refuses ours: sovereign clouds lag by months."""
    found = re.search(r"supported (?:api-)?versions are '([^']*)'", error.message, re.IGNORECASE)
    return tuple(re.findall(r"\d{4}-\d\d-\d\d(?:-\w+)?", found[1])) if found else ()


def wants_another_version(error: errors.CloudError) -> bool:
    return error.code in _OLDER and bool(versions(error))


def refuses_boot(error: errors.CloudError) -> bool:
    """True if the security profile of a VM was refused: its type, or for this image or size."""
    return bool(re.search(r"(?i)security ?type|Trusted ?Launch", error.message))


def is_unknown_question(error: errors.CloudError) -> bool:
    """True if this endpoint does not support the request."""
    return isinstance(error, errors.NotFoundError) or error.code in _UNKNOWN_HERE


def of_answer(
    asked: str,
    *,
    status: int,
    headers: Mapping[str, str],
    body: str,
    reach: errors.Scope = "region",
) -> errors.CloudError:
    """The error for an HTTP error response; `reach`: how far the request went."""
    wait = seconds(headers)
    facts = _challenge(headers.get("www-authenticate", ""))
    error = error_in(body)
    if isinstance(error, dict):
        return of_error(asked, error, status=status, retry_after=wait, reach=reach, facts=facts)
    words = plain(body) or f"HTTP {status} without a message"
    return TABLE.error(asked, words=words, status=status, reach=reach, retry_after=wait)


def of_error(
    asked: str,
    error: Any,
    *,
    status: int = 0,
    retry_after: float | None = None,
    reach: errors.Scope = "region",
    facts: Mapping[str, str] | None = None,
) -> errors.CloudError:
    """The error for ARM's `{"code", "message", "details"}`, wherever it stands."""
    causes = list(_walk(error)) or [("", str(error)[:500])]
    first = causes[0]
    if first[0] in _ENVELOPES:
        first = next((cause for cause in causes[1:] if cause[1]), first)
    causes = [c for c in causes if c[0] not in _WRAPPERS] + [first]
    told = {**(facts or {}), **_named(first[1])}
    if told.get("claims"):
        causes.insert(0, (INSUFFICIENT_CLAIMS, first[1]))
    code, words = next((c for c in causes if TABLE.row(*c) is not None), first)
    words = words or first[1]
    if code and status == 409 and not (asked.startswith("DELETE ") or _PASSES.search(words)):
        status = 400  # a code that nobody knows is an answer, and waiting does not change it
    if retry_after is None and (found := _RESERVED_FOR.search(words)):
        retry_after = float(found[1])
    named = words if not code or code in words else f"{code}: {words}"
    return TABLE.error(
        asked,
        causes=[(code, words)],
        words=named,
        status=status,
        reach=reach,
        facts=told,
        retry_after=retry_after,
    )


of_exception = TABLE.of_exception


def _challenge(header: str) -> dict[str, str]:
    """The claims that a token lacks, and the tenant that gives such tokens."""
    if "insufficient_claims" not in header:
        return {}
    found = re.search(r'claims="([\w+/=-]+)"', header)  # base64, which no shell interprets
    return {"claims": found[1] if found else "CLAIMS", **_named(header)}


def _named(words: str) -> dict[str, str]:
    """Parts of a message that belong into its hint, by name."""
    tenant = re.search(r"https://login\.[\w.]+/([0-9a-fA-F-]{36})", words)
    namespace = re.search(r"namespace '(Microsoft\.\w+)'", words)
    feature = re.search(r"(?:feature '?|')Microsoft\.Compute/(\w+)\b(?!/)", words)
    found = {"tenant": tenant, "namespace": namespace, "feature": feature}
    return {name: match[1] for name, match in found.items() if match}


_RESERVED_FOR = re.compile(r"\b(?:for|after|in) '?(\d{1,3})'? seconds\b")
"""As in "… is reserved for another Virtual Machine for 180 seconds …"."""
_PASSES = re.compile(r"(?i)\bbeing\b|in progress|\bretry|\bagain\b|\bwait\b|\blater\b|not ready")


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
