"""Cloud TPU API v2: lists, creates, starts and deletes TPUs, each once for all its hosts.

Names, states and fields follow the discovery document of tpu v2, revision 20261001."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from cloudtrain.catalog.tpus import tpu_type
from cloudtrain.core import errors
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.model import ClusterConfig, Plan
from cloudtrain.core.partial_list import NotAsked, PartialList
from cloudtrain.providers.base.answers import objects, typed
from cloudtrain.providers.base.driver import LaunchRequest, Vm
from cloudtrain.providers.base.teardown import roll_back
from cloudtrain.providers.gcp import faults, tpu_hosts
from cloudtrain.providers.gcp.client import GcpClient, Json
from cloudtrain.providers.gcp.requests import ClusterNetwork
from cloudtrain.training.strategies import STRATEGIES

GOOGLE = "https://tpu.googleapis.com/v2"
OVERRIDE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"
"""Environment variable of gcloud for a custom endpoint."""
OPERATION = 1200.0
"""Seconds to wait for an operation. Google gives no limit for the creation of a slice."""


def endpoint(compute: str | None) -> str:
    """The URL of the API: a custom one, or at the custom Compute Engine endpoint, so that nothing
    is sent to Google from there."""
    url = os.environ.get(OVERRIDE)
    if url:
        return f"{url.rstrip('/').removesuffix('/v2')}/v2"
    return f"{compute.removesuffix('/compute/v1')}/v2" if compute else GOOGLE


class Tpus:
    """TPUs of one project. Thread-safe; raises the same errors as GcpClient."""

    def __init__(self, compute: GcpClient, config: ClusterConfig) -> None:
        self._api = compute.at(endpoint(compute.endpoint), service="tpu.googleapis.com")
        strategy = STRATEGIES.get(config.strategy)
        self.needed = strategy is not None and strategy.tpus
        """Whether this config's own nodes are a TPU."""
        self._unknown = not config.nodes

    def may_hold(self, cluster: str | None) -> bool:
        """True if a list of `cluster` (None: of all) has to include TPUs. A config of VMs has
        none; one without nodes stands for a cluster of which only labels are known."""
        return cluster is None or self.needed or self._unknown

    def listed(self, zone: str = "-") -> PartialList[Json]:
        """List the TPUs of one zone, or of all zones in one request.

        If this config needs no TPUs, an API that is disabled, forbidden or unknown to the endpoint
        has none: whoever created one could use it."""
        what = "TPUs" if zone == "-" else f"TPUs in {zone}"
        try:
            return self._listed(what, zone)
        except errors.PermissionsError:
            if self.needed:
                raise
        except errors.NotFoundError as error:
            if self.needed or not faults.is_unknown_question(error):
                raise
        return PartialList()

    def _listed(self, what: str, zone: str) -> PartialList[Json]:
        found: list[Json] = []
        missed: list[NotAsked] = []
        wanted = {"pageSize": "500"}
        while True:
            page = self._api.call(what, "GET", f"locations/{zone}/nodes", params=wanted)
            found += objects(page, "nodes")
            silent = [str(place).rpartition("/")[2] for place in typed(page, "unreachable", list)]
            missed += [NotAsked(place=place, why=f"{what}: unreachable") for place in silent]
            token = page.get("nextPageToken")
            if not token:
                return PartialList(found, missed)
            wanted = {**wanted, "pageToken": str(token)}

    def find(self, zone: str, name: str) -> Json | None:
        return self._api.find(f"TPU {name}", path(zone, name))

    def create(self, zone: str, name: str, body: Json) -> None:
        """Create a TPU and wait until it is ready. Raises NameTakenError if that name exists."""
        what = f"creating TPU {name} in {zone}"
        self._run(what, "POST", f"locations/{zone}/nodes", {"nodeId": name}, body, new=True)

    def start(self, zone: str, name: str) -> None:
        self._run(f"starting TPU {name} in {zone}", "POST", f"{path(zone, name)}:start", {}, {})

    def delete(self, zone: str, name: str) -> None:
        """Delete a TPU with all its hosts and wait until it is gone."""
        try:
            self._run(f"deleting TPU {name} in {zone}", "DELETE", path(zone, name), {}, None)
        except errors.NotFoundError as error:
            if faults.is_unknown_question(error, "Resource '"):
                raise

    def lacks(self, zone: str, kind: str, name: str) -> bool:
        """True if the zone has no such item of `acceleratorTypes` or `runtimeVersions`. What a zone
        says of itself, such as that it has no TPUs, means the same."""
        try:
            self._api.get(f"{name} in {zone}", f"locations/{zone}/{kind}/{name}")
        except errors.NotFoundError as error:
            return not faults.is_unknown_question(error, "Resource '")
        except (errors.CapacityError, errors.PermissionsError) as error:
            if error.scope != "zone":
                raise
            return True
        return False

    def _run(
        self,
        what: str,
        method: str,
        where: str,
        params: Mapping[str, str],
        body: Json | None,
        *,
        new: bool = False,
    ) -> None:
        operation = latest = self._api.call(what, method, where, params=params, body=body)

        def ask() -> Json | None:
            nonlocal latest
            if not latest.get("done"):
                latest = self._api.get(what, str(operation.get("name")))
            return latest if latest.get("done") else None

        done = self._api.timing.until(ask, within=OPERATION)
        if done is None:
            raise errors.TransientError(f"{what}: timed out after {OPERATION:.0f} s")
        if error := done.get("error"):
            raise failure(what, error, new=new, path=self._api.path(where))


def path(zone: str, name: str) -> str:
    return f"locations/{zone}/nodes/{name}"


CODES = {
    # https://github.com/googleapis/googleapis/blob/master/google/rpc/code.proto
    3: "INVALID_ARGUMENT",
    4: "DEADLINE_EXCEEDED",
    5: "NOT_FOUND",
    6: "ALREADY_EXISTS",
    7: "PERMISSION_DENIED",
    8: "RESOURCE_EXHAUSTED",
    9: "FAILED_PRECONDITION",
    10: "ABORTED",
    13: "INTERNAL",
    14: "UNAVAILABLE",
    16: "UNAUTHENTICATED",
}


def failure(what: str, error: Mapping[str, Any], *, new: bool, path: str = "") -> errors.CloudError:
    """The error of a failed operation, a google.rpc.Status. Code 8 of a creation is a lack of
    capacity: hashicorp/terraform-provider-google#10222, skypilot-org/skypilot#4579."""
    code = CODES.get(int(error.get("code") or 0), "INTERNAL")
    if new and code == "RESOURCE_EXHAUSTED":
        code = "STOCKOUT"
    told = {"code": code, "message": error.get("message"), "errorDetails": error.get("details")}
    facts = {"api": "tpu.googleapis.com"}
    return faults.of_operation(what, [told], path=path, facts=facts)


BUSY = frozenset({"DELETING", "STOPPING", "HIDING"})
"""States of a TPU that is on its way out and accepts no requests."""


def runtime_of(plan: Plan) -> str:
    """The TPU software version: `image:`, or by default that of the TPU's generation, which has no
    TensorFlow.

    https://docs.cloud.google.com/tpu/docs/runtimes, read 2026-11-22"""
    if plan.config.image != "auto":
        return plan.config.image
    kind = tpu_type(plan.config.provider, plan.nodes[0].machine)
    if kind is None:
        raise errors.CloudConfigError(f"{plan.nodes[0].machine} is no known TPU type")
    return kind.family.runtime


@dataclass(frozen=True, kw_only=True)
class TpuLaunch:
    """Launch of one host; the first one to come creates the TPU, and the others wait for it."""

    api: GcpClient
    tpus: Tpus
    order: LaunchRequest[ClusterNetwork]

    def run(self) -> Vm:
        tpu = self.order.network.once(
            self._name, lambda: self.api.persist(self._attempt, within=OPERATION)
        )
        hosts = {vm.node.index: vm for vm in tpu_hosts.to_hosts(tpu)}
        if self.order.node.index not in hosts:
            raise errors.CloudConfigError(
                f"TPU {self._name} has {len(hosts)} hosts, and no {self.order.node.name}",
                hint=f"run `cloudtrain down {self.order.plan.config.name}`, then `up`",
            )
        return hosts[self.order.node.index]

    @property
    def _name(self) -> str:
        return tpu_hosts.name_of(self.order)

    @property
    def _zone(self) -> str:
        return self.order.place.zone

    def _attempt(self) -> Json:
        body = tpu_hosts.body(self.order, runtime_of(self.order.plan))
        try:
            self.tpus.create(self._zone, self._name, body)
        except errors.NameTakenError as taken:
            return self._adopt(taken)
        except errors.NotFoundError as error:  # the zone, the TPU type or the software version
            raise errors.CloudConfigError(error.message, code=error.code, scope="zone") from error
        except errors.CloudError as error:
            raise roll_back(error, self._undo) from error.__cause__
        found = self.tpus.find(self._zone, self._name)
        if found is None:
            raise errors.TransientError(f"TPU {self._name}: created, and gone again at once")
        return found

    def _adopt(self, taken: errors.NameTakenError) -> Json:
        """Adopt the existing TPU of that name. Raises BusyError while it is being deleted, or has
        to be because Google took it back, and NameTakenError if it is not ours."""
        found = self.tpus.find(self._zone, self._name)
        if found is None:
            raise errors.BusyError(taken.message, hint=taken.hint, code=taken.code) from taken
        if not self._is_wanted(found):
            raise taken
        if found.get("state") in tpu_hosts.LOST:
            self.tpus.delete(self._zone, self._name)
        if found.get("state") in BUSY | tpu_hosts.LOST:
            raise errors.BusyError(f"TPU {self._name}: its predecessor is still being deleted")
        return found

    def _is_wanted(self, tpu: Json) -> bool:
        plan, wanted = self.order.plan, self.order.node
        return any(
            m.generation in ("", plan.generation)
            and (m.cluster, m.node.role) == (plan.config.name, wanted.role)
            for m in tpu_hosts.to_hosts(tpu)
        )

    def _undo(self) -> None:
        """Delete the TPU of a failed operation, if it was left behind."""
        found = self.tpus.find(self._zone, self._name)
        if found is not None and self._is_wanted(found):
            self.tpus.delete(self._zone, self._name)


def start(tpus: Tpus, machine: Vm) -> None:
    """Start a stopped TPU; only one with a single host can be stopped."""
    zone, name = machine.place.zone, tpu_hosts.tpu_of(machine)
    found = tpus.find(zone, name)
    if found is None:
        hint = "the TPU was being deleted: run `cloudtrain up` to recreate it"
        raise errors.NotFoundError(f"TPU {name} in {zone} does not exist", hint=hint)
    if found.get("state") != "STOPPED":
        return
    try:
        tpus.start(zone, name)
    except errors.CloudConfigError as error:
        if error.code != "FAILED_PRECONDITION" or tpus.find(zone, name) == found:
            raise  # else another host's call has started it meanwhile
