"""EC2 client: endpoints, credentials, signatures, paging, retries and error mapping."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any, TypeVar
from urllib.parse import urlencode

from libcloud.common.aws import AWSRequestSignerAlgorithmV4

from cloudtrain.core.errors import CloudError, CredentialsError, TransientError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.moments import MOMENTS, OFF
from cloudtrain.identities.aws import AwsIdentity, identity
from cloudtrain.providers.aws import faults, requests, xml
from cloudtrain.providers.aws.xml import Tree
from cloudtrain.providers.base.http import TIMEOUT, CloudConnection, Headers, HttpClient
from cloudtrain.providers.base.timing import Timing

T = TypeVar("T")

CONNECT = 10.0
"""Seconds to connect to an endpoint."""
BRIEF = 5.0
"""Both timeouts, in seconds, for calls that are not worth waiting for."""
BRIEF_TRIES = 2
KNOWN = 300.0
"""Seconds for which `known` does not ask again: as long as a command asks several times, and not
as long as `up --wait` waits."""
PAGES: Mapping[str, int] = {
    "DescribeInstances": 1000,
    "DescribeInstanceTypes": 100,
    "DescribeInstanceTypeOfferings": 1000,
    "DescribeNetworkInterfaces": 1000,
    "DescribeRouteTables": 100,
    "DescribeSecurityGroups": 1000,
    "DescribeSpotPriceHistory": 1000,
    "DescribeSubnets": 1000,
    "DescribeVolumes": 500,
    "DescribeVpcs": 1000,
}
"""The largest MaxResults of each action: unpaged calls are throttled sooner."""
SUFFIXES = (("cn-", "amazonaws.com.cn"), ("eusc-", "amazonaws.eu"), ("", "amazonaws.com"))
"""Domain of each partition, keyed by the prefix of its region names."""


class Ec2Client:
    """Client for EC2 in every region of one account. Thread-safe."""

    def __init__(self, config: ClusterConfig, timing: Timing) -> None:
        self.timing = timing
        self.identity: AwsIdentity = identity(config.project)
        named = config.endpoints.compute or os.environ.get("AWS_ENDPOINT_URL_EC2")
        self.endpoint = named or os.environ.get("AWS_ENDPOINT_URL") or None
        self.unknown: set[str] = set()
        """Actions that this endpoint does not support."""
        self.described: dict[tuple[str, str], Tree] = {}
        """Machine types that EC2 described, by region and name: fixed during a command."""
        self.caller = ""
        """ARN of whoever calls, once it is known."""
        self._known: dict[str, tuple[float, list[Tree]]] = {}
        self._http = self._connecting(CONNECT, TIMEOUT)

    def briefly(self) -> Ec2Client:
        """A client with few retries, for regions where we know of no resources."""
        other = copy.copy(self)
        other.timing = replace(self.timing, calls=replace(self.timing.calls, tries=BRIEF_TRIES))
        other._http = self._connecting(BRIEF, BRIEF)
        return other

    def ask(self, region: str, action: str, parameters: Mapping[str, Any] | None = None) -> Tree:
        """Send one request, retried while it is throttled or unanswered. Raises CloudError."""
        return self.timing.call(lambda: self.once(region, action, parameters))

    def once(self, region: str, action: str, parameters: Mapping[str, Any] | None = None) -> Tree:
        """Send one request without retries, for calls that must not be repeated."""
        fields = {"Action": action, "Version": requests.VERSION, **requests.flat(parameters or {})}
        asked = f"{action} in {region}"
        headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
        with self.mapped(asked):
            signer = _Signer(self.identity.credentials(), region)
        url, form = self.url(region), urlencode(fields)
        answer = self._http.ask(
            asked, url, "POST", "/", headers=headers, form=form, sign=signer.signed
        )
        if answer.ok:
            found: Tree = answer.body
            return found
        refused = faults.of_answer(
            asked,
            status=answer.status,
            headers=answer.headers,
            body=answer.text,
            reach="zone" if action == "RunInstances" else "region",
            facts={"region": region},
        )
        if isinstance(refused, CredentialsError):
            if abs(MOMENTS.now() - signer.dated) > OFF:  # the answer has told the time
                raise TransientError(refused.message, code="dated wrongly") from refused
            raise self.identity.cured(refused) from refused
        raise refused

    def pages(
        self, region: str, action: str, key: str, parameters: Mapping[str, Any] | None = None
    ) -> list[Tree]:
        """All members of the set `key` over all pages."""
        wanted = {**(parameters or {}), "MaxResults": PAGES.get(action)}
        found: list[Tree] = []
        while True:
            answer = self.ask(region, action, wanted)
            found += xml.items(answer, key)
            token = xml.text(answer, "nextToken")
            if not token:
                return found
            wanted["NextToken"] = token

    def known(
        self, region: str, action: str, key: str, parameters: Mapping[str, Any] | None = None
    ) -> list[Tree]:
        """The same answer, asked for once in a command: for zones, networks and images."""
        asked, now = f"{region} {action} {parameters}", self.timing.clock.monotonic()
        until, found = self._known.get(asked, (now, []))
        if until <= now:
            found = self.pages(region, action, key, parameters)
            self._known[asked] = now + KNOWN, found
        return found

    @contextmanager
    def mapped(self, asked: str) -> Iterator[None]:
        """Map exceptions that libcloud, requests and botocore raise inside to CloudError; refused
        credentials come with the command that renews these."""
        try:
            yield
        except CloudError:
            raise
        except Exception as error:
            mapped = faults.of_exception(asked, error)
            if isinstance(mapped, CredentialsError):
                mapped = self.identity.cured(mapped)
            raise mapped from error

    def call(self, asked: str, send: Callable[[], T]) -> T:
        """The result of a call by boto3, retried while it is throttled or unanswered."""

        def once() -> T:
            with self.mapped(asked):
                return send()

        return self.timing.call(once)

    def service(self, name: str, region: str, endpoint: str | None = None) -> Any:
        """boto3's client for another service; None if only EC2 has a custom endpoint."""
        from botocore.config import Config

        variable = f"AWS_ENDPOINT_URL_{name.upper().replace('-', '_')}"
        url = endpoint or os.environ.get(variable) or os.environ.get("AWS_ENDPOINT_URL")
        if self.endpoint and not url:
            return None
        quick = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 3})
        with self.mapped(f"{name} in {region}"):
            return self.identity.client(name, region_name=region, endpoint_url=url, config=quick)

    def session(self) -> Any:
        """boto3's session, with the user's profile and the standard credential chain."""
        return self.identity.session()

    def url(self, region: str) -> str:
        suffix = next(suffix for prefix, suffix in SUFFIXES if region.startswith(prefix))
        return self.endpoint or f"https://ec2.{region}.{suffix}"

    def _connecting(self, connect: float, silent: float) -> HttpClient:
        return HttpClient(
            "aws",
            "AWS",
            faults.TABLE,
            parse=lambda text: xml.tree(text),
            timeout=(connect, silent),
            authorities=self._ca_bundle,
        )

    def _ca_bundle(self) -> str | None:
        """The file of authorities that botocore uses (botocore.endpoint); libcloud by itself reads
        SSL_CERT_FILE as it is imported, and certifi."""
        core = self.session()._session  # boto3 does not expose botocore's settings
        return core.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")


class _Signer(AWSRequestSignerAlgorithmV4):
    """Dates requests by `core/moments`, as this machine's clock may be set while nodes are created
    or deleted. EC2 refuses requests that are dated 15 minutes off: RequestExpired in
    https://docs.aws.amazon.com/autoscaling/ec2/APIReference/CommonErrors.html (2026-11-27), which
    says so for all actions. libcloud 3.9.1 dates them by that clock (libcloud/common/aws.py)."""

    def __init__(self, credentials: Any, region: str) -> None:
        place = SimpleNamespace(service_name="ec2", driver=SimpleNamespace(region_name=region))
        super().__init__(  # type: ignore[no-untyped-call]
            credentials.access_key, credentials.secret_key, requests.VERSION, place
        )
        self.token = {"x-amz-security-token": credentials.token} if credentials.token else {}
        self.dated = 0.0

    def signed(self, connection: CloudConnection, headers: Headers) -> Headers:
        self.dated = MOMENTS.now()
        now = datetime.fromtimestamp(self.dated, timezone.utc)
        method, data = connection.method, connection.data
        hashed = self._get_payload_hash(method, data)  # type: ignore[no-untyped-call]
        dated = {"X-AMZ-Date": now.strftime("%Y%m%dT%H%M%SZ"), "X-AMZ-Content-SHA256": hashed}
        headers = {**headers, **self.token, **dated}
        signature = self._get_authorization_v4_header(  # type: ignore[no-untyped-call]
            {}, headers, now, method, connection.action, data
        )
        return {**headers, "Authorization": signature}
