"""EC2 client over libcloud's connection: endpoints, credentials, POST requests, paging, retries and
error mapping.
"""

from __future__ import annotations

import copy
import os
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode, urlsplit

from libcloud.common.aws import AWSRequestSignerAlgorithmV4
from libcloud.compute.drivers.ec2 import EC2Connection, EC2Response

from cloudtrain.core.errors import CloudConfigError, CloudError, CredentialsError, TransientError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.moments import MOMENTS, OFF
from cloudtrain.identities.aws import AwsIdentity, identity
from cloudtrain.providers.aws import faults, requests, xml
from cloudtrain.providers.aws.xml import Tree
from cloudtrain.providers.base import session
from cloudtrain.providers.base.timing import Timing, require_network

CONNECT = 10.0
"""Seconds to connect to an endpoint."""
TIMEOUT = 60.0
"""Seconds without data before a call times out."""
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
        self.endpoint = config.endpoints.compute or _variable("AWS_ENDPOINT_URL_EC2")
        self.unknown: set[str] = set()
        """Actions that this endpoint does not support."""
        self.described: dict[tuple[str, str], Tree] = {}
        """Machine types that EC2 has described, by region and name: they do not change during a
        command.
        """
        self.caller = ""
        """ARN of whoever calls, once it is known."""
        self._known: dict[str, tuple[float, list[Tree]]] = {}
        self._timeout = (CONNECT, TIMEOUT)
        self._idle: dict[str, deque[_Connection]] = defaultdict(deque)

    def briefly(self) -> Ec2Client:
        """A client with few retries, for regions where we know of no resources."""
        other = copy.copy(self)
        other.timing = replace(self.timing, calls=replace(self.timing.calls, tries=BRIEF_TRIES))
        other._timeout = (BRIEF, BRIEF)
        other._idle = defaultdict(deque)
        return other

    def ask(self, region: str, action: str, parameters: Mapping[str, Any] | None = None) -> Tree:
        """Send one request, retried while it is throttled or unanswered. Raises CloudError."""
        return self.timing.call(lambda: self.once(region, action, parameters))

    def once(self, region: str, action: str, parameters: Mapping[str, Any] | None = None) -> Tree:
        """Send one request without retries, for calls that must not be repeated."""
        fields = {"Action": action, "Version": requests.VERSION, **requests.flat(parameters or {})}
        asked = f"{action} in {region}"
        with self.mapped(asked):
            credentials = self.identity.credentials()
            try:
                with self._pooled(region) as connection:
                    return connection.call(asked, credentials, urlencode(fields))
            except CredentialsError as error:
                raise self.identity.cured(error) from error

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
        credentials come with the command that renews these.
        """
        try:
            yield
        except CloudError:
            raise
        except Exception as error:
            mapped = faults.of_exception(asked, error)
            if isinstance(mapped, CredentialsError):
                mapped = self.identity.cured(mapped)
            raise mapped from error

    def session(self) -> Any:
        """boto3's session, with the user's profile and the standard credential chain."""
        return self.identity.session()

    def url(self, region: str) -> str:
        suffix = next(suffix for prefix, suffix in SUFFIXES if region.startswith(prefix))
        return self.endpoint or f"https://ec2.{region}.{suffix}"

    def _ca_bundle(self) -> str | None:
        """The file of authorities that botocore uses (botocore.endpoint); libcloud by itself reads
        SSL_CERT_FILE as it is imported, and certifi.
        """
        core = self.session()._session  # boto3 does not expose botocore's settings
        return core.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")

    @contextmanager
    def _pooled(self, region: str) -> Iterator[_Connection]:
        """Yield a connection for exclusive use; it is kept open for the next caller."""
        idle = self._idle[region]
        try:
            connection = idle.pop()
        except IndexError:
            connection = _Connection(region, self.url(region), self._ca_bundle(), self._timeout)
        try:
            yield connection
        finally:
            idle.append(connection)


def _variable(name: str) -> str | None:
    return os.environ.get(name) or os.environ.get("AWS_ENDPOINT_URL") or None


class _Response(EC2Response):
    connection: Any

    def success(self) -> bool:
        return bool(self.status == 200)

    def parse_body(self) -> Tree:
        try:
            return xml.tree(str(self.body))
        except ValueError as error:
            raise TransientError(f"{self.connection.asked}: {error}", code="cut off") from error

    def parse_error(self) -> str:
        connection = self.connection
        refused = faults.of_answer(
            connection.asked,
            status=self.status,
            headers=self.headers,
            body=str(self.body),
            reach="zone" if connection.asked.startswith("RunInstances ") else "region",
            facts={"region": connection.driver.region_name},
        )
        off = abs(MOMENTS.now() - connection.signer.dated) > OFF
        if isinstance(refused, CredentialsError) and off:  # its answer has told the time
            raise TransientError(refused.message, code="dated wrongly") from refused
        raise refused


class _Signer(AWSRequestSignerAlgorithmV4):
    """Dates requests by `core/moments`, as this machine's clock may be set while nodes are created
    or deleted. EC2 refuses requests that are dated 15 minutes off: RequestExpired in
    https://docs.aws.amazon.com/autoscaling/ec2/APIReference/CommonErrors.html (2026-11-27), which
    says so for all actions. libcloud 3.9.1 dates them by that clock (libcloud/common/aws.py).
    """

    def get_request_headers(
        self, params: Any, headers: Any, method: str = "GET", path: str = "/", data: Any = None
    ) -> Any:
        self.dated = MOMENTS.now()
        now = datetime.fromtimestamp(self.dated, timezone.utc)
        headers["X-AMZ-Date"] = now.strftime("%Y%m%dT%H%M%SZ")
        headers["X-AMZ-Content-SHA256"] = self._get_payload_hash(method, data)  # type: ignore[no-untyped-call]
        headers["Authorization"] = self._get_authorization_v4_header(  # type: ignore[no-untyped-call]
            params=params, headers=headers, dt=now, method=method, path=path, data=data
        )
        return params, headers


class _Connection(EC2Connection):
    """Connection to one region's endpoint, for one thread at a time. Always signs with Signature
    Version 4.
    """

    responseCls = _Response
    asked = ""
    connection: Any
    driver: Any
    signer: Any

    def __init__(
        self, region: str, url: str, ca_bundle: str | None, timeout: tuple[float, float]
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CloudConfigError(f"{url!r} is not an endpoint URL", hint="check `endpoints`")
        require_network(url)
        secure = parts.scheme == "https"
        super().__init__(  # type: ignore[no-untyped-call]
            "",
            "",
            secure=secure,
            host=f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname,
            port=parts.port or (443 if secure else 80),
            signature_version="4",
        )
        self.signer = _Signer("", "", self.version, self)  # type: ignore[no-untyped-call]
        self.request_path = parts.path
        self.driver = SimpleNamespace(region_name=region, name="cloudtrain")
        self.connect()  # type: ignore[no-untyped-call]
        session.prepare(self.connection.session, "aws", "AWS")
        self.connection.session.timeout = timeout
        if ca_bundle:
            self.connection.ca_cert = ca_bundle

    def call(self, asked: str, credentials: Any, form: str) -> Tree:
        self.asked = asked
        self.signer.access_key = credentials.access_key
        self.signer.access_secret = credentials.secret_key
        self.token = credentials.token
        headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
        send: Any = self.request
        answer: Tree = send("/", data=form, headers=headers, method="POST").object
        return answer
