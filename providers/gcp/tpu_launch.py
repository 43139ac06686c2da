"""Launches a TPU once for all its hosts: creates it or adopts an existing one."""

from __future__ import annotations

from dataclasses import dataclass

from cloudtrain.catalog.tpus import tpu_type
from cloudtrain.core.errors import (
    BusyError,
    CloudConfigError,
    CloudError,
    NameTakenError,
    NotFoundError,
    TransientError,
)
from cloudtrain.core.model import Plan
from cloudtrain.providers.base.driver import LaunchRequest, Vm
from cloudtrain.providers.base.teardown import roll_back
from cloudtrain.providers.gcp import tpu_hosts
from cloudtrain.providers.gcp.client import GcpClient, Json
from cloudtrain.providers.gcp.requests import ClusterNetwork
from cloudtrain.providers.gcp.tpus import OPERATION, Tpus

BUSY = frozenset({"DELETING", "STOPPING", "HIDING"})
"""States of a TPU that is on its way out and accepts no requests."""


def runtime_of(plan: Plan) -> str:
    """The TPU software version: `image:`, or by default that of the TPU's generation, which has no
    TensorFlow.

    https://docs.cloud.google.com/tpu/docs/runtimes, read 2026-11-22
    """
    if plan.config.image != "auto":
        return plan.config.image
    kind = tpu_type(plan.config.provider, plan.nodes[0].machine)
    if kind is None:
        raise CloudConfigError(f"{plan.nodes[0].machine} is no known TPU type")
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
            raise CloudConfigError(
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
        except NameTakenError as taken:
            return self._adopt(taken)
        except NotFoundError as error:  # the zone, the TPU type or the software version
            raise CloudConfigError(error.message, code=error.code, scope="zone") from error
        except CloudError as error:
            raise roll_back(error, self._undo) from error.__cause__
        found = self.tpus.find(self._zone, self._name)
        if found is None:
            raise TransientError(f"TPU {self._name}: created, and gone again at once")
        return found

    def _adopt(self, taken: NameTakenError) -> Json:
        """Adopt the existing TPU of that name. Raises BusyError while it is being deleted, or has
        to be because Google took it back, and NameTakenError if it is not ours.
        """
        found = self.tpus.find(self._zone, self._name)
        if found is None:
            raise BusyError(taken.message, hint=taken.hint, code=taken.code) from taken
        if not self._is_wanted(found):
            raise taken
        if found.get("state") in tpu_hosts.LOST:
            self.tpus.delete(self._zone, self._name)
        if found.get("state") in BUSY | tpu_hosts.LOST:
            raise BusyError(f"TPU {self._name}: its predecessor is still being deleted")
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
        raise NotFoundError(f"TPU {name} in {zone} does not exist", hint=hint)
    if found.get("state") != "STOPPED":
        return
    try:
        tpus.start(zone, name)
    except CloudConfigError as error:
        if error.code != "FAILED_PRECONDITION" or tpus.find(zone, name) == found:
            raise  # else another host's call has started it meanwhile
