"""`provider: aws`: EC2 instances in one zone, over apache-libcloud."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from cloudtrain.core import errors
from cloudtrain.core.model import ClusterConfig, MachineType, Plan
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.partial_list import NotAsked, PartialList, SpotEvidence
from cloudtrain.core.protocols import Allowance, Finding, Journal, MachineFacts, Principal
from cloudtrain.providers.aws import (
    checks,
    expiry,
    identity,
    images,
    listing,
    machine_types,
    network,
    permissions,
    quota,
    reservations,
    spot,
    ssh_service,
    vms,
)
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.aws.expiry import Schedules, name_of
from cloudtrain.providers.aws.resources import KINDS, delete_all, delete_from_inside, of_kind
from cloudtrain.providers.aws.types import AwsImage, ClusterNetwork
from cloudtrain.providers.aws.xml import Tree
from cloudtrain.providers.aws.zones import Regions, split
from cloudtrain.providers.base import boot, image_pins, labels
from cloudtrain.providers.base.answers import answers_by_shape
from cloudtrain.providers.base.driver import (
    CloudDriver,
    LaunchRequest,
    Location,
    Resource,
    Tell,
    Vm,
)
from cloudtrain.providers.base.provider import CloudProvider
from cloudtrain.providers.base.ssh_access import caller_cidr, with_proxies
from cloudtrain.providers.base.teardown import leftover, roll_back
from cloudtrain.providers.base.timing import TIMING, Timing


def provider(config: ClusterConfig) -> CloudProvider[ClusterNetwork]:
    account = AwsDriver(config)
    account.ask_ahead()
    return CloudProvider(account, caller=lambda: caller_cidr(config, account.endpoint))


@answers_by_shape
class AwsDriver(CloudDriver[ClusterNetwork]):
    """Driver for the account of one profile, in all regions that the account may use."""

    name = "aws"
    ends_by_shutdown = True
    at_once = 128
    """RunInstances is answered in a second or two, and EC2 takes 2 a second from an account: more
    in parallel would only use up their tries (`vms.THROTTLED`)."""
    soonest_end = 60.0

    def __init__(self, config: ClusterConfig, timing: Timing = TIMING) -> None:
        self._config = config
        self._timing = timing
        self._ec2 = Ec2Client(config, timing)
        self.endpoint = self._ec2.endpoint
        """URL of a custom EC2 endpoint."""
        self._regions = Regions(self._ec2, config)
        self._schedules = Schedules(self._ec2)
        self._lock = threading.Lock()
        self._launched: dict[str, float] = {}
        """Instance id → time of its request (Unix)."""

    def ask_ahead(self) -> None:
        """Ask for an MFA code, before anything is drawn and threads begin."""
        self._ec2.identity.ask_ahead()

    def principal(self) -> Principal | None:
        return identity.principal(self._ec2, self._config)

    def check(self, plan: Plan) -> tuple[Finding, ...]:
        return checks.check(self._ec2, self._regions, self._schedules, plan)

    def policy(self, config: ClusterConfig) -> str:
        return permissions.text(permissions.policy_for(config))

    def machine_facts(self, plan: Plan, names: Sequence[str]) -> tuple[MachineFacts, ...]:
        def regions() -> Iterator[str]:  # asks for the placement only if they are wanted
            yield from dict.fromkeys(place.region for place in self._regions.places(plan))

        return machine_types.facts(self._ec2, regions(), names)

    def allowances(
        self, machines: Sequence[MachineType], regions: Sequence[str]
    ) -> PartialList[Allowance]:
        return self._regions.ask([partial(quota.allowances, machines=machines)], regions)

    def places(self, plan: Plan) -> tuple[Location, ...]:
        return self._regions.places(plan)

    def spot_evidence(self, plan: Plan, places: Sequence[Location]) -> tuple[SpotEvidence, ...]:
        return spot.evidence(self._ec2, plan, places)

    def latest_end(self, plan: Plan) -> float | None:
        regions = dict.fromkeys(split(entry)[0] for entry in plan.config.placement)
        return reservations.latest_end(self._ec2, regions, plan)

    def machines(
        self, cluster: str | None = None, place: Location | None = None, places: Sequence[str] = ()
    ) -> PartialList[Vm]:
        if place is not None:
            return self._proxied(self._machines(self._ec2, place.region, cluster, place.zone))
        found = self._regions.ask([partial(self._machines, cluster=cluster)], places)
        return self._proxied(found, found.not_asked)

    def resources(
        self, cluster: str | None = None, places: Sequence[str] = ()
    ) -> PartialList[Resource]:
        asks = [partial(of_kind, kind=kind, cluster=cluster) for kind in KINDS]
        found = self._regions.ask(asks, places)
        ours = PartialList.of_read(found, found.not_asked)
        return PartialList((r for r in ours if cluster in (None, r.cluster)), ours.not_asked)

    def create_network(
        self, plan: Plan, place: Location, caller: str, journal: Journal
    ) -> ClusterNetwork:
        if reservations.of_plan(plan):
            there = self.machines(plan.config.name, place)
            names = {machine.node.name for machine in there if machine.node.state != "gone"}
            reservations.refuse_unusable(self._ec2, place, plan, names)
        chosen = self._images(plan, place.region, journal)
        subnet = network.subnet(self._ec2, place, plan.config.network, nodes=len(plan.nodes))
        close = machine_types.stands_close(self._ec2, place.region, plan)
        cards = machine_types.efa_cards(self._ec2, place.region, plan) if close else ()
        reserved = reservations.placement_group(self._ec2, place, plan)
        grouped = close and not reserved and not reservations.has_blocks(plan)
        groups = plan.config.network.firewall
        if groups is None:
            group = network.SecurityGroup(self._ec2, place.region, subnet.vpc, plan)
            groups = (group.make(caller, journal, efa=bool(cards)),)
        else:
            network.existing_groups(self._ec2, place.region, subnet.vpc, groups)
        return ClusterNetwork(
            subnet=subnet,
            groups=groups,
            placement_group=(
                network.placement_group(self._ec2, place, plan, journal) if grouped else ""
            ),
            reserved_group=reserved,
            images=chosen,
            efa_cards=cards,
        )

    def is_close(self, network: ClusterNetwork) -> bool:
        return bool(network.placement_group)

    def _images(self, plan: Plan, region: str, journal: Journal) -> dict[str, AwsImage]:
        """The image of each node."""
        wanted = {node.name: images.choices(plan.config.image, node) for node in plan.nodes}
        found = {
            names: image_pins.pinned_image(
                plan,
                f"{region}/{'|'.join(names)}",
                journal,
                choose=partial(images.find, self._ec2, region, names),
                exact=lambda id: images.find(self._ec2, region, (id,)),
                id_of=lambda image: image.id,
            )
            for names in dict.fromkeys(wanted.values())
        }
        return {name: found[names] for name, names in wanted.items()}

    def launch(self, order: LaunchRequest[ClusterNetwork]) -> Vm:
        begun = self._timing.clock.now()
        machine = vms.launch(self._ec2, order)
        with self._lock:
            self._launched[machine.id] = begun
        if order.expires is not None:
            try:
                self._schedules.arm(order.place.region, machine.id, order.expires)
            except errors.CloudError as failure:  # nothing at AWS would end it
                error = roll_back(failure, lambda: self._undo(machine))
                raise error from failure.__cause__
        return machine

    def _undo(self, machine: Vm) -> None:
        """Delete an instance that nobody else knows of yet, or name it in the error."""
        try:
            self.delete([machine], ())
        except (errors.CloudError, errors.NodesError) as error:
            raise leftover([machine], (), error, "may still exist and be billed") from error

    def start(self, machine: Vm, expires: float | None) -> None:
        """Start a stopped instance. Its own timer is stored on its disk, so its end is moved first:
        one that has passed would terminate the instance, with its disk, as it boots."""
        if expires is not None:
            expiry.move_stopped(self._ec2, self._schedules, machine, expires)
        asked = {"InstanceId": [machine.id]}

        def ask() -> Tree | None:
            try:
                return self._ec2.ask(machine.place.region, "StartInstances", asked)
            except errors.BusyError:  # still stopping
                return None

        if self._timing.until(ask, within=self._timing.boot) is None:
            raise errors.BusyError(f"{machine.node.name} ({machine.id}) is still stopping")

    def move_ends(
        self, machines: Sequence[Vm], expires: float | None, tell: Tell | None = None
    ) -> bool:
        """Move the end in the node's timer, AWS's schedule, and last the tag that `up` reads."""
        if tell is None:
            return False
        running = [machine for machine in machines if machine.node.state == "running"]
        reservations.refuse_later(self._ec2, running, expires)
        for machine in running:
            try:
                tell(machine.node, boot.CAN_MOVE)
            except errors.StepFailed as error:
                raise errors.CloudConfigError(
                    f"the end of {machine.node.name} cannot be moved: an earlier version of "
                    "cloudtrain created it, with a timer that does not support this",
                    hint="run `cloudtrain up --replace` to replace it, or `cloudtrain down`",
                ) from error
        fan_out(
            running,
            lambda machine: self._move_end(machine, expires, tell),
            name=lambda machine: machine.node.name,
        )
        return True

    def _move_end(self, machine: Vm, expires: float | None, tell: Tell) -> None:
        """Move one end: AWS's new schedule, the node's timer, the tag, and then the old schedule
        goes. On failure, all are put back."""
        region = machine.place.region
        self._schedules.refuse_hidden(region, machine.id)
        made = self._schedules.arm(region, machine.id, expires) if expires is not None else None
        try:
            tell(machine.node, boot.move_end_command(expires))
            expiry.tag_end(self._ec2, machine, expires)
            self._schedules.drop_others(region, machine.node.name, machine.id, made)
        except (errors.CloudError, errors.NodeError):
            self._put_back(machine, made, tell)
            raise

    def _put_back(self, machine: Vm, made: str | None, tell: Tell) -> None:
        """Restore the end that a failed move began to replace, as far as possible."""
        region, old = machine.place.region, machine.node.expires
        with suppress(errors.CloudError):
            if old is not None:
                self._schedules.arm(region, machine.id, old)
            if made is not None and (old is None or made != name_of(machine.id, old)):
                self._schedules.drop(region, [made])
        with suppress(errors.NodeError):
            tell(machine.node, boot.move_end_command(old))
        with suppress(errors.CloudError):
            expiry.tag_end(self._ec2, machine, old)

    def missing_ends(self, machines: Sequence[Vm]) -> dict[str, str]:
        """Asks for AWS's own schedules. Without a role for them the node's timer alone ends it,
        which only the node could be asked about."""
        found: dict[str, str] = {}
        for region in sorted({machine.place.region for machine in machines}):
            asked = [
                (m.node.name, m.id, m.node.expires)
                for m in machines
                if m.place.region == region and m.node.expires is not None
            ]
            found |= self._schedules.missing(region, asked)
        return found

    def repair_ends(self, machines: Sequence[Vm]) -> None:
        def repair(machine: Vm) -> None:
            if machine.node.expires is not None:
                self._schedules.arm(machine.place.region, machine.id, machine.node.expires)

        missing = self.missing_ends(machines)
        lacking = [machine for machine in machines if machine.id in missing]
        fan_out(lacking, repair, name=lambda machine: machine.node.name)

    def serial_log(self, machine: Vm) -> str:
        return vms.serial_log(self._ec2, machine)

    def delete(self, machines: Sequence[Vm], resources: Sequence[Resource]) -> None:
        delete_all(self._ec2, machines, resources, launched=self._just_launched)
        for region in sorted({machine.place.region for machine in machines}):
            ends = [
                name_of(m.id, m.node.expires)
                for m in machines
                if m.place.region == region and m.node.expires is not None
            ]
            self._schedules.drop(region, ends)

    def delete_from_inside(self, machines: Sequence[Vm], resources: Sequence[Resource]) -> None:
        delete_from_inside(self._ec2, machines)

    def _just_launched(self, id: str) -> bool:
        with self._lock:
            return self._timing.clock.now() - self._launched.get(id, 0.0) < self._timing.listing

    def _machines(
        self, ec2: Ec2Client, region: str, cluster: str | None, zone: str = ""
    ) -> list[Vm | NotAsked]:
        wanted = {f"tag:{labels.CLUSTER}": cluster or "*"}
        if zone:
            wanted["availability-zone"] = zone
        private, every = self._config.network.private, listing.find(ec2, region, **wanted)
        read = (listing.listed_vm(i, region, private=private, of=cluster) for i in every)
        return [each for each in read if each is not None]

    def _proxied(
        self, found: Iterable[Vm | NotAsked], not_asked: Sequence[NotAsked] = ()
    ) -> PartialList[Vm]:
        return with_proxies(
            PartialList.of_read(found, not_asked),
            self._config.network,
            project=self._config.project or "",
            service=lambda vm: ssh_service.command(vm.id, vm.place.region, self._config.project),
        )
