"""The Resource Manager client over HTTP: tokens, waiting for operations, retries."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from werkzeug.wrappers import Request, Response

from cloudtrain.core.errors import (
    BusyError,
    CapacityError,
    CloudConfigError,
    CredentialsError,
    QuotaError,
    RateError,
    TransientError,
)
from cloudtrain.core.model import ClusterConfig, Endpoints
from cloudtrain.identities.azure import AzureIdentity
from cloudtrain.providers.azure.client import ArmClient, ask_or_none
from tests.support.azure_parts import SUBSCRIPTION, Script, refused, scripted, statuses, told
from tests.support.fake_account import Clock

VM = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/n"
OPERATION = "/subscriptions/s/providers/Microsoft.Compute/locations/eastus/operations/1"


@dataclass
class Case:
    arm: ArmClient
    script: Script
    url: str
    clock: Clock
    begun: float

    @property
    def waited(self) -> float:
        return self.clock.time - self.begun


def config(url: str, **changes: Any) -> ClusterConfig:
    made = ClusterConfig(
        name="mnist",
        provider="azure",
        project=SUBSCRIPTION,
        strategy="custom",
        nodes={},
        endpoints=Endpoints(compute=url),
    )
    return replace(made, **changes)


@pytest.fixture
def case() -> Iterator[Case]:
    with scripted() as (script, url):
        clock = Clock()
        yield Case(ArmClient(config(url), clock.timing()), script, url, clock, clock.time)


def operation(case: Case, *names: str, **header: str) -> None:
    """The VM is accepted; its operation goes on as these names say."""
    where = {"Azure_AsyncOperation": f"https://management.azure.com{OPERATION}?api-version=1"}
    accepted = told({"properties": {"provisioningState": "Creating"}}, 201, **(header or where))
    case.script.on(f"PUT {VM}", accepted)
    case.script.on(f"GET {OPERATION}", *statuses(*names))


# ── Tokens ───────────────────────────────────────────────────────────────────


def test_nothing_is_asked_before_the_first_question() -> None:
    ArmClient(config("http://127.0.0.1:9"), Clock().timing())


def test_one_token_serves_all_calls_until_it_is_old(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.script.on(f"GET {VM}", told({"name": "n"}))
    case.arm.get(VM)
    case.arm.get(VM)
    assert case.script.tokens == 1
    assert {h["authorization"] for h in case.script.headers} == {"Bearer t1"}
    import time

    later = time.time() + 3600 - 200
    monkeypatch.setattr("time.time", lambda: later)
    case.arm.get(VM)
    assert case.script.tokens == 2


def test_a_token_that_is_refused_before_its_time_is_replaced_once(case: Case) -> None:
    """This machine's clock may be another than Azure's."""
    old = refused(401, "ExpiredAuthenticationToken")
    case.script.on(f"GET {VM}", old, told({"name": "n"}))
    assert case.arm.get(VM) == {"name": "n"}
    assert [h["authorization"] for h in case.script.headers] == ["Bearer t1", "Bearer t2"]
    case.script.on(f"GET {VM}", old)
    with pytest.raises(CredentialsError):
        case.arm.get(VM)
    assert len(case.script.asked) == 4


def test_a_wrong_secret_is_told_in_azures_words_and_at_once(
    case: Case, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    words = "AADSTS7000215: Invalid client secret provided."
    case.script.token_answers = [told({"error": "invalid_client", "error_description": words}, 401)]
    with pytest.raises(CredentialsError, match="AADSTS7000215: Invalid client secret") as caught:
        case.arm.get(VM)
    assert caught.value.hint
    assert "\n" not in caught.value.message
    assert case.script.asked == []
    assert case.waited == 0
    shown = caplog.text + "".join(capfd.readouterr())
    assert "a-secret-of-tests" not in shown + str(caught.value)


def test_an_authority_that_is_not_well_is_no_matter_of_credentials(case: Case) -> None:
    error = {"error": "server_error", "error_description": "AADSTS90033: temporarily"}
    case.script.token_answers = [told(error, 503)]
    with pytest.raises(TransientError, match="503"):
        case.arm.token()
    case.script.token_answers = [told(error, 429)]
    with pytest.raises(RateError):
        case.arm.token()
    assert case.arm.token() == "t1"


def test_a_call_waits_for_an_authority_to_get_well(case: Case) -> None:
    case.script.token_answers = [told({}, 503), told({}, 429), told({}, 500)]
    case.script.on(f"GET {VM}", told({"name": "n"}))
    assert case.arm.get(VM) == {"name": "n"}
    assert case.waited > 1


def test_no_credentials_at_all_are_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, where logging is as a user has it."""
    code = (
        "from cloudtrain.identities.azure import AzureIdentity\n"
        "from cloudtrain.core.errors import CredentialsError\n"
        "try: AzureIdentity(None).token('https://management.azure.com/.default')\n"
        "except CredentialsError as error: print(error.message, '|', error.hint)\n"
    )
    for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.startswith(
        "token for Azure: no credentials from EnvironmentCredential | run `az login`"
    )
    assert found.stderr == ""


@pytest.mark.parametrize(
    ("said", "words", "advice"),
    [
        (
            "ERROR: AADSTS50173: The provided grant has expired. Trace ID: 1a Timestamp: now\n"
            "To re-authenticate, please run:\naz login --tenant t --scope https://x/.default",
            "token for Azure: AzureCliCredential: AADSTS50173: The provided grant has expired.",
            "run `az login --tenant t --scope https://x/.default`",
        ),
        (
            "ERROR: AADSTS50076: Due to a change you must use multi-factor authentication.",
            "token for Azure: AzureCliCredential: AADSTS50076: Due to a change you must use "
            "multi-factor authentication.",
            "run `az login`",
        ),
    ],
)
def test_why_a_login_failed_is_told_in_its_own_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, words: str, advice: str
) -> None:
    """With a program `az` that was logged in once."""
    tool = tmp_path / "az"
    tool.write_text(f"#!/bin/sh\ncat >&2 <<'EOF'\n{said}\nEOF\nexit 1\n")
    tool.chmod(0o755)
    for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "dev")
    with pytest.raises(CredentialsError) as caught:
        AzureIdentity(None).token("https://management.azure.com/.default")
    assert caught.value.message == words
    assert str(caught.value.hint).startswith(advice)


def test_an_authority_without_tls_is_asked_on_this_machine_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with scripted() as (_, url):
        far = config(url, endpoints=Endpoints(compute=url, auth="http://login.example.org"))
        with pytest.raises(CredentialsError, match="must be a TLS protected"):
            ArmClient(far, Clock().timing()).token()


def test_neither_secret_nor_token_is_logged(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    case.script.on(f"GET {VM}", told({"name": "n"}))
    case.arm.get(VM)
    assert "token" in caplog.text
    assert "a-secret-of-tests" not in caplog.text
    assert "Bearer t1" not in caplog.text


# ── Where it is ──────────────────────────────────────────────────────────────


def test_an_endpoint_may_have_a_path_of_its_own() -> None:
    with scripted() as (script, url):
        script.on(f"GET /arm{VM}", told({"name": "n"}))
        script.on("GET /arm/subscriptions", told({"value": [], "nextLink": f"{url}/arm/x?a=1"}))
        script.on("GET /arm/x", told({"value": [{"n": 1}]}))
        arm = ArmClient(config(f"{url}/arm/"), Clock().timing())
        assert arm.get(VM) == {"name": "n"}
        assert arm.pages("/subscriptions") == [{"n": 1}]


def test_what_is_no_url_is_refused_in_words() -> None:
    with scripted(), pytest.raises(CloudConfigError, match="'eastus' is not an endpoint URL"):
        ArmClient(config("eastus"), Clock().timing()).get(VM)


def test_the_only_subscription_needs_no_naming(case: Case) -> None:
    case.script.on("GET /subscriptions", told({"value": [{"subscriptionId": "s-1"}]}))
    arm = ArmClient(config(case.url, project=None), case.clock.timing())
    assert arm.subscription == "s-1"
    two = [{"subscriptionId": "s-1", "displayName": "one"}, {"subscriptionId": "s-2"}]
    case.script.on("GET /subscriptions", told({"value": two}))
    arm = ArmClient(config(case.url, project=None), case.clock.timing())
    with pytest.raises(CredentialsError, match=r"several subscriptions: s-1 \(one\), s-2"):
        _ = arm.subscription


def test_every_call_names_the_version_of_what_it_speaks_of(case: Case) -> None:
    case.script.on(f"GET {VM}", lambda request: told(dict(request.args)))
    assert case.arm.get(VM, expand="x") == {"expand": "x", "api-version": "2026-04-01"}


# ── Pages ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "NoRegisteredProviderFound",
            "No registered resource provider found for location 'chinaeast' and API version "
            "'2026-04-01' for type 'virtualMachines'. The supported api-versions are "
            "'2015-06-15, 2024-07-01, 2023-09-01, 2024-11-01-preview'. The supported locations "
            "are 'chinaeast'.",
        ),
        (
            "InvalidApiVersionParameter",
            "The api-version '2026-04-01' is invalid. The supported versions are "
            "'2024-07-01,2023-09-01'.",
        ),
    ],
)
def test_a_version_that_an_endpoint_has_not_yet_gives_way_to_its_newest(
    case: Case, code: str, words: str
) -> None:
    versions = []

    def answer(request: Request) -> Response:
        versions.append(request.args["api-version"])
        known = versions[-1] == "2024-07-01"
        return told({"name": "n"}) if known else refused(400, code, words)

    case.script.on(f"GET {VM}", answer)
    assert case.arm.get(VM) == {"name": "n"}
    assert case.arm.get(VM) == {"name": "n"}
    assert versions == ["2026-04-01", "2024-07-01", "2024-07-01"]


def test_all_pages_are_read_and_each_at_our_own_endpoint(case: Case) -> None:
    """A token never follows a link to another host."""
    case.script.on(
        "GET /subscriptions",
        lambda request: (
            told({"value": [{"n": 2}]})
            if "$skiptoken" in request.args
            else told(
                {
                    "value": [{"n": 1}],
                    "nextLink": "https://evil.example.org/subscriptions?$skiptoken=2",
                }
            )
        ),
    )
    assert case.arm.pages("/subscriptions") == [{"n": 1}, {"n": 2}]


def test_a_list_without_end_is_given_up(case: Case) -> None:
    case.script.on("GET /subscriptions", told({"value": [], "nextLink": "/subscriptions?$skip=1"}))
    with pytest.raises(TransientError, match="returned repeatedly"):
        case.arm.pages("/subscriptions")


def test_an_operation_is_asked_for_as_seldom_as_azure_says(case: Case) -> None:
    """Every 10 s, instead of every fraction of a second."""
    where = f"https://management.azure.com{OPERATION}?api-version=1"
    begun = told({}, 202, Azure_AsyncOperation=where, Retry_After="15")
    case.script.on(f"DELETE {VM}", begun)
    goes_on = told({"status": "InProgress"}, Retry_After="10")
    case.script.on(f"GET {OPERATION}", goes_on, goes_on, told({"status": "Succeeded"}))
    before = case.waited
    case.arm.delete(VM)
    assert case.script.asked.count(f"GET {OPERATION}") == 3
    assert case.waited - before == 20.0


# ── Trying again ─────────────────────────────────────────────────────────────


def test_a_throttled_call_waits_as_long_as_azure_says(case: Case) -> None:
    late = refused(429, "TooManyRequests", Retry_After="17")
    case.script.on(f"GET {VM}", late, late, told({"name": "n"}))
    assert case.arm.get(VM) == {"name": "n"}
    assert case.waited == 34


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_server_that_is_not_well_is_asked_again(case: Case, status: int) -> None:
    case.script.on(f"GET {VM}", refused(status, "InternalServerError"), told({"name": "n"}))
    assert case.arm.get(VM) == {"name": "n"}


def test_a_server_that_never_gets_well_is_given_up_in_its_own_words(case: Case) -> None:
    case.script.on(f"GET {VM}", refused(503, "ServerBusy", "come back later"))
    with pytest.raises(TransientError, match="GET virtualMachines/n: ServerBusy: come back later"):
        case.arm.get(VM)
    assert len(case.script.asked) == case.arm.timing.calls.tries


def test_a_page_that_is_cut_off_is_asked_for_again(case: Case) -> None:
    from werkzeug.wrappers import Response

    case.script.on(f"GET {VM}", Response('{"name": ', 200), told({"name": "n"}))
    assert case.arm.get(VM) == {"name": "n"}


def test_what_is_refused_for_good_is_asked_once(case: Case) -> None:
    case.script.on(f"PUT {VM}", refused(409, "SkuNotAvailable"))
    with pytest.raises(CapacityError):
        case.arm.put(VM, {})
    assert len(case.script.asked) == 1


def test_an_optional_question_may_stay_without_an_answer(case: Case) -> None:
    assert ask_or_none(lambda: case.arm.get("/subscriptions/s/locations")) is None
    case.script.on(f"GET {VM}", refused(501, "NotImplemented"))
    assert ask_or_none(lambda: case.arm.get(VM)) is None
    case.script.on(f"GET {VM}", refused(401, "InvalidAuthenticationToken"))
    with pytest.raises(CredentialsError):
        ask_or_none(lambda: case.arm.get(VM))


# ── Operations ───────────────────────────────────────────────────────────────


def test_an_operation_is_followed_to_its_end_at_our_own_endpoint(case: Case) -> None:
    operation(case, "InProgress", "Running", "Succeeded")
    case.arm.put(VM, {"location": "eastus"})
    assert case.script.asked[0] == f"PUT {VM}"
    assert case.script.asked[-3:] == [f"GET {OPERATION}"] * 3


def test_what_an_operation_fails_with_is_raised(case: Case) -> None:
    operation(case, "InProgress")
    error = {"code": "AllocationFailed", "message": "Allocation failed. We do not have room."}
    failed = told({"status": "Failed", "error": error})
    case.script.on(f"GET {OPERATION}", *statuses("InProgress"), failed)
    with pytest.raises(CapacityError, match="PUT virtualMachines/n: AllocationFailed: Allocation"):
        case.arm.put(VM, {})
    operation(case, "Canceled")
    with pytest.raises(TransientError):
        case.arm.put(VM, {})


def test_a_location_answers_202_until_it_is_done(case: Case) -> None:
    case.script.on(f"DELETE {VM}", told(None, 202, Location=f"{case.url}/operations/2?x=1"))
    case.script.on("GET /operations/2", told(None, 202), told(None, 202), told(None, 200))
    case.arm.delete(VM)
    assert len(case.script.asked) == 4


def test_a_location_tells_why_a_deletion_failed(case: Case) -> None:
    case.script.on(f"DELETE {VM}", told(None, 202, Location=f"{case.url}/operations/2"))
    case.script.on("GET /operations/2", told(None, 202), refused(409, "NicInUse", "in use"))
    with pytest.raises(BusyError, match="NicInUse: in use"):
        case.arm.delete(VM)


def test_a_deletion_is_done_when_the_thing_is_gone_however_little_azure_says(case: Case) -> None:
    there = told({"properties": {"provisioningState": "Succeeded"}})
    gone = refused(404, "ResourceNotFound")
    lost = told(None, 202, Location=f"{case.url}/operations/lost")
    for accepted in (told(None, 202), lost):
        case.script.on(f"DELETE {VM}", accepted)
        case.script.on(f"GET {VM}", there, there, gone)
        case.arm.delete(VM)
        assert case.script.asked[-3:] == [f"GET {VM}"] * 3


def test_without_an_operation_the_thing_itself_is_asked(case: Case) -> None:
    operation(case, "x", nothing="x")
    making, made = (
        told({"properties": {"provisioningState": state}}) for state in ("Creating", "Succeeded")
    )
    case.script.on(f"GET {VM}", making, making, made)
    case.arm.put(VM, {})
    assert case.script.asked[-1] == f"GET {VM}"
    statuses = [{"code": "ProvisioningState/failed/ZonalAllocationFailed", "message": "no room"}]
    properties = {"provisioningState": "Failed", "instanceView": {"statuses": statuses}}
    case.script.on(f"GET {VM}", told({"properties": properties}))
    with pytest.raises(CapacityError, match="ZonalAllocationFailed: no room"):
        case.arm.put(VM, {})


def test_an_operation_that_is_forgotten_leaves_the_thing_to_be_asked(case: Case) -> None:
    operation(case, "InProgress")
    case.script.on(f"GET {OPERATION}", refused(404, "NotFound"))
    case.script.on(f"GET {VM}", told({"properties": {"provisioningState": "Succeeded"}}))
    case.arm.put(VM, {})


def test_what_is_ready_at_once_is_not_waited_for(case: Case) -> None:
    ready = told({"properties": {"provisioningState": "Succeeded"}}, 200)
    case.script.on(f"PUT {VM}", ready)
    case.arm.put(VM, {})
    assert case.script.asked == [f"PUT {VM}"]


def test_an_operation_without_end_is_given_up(case: Case) -> None:
    operation(case, "InProgress")
    with pytest.raises(TransientError, match="timed out after 300 s"):
        case.arm.put(VM, {})
    assert 300 <= case.waited < 310


def test_deleting_what_is_gone_is_fine(case: Case) -> None:
    case.arm.delete(VM)
    case.script.on(f"DELETE {VM}", told(None, 204))
    case.arm.delete(VM)


def test_deleting_waits_for_what_uses_it_still(case: Case) -> None:
    words = "Nic(s) in request is reserved for another Virtual Machine for 180 seconds."
    case.script.on(f"DELETE {VM}", refused(400, "NicReservedForAnotherVm", words), told(None, 200))
    case.arm.delete(VM)
    assert case.waited == 180


def test_a_quota_is_told_from_a_refused_operation(case: Case) -> None:
    words = "Operation could not be completed as it results in exceeding approved Cores quota."
    case.script.on(f"PUT {VM}", refused(409, "OperationNotAllowed", words))
    with pytest.raises(QuotaError):
        case.arm.put(VM, {})
