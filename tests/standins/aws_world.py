"""One pretended AWS account: its time, its moto, and what it holds."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from typing import Any
from urllib.parse import urlencode

from botocore.utils import parse_timestamp
from werkzeug.test import run_wsgi_app
from werkzeug.wrappers import Request, Response

os.environ |= {  # Read by moto as it is imported, and at each call.
    "MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION": "true",
    "MOTO_EC2_LOAD_DEFAULT_AMIS": "false",
}

from moto import backends
from moto.core import responses
from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import Ami
from moto.ec2.models.core import TaggedEC2Resource
from moto.ec2.models.instance_types import (
    INSTANCE_TYPE_OFFERINGS,
    INSTANCE_TYPES,
    InstanceType,
    InstanceTypeBackend,
)
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, get_prefix
from moto.kms import models as kms
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

from tests.standins import aws_data

aws_data.add_machines(INSTANCE_TYPES, INSTANCE_TYPE_OFFERINGS)
InstanceTypeBackend.instance_types[:] = map(InstanceType, INSTANCE_TYPES)


def _tags(resource: Any) -> list[dict[str, str]]:
    """moto searches those of all resources for those of one."""
    id = resource.id
    if id not in resource.ec2_backend.tags:
        return []
    kind = EC2_PREFIX_TO_RESOURCE.get(get_prefix(id), "")
    return [
        {"resource_id": id, "key": key, "value": value, "resource_type": kind}
        for key, value in resource.ec2_backend.tags[id].items()
    ]


TaggedEC2Resource.get_tags = _tags  # type: ignore[method-assign, assignment]

# What moto does anew for each call or account: it lists its own folder, and the methods of a class,
# and makes an RSA key for disks that nobody reads.
_modules = tuple(backends.list_of_moto_modules())
backends.list_of_moto_modules = lambda: iter(_modules)
for _module, _name in ((responses, "method_names_from_class"), (kms, "generate_private_key")):
    setattr(_module, _name, cache(getattr(_module, _name)))

ALIVE = ("pending", "running", "stopping", "stopped", "shutting-down")
_accounts = itertools.count(200_000_000_001)


class Image(Ami):
    """moto's are of 15 GB, and their disks stay."""

    gb: int

    @property
    def block_device_mappings(self) -> list[dict[str, Any]]:
        ebs = {"SnapshotId": self.ebs_snapshot.id, "VolumeSize": self.gb, "VolumeType": "gp3"}
        ebs |= {"DeleteOnTermination": True, "Encrypted": False}
        return [{"DeviceName": self.root_device_name, "Ebs": ebs}]


class World:
    """Public attributes may be set at any time, also by a test in another process."""

    def __init__(self) -> None:
        self.regions = list(aws_data.REGIONS)
        self.delay = 0.03
        """Seconds from pending to running, and from shutting-down to terminated."""
        self.lag = 0.0
        """Seconds for which a new instance is not known to any other call."""
        self.wide_lag = 0.0
        """The same of DescribeInstances that names neither instances nor a zone."""
        self.group_lag = 0.0
        """Seconds for which a new security group is not known to the calls after it."""
        self.profile_lag = 0.0
        """Seconds for which EC2 does not know a new instance profile."""
        self.capacity: dict[str, int] = {}
        """`g4dn.xlarge us-east-1a` → how many there are; as many as wanted where not told."""
        self.capacity_code = "InsufficientInstanceCapacity"
        """Or another documented code by which EC2 says that there is none."""
        self.no_room_close: list[str] = []
        """Zones whose placement groups are full, while single instances still find room."""
        self.reservations: dict[str, dict[str, Any]] = {}
        """Id → {"zone", "machine", "count"}, and where needed "block", "open", "starts", "ends"
        (Unix time), "state", "tenancy", "placement_group"."""
        self.reservation_groups: dict[str, list[str]] = {}
        """ARN of a resource group → ids of its reservations."""
        self.spot_scores: dict[str, int] = {}
        """Zone → Spot placement score."""
        self.quotas = {code: vcpus for code, (_, vcpus) in aws_data.QUOTAS.items()}
        self.account_plan = "PAID"
        """Or FREE, as of accounts made since 2025-07-15: EC2 launches what is eligible alone."""
        self.subnets: dict[str, dict[str, Any]] = {}
        """Subnet → what of it is unlike a usual one: "room", "state", "ipv6_only", "blocked"."""
        self.required: dict[str, Any] = {}
        """What an organization's policy demands of each RunInstances, by parameter."""
        self.keys_denied: list[str] = []
        """KMS keys that EC2 may not use: instances with such disks end as they start."""
        self.required_tags: list[str] = []
        """Tags without which a policy denies every call that creates something."""
        self.granted: dict[str, Any] | None = None
        """The policy of whoever calls EC2; None: everything is allowed."""
        self.denied: list[str] = []
        self.actions: set[str] = set()
        """What EC2 was called for."""
        self.serial_logs: dict[str, str] = {}
        """By node name, where no real node is behind it."""
        self.unapplied_quotas: list[str] = []
        """Codes of quotas of which only AWS's default is told, as no other value was applied."""
        self.nodes: Any = None
        """Real nodes behind the instances: `start`, `stop` and `address`."""
        self.account = str(next(_accounts))
        self.lock = threading.RLock()
        self.born: dict[str, float] = {}
        """Instance → when it was made."""
        self.placement_groups: dict[tuple[str, str], dict[str, Any]] = {}
        """By region and name."""
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._known: dict[str, frozenset[str]] = {}
        """Region → ids of what it had from the beginning."""
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._ahead = 0.0

    # ── Time ─────────────────────────────────────────────────────────────────

    def now(self) -> float:
        return time.time() + self._ahead

    def advance(self, seconds: float) -> None:
        with self.lock:
            self._ahead += seconds
            self.go_on()

    def after(self, seconds: float, then: Callable[[], None]) -> None:
        self._later.append((self.now() + seconds, then))

    def go_on(self) -> None:
        """Whatever is due by now happens, in its order."""
        while due := [item for item in self._later if item[0] <= self.now()]:
            item = min(due, key=lambda one: one[0])
            self._later.remove(item)
            item[1]()

    # ── What there is ────────────────────────────────────────────────────────

    def backend(self, region: str) -> Any:
        return ec2_backends[self.account][region]

    def alive(self, region: str) -> list[Any]:
        return [one for one in self.backend(region).all_instances() if one.state in ALIVE]

    def named(self, name: str) -> Any:
        """The running instance of that name, wherever it is."""
        return next(
            one
            for region in self._known
            for one in self.alive(region)
            if name_of(one) == name and one.state == "running"
        )

    def holdings(self) -> list[str]:
        with self.lock:
            self.go_on()
            return sorted(line for region in self._known for line in self._held(region))

    def _held(self, region: str) -> Iterator[str]:
        for one in self.alive(region):
            yield f"instance {name_of(one)} {one.availability_zone} {one.state}"
        for kind, id, name in self._everything(region):
            if id not in self._known[region]:
                yield f"{kind} {name} {region}"

    def _everything(self, region: str) -> Iterator[tuple[str, str, str]]:
        """Kind, id and name of all that may be left behind, but for instances and what ends
        with them."""
        backend = self.backend(region)
        ends = {part for one in self.alive(region) for part in _parts(one)}
        for kind, found in (
            ("volume", backend.volumes),
            ("network interface", backend.enis),
            ("key pair", backend.key_pairs),
            ("VPC", backend.vpcs),
            ("internet gateway", backend.internet_gateways),
            ("route table", backend.route_tables),
            ("launch template", backend.launch_templates),
            *(("subnet", subnets) for subnets in backend.subnets.values()),
        ):
            yield from ((kind, id, id) for id in found if id not in ends)
        for address in backend.addresses:
            yield "address", address.allocation_id, address.public_ip
        for group in backend.describe_security_groups():
            yield "security group", group.id, group.name
        for (at, name), made in self.placement_groups.items():
            if at == region:
                yield "placement group", made["GroupId"], name

    def settle_in(self, region: str) -> None:
        """A region's first call: images, and an internet gateway for its default VPC, which real
        ones have."""
        if region in self._known:
            return
        backend = self.backend(region)
        for picture in aws_data.IMAGES:
            image = Image(
                backend,
                picture.id,
                name=picture.name,
                owner_id=picture.owner,
                owner_alias="amazon" if picture.owner != aws_data.STRANGER else None,
                public=True,
                virtualization_type="hvm",
                architecture=picture.architecture,
                root_device_type="ebs",
                image_location=f"{picture.owner}/{picture.name}",
                hypervisor="xen",
                region_name=f"{region}a",
            )
            image.gb, image.creation_date = picture.gb, parse_timestamp(picture.created)
            backend.amis[picture.id] = image
        gateway = backend.create_internet_gateway()
        backend.attach_internet_gateway(gateway.id, backend.get_default_vpc().id)
        table = next(iter(backend.route_tables.values()))
        backend.create_route(table.id, "0.0.0.0/0", gateway_id=gateway.id)
        self._known[region] = frozenset(id for _, id, _ in self._everything(region))

    # ── moto ─────────────────────────────────────────────────────────────────

    def by_moto(self, request: Request, form: dict[str, str] | None = None) -> Response:
        """As it was asked, or with `form` instead. 501 where moto does not know the call."""
        environ = {**request.environ, "HTTP_X_MOTO_ACCOUNT_ID": self.account}
        environ["wsgi.input"] = BytesIO(request.get_data(cache=True))
        if form is not None:
            body = urlencode(form).encode()
            environ |= {
                "REQUEST_METHOD": "POST",
                "QUERY_STRING": "",
                "CONTENT_TYPE": "application/x-www-form-urlencoded",
                "CONTENT_LENGTH": str(len(body)),
                "wsgi.input": BytesIO(body),
            }
        try:
            chunks, status, headers = run_wsgi_app(self._moto, environ, buffered=True)
        except NotImplementedError as error:
            return Response(f"{error}\n", 501)
        return Response(chunks, status, headers)

    @contextmanager
    def late_ones_hidden(self, region: str, lag: float) -> Iterator[None]:
        """moto does not see what is not told of for so many seconds."""
        reservations = self.backend(region).reservations
        whole = dict(reservations)
        for key, reservation in whole.items():
            if self.now() < self.born.get(reservation.instances[0].id, 0.0) + lag:
                del reservations[key]
        try:
            yield
        finally:
            reservations.clear()
            reservations.update(whole)

    @contextmanager
    def late_groups_hidden(self, region: str) -> Iterator[None]:
        """EC2 is eventually consistent: a group that was just made may not be found.
        https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html"""
        late = {
            (vpc, id): groups.pop(id)
            for vpc, groups in self.backend(region).groups.items()
            for id in list(groups)
            if self.now() < self.born.get(id, 0.0) + self.group_lag
        }
        try:
            yield
        finally:
            for (vpc, id), group in late.items():
                self.backend(region).groups[vpc][id] = group


def name_of(instance: Any) -> str:
    tags = {tag["key"]: tag["value"] for tag in instance.get_tags()}
    return str(tags.get("Name", instance.id))


def tags_for(given: dict[str, Any], kind: str) -> dict[str, str]:
    """Of a call's TagSpecifications."""
    return {
        tag["Key"]: tag.get("Value", "")
        for each in given.get("TagSpecifications", [])
        if each["ResourceType"] == kind
        for tag in each.get("Tags", [])
    }


def _parts(instance: Any) -> Iterator[str]:
    for nic in instance.nics.values():
        if nic.delete_on_termination:
            yield nic.id
    for device in instance.block_device_mapping.values():
        if device.delete_on_termination:
            yield device.volume_id
