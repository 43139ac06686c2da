"""Acts out the Cloud TPU API: TPUs with one or several hosts, made, listed, taken back, deleted."""

from __future__ import annotations

import fnmatch
import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from werkzeug.wrappers import Request, Response

from tests.standins.gcp_catalog import ZONES, region_of
from tests.standins.gcp_errors import ApiError, Failure, answer, real_failure
from tests.standins.gcp_tpu_api import (
    PREFIX,
    TpuError,
    as_tpu_error,
    not_acted_out,
    refused,
    tpu_api,
)
from tests.standins.gcp_world import Body, Thing, World, check_labels

METADATA = "/metadata/"
HOSTS = {
    "v2-8": 1,
    "v2-32": 4,
    "v5litepod-1": 1,
    "v5litepod-4": 1,
    "v5litepod-8": 1,
    "v5litepod-16": 4,
    "v5p-8": 1,
    "v5p-16": 2,
    "v6e-8": 1,
}
"""Types that this stand-in has, and their hosts: https://docs.cloud.google.com/tpu/docs/v5e etc."""
OFFERED = {
    "us-central1-a": ("v2-32", "v5litepod-8", "v5litepod-16", "v5p-8", "v5p-16"),
    "us-central1-b": ("v2-8", "v6e-8"),
    "us-west4-a": ("v5litepod-1", "v5litepod-4", "v5litepod-8", "v5litepod-16"),
    "europe-west4-b": ("v5litepod-8", "v5litepod-16", "v5p-8", "v5p-16"),
}
RUNTIMES = (
    "tpu-ubuntu2204-base",
    "tpu-vm-tf-2.18.0-pjrt",
    "tpu-vm-tf-2.18.0-pod-pjrt",
    "v2-alpha-tpuv5",
    "v2-alpha-tpuv5-lite",
    "v2-alpha-tpuv6e",
)
PERMISSIONS = {"acceleratorTypes": "acceleratortypes", "runtimeVersions": "runtimeversions"}


@dataclass(frozen=True)
class TpuService:
    """The API of one project; `world` has its clock, its networks and its TPUs."""

    world: World
    operations: dict[str, Body]
    url: str
    """Where its hosts reach this stand-in."""

    def answer(self, request: Request, allow: Callable[[str], None], enabled: bool) -> Response:
        """Raises ApiError. `allow` is called with each permission that the call needs."""
        method, in_path = tpu_api().route(request.method, request.path)
        given = tpu_api().parameters(method, in_path, list(request.args.items(multi=True)))
        body = tpu_api().take(method, request.get_data())
        if given["projectsId"] != self.world.project:
            raise refused("tpu-project-denied", projects_id=given["projectsId"])
        if not enabled:
            raise _disabled(self.world.project)
        for permission in needed(method.id):
            allow(permission)
        handler = _HANDLERS.get(method.id)
        if handler is None:
            raise not_acted_out(method.id)
        zone = given.get("locationsId", "-")
        if zone not in (*ZONES, "-"):
            raise refused("location-not-found", zone=zone)
        if zone not in (*OFFERED, "-"):  # either may be the answer of a zone without TPUs
            entry = "place-denied-of-tpu" if zone.endswith("c") else "location-not-found"
            raise refused(entry, zone=zone, project=self.world.project)
        if zone in self.world.unreachable:
            raise refused("tpu-zone-does-not-answer", zone=zone)
        with self.world.changed:
            self.world.tick()
            told: Body = json.loads(json.dumps(handler(self, given, body)))
        tpu_api().check_answer(method, told)
        return answer(told)

    def path(self, given: Body, name: str, kind: str = "nodes") -> str:
        return f"projects/{self.world.project}/locations/{given['locationsId']}/{kind}/{name}"

    def find(self, given: Body) -> Thing:
        path = self.path(given, given["nodesId"])
        if path not in self.world.things:
            raise refused("tpu-absent", path=path)
        return self.world.things[path]

    def operate(self, thing: Thing, kind: str, finish: Callable[[], Failure | None]) -> Body:
        """Not done at first; `finish` is called when it is."""
        world = self.world
        zone = thing.path.rpartition("/nodes/")[0]
        name = f"{zone}/operations/operation-{secrets.token_hex(8)}"
        told: Body = {
            "name": name,
            "metadata": {
                "@type": "type.googleapis.com/google.cloud.tpu.v2.OperationMetadata",
                "createTime": world.stamp(),
                "target": thing.path,
                "verb": kind,
                "apiVersion": "v2",
            },
            "done": False,
        }
        self.operations[name] = told

        def end() -> None:
            failure = finish()
            told["done"] = True
            if failure:
                told["error"] = {"code": int(failure.code), "message": failure.message}
            else:
                told["response"] = {"@type": "type.googleapis.com/google.protobuf.Empty"}
            world.changed.notify_all()

        world.at(world.now() + world.delay, end)
        return told


def needed(method: str) -> list[str]:
    """https://docs.cloud.google.com/iam/docs/roles-permissions/tpu"""
    _, kind, verb = method.split(".")
    found = [f"tpu.{PERMISSIONS.get(kind, kind)}.{verb}"]
    return [*found, "iam.serviceAccounts.actAs"] if method == "tpu.nodes.create" else found


def metadata(request: Request) -> Response | None:
    """What the metadata server tells a host of its number."""
    found = re.fullmatch(
        rf"{METADATA}(\d+)/computeMetadata/v1/instance/attributes/agent-worker-number",
        request.path,
    )
    if found is None or request.headers.get("Metadata-Flavor") != "Google":
        return None
    return Response(found[1])


def _disabled(project: str) -> TpuError:
    service = "tpu.googleapis.com"
    return refused("api-disabled", title="Cloud TPU API", service=service, number=project)


def _create(service: TpuService, given: Body, body: Body) -> Body:
    world, zone = service.world, given["locationsId"]
    name = given.get("nodeId") or f"node-{secrets.token_hex(4)}"
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name):
        raise refused("tpu-name-invalid", name=name)
    path = service.path(given, name)
    if path in world.things:
        raise refused("tpu-exists", path=path)
    _check(service, zone, body)
    limit = world.quotas.get(f"{region_of(zone)}/{body['acceleratorType'].rpartition('-')[0]}")
    if limit is not None:
        raise refused("tpu-quota-of-region", limit=limit, region=region_of(zone))
    thing = Thing(path, {**body, "name": path, "id": world.new_id(), "state": "CREATING"})
    thing.body |= {"createTime": world.stamp(), "apiVersion": "V2", "health": "HEALTH_UNSPECIFIED"}
    world.things[path] = thing

    def finish() -> Failure | None:
        failure = _no_room(world, zone, body["acceleratorType"])
        failure = failure or world.wanted_failure("tpu.nodes.create", name)
        if failure:
            world.remove(thing)
        elif world.things.get(path) is thing:
            _run(service, thing)
        return failure

    return service.operate(thing, "create", finish)


def _check(service: TpuService, zone: str, body: Body) -> None:
    world, kind = service.world, body.get("acceleratorType")
    if kind not in OFFERED.get(zone, ()):
        raise refused("tpu-type-absent", kind=kind, zone=zone)
    if body.get("runtimeVersion") not in RUNTIMES:
        raise refused("tpu-runtime-absent", runtime_version=f"{body.get('runtimeVersion')!r}")
    try:
        check_labels("labels", body.get("labels", {}))
    except ApiError as error:
        raise as_tpu_error(error) from error
    for name, collection in (("network", "networks"), ("subnetwork", "subnetworks")):
        told = body.get("networkConfig", {}).get(name, "default")
        if told not in world.things or f"/{collection}/" not in told:
            raise refused("tpu-reference-absent", name=name, told=f"{told!r}")
    if sum(len(value) for value in body.get("metadata", {}).values()) > 512 * 1024:
        raise refused("tpu-metadata-too-large")


def _no_room(world: World, zone: str, kind: str) -> Failure | None:
    for pattern, room in world.capacity.items():
        if any(fnmatch.fnmatchcase(told, pattern) for told in (zone, f"{zone}/{kind}")):
            have = [t for t in world.under("nodes") if t.scope == f"locations/{zone}"]
            if len(have) > room:
                return real_failure("tpu-zone-exhausted", zone=zone, status=429)
    return None


def _run(service: TpuService, thing: Thing) -> None:
    world, body = service.world, thing.body
    outside = body.get("networkConfig", {}).get("enableExternalIps")
    endpoints: list[Body] = []
    for index in range(HOSTS[body["acceleratorType"]]):
        internal = world.nodes.address() if world.nodes else f"10.0.{len(world.things)}.{index + 2}"
        told: Body = {"ipAddress": internal, "port": 8470}
        if outside:
            told["accessConfig"] = {"externalIp": world.external(internal)}
        endpoints.append(told)
        if world.nodes is not None:
            world.nodes.start(host_name(thing, index), _user_data(service, thing, index), internal)
    body |= {"state": "READY", "health": "HEALTHY", "networkEndpoints": endpoints}


def host_name(thing: Thing, index: int) -> str:
    return f"{thing.name}-w-{index}"


def _user_data(service: TpuService, thing: Thing, index: int) -> str:
    """Google's guest agent runs the startup script; here cloud-init does, before sshd starts."""
    script = thing.body["metadata"]["startup-script"]
    where = f"export CLOUDTRAIN_METADATA={service.url}{METADATA}{index}"
    first, _, rest = script.partition("\n")
    assert first == "#!/bin/sh"
    told = {
        "users": [],
        "ssh_deletekeys": False,
        "ssh_genkeytypes": ["ed25519"],
        "bootcmd": [["sh", "-c", f"{where}\n{rest}"]],
    }
    return f"#cloud-config\n{json.dumps(told)}"


def _get(service: TpuService, given: Body, body: Body) -> Body:
    return service.find(given).body


def _list(service: TpuService, given: Body, body: Body) -> Body:
    world, zone = service.world, given["locationsId"]
    down = [f"projects/{world.project}/locations/{each}" for each in world.unreachable]
    found = [
        thing.body
        for thing in world.under("nodes")
        if zone in ("-", thing.path.split("/")[3])
        and not any(thing.path.startswith(f"{each}/") for each in down)
    ]
    start = int(given.get("pageToken") or 0)
    end = start + (given.get("pageSize") or 500)
    told: Body = {"nodes": found[start:end]}
    if end < len(found):
        told["nextPageToken"] = str(end)
    return {**told, "unreachable": down} if zone == "-" and down else told


def _delete(service: TpuService, given: Body, body: Body) -> Body:
    world, thing = service.world, service.find(given)
    if thing.deleting:
        raise refused("tpu-being-deleted", path=thing.path)
    before = thing.body["state"]
    thing.deleting = True
    thing.body["state"] = "DELETING"

    def finish() -> Failure | None:
        failure = world.wanted_failure("tpu.nodes.delete", thing.name)
        if failure:
            thing.deleting = False
            thing.body["state"] = before
            return failure
        world.remove(thing)
        stop_hosts(world, thing)
        return None

    return service.operate(thing, "delete", finish)


def stop_hosts(world: World, thing: Thing) -> None:
    if world.nodes is not None:
        for index in range(HOSTS[thing.body["acceleratorType"]]):
            world.nodes.stop(host_name(thing, index))


def _start(service: TpuService, given: Body, body: Body) -> Body:
    thing = service.find(given)
    if thing.body["state"] != "STOPPED":
        raise refused("tpu-not-stopped", path=thing.path)

    def finish() -> Failure | None:
        thing.body["state"] = "READY"
        return None

    thing.body["state"] = "STARTING"
    return service.operate(thing, "start", finish)


def _operation(service: TpuService, given: Body, body: Body) -> Body:
    path = service.path(given, given["operationsId"], "operations")
    if path not in service.operations:
        raise refused("tpu-absent", path=path)
    return service.operations[path]


def _type(service: TpuService, given: Body, body: Body) -> Body:
    name = given["acceleratorTypesId"]
    path = service.path(given, name, "acceleratorTypes")
    if name not in OFFERED.get(given["locationsId"], ()):
        raise refused("tpu-absent", path=path)
    return {"name": path, "type": name}


def _runtime(service: TpuService, given: Body, body: Body) -> Body:
    name = given["runtimeVersionsId"]
    path = service.path(given, name, "runtimeVersions")
    if name not in RUNTIMES:
        raise refused("tpu-absent", path=path)
    return {"name": path, "version": name}


_HANDLERS: dict[str, Callable[[TpuService, Body, Body], Any]] = {
    "tpu.nodes.create": _create,
    "tpu.nodes.get": _get,
    "tpu.nodes.list": _list,
    "tpu.nodes.delete": _delete,
    "tpu.nodes.start": _start,
    "tpu.operations.get": _operation,
    "tpu.acceleratorTypes.get": _type,
    "tpu.runtimeVersions.get": _runtime,
}


def is_tpu_call(path: str) -> bool:
    return path.startswith(PREFIX)
