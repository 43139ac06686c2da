"""Finds the regions and zones that exist, and those that the config names; queries them all."""

from __future__ import annotations

import difflib
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import TypeVar

from cloudtrain.core import errors
from cloudtrain.core.model import ClusterConfig, Plan
from cloudtrain.core.parallel import ask_all
from cloudtrain.core.partial_list import NotAsked, PartialList
from cloudtrain.providers.aws import network, requests, reservations, xml
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.aws.faults import NOT_HERE
from cloudtrain.providers.base.driver import Location

T = TypeVar("T")
Question = Callable[[Ec2Client, str], Iterable[T]]
"""Query to one region."""


class Regions:
    """Regions that this account may use, listed once."""

    def __init__(self, ec2: Ec2Client, config: ClusterConfig) -> None:
        self._ec2 = ec2
        self._config = config
        self._lock = threading.Lock()
        self._names: tuple[str, ...] = ()
        self._hurried: Ec2Client | None = None

    def names(self) -> tuple[str, ...]:
        """The names of the regions, the placement's first."""
        with self._lock:
            if not self._names:
                found = self._enabled()
                wanted = [name for name in self._wanted() if name in found]
                self._names = (*wanted, *sorted(found - set(wanted)))
            return self._names

    def _enabled(self) -> set[str]:
        """List the enabled regions, as reported by the placement's region.

        That region answers AuthFailure if the account has not opted in to it (aws/aws-cli#6132). In
        that case the partition's home region shows whether the credentials are wrong or the region
        is not enabled. Opt-in regions refuse session tokens of STS's global endpoint with the same
        error:
        https://docs.aws.amazon.com/IAM/latest/UserGuide/id_credentials_temp_region-endpoints.html
        """
        # The placement's first that surely exists
        wanted = [region for region in self._wanted() if region in _real()]
        first = wanted[0] if wanted else self._ec2.session().region_name or "us-east-1"
        home = next(home for prefix, home in _HOMES if first.startswith(prefix))
        try:
            return self._listed_by_one_of(first, home)
        except errors.CredentialsError as refusal:
            if refusal.code != "AuthFailure" or first == home:
                raise
            try:
                found = self._listed_in(self._ec2, home)
            except errors.CloudError:
                raise refusal from None
            if first not in found:
                return found
            raise errors.CredentialsError(
                refusal.message,
                hint=f"{home} accepts these credentials, but opt-in regions refuse session tokens "
                "of the global STS endpoint: set AWS_STS_REGIONAL_ENDPOINTS=regional and log in "
                "again",
                scope="region",
                code=refusal.code,
            ) from refusal

    def _listed_by_one_of(self, first: str, home: str) -> set[str]:
        """List the regions from the first one that answers: one region may be down."""
        for region in dict.fromkeys([first, home]):
            with suppress(errors.TransientError, errors.RateError):
                return self._listed_in(self._brief(), region)
        return self._listed_in(self._ec2, first)

    def _listed_in(self, ec2: Ec2Client, region: str) -> set[str]:
        answer = ec2.ask(region, "DescribeRegions")
        return {
            xml.text(each, "regionName")
            for each in xml.items(answer, "regionInfo")
            if xml.text(each, "optInStatus") != "not-opted-in"
        }

    def ask(self, questions: Sequence[Question[T]], places: Sequence[str] = ()) -> PartialList[T]:
        """Query the regions of `places`, or all regions, in parallel.

        These and the placement's regions are retried fully, the others only a few times.
        `not_asked` of the result names the regions that do not answer, and those that this account
        may not use: an organization's policy may deny whole regions, or it has disabled one, whose
        instances are still billed:
        https://docs.aws.amazon.com/accounts/latest/reference/manage-acct-regions.html
        A region that a policy denies raises its error instead if it is in `places` or the
        placement, or if no region answers."""
        near = self._of(places)
        wanted = {*self._wanted(), *near}
        named = [region for region in self._wanted() if region in _real()]
        regions = near or tuple(dict.fromkeys((*self.names(), *named)))
        asks = [(region, each) for region in regions for each in questions]

        def attempt(asked: tuple[str, Question[T]]) -> list[T] | errors.CloudError:
            region, question = asked
            try:
                return list(question(self._ec2 if region in wanted else self._brief(), region))
            except errors.CloudError as error:
                return error

        found = ask_all(asks, attempt, name=lambda asked: asked[0])
        answered = [answer for answer in found if not isinstance(answer, errors.CloudError)]
        not_asked: dict[str, NotAsked] = {}
        for (region, _), error in zip(asks, found, strict=True):
            if isinstance(error, errors.CloudError):
                if error.code in NOT_HERE and region not in self.names():
                    why = f"not enabled: `aws account enable-region --region-name {region}`"
                    not_asked[region] = NotAsked(place=region, why=why, denied=True)
                    continue
                # Not merely expired credentials
                denied = isinstance(error, errors.PermissionsError) or error.code in NOT_HERE
                silent = isinstance(error, errors.TransientError | errors.RateError)
                if not silent and (not denied or region in wanted or not answered):
                    raise error
                if not denied or region not in not_asked:
                    not_asked[region] = NotAsked(place=region, why=error.message, denied=denied)
        return PartialList((each for answer in answered for each in answer), not_asked.values())

    def _brief(self) -> Ec2Client:
        if self._hurried is None:
            self._hurried = self._ec2.briefly()
        return self._hurried

    def _of(self, places: Sequence[str]) -> tuple[str, ...]:
        """The regions of these zones and regions; invalid names are reported by `places`. What
        botocore knows needs no list of regions first."""
        matches = [_REGION.match(place) for place in places]
        found = dict.fromkeys(match[1] for match in matches if match)
        if not self._names and found.keys() <= _real():
            return tuple(found)
        return tuple(region for region in found if region in self.names())

    def places(self, plan: Plan) -> tuple[Location, ...]:
        """The placement's zones, in its order. A region is replaced by its zones that have the
        machines and the subnet, or by all its zones if EC2 reports none, so that the launch gives
        the reason. Raises CloudConfigError for names that do not exist."""
        found: list[Location] = []
        subnet, somewhere = plan.config.network.subnet, False
        for entry in plan.config.placement:
            region, zone = split(entry)
            if region not in self.names():
                raise self._no_region(region)
            zones = self._zones(region)
            if zone and zone not in zones:
                raise _no_such("zone", zone, list(zones))
            there = network.named_subnet(self._ec2, region, subnet) if subnet else None
            if subnet and there is None:
                continue
            if zone:
                offered = [zone]
            else:
                ordinary = [z for z, kind in zones.items() if kind in ("", "availability-zone")]
                have = self._offering(region, plan)
                offered = [z for z in ordinary if z in have] or ordinary
            reserved = reservations.zones(self._ec2, region, plan)
            offered = [z for z in offered if reserved is None or z in reserved]
            somewhere = somewhere or bool(offered)
            found += [
                Location(region=region, zone=z) for z in offered if there is None or z == there.zone
            ]
        if not somewhere and reservations.of_plan(plan):
            raise reservations.nowhere(plan)
        if not found:
            raise errors.CloudConfigError(
                f"network.subnet {subnet} is in none of {', '.join(plan.config.placement)}",
                hint="add the zone of the subnet to `placement`",
            )
        return tuple(dict.fromkeys(found))

    def _no_region(self, region: str) -> errors.CloudConfigError:
        if region not in _real():
            return _no_such("region", region, self.names())
        return errors.CloudConfigError(
            f"placement: region {region} is not enabled for this account",
            hint=f"run `aws account enable-region --region-name {region}` (it takes minutes), "
            f"or choose another region: {', '.join(sorted(self.names()))}",
            scope="region",
        )

    def _zones(self, region: str) -> Mapping[str, str]:
        """The kind of each zone that this account may use, by zone name."""
        found = self._ec2.known(region, "DescribeAvailabilityZones", "availabilityZoneInfo")
        return {
            xml.text(each, "zoneName"): xml.text(each, "zoneType")
            for each in found
            if xml.text(each, "zoneState") in ("", "available")
            and xml.text(each, "optInStatus") != "not-opted-in"
        }

    def _offering(self, region: str, plan: Plan) -> set[str]:
        """The zones that have every machine type of the plan."""
        machines = sorted({node.machine for node in plan.nodes if node.machine})
        if not machines:
            return set()
        asked = {"LocationType": "availability-zone", **requests.filters(instance_type=machines)}
        key = "instanceTypeOfferingSet"
        offers = self._ec2.known(region, "DescribeInstanceTypeOfferings", key, asked)
        pairs = {(xml.text(o, "location"), xml.text(o, "instanceType")) for o in offers}
        return {zone for zone, _ in pairs if all((zone, machine) in pairs for machine in machines)}

    def _wanted(self) -> tuple[str, ...]:
        """The placement's regions; invalid names are reported by `places`."""
        found = [_REGION.match(entry) for entry in self._config.placement]
        return tuple(dict.fromkeys(each[1] for each in found if each))


_HOMES = (
    ("cn-", "cn-north-1"),
    ("us-gov-", "us-gov-west-1"),
    ("eusc-", "eusc-de-east-1"),
    ("", "us-east-1"),
)
"""Region of each partition that every account has, keyed by the prefix of the region names."""


@cache
def _real() -> set[str]:
    """Every region that botocore knows. Its sessions would read all of EC2 for this, in 0.2 s."""
    from botocore.loaders import create_loader

    return {
        name
        for partition in create_loader().load_data("endpoints")["partitions"]
        for name in partition["services"].get("ec2", {}).get("endpoints", {})
        if name in partition["regions"]
    }


_REGION = re.compile(r"([a-z]+(?:-[a-z]+)+-\d+)(.*)\Z")


def split(entry: str) -> tuple[str, str]:
    """Split `us-east-1a`, or `us-west-2-lax-1a`, into region and zone; a region's zone is ""."""
    found = _REGION.match(entry)
    if found is None:
        raise errors.CloudConfigError(
            f"placement: {entry!r} is not a zone or region of AWS",
            hint="use a zone such as us-east-1a, or a region such as us-east-1 for all its zones",
        )
    return found[1], entry if found[2] else ""


def _no_such(what: str, name: str, known: Sequence[str]) -> errors.CloudConfigError:
    near = difflib.get_close_matches(name, known, n=1)
    return errors.CloudConfigError(
        f"placement: {what} {name} does not exist or is not enabled for this account",
        hint=f"did you mean {near[0]}?" if near else f"use one of {', '.join(sorted(known))}",
    )
