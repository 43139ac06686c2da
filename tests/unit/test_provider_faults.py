"""What every cloud's driver makes alike of exceptions and answers, its own or foreign ones."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import azure.core.exceptions
import azure.identity
import libcloud.common.exceptions
import libcloud.common.types
import libcloud.compute.types
import pytest
import requests.exceptions

from cloudtrain.core.errors import (
    BusyError,
    CloudConfigError,
    CloudError,
    CredentialsError,
    NotFoundError,
    PermissionsError,
    RateError,
    TransientError,
)
from cloudtrain.providers.aws import faults as of_aws
from cloudtrain.providers.azure import faults as of_azure
from cloudtrain.providers.gcp import faults as of_gcp
from tests.support.foreign_errors import raised

FAULTS: Mapping[str, Any] = {"aws": of_aws, "azure": of_azure, "gcp": of_gcp}
ASKED = "DescribeVpcs in us-east-1"

SOMETHING_ELSE = CloudError
EVERYWHERE = [
    requests.exceptions,
    libcloud.common.types,
    libcloud.common.exceptions,
    libcloud.compute.types,
]
MODULES = [
    *((cloud, module) for cloud in ("aws", "azure") for module in EVERYWHERE),
    ("azure", azure.core.exceptions),
    ("azure", azure.identity),
]
EXPECTED = {
    TransientError: """ConnectionError ProxyError ConnectTimeout Timeout ReadTimeout RetryError
        ChunkedEncodingError ContentDecodingError StreamConsumedError BaseHTTPError
        MalformedResponseError ServiceUnavailableError ServiceRequestError
        ServiceRequestTimeoutError ServiceResponseError ServiceResponseTimeoutError DecodeError
        IncompleteReadError TooManyRedirectsError HttpResponseError ResourceExistsError
        ResourceModifiedError ResourceNotModifiedError ResourceNotFoundError
        ODataV4Error""",
    RateError: "RateLimitReachedError",
    CredentialsError: """InvalidCredsError InvalidCredsException ClientAuthenticationError
        CredentialUnavailableError AuthenticationRequiredError""",
    CloudConfigError: """InvalidURL InvalidSchema MissingSchema InvalidProxyURL InvalidHeader
        TooManyRedirects SSLError""",
    SOMETHING_ELSE: """RequestException HTTPError InvalidJSONError JSONDecodeError
        CompatJSONDecodeError URLRequired UnrewindableBodyError
        LibcloudError ProviderError DeploymentError DeploymentException KeyPairError
        KeyPairDoesNotExistError AzureError SerializationError DeserializationError
        ResponseNotReadError StreamClosedError""",
}


@pytest.mark.parametrize(
    ("cloud", "module"), MODULES, ids=lambda value: getattr(value, "__name__", value)
)
def test_every_exception_of_libcloud_of_http_and_of_a_clouds_libraries_is_mapped(
    cloud: str, module: ModuleType
) -> None:
    expected = {name: kind for kind, names in EXPECTED.items() for name in names.split()}
    for name, kind in inspect.getmembers(module, inspect.isclass):
        if not issubclass(kind, Exception) or kind.__module__ == "builtins" or "Warning" in name:
            continue
        assert name in expected, f"{name} is new: say in faults.py what it means"
        error = FAULTS[cloud].of_exception(ASKED, raised(kind))
        assert type(error) is expected[name], name
        assert error.message.startswith(f"{ASKED}: ")


NETWORK = [ConnectionResetError("reset"), TimeoutError(), OSError(113, "no route")]


@pytest.mark.parametrize("cloud", FAULTS)
@pytest.mark.parametrize("error", NETWORK, ids=repr)
def test_what_the_system_says_of_the_network_is_tried_again(cloud: str, error: OSError) -> None:
    assert type(FAULTS[cloud].of_exception("a", error)) is TransientError


@pytest.mark.parametrize("cloud", FAULTS)
def test_our_own_errors_pass_as_they_are(cloud: str) -> None:
    for mine in (NotFoundError("gone"), BusyError("ours")):
        assert FAULTS[cloud].of_exception("a", mine) is mine


@pytest.mark.parametrize("cloud", ["aws", "azure"])
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, CloudConfigError),
        (401, CredentialsError),
        (403, PermissionsError),
        (404, NotFoundError),
        (408, TransientError),
        (413, CloudConfigError),
        (429, RateError),
        (500, TransientError),
        (501, CloudConfigError),
        (502, TransientError),
        (503, TransientError),
        (504, TransientError),
    ],
)
def test_an_answer_that_is_none_of_the_clouds_own_is_judged_by_its_status(
    cloud: str, status: int, kind: type[CloudError]
) -> None:
    pages = ["", "<html><p>Sorry</html>", "<a><b/></a>", "not XML"]
    for body in [*pages, "[]", '{"error": null}', '"no"']:
        error = FAULTS[cloud].of_answer("a call", status=status, headers={}, body=body)
        assert type(error) is kind, body
        assert error.code == f"HTTP {status}", body


@pytest.mark.parametrize("status", [409, 412])
def test_what_is_in_conflict_at_azure_is_tried_again(status: int) -> None:
    for body in ["", "<html><p>Sorry</html>", "[]", '{"error": null}', '"no"']:
        error = of_azure.of_answer("GET x", status=status, headers={}, body=body)
        assert (type(error), error.code) == (BusyError, f"HTTP {status}"), body


LATER = "Thu, 01 Jan 1970 00:00:00 GMT"


@pytest.mark.parametrize("cloud", FAULTS)
@pytest.mark.parametrize(("value", "seconds"), [("7", 7.0), (LATER, 0.0), ("x", None)])
def test_retry_after_is_honoured(cloud: str, value: str, seconds: float | None) -> None:
    told = {"retry-after": value}
    error = FAULTS[cloud].of_answer("a", status=503, headers=told, body="")
    assert error.retry_after == seconds
