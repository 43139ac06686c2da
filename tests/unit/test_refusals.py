"""Every recorded refusal of the corpus is read as what it means, with its reach and its way out."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.core import errors
from cloudtrain.core.errors import CapacityError, CloudError
from cloudtrain.providers.aws import faults as aws
from cloudtrain.providers.azure import faults as azure
from cloudtrain.providers.base.faults import SHARED, RefusalRow, Table, _key
from cloudtrain.providers.gcp import faults as gcp
from tests.standins.refusals import CLOUDS, CORPUS, recorded
from tests.support.recorded import classified

FAULTS: Mapping[str, Any] = {"aws": aws, "azure": azure, "gcp": gcp}
ALL = [(cloud, name) for cloud in CLOUDS for name in recorded(cloud)]
ENTRIES = [(cloud, name) for cloud, name in ALL if recorded(cloud)[name].means]
ERRORS = {"Refused", "Refusal", "ApiError", "TpuError", "RecordedError", "Failure"}
"""The stand-ins' classes of refusals."""
MAKERS = {"aws_query.py", "azure_errors.py", "gcp_errors.py", "gcp_tpu_api.py"}
"""The modules that make them of the corpus."""


@pytest.mark.parametrize(("cloud", "name"), ENTRIES)
def test_a_real_refusal_is_read_as_what_it_means(cloud: str, name: str) -> None:
    entry = recorded(cloud)[name]
    error = classified(cloud, entry)
    way = "another row read it: move yours before that one in faults.yaml"
    assert type(error) is getattr(errors, entry.means["error"]), f"{error!r}: {way}"
    assert error.scope == entry.means.get("scope", error.scope)
    assert entry.means.get("hint", "") in str(error.hint)
    assert entry.means.get("words", "") in error.message
    assert list(getattr(error, "elsewhere", ())) == entry.means.get("elsewhere", [])


@pytest.mark.parametrize(("cloud", "name"), ENTRIES)
def test_a_hint_names_what_is_known(cloud: str, name: str) -> None:
    """No placeholder is left where the answer or the request has the name."""
    hint = str(classified(cloud, recorded(cloud)[name]).hint)
    assert not re.search(r"[{}]|\b(PROJECT|TENANT|API|CONSUMER|NAMESPACE|CLAIMS|REGION)\b", hint)


BY_DOCUMENTATION_ALONE = {
    "aws": (
        "*InvalidKMSKey* KMS* InsufficientAddressCapacity InsufficientCapacity* "
        "VolumeTypeNotAvailableInZone BandwidthLimitExceeded TooManyRequestsException "
        "SlowDown PriorRequestNotComplete ConcurrentTagAccess InternalFailure "
        "InternalServerError ServiceUnavailableException RequestTimeout "
        "RequestTimeoutException RequestTimeTooSkewed RequestInTheFuture "
        "InvalidClientTokenId UnrecognizedClientException IncompleteSignature "
        "MissingAuthenticationToken ExpiredTokenException http401 AccessDeniedException "
        "http403 TagPolicyViolation IdempotentInstanceTerminated InvalidSubnet.NotFound "
        "DefaultVpcDoesNotExist InvalidInstanceType InvalidVpcID.NotFound "
        "EncryptedVolumesNotSupported *NotFoundException http404 ValidationError"
    ),
    "azure": (
        "RequestDisallowedByAzure DisallowedOperation SubscriptionDisabled "
        "*SpendingLimitReached VMStoppedToWarnSubscription AllocationTimedOut "
        "LocationNotAvailableForResourceType ResourceGroupQuotaExceeded "
        "ResourcesQuotaExceeded PublicIPCountLimitExceededByVMScaleSet "
        "ResourceCountExceedsLimitDueToTemplate *LimitExceeded *Internal*Error ServerBusy "
        "ServerTimeout GatewayTimeout BadGateway RequestTimeout OperationPreempted Canceled "
        "AuthenticationFailedMissingToken AuthenticationFailedInvalidHeader Unauthorized "
        "http401 LinkedAccessCheckFailed Forbidden http403 SubscriptionNotRegistered* "
        "NicInUseWithPrivateEndpoint ConflictError RetryableErrorDueToAnotherOperation "
        "CanceledAndSupersededDueToAnotherOperation PreconditionFailed "
        "AttachDiskWhileBeingDetached http412 ImageVersionDeprecated "
        "VMSizeDoesntSupportGeneration SubscriptionNotAuthorizedForImage "
        "LocationNotAvailableForResourceGroup OSProvisioningClientError Malformed* Unknown* "
        "Duplicate* *NotSupported*"
    ),
    "gcp": (
        "LOCATION_ORG_POLICY_VIOLATED BILLING_NOT_ENABLED INACTIVE_BILLING_STATE "
        "UREQ_PROJECT_BILLING_* http402 GCP_SUSPENDED SERVICE_NOT_ACTIVATED *STOCKOUT "
        "RESOURCE_AVAILABILITY INSUFFICIENT_CAPACITY IP_SPACE_EXHAUSTED "
        "DAILY_LIMIT_EXCEEDED LIMIT_EXCEEDED USER_RATE_LIMIT_EXCEEDED "
        "CONCURRENT_LIMIT_EXCEEDED RESOURCE_EXHAUSTED INTERNAL* SERVICE_UNAVAILABLE "
        "*TIMEOUT DEADLINE_EXCEEDED ABORTED *_BACKEND_UNAVAILABLE *_STATUS_UNAVAILABLE "
        "http409 DUPLICATE PERMISSIONS_ERROR INSUFFICIENT_PERMISSIONS http403 *ORG_POLICY_* "
        "http412 UNAUTHENTICATED UNAUTHORIZED LOGIN_REQUIRED EXPIRED ACCESS_TOKEN_* "
        "CREDENTIALS_MISSING ACCOUNT_STATE_INVALID http401 UNIMPLEMENTED http404 http405 "
        "http410 http501"
    ),
}
"""Codes of which no refusal was met anywhere."""
NEVER_SAID = {
    "(?i)into a placement group",
    "(?i)cores limit",
    "(?i)in progress",
    "(?i)has to wait",
    "(?i)not registered with feature",
    r"(?i)multi-?\s?factor",
    "(?i)subnets/join",
    "(?i)diskEncryptionSets/",
    "Unknown project",
    r"compute\.(managed\.)?requireOsLogin",
    "Could not find the given reservation",
    "Reservation .* is incorrect for the requested",
    "must use ReservationAffinity of",
    "prohibited by organization's policy",
    "has been suspended",
    "insufficient authentication scopes",
}
"""Alternatives of `words` with which none was met."""


@pytest.mark.parametrize("cloud", CLOUDS)
def test_each_code_and_each_words_of_a_cloud_read_a_refusal_of_the_corpus_or_of_its_tests(
    cloud: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: list[tuple[RefusalRow | None, str, str]] = []
    read = Table.row

    def noted(self: Table, code: str, words: str = "") -> RefusalRow | None:
        row = read(self, code, words)
        met.append((row, code, words))
        return row

    monkeypatch.setattr(Table, "row", noted)
    for entry in recorded(cloud).values():
        if entry.asked != "POST token":
            classified(cloud, entry)
    tests = Path(__file__).with_name(f"test_{cloud}_faults.py").read_text("utf-8")
    codes, words = set(), set()
    for row, patterns, _ in FAULTS[cloud].TABLE._rows:
        if row in SHARED or row.raised:
            continue
        own = [(_key(code), said) for found, code, said in met if found is row]
        for code, pattern in zip(row.codes.split(), patterns, strict=True):
            is_read = any(fnmatchcase(each, pattern) for each, _ in own)
            if not is_read and code.strip("*?") not in tests:
                codes.add(code)
        for each in alternatives(row.words):
            if not any(re.search(each, said) for _, said in own) and not re.search(each, tests):
                words.add(each)
    known = {*BY_DOCUMENTATION_ALONE[cloud].split()}
    where = f"add a refusal to tests/standins/corpus/{cloud}.yaml, or to test_{cloud}_faults.py"
    assert codes - known == set(), where
    assert words - NEVER_SAID == set(), where
    assert known - codes == set(), "met, or no code any more: delete it here"


def alternatives(words: str) -> list[str]:
    """The alternatives of a pattern, each with its flags; none of an empty one."""
    found = re.match(r"(\(\?[a-z]+\))?(.*)", words, re.DOTALL)
    assert found is not None
    flags, rest, depth, parts = found[1] or "", found[2], 0, [""]
    for each in re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]|.", rest, re.DOTALL):
        depth += {"(": 1, ")": -1}.get(each, 0)
        if each == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += each
    return [flags + part for part in parts] if words else []


def test_the_alternatives_of_a_pattern_are_those_outside_of_its_brackets() -> None:
    assert alternatives(r"(?i)a (b|c)|[|)]d|e\|f") == ["(?i)a (b|c)", "(?i)[|)]d", r"(?i)e\|f"]
    assert alternatives("") == []


def test_each_refusal_says_where_it_was_met_or_that_its_words_are_the_models() -> None:
    for cloud, name in ALL:
        entry = recorded(cloud)[name]
        assert bool(entry.met) == bool(entry.read), name
        assert bool(entry.met) == bool(entry.means) or entry.asked == "POST token", name
        assert bool(entry.met) == (entry.quoted != "model"), name
        assert entry.text(**dict.fromkeys(entry.names, "other")) != entry.text() or not entry.names
        assert entry.asked == "POST token" or type(classified(cloud, entry)) is not CloudError, name


def test_no_stand_in_words_a_refusal_by_itself() -> None:
    """It names an entry of its cloud's file, and all that the entry leaves open."""
    for module, call in _calls():
        name = call.func.attr if isinstance(call.func, ast.Attribute) else _name(call.func)
        assert name not in ERRORS or module in MAKERS, f"{module}:{call.lineno} words a refusal"
        if name not in ("real", "real_failure", "refused") or not call.args:
            continue
        cloud = "aws" if module == "s3_door.py" else module.partition("_")[0].removesuffix(".py")
        if isinstance(call.args[0], ast.Constant) and None not in {k.arg for k in call.keywords}:
            entry = recorded(cloud)[str(call.args[0].value)]
            given = {each.arg for each in call.keywords} - {"status"}
            left_open = {each for each, told in entry.names.items() if told == f"{{{each}}}"}
            assert left_open <= given <= set(entry.names), f"{module}:{call.lineno}"
    text = "".join(path.read_text() for path in CORPUS.parent.glob("*.py"))
    models = {name for cloud, name in ALL if recorded(cloud)[name].quoted == "model"}
    assert not [name for name in models if f'"{name}"' not in text], "no stand-in gives these"


def _calls() -> Iterator[tuple[str, ast.Call]]:
    for path in sorted(CORPUS.parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield path.name, node


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("status", [500, 502, 503])
def test_an_answer_with_a_code_that_nobody_knows_is_an_answer(status: int) -> None:
    """It is not asked again for a minute and a half, and the next place is tried."""
    body = json.dumps({"error": {"code": "Brandnew", "message": "no"}})
    xml = "<Response><Errors><Error><Code>Brandnew</Code><Message>no</Message></Error></Errors>"
    told = {"code": status, "message": "no", "errors": [{"reason": "brandnew"}]}
    found = [
        aws.of_answer(
            "RunInstances in x", status=status, headers={}, body=f"{xml}</Response>", reach="zone"
        ),
        azure.of_answer("PUT x", status=status, headers={}, body=body, reach="zone"),
        gcp.of_error("asking", told, status=status, path="projects/p/zones/us-east4-a/instances"),
    ]
    assert [(type(error), error.scope) for error in found] == [(CloudError, "zone")] * 3


def test_a_refusal_reaches_as_far_as_what_was_asked() -> None:
    told = {"code": 400, "message": "no", "errors": [{"reason": "invalid"}]}
    reaches = {
        "projects/p/zones/us-east4-a/instances": "zone",
        "projects/p/regions/us-east4/subnetworks": "region",
        "projects/p/locations/us-east4-a/nodes": "zone",
        "projects/p/global/networks": "account",
    }
    for path, reach in reaches.items():
        assert gcp.of_error("asking", told, status=400, path=path).scope == reach


def test_no_row_of_a_table_is_hidden_by_another_or_without_a_way_out() -> None:
    """Each code of a row without words is read by that row."""
    firm = (CapacityError, errors.QuotaError, errors.CredentialsError, errors.PermissionsError)
    for table in (aws.TABLE, azure.TABLE, gcp.TABLE):
        for row, patterns, _ in table._rows:
            if row.words or row in SHARED:
                continue
            for pattern in patterns:
                found = table.row(pattern.replace("*", "x").replace("?", "0"))
                assert found is row, pattern
            if row.error in firm and not row.raised and patterns:
                assert row.hint or row.error is CapacityError, row
