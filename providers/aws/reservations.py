"""Capacity Reservations and Capacity Blocks: what they hold, where, and until when.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-reservations.html and
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html, read 2026-11-24; not
tried on a real account."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CapacityError, CloudConfigError, CloudError
from cloudtrain.core.model import Plan, Provisioning
from cloudtrain.providers.aws import xml
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.aws.xml import Tree
from cloudtrain.providers.base.answers import unix_time
from cloudtrain.providers.base.driver import Location, Vm

UNKNOWN = ("InvalidCapacityReservationId.NotFound", "InvalidCapacityReservationId.Malformed")
CLEARED = 30 * 60.0
"""Seconds before the end of a Capacity Block at which EC2 begins to terminate its instances: "With
30 minutes left in your Capacity Block reservation, we begin terminating any instances" (the user
guide)."""
EARLIER = 2 * 60.0
"""Seconds by which our nodes end before that, by their own timers, which let the agents land."""
LEAST = 10 * 60.0
"""Seconds that a node must have before its block's end; less is not worth its start."""


@dataclass(frozen=True, kw_only=True)
class Reservation:
    id: str
    machine: str
    zone: str
    state: str
    """`active` if it can be used."""
    total: int
    available: int
    block: bool
    dedicated: bool
    targeted: bool
    """False: instances that match use it by themselves."""
    starts: float | None
    ends: float | None
    """Unix time; None: until somebody cancels it."""
    placement_group: str = ""
    """Name of the placement group in which it was made."""

    @property
    def nodes_end(self) -> float | None:
        """Unix time at which its nodes must have ended; None if its end does not end them.

        Instances in a Capacity Reservation that expires run on, on demand."""
        return self.ends - CLEARED - EARLIER if self.block and self.ends is not None else None


def of_plan(plan: Plan) -> Counter[Provisioning]:
    """The reservations and blocks that the plan names, with the number of nodes in each."""
    return Counter(n.provisioning for n in plan.nodes if n.provisioning.name)


def has_blocks(plan: Plan) -> bool:
    return any(node.provisioning.market == "capacity-block" for node in plan.nodes)


def find(ec2: Ec2Client, region: str, id: str) -> Reservation | None:
    """The reservation or block, a shared one too; None if it is not in that region."""
    try:
        answer = ec2.ask(region, "DescribeCapacityReservations", {"CapacityReservationId": [id]})
    except CloudError as error:
        if error.code in UNKNOWN:
            return None
        raise
    found = xml.items(answer, "capacityReservationSet")
    return next((_read(each) for each in found if _read(each).id == id), None)


def is_group(name: str) -> bool:
    """True for the ARN of a resource group of reservations, whose members EC2 chooses from."""
    return name.startswith("arn:")


def _named(ec2: Ec2Client, region: str, plan: Plan) -> Iterator[tuple[Provisioning, Reservation]]:
    """Yield those of the plan's reservations that are in the region."""
    for bought in of_plan(plan):
        found = None if is_group(bought.name) else find(ec2, region, bought.name)
        if found is not None:
            yield bought, found


def zones(ec2: Ec2Client, region: str, plan: Plan) -> frozenset[str] | None:
    """The zones of a region in which the plan's reservations are; None if any will do."""
    ids = [bought for bought in of_plan(plan) if not is_group(bought.name)]
    if not ids:
        return None
    found = [reservation.zone for _, reservation in _named(ec2, region, plan)]
    # All nodes of a cluster share one zone.
    return frozenset(found) if len(found) == len(ids) and len(set(found)) == 1 else frozenset()


def nowhere(plan: Plan) -> CloudConfigError:
    """The error for a placement without the plan's reservations."""
    names = ", ".join(map(str, of_plan(plan)))
    return CloudConfigError(
        f"{names}: not in {', '.join(plan.config.placement)}, or not all in one zone",
        hint="`aws ec2 describe-capacity-reservations --region REGION` shows their zones: set "
        "`placement` to it",
    )


def refuse_unusable(ec2: Ec2Client, place: Location, plan: Plan, existing: Collection[str]) -> None:
    """Raise CapacityError for a reservation that cannot be used now, CloudConfigError for one of
    another kind or machine type. How many instances are left, EC2 itself says.

    `existing`: names of the nodes that are there already. Where no other one is wanted, nothing is
    refused: they run on after a reservation has ended."""
    wanted = {node.provisioning for node in plan.nodes if node.name not in existing}
    for bought, found in _named(ec2, place.region, plan):
        if bought not in wanted:
            continue
        _refuse_other(bought, found, plan)
        late = found.nodes_end is not None and (ec2.timing.clock.now() + LEAST > found.nodes_end)
        if found.state != "active" or late:
            raise CapacityError(
                f"{bought} is {found.state}{_period(found)}{': it ends too soon' if late else ''}",
                scope="zone",
                hint="`cloudtrain up --wait 6h` waits for one that is yet to begin",
            )


def _refuse_other(bought: Provisioning, found: Reservation, plan: Plan) -> None:
    if found.block != (bought.market == "capacity-block"):
        kind = "Capacity Block" if found.block else "Capacity Reservation"
        key = "capacity_block" if found.block else "reservation"
        raise CloudConfigError(
            f"{bought.name} is a {kind}", hint=f"write `provisioning: {{{key}: {found.id}}}`"
        )
    machines = {node.machine for node in plan.nodes if node.provisioning == bought}
    if machines != {found.machine}:
        raise CloudConfigError(
            f"{bought} is for {found.machine}, not {', '.join(sorted(map(str, machines)))}",
            hint="set nodes.….machine to its machine type",
        )
    if found.dedicated:
        raise CloudConfigError(
            f"{bought} has dedicated tenancy, and nodes run on shared hardware",
            hint="use a reservation of tenancy `default`",
        )


def placement_group(ec2: Ec2Client, place: Location, plan: Plan) -> str:
    """The placement group in which the plan's reservations were made; "" if in none.

    An instance that targets such a reservation must be launched into that group:
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/cr-cpg.html"""
    if not of_plan(plan):
        return ""
    names = {found.placement_group for _, found in _named(ec2, place.region, plan)}
    return names.pop() if len(names) == 1 else ""


def latest_end(ec2: Ec2Client, regions: Iterable[str], plan: Plan) -> float | None:
    """Unix time at which the first of the plan's blocks ends its nodes; None without blocks."""
    if not has_blocks(plan):
        return None
    ends = [found.nodes_end for region in regions for _, found in _named(ec2, region, plan)]
    return min((end for end in ends if end is not None), default=None)


def refuse_later(ec2: Ec2Client, machines: Sequence[Vm], expires: float | None) -> None:
    """Raise CloudConfigError for a VM in a block that ends before `expires` (Unix time)."""
    blocks = {
        (machine.place.region, machine.node.provisioning.name)
        for machine in machines
        if machine.node.provisioning.market == "capacity-block"
    }
    for region, id in sorted(blocks):
        found = find(ec2, region, id)
        last = found.nodes_end if found is not None else None
        if last is not None and (expires is None or expires > last):
            raise CloudConfigError(
                f"capacity block {id} ends its nodes at {moment(last)}",
                hint="choose an earlier end, or extend the block in AWS first",
            )


def described(found: Reservation) -> str:
    """`cr-…: 2 of 4 p5.48xlarge free in us-east-1a, until 2026-12-01 11:00 UTC`"""
    own = "" if found.targeted else "; open: nodes on demand use it by themselves, too"
    return (
        f"{found.id}: {found.available} of {found.total} {found.machine} free in {found.zone}"
        f"{_period(found)}{own}"
    )


def _period(found: Reservation) -> str:
    words = f", from {moment(found.starts)}" if found.state != "active" and found.starts else ""
    if found.nodes_end is not None:
        return f"{words}, its nodes end at {moment(found.nodes_end)}"
    return f"{words}, until {moment(found.ends)}" if found.ends is not None else words


def moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))


def _read(found: Tree) -> Reservation:
    limited = xml.text(found, "endDateType") != "unlimited"
    return Reservation(
        id=xml.text(found, "capacityReservationId"),
        machine=xml.text(found, "instanceType"),
        zone=xml.text(found, "availabilityZone"),
        state=xml.text(found, "state"),
        total=xml.number(found, "totalInstanceCount"),
        available=xml.number(found, "availableInstanceCount"),
        block=xml.text(found, "reservationType") == "capacity-block",
        dedicated=xml.text(found, "tenancy") == "dedicated",
        targeted=xml.text(found, "instanceMatchCriteria") != "open",
        starts=unix_time(xml.text(found, "startDate")),
        ends=unix_time(xml.text(found, "endDate")) if limited else None,
        placement_group=xml.text(found, "placementGroupArn").rpartition("/")[2],
    )
