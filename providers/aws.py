"""`provider: aws`: EC2 instances in one zone, over apache-libcloud."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

from cloudtrain.errors import BusyError, CloudConfigError, CloudError, StepFailed
from cloudtrain.fan_out import fan_out
from cloudtrain.listing import Listing
from cloudtrain.model import ClusterConfig, Plan
from cloudtrain.protocols import Finding, Journal, MachineFacts, Principal
from cloudtrain.providers._aws import (
    bodies,
    checks,
    clearing,
    holdings,
    identity,
    images,
    launching,
    machines,
    network,
    types,
)
from cloudtrain.providers._aws.answers import Tree
from cloudtrain.providers._aws.connection import Ec2
from cloudtrain.providers._aws.nouns import Ground, Image
from cloudtrain.providers._aws.regions import Regions
from cloudtrain.providers._aws.schedules import Schedules
from cloudtrain.providers._cloud import boot, labels, pins
from cloudtrain.providers._cloud.account import (
    Machine,
    Order,
    Place,
    Resource,
    Tell,
    not_rehearsed,
)
from cloudtrain.providers._cloud.caller import caller_cidr
from cloudtrain.providers._cloud.clear import roll_back
from cloudtrain.providers._cloud.provider import CloudProvider
from cloudtrain.providers._cloud.timing import TIMING, Timing


def provider(config: ClusterConfig) -> CloudProvider[Ground]:
    account = AwsAccount(config)
    return CloudProvider(account, caller=lambda: caller_cidr(config, account.endpoint))


class AwsAccount:
    """Driver for one profile's account, in all regions that it may use."""

    name = "aws"
    ends_by_shutdown = True
    soonest_end = 60.0

    def __init__(self, config: ClusterConfig, timing: Timing = TIMING) -> None:
        self._config = config
        self._timing = timing
        self._ec2 = Ec2(config, timing)
        self.endpoint = self._ec2.endpoint
        """EC2's address where it is not AWS's own."""
        self._regions = Regions(self._ec2, config)
        self._schedules = Schedules(self._ec2)
        self._lock = threading.Lock()
        self._launched: dict[str, float] = {}
        """Instance id → Unix time at which it was asked for."""

    def principal(self) -> Principal | None:
        return identity.principal(self._ec2, self._config)

    def check(self, plan: Plan) -> tuple[Finding, ...]:
        return checks.check(self._ec2, self._regions, self._schedules, plan)

    def rehearse(self, plan: Plan) -> tuple[Finding, ...]:
        return not_rehearsed(self.name)

    def machine_facts(self, plan: Plan, names: Sequence[str]) -> tuple[MachineFacts, ...]:
        regions = dict.fromkeys(place.region for place in self._regions.places(plan))
        return types.facts(self._ec2, regions, names)

    def places(self, plan: Plan) -> tuple[Place, ...]:
        return self._regions.places(plan)

    def machines(
        self,
        cluster: str | None = None,
        place: Place | None = None,
        places: Sequence[str] = (),
    ) -> Listing[Machine]:
        if place is not None:
            return Listing(self._machines(self._ec2, place.region, cluster, place.zone))
        return self._regions.ask([partial(self._machines, cluster=cluster)], places)

    def resources(
        self, cluster: str | None = None, places: Sequence[str] = ()
    ) -> Listing[Resource]:
        asks = [partial(holdings.of_kind, kind=kind) for kind in holdings.KINDS]
        found = self._regions.ask(asks, places)
        return Listing((r for r in found if cluster in (None, r.cluster)), found.not_asked)

    def ground(self, plan: Plan, place: Place, caller: str, journal: Journal) -> Ground:
        found: dict[tuple[str, ...], Image] = {}
        chosen: dict[str, Image] = {}
        for node in plan.nodes:
            names = images.choices(plan.config.image, node)
            if names not in found:
                found[names] = self._image(plan, place.region, names, journal)
            chosen[node.name] = found[names]
        subnet = network.subnet(self._ec2, place, plan.config.network)
        group = network.SecurityGroup(self._ec2, place.region, subnet.vpc, plan)
        return Ground(
            subnet=subnet,
            group=group.make(caller, journal),
            placement_group=(
                network.placement_group(self._ec2, place, plan, journal)
                if types.stand_close(self._ec2, place.region, plan)
                else ""
            ),
            images=chosen,
        )

    def is_close(self, ground: Ground) -> bool:
        return bool(ground.placement_group)

    def _image(self, plan: Plan, region: str, names: tuple[str, ...], journal: Journal) -> Image:
        return pins.pinned(
            plan,
            f"{region}/{'|'.join(names)}",
            journal,
            choose=lambda: images.find(self._ec2, region, names),
            exact=lambda id: images.find(self._ec2, region, (id,)),
            id_of=lambda image: image.id,
        )

    def launch(self, order: Order[Ground]) -> Machine:
        begun = self._timing.clock.now()
        machine = launching.launch(self._ec2, order)
        with self._lock:
            self._launched[machine.id] = begun
        self._arm(order, machine)
        return machine

    def _arm(self, order: Order[Ground], machine: Machine) -> None:
        """Arm AWS's own end of an instance, or delete the instance if that fails."""
        region, name = order.place.region, order.node.name
        try:
            self._schedules.arm(region, name, machine.id, order.expires)
        except CloudError as failure:
            told = roll_back(failure, lambda: self.erase([machine], ()))
            raise told from failure.__cause__

    def start(self, machine: Machine, expires: float | None) -> None:
        """Start a stopped instance. Its own timer, as armed or moved, is on its disk."""
        asked = {"InstanceId": [machine.id]}

        def ask() -> Tree | None:
            try:
                return self._ec2.ask(machine.place.region, "StartInstances", asked)
            except BusyError:  # it is stopping still
                return None

        if self._timing.until(ask, within=self._timing.boot) is None:
            raise BusyError(f"{machine.node.name} ({machine.id}) does not stop")

    def move_ends(
        self, machines: Sequence[Machine], expires: float | None, tell: Tell | None = None
    ) -> bool:
        """Move the timer on the node, then AWS's schedule, then the tag that `up` compares."""
        if tell is None:
            return False
        running = [machine for machine in machines if machine.node.state == "running"]
        for machine in running:
            try:
                tell(machine.node, boot.CAN_MOVE)
            except StepFailed as error:
                raise CloudConfigError(
                    f"the end of {machine.node.name} cannot be moved: an earlier version of "
                    "cloudtrain made it, with a timer that reads no other end",
                    hint="`cloudtrain up --replace` exchanges it, or `cloudtrain down` first",
                ) from error
        fan_out(
            running,
            lambda machine: self._move_end(machine, expires, tell),
            name=lambda machine: machine.node.name,
        )
        return True

    def _move_end(self, machine: Machine, expires: float | None, tell: Tell) -> None:
        region = machine.place.region
        tell(machine.node, boot.move_end(expires))
        if expires is None:
            self._schedules.disarm(region, [machine.node.name])
        else:
            self._schedules.arm(region, machine.node.name, machine.id, expires)
        tag = {"Key": labels.EXPIRES}
        verb = "DeleteTags"
        if expires is not None:
            verb, tag = "CreateTags", {**tag, "Value": str(int(expires))}
        self._ec2.ask(region, verb, {"ResourceId": [machine.id], "Tag": [tag]})

    def console(self, machine: Machine) -> str:
        return launching.serial_log(self._ec2, machine)

    def erase(self, machines: Sequence[Machine], resources: Sequence[Resource]) -> None:
        clearing.erase(self._ec2, machines, resources, launched=self._just_launched)
        for region in sorted({machine.place.region for machine in machines}):
            self._schedules.disarm(
                region, [m.node.name for m in machines if m.place.region == region]
            )

    def _just_launched(self, id: str) -> bool:
        with self._lock:
            return self._timing.clock.now() - self._launched.get(id, 0.0) < self._timing.listing

    def _machines(
        self, ec2: Ec2, region: str, cluster: str | None, zone: str = ""
    ) -> list[Machine]:
        wanted = {f"tag:{labels.CLUSTER}": cluster or "*"}
        if zone:
            wanted["availability-zone"] = zone
        asked = bodies.filters(**wanted)
        found = ec2.pages(region, "DescribeInstances", "reservationSet", asked)
        private = self._config.network.private
        read = [machines.machine(i, region, private=private) for i in machines.instances(found)]
        return [m for m in read if m is not None and cluster in (None, m.cluster)]
