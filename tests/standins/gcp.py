"""A stand-in for Google Compute Engine: a project in memory, behind Google's own description.

Calls are routed and their bodies checked by the discovery document of Google's Python client, and
so is every answer that leaves here. See README.md.
"""

from __future__ import annotations

import copy
import fnmatch
import json
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from werkzeug.wrappers import Request, Response

from tests.standins import (  # noqa: F401
    gcp_accounts,
    gcp_advice,
    gcp_iam,
    gcp_instances,
    gcp_metadata,
    gcp_networks,
    gcp_offer,
    gcp_operations,
    gcp_reservations,
)
from tests.standins.gcp_api import Method, api
from tests.standins.gcp_auth import Authority
from tests.standins.gcp_catalog import IMAGES, REGIONS, ZONES
from tests.standins.gcp_errors import (
    ApiError,
    answer,
    not_acted_out,
    of_status,
    real,
    real_failure,
)
from tests.standins.gcp_tpu_api import TpuError, as_tpu_error, refused, tpu_api
from tests.standins.gcp_tpus import METADATA, TpuService, is_tpu_call, metadata, stop_hosts
from tests.standins.gcp_world import HANDLERS, Body, Call, World
from tests.standins.refusals import recorded

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

PROJECT = "test-project"
PUBLIC = frozenset(project for project, _ in IMAGES)
"""Projects whose images everybody may use."""
KINDS = {"resourcePolicies": "resource policy", "disks": "disk", "instances": "instance"}
KINDS |= {"nodes": "TPU"}
DEFAULT_RULES = {
    "default-allow-icmp": ("icmp", [], ["0.0.0.0/0"]),
    "default-allow-internal": ("all", [], ["10.128.0.0/9"]),
    "default-allow-rdp": ("tcp", ["3389"], ["0.0.0.0/0"]),
    "default-allow-ssh": ("tcp", ["22"], ["0.0.0.0/0"]),
}


class GcpStandIn(World):
    """A WSGI application; World has what a test turns, here is what it does."""

    def __init__(self, project: str = PROJECT, *, default_network: bool = True) -> None:
        super().__init__(project=project)
        self.authority = Authority()
        self.wrong: list[str] = []
        """Answers that Google would never give, each one a fault of this stand-in."""
        self.granted: list[str] | None = None
        """Permissions of whoever calls; None: all."""
        self.denied: list[str] = []
        self.methods: set[str] = set()
        """What was called."""
        self.tpu_operations: dict[str, Body] = {}
        self.takes_ids = True
        """Whether a path may have a VM's id for its name."""
        self.tpu_enabled = True
        """Whether the project may use the Cloud TPU API."""
        if default_network:
            self._default_network()
        self._first = frozenset(self.things)

    # ── What tests do ────────────────────────────────────────────────────────

    def holdings(self) -> list[str]:
        """Everything beyond what a new project has."""
        with self.changed:
            self.tick()
            return sorted(self._words(path) for path in self.things if path not in self._first)

    def interrupt(self, name: str) -> None:
        """Google takes a spot VM back."""
        with self.changed:
            self.tick()
            thing = next(t for t in self.under("instances") if t.name == name)
            assert thing.body["scheduling"]["preemptible"], f"{name} is no spot VM"
            gcp_instances.end_by_google(self, thing, "compute.instances.preempted")

    def preempt_tpu(self, name: str) -> None:
        """Google takes a TPU back: it is listed, and its hosts are gone."""
        with self.changed:
            self.tick()
            thing = next(t for t in self.under("nodes") if t.name == name)
            thing.body["state"] = "PREEMPTED"
            stop_hosts(self, thing)

    def shut_down(self, name: str) -> None:
        """What happens when the machine itself runs `shutdown`: it stops and is there still."""
        with self.changed:
            self.tick()
            if any(name.startswith(f"{thing.name}-w-") for thing in self.under("nodes")):
                return  # what Google makes of a TPU's host that does is not known
            thing = next(t for t in self.under("instances") if t.name == name)
            gcp_instances.end_by_itself(self, thing)

    def stop(self, name: str) -> None:
        """Somebody stops it in the console: its disk and its internal address are kept."""
        self.shut_down(name)

    def fail(
        self,
        action: str,
        code: str = "INTERNAL_ERROR",
        message: str = "Internal error. Please try again or contact Google Support.",
        status: int = 503,
        name: str = "",
        times: int = 1,
    ) -> None:
        """The next operations of this action (`instances.insert`), on the resource of this name,
        are accepted and end with this error."""
        wanted = {"action": action, "code": code, "message": message, "status": status}
        with self.changed:
            self.failures.append({**wanted, "name": name, "times": times})

    def share(self, project: str, network: str, regions: list[str], *granted: str) -> None:
        """Another project's network, of which we may use one subnetwork in each region."""
        with self.changed:
            self.host_project, self.host_granted = project, list(granted)
            path = f"projects/{project}/global/networks/{network}"
            body = {"name": network, "autoCreateSubnetworks": False}
            link = gcp_networks.add_network(self, path, body).body["selfLink"]
            for number, region in enumerate(regions):
                given = {"network": link, "ipCidrRange": f"10.{100 + number}.0.0/20"}
                subnet = f"projects/{project}/regions/{region}/subnetworks/training"
                gcp_networks.add_subnet(self, subnet, given)
            self._first |= {at for at in self.things if at.startswith(f"projects/{project}/")}

    def service_account(self, folder: Path, url: str) -> Path:
        """A key file for GOOGLE_APPLICATION_CREDENTIALS that this stand-in knows."""
        return self.authority.service_account(folder, url, self.project)

    def forget_tokens(self) -> None:
        """All tokens so far are refused from now on."""
        self.authority.forget_tokens()

    # ── What a server and its faults need ────────────────────────────────────

    def action(self, environ: WSGIEnvironment) -> str:
        """`instances.insert`."""
        verb, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if path == "/token":
            return "token"
        if gcp_accounts.serves(path):
            return gcp_accounts.action(verb, path)
        try:
            if is_tpu_call(path):
                return tpu_api().route(verb, path)[0].id
            return api().route(verb, path)[0].id
        except ApiError:
            return f"{verb} {path}"

    def error(self, status: int, code: str, message: str) -> Response:
        return of_status(status, code, message).response()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return self._answer(Request(environ))(environ, start_response)

    def _answer(self, request: Request) -> Response:
        if request.path == "/token" and request.method == "POST":
            return self.authority.token(request)
        if request.path.startswith(METADATA):
            return metadata(request) or Response(status=404)
        if gcp_metadata.serves(request.path):
            return gcp_metadata.told(self, request)
        try:
            if gcp_accounts.serves(request.path):
                self.authority.caller(request.headers.get("Authorization"))
                return answer(gcp_accounts.told(self, request))
            if is_tpu_call(request.path):
                return self._answer_tpu(request)
            method, in_path = api().route(request.method, request.path)
            user = self.authority.caller(request.headers.get("Authorization"))
            query = list(request.args.items(multi=True))
            given = api().parameters(method, in_path, query)
            body = api().take(method, request.get_data())
            told = self._act(method, given, body, user)
            api().check_answer(method, told)
            return answer(told)
        except ApiError as error:
            return error.response()
        except Exception:  # noqa: BLE001 - a fault of this stand-in, which its test then shows
            self.wrong.append(traceback.format_exc())
            traceback.print_exc()
            return self.error(500, "internalError", "a fault of the stand-in")

    def _answer_tpu(self, request: Request) -> Response:
        try:
            self.authority.caller(request.headers.get("Authorization"))
            service = TpuService(self, self.tpu_operations, request.host_url.rstrip("/"))
            return service.answer(request, self._allow, self.tpu_enabled)
        except ApiError as error:
            if isinstance(error, TpuError):
                raise
            raise as_tpu_error(error) from error

    def _allow(self, permission: str) -> None:
        if self.granted is not None and permission not in self.granted:
            self.denied.append(permission)
            raise refused("tpu-permission-denied", permission=permission, project=self.project)

    def _act(self, method: Method, given: Body, body: Body, user: str) -> Body:
        handler = HANDLERS.get(method.id)
        if handler is None:
            raise not_acted_out(f"compute.{method.id}")
        self._check_place(method, given)
        self._check_permissions(method, given, body)
        self._check_refused(method, given, body)
        call = Call(world=self, method=method.id, given=given, body=body, user=user)
        with self.changed:
            self.tick()
            by_id = method.id == "instances.delete" and given["instance"].isdecimal()
            if by_id and self.takes_ids:
                given["instance"] = self._named(given["zone"], given["instance"])
            return copy.deepcopy(handler(call))

    def _check_refused(self, method: Method, given: Body, body: Body) -> None:
        """Refuse what a test wants refused, in the words of the corpus."""
        place = given.get("zone") or given.get("region") or "global"
        names: dict[str, Any] = {"project": self.project, "zone": str(given.get("zone", ""))}
        names["instance"] = str(body.get("name", ""))
        for pattern, name in self.refuses.items():
            if fnmatch.fnmatchcase(f"{method.id} {place}", pattern):
                if recorded("gcp")[name].status != "operation":
                    raise real(name, **names)
                failure = real_failure(name, **names).fields()["error"]["errors"][0]
                self.failures.append(
                    {"action": method.id, "name": "", "times": 1, "status": 400, **failure}
                )
        for field in self.unknown_fields:
            if field in json.dumps(body):
                raise real("field-unknown", field=field)

    def _named(self, zone: str, id: str) -> str:
        """The name of the VM with this id; the id itself if there is none."""
        there = [t for t in self.under("instances") if t.scope.endswith(f"/{zone}")]
        return next((t.name for t in there if t.body["id"] == id), id)

    def _check_permissions(self, method: Method, given: Body, body: Body) -> None:
        self.methods.add(method.id)
        project, granted = given["project"], self.granted
        if project == self.host_project:
            granted = self.host_granted
        elif project != self.project:
            return
        asked = [(each, granted) for each in gcp_iam.needed(method.id, body, self.project)]
        if self.host_project:
            in_host = gcp_iam.needed_of_host(body, self.host_project)
            asked += [(each, self.host_granted) for each in in_host]
        for permission, allowed in asked:
            if allowed is not None and permission not in allowed:
                self.denied.append(permission)
                where = self.host_project if allowed is self.host_granted else project
                raise real("permission-missing", permission=permission, where=where)

    def _check_place(self, method: Method, given: Body) -> None:
        project = given["project"]
        shared = method.id == "reservations.get" and any(
            path.startswith(f"projects/{project}/") for path in self.reservations
        )
        public = project in PUBLIC and method.id.startswith("images.")
        known = project in (self.project, self.host_project)
        if not known and not public and not shared:
            raise real("resource-absent", path=f"projects/{project}")
        zone, region = given.get("zone"), given.get("region")
        if zone is not None and zone not in ZONES:
            if method.id == "zones.get":
                raise real("resource-absent", path=f"projects/{project}/zones/{zone}")
            raise real("unknown-zone", field="zone", value=zone)
        if region is not None and region not in REGIONS:
            if method.id == "regions.get":
                raise real("resource-absent", path=f"projects/{project}/regions/{region}")
            raise real("unknown-region", field="region", value=region)
        if zone in self.unreachable:
            raise real("zone-does-not-answer", zone=zone)

    # ── The rest ─────────────────────────────────────────────────────────────

    def _default_network(self) -> None:
        base = f"projects/{self.project}/global"
        gcp_networks.add_network(
            self,
            f"{base}/networks/default",
            {"name": "default", "autoCreateSubnetworks": True},
        )
        for name, (protocol, ports, ranges) in DEFAULT_RULES.items():
            rule: Body = {"IPProtocol": protocol, **({"ports": ports} if ports else {})}
            body = {"name": name, "allowed": [rule], "sourceRanges": ranges, "priority": 65534}
            told = gcp_networks.checked_firewall(self, body)
            self.add(f"{base}/firewalls/{name}", "firewall", told)

    def _words(self, path: str) -> str:
        thing = self.things[path]
        kind = KINDS.get(thing.collection, thing.collection.removesuffix("s"))
        place = thing.scope.partition("/")[2]
        status = thing.body["status"] if thing.collection == "instances" else ""
        return " ".join(word for word in (kind, thing.name, place, status) if word)
