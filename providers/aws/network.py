"""Network resources of a cluster: subnet, security group, placement group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cloudtrain.core import errors
from cloudtrain.core.events import ResourceRequested
from cloudtrain.core.model import Network, Plan
from cloudtrain.core.protocols import Journal
from cloudtrain.providers.aws import faults, requests, xml
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.aws.types import UNKNOWN_ROOM, Subnet
from cloudtrain.providers.aws.xml import Tree
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.driver import Location

_BLOCKED = (
    "choose another zone or network.subnet; for VPC Block Public Access an exclusion of that subnet"
    " (https://docs.aws.amazon.com/vpc/latest/userguide/security-vpc-bpa.html), or private nodes"
)


def subnet(ec2: Ec2Client, place: Location, wanted: Network, *, nodes: int = 1) -> Subnet:
    """The config's subnet, or else a public subnet of the config's VPC or the default VPC (any
    subnet for private nodes), if possible with room for so many nodes. One without is returned if
    there is no other: the nodes may be in it already. Raises CloudConfigError."""
    if wanted.subnet:
        return _given_subnet(ec2, place, wanted.subnet, private=wanted.private)
    vpc = wanted.vpc or default_vpc(ec2, place.region)
    asked = requests.filters(vpc_id=vpc, availability_zone=place.zone)
    listed = map(_subnet, ec2.known(place.region, "DescribeSubnets", "subnetSet", asked))
    there = [each for each in listed if each.vpc == vpc and each.zone == place.zone]
    if not wanted.private:
        routes = Routes(ec2, place.region, vpc)
        leading = [each for each in there if routes.to_gateway(each.id)]
        # If the endpoint does not report routes: the subnets that give public addresses.
        there = leading or [each for each in there if each.gives_addresses]
    usable = [each for each in there if not each.unusable(private=wanted.private)]
    if there and not usable:
        words = (f"{each.id} {each.unusable(private=wanted.private)}" for each in there)
        raise errors.CloudConfigError(
            f"no subnet of {vpc} in {place} can be used: {', '.join(words)}",
            hint=_BLOCKED,
            scope="zone",
        )
    if not there:
        raise errors.CloudConfigError(
            f"the {'' if wanted.vpc else 'default '}VPC {vpc} has no "
            f"{'' if wanted.private else 'public '}subnet in {place}",
            hint="choose other zones, set network.private, or have one created"
            if wanted.vpc
            else f"set network.subnet, or run `aws ec2 create-default-subnet` for {place.zone}",
            scope="zone",
        )
    return max(usable, key=lambda each: (each.room >= nodes, each.is_default, each.room))


def _given_subnet(ec2: Ec2Client, place: Location, id: str, *, private: bool) -> Subnet:
    found = named_subnet(ec2, place.region, id)
    if found is None or found.zone != place.zone:
        raise errors.CloudConfigError(f"network.subnet {id} is not in {place}")
    if why := found.unusable(private=private):
        raise errors.CloudConfigError(f"network.subnet {id} {why}", hint=_BLOCKED, scope="region")
    if not private and Routes(ec2, place.region, found.vpc).lack_gateway(found.id):
        raise errors.CloudConfigError(
            f"network.subnet {id} has no route to an internet gateway: its nodes cannot be reached",
            hint="choose a subnet with a route to an internet gateway, or set network.private:"
            " true if you reach it by a VPN",
            scope="region",
        )
    return found


def named_subnet(ec2: Ec2Client, region: str, name: str) -> Subnet | None:
    """The subnet with this ID; None if it is not in that region."""
    asked = requests.filters(subnet_id=name)
    found = ec2.known(region, "DescribeSubnets", "subnetSet", asked)
    return next((_subnet(each) for each in found if _subnet(each).id == name), None)


def default_vpc(ec2: Ec2Client, region: str) -> str:
    asked = requests.filters(is_default="true")
    for vpc in ec2.known(region, "DescribeVpcs", "vpcSet", asked):
        if xml.text(vpc, "isDefault") == "true":
            return xml.text(vpc, "vpcId")
    raise errors.CloudConfigError(
        f"{region} has no default VPC",
        hint=f"run `aws ec2 create-default-vpc --region {region}`, or set network.subnet",
        scope="region",
    )


class Routes:
    """Route tables of one VPC."""

    def __init__(self, ec2: Ec2Client, region: str, vpc: str) -> None:
        self._main: list[Tree] = []
        self._own: dict[str, list[Tree]] = {}
        tables = ec2.known(
            region, "DescribeRouteTables", "routeTableSet", requests.filters(vpc_id=vpc)
        )
        self._told = False
        for table in tables:
            routes = [
                route
                for route in xml.items(table, "routeSet")
                if xml.text(route, "state") in ("", "active")
            ]
            for link in xml.items(table, "associationSet"):
                if xml.text(link, "subnetId"):
                    self._own[xml.text(link, "subnetId")] = routes
                elif xml.text(link, "main") == "true" and xml.text(table, "vpcId") == vpc:
                    self._main, self._told = routes, True

    def to_gateway(self, subnet: str) -> bool:
        """True if a node with a public address in this subnet can be reached from the internet."""
        routes = self._own.get(subnet, self._main)
        return any(xml.text(route, "gatewayId").startswith("igw-") for route in routes)

    def out(self, subnet: str) -> bool:
        """True if a node in this subnet can reach the internet by any route."""
        routes = self._own.get(subnet, self._main)
        return not self._told or any(
            xml.text(route, "destinationCidrBlock") == "0.0.0.0/0" for route in routes
        )

    def lack_gateway(self, subnet: str) -> bool:
        """True if the endpoint lists routes, but none to an internet gateway."""
        return self._told and not self.to_gateway(subnet)


def _subnet(found: Tree) -> Subnet:
    return Subnet(
        id=xml.text(found, "subnetId"),
        vpc=xml.text(found, "vpcId"),
        zone=xml.text(found, "availabilityZone"),
        room=int(xml.text(found, "availableIpAddressCount") or UNKNOWN_ROOM),
        state=xml.text(found, "state") or "available",
        ipv6_only=xml.text(found, "ipv6Native") == "true",
        blocked=xml.text(
            xml.part(found, "blockPublicAccessStates") or found, "internetGatewayBlockMode"
        ),
        is_default=xml.text(found, "defaultForAz") == "true",
        gives_addresses=xml.text(found, "mapPublicIpOnLaunch") == "true",
    )


class SecurityGroup:
    """Security group of a cluster in a VPC: allows all traffic between its members and SSH from the
    caller, if there is one, nothing else."""

    def __init__(self, ec2: Ec2Client, region: str, vpc: str, plan: Plan) -> None:
        self._ec2 = ec2
        self._region = region
        self._vpc = vpc
        self._plan = plan
        self._name = labels.group_name(plan.config.name)

    def make(self, caller: str, journal: Journal, *, efa: bool = False) -> str:
        """Create the group, or adopt and repair an existing one. Returns its ID. Raises
        NameTakenError if the existing group is not ours.

        With `efa`, traffic to its members gets a rule of its own: EFA heeds no rule for addresses.
        https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html (documented)"""
        id = self.find() or self._create(journal)
        mended = self._ec2.timing.until(
            lambda: self._repaired(id, caller, efa), within=self._ec2.timing.listing
        )
        if not mended:
            raise errors.NotFoundError(
                f"security group {self._name} ({id}) was created but is not listed"
            )
        return id

    def find(self) -> str | None:
        """The ID of the cluster's group; None if there is none. Raises NameTakenError."""
        asked = requests.filters(group_name=self._name, vpc_id=self._vpc)
        found = self._ec2.pages(self._region, "DescribeSecurityGroups", "securityGroupInfo", asked)
        for group in found:
            named = xml.text(group, "groupName"), xml.text(group, "vpcId")
            if named == (self._name, self._vpc):
                what = f"security group {self._name} in {self._vpc}"
                labels.refuse_foreign(what, labels.read(xml.tags(group)), self._plan, "region")
                return xml.text(group, "groupId")
        return None

    def _create(self, journal: Journal) -> str:
        journal(ResourceRequested(what="security group", name=self._name))
        try:
            asked = requests.security_group(self._plan, self._vpc)
            answer = self._ec2.ask(self._region, "CreateSecurityGroup", asked)
        except errors.NameTakenError:
            # An earlier call whose answer was lost, or a call from another machine of this user.
            found = self._ec2.timing.until(self.find, within=self._ec2.timing.listing)
            if found is None:
                raise
            return found
        return xml.text(answer, "groupId")

    def _repaired(self, id: str, caller: str, efa: bool) -> bool | None:
        """Remove SSH rules for other addresses and add missing rules. Returns None while a new
        group is not yet known everywhere in EC2."""
        asked = requests.filters(group_id=id)
        found = self._ec2.pages(self._region, "DescribeSecurityGroups", "securityGroupInfo", asked)
        group = next((each for each in found if xml.text(each, "groupId") == id), None)
        if group is None:
            return None
        rules = xml.items(group, "ipPermissions")
        inside = _names(rules, id)
        sources = {cidr for rule in rules if requests.is_ssh(rule) for cidr in _sources(rule)}
        wanted = [] if inside else [requests.from_itself(id)]
        wanted += [] if not caller or caller in sources else [requests.ssh_from(caller)]
        others = [requests.ssh_from(cidr) for cidr in sorted(sources - {caller})]
        changes = [("AuthorizeSecurityGroupIngress", rule) for rule in wanted]
        changes += [("RevokeSecurityGroupIngress", rule) for rule in others]
        if efa and not _names(xml.items(group, "ipPermissionsEgress"), id):
            changes.append(("AuthorizeSecurityGroupEgress", requests.from_itself(id)))
        return all(self._changed(call, id, rule) for call, rule in changes) or None

    def _changed(self, call: str, id: str, rule: Mapping[str, object]) -> bool:
        """Change one rule a call: EC2 refuses all if one rule already exists or is already gone."""
        try:
            self._ec2.ask(self._region, call, {"GroupId": id, "IpPermissions": [rule]})
        except (errors.NameTakenError, errors.NotFoundError) as error:
            return error.code.startswith("InvalidPermission.")
        return True


def _names(rules: list[Tree], group: str) -> bool:
    """True if a rule allows all traffic from, or to, the members of this group."""
    return any(_is_all(rule) and group in _members(rule) for rule in rules)


def _sources(rule: Tree) -> list[str]:
    v4 = [xml.text(each, "cidrIp") for each in xml.items(rule, "ipRanges")]
    return v4 + [xml.text(each, "cidrIpv6") for each in xml.items(rule, "ipv6Ranges")]


def placement_group_name(cluster: str, zone: str) -> str:
    return f"{labels.group_name(cluster)}-{zone}"


def placement_group(ec2: Ec2Client, place: Location, plan: Plan, journal: Journal) -> str:
    """Create or adopt the group that places the nodes close together. Returns its name; "" if the
    endpoint has no placement groups."""
    cluster = plan.config.name
    name = placement_group_name(cluster, place.zone)
    there = placement_groups(ec2, place.region)
    if there is None:
        return ""
    found = next((each for each in there if xml.text(each, "groupName") == name), None)
    if found is None:
        journal(ResourceRequested(what="placement group", name=name))
        try:
            ec2.ask(place.region, "CreatePlacementGroup", requests.placement_group(name, plan))
        except errors.NameTakenError:
            pass  # an earlier call whose answer was lost
        except errors.CloudError as error:
            if error.code not in faults.UNKNOWN_ACTION:
                raise
            return ""
    elif xml.tags(found).get(labels.CLUSTER, cluster) != cluster:
        raise errors.NameTakenError(
            f"placement group {name} in {place.region} belongs to another cluster"
        )
    return name


def placement_groups(ec2: Ec2Client, region: str) -> list[Tree] | None:
    """List the placement groups that can be used or deleted; None if the endpoint has none."""
    if _UNKNOWN in ec2.unknown:
        return None
    pages = 0

    def ask() -> Tree:
        nonlocal pages
        try:
            return ec2.once(region, _UNKNOWN)
        except errors.TransientError as error:
            # Some emulators answer an unknown action with a page of their web server: accepted as
            # "not implemented" after three of those without an EC2 error code.
            pages += error.code == "HTTP 500"
            if pages == 3:
                raise errors.CloudConfigError(error.message, code="NotImplemented") from error
            raise

    try:
        answer = ec2.timing.call(ask)
    except errors.CloudError as error:
        if error.code not in faults.UNKNOWN_ACTION:
            raise
        ec2.unknown.add(_UNKNOWN)
        return None
    return [
        each
        for each in xml.items(answer, "placementGroupSet")
        if xml.text(each, "state") in ("", "available", "pending")
    ]


_UNKNOWN = "DescribePlacementGroups"


# ── Existing security groups of the user's, which are used as they are ────────────────────────


def existing_groups(ec2: Ec2Client, region: str, vpc: str, wanted: Sequence[str]) -> list[Tree]:
    """The groups. Raises CloudConfigError if one is not in that VPC."""
    asked = requests.filters(group_id=wanted)
    there = ec2.pages(region, "DescribeSecurityGroups", "securityGroupInfo", asked)
    found = {xml.text(each, "groupId"): each for each in there}
    for id in wanted:
        its_vpc = xml.text(found[id], "vpcId") if id in found else ""
        if its_vpc != vpc:
            where = f"in {its_vpc}" if its_vpc else f"not in {region}"
            raise errors.CloudConfigError(
                f"network.firewall {id} is {where}, but the subnet is in {vpc}",
                hint="name a security group of that VPC",
                scope="region",
            )
    return [found[id] for id in wanted]


def describe_groups(groups: Sequence[Tree], names: Sequence[str]) -> str:
    """Text on who may use SSH by these groups. Raises CloudConfigError if nodes could not reach
    each other, or nobody could reach them. Rules with prefix lists are passed over: what they
    contain takes further calls."""
    rules = [rule for group in groups for rule in xml.items(group, "ipPermissions")]
    listed = any(xml.items(rule, "prefixListIds") for rule in rules)
    words = ", ".join(names)
    members = {group for rule in rules for group in _members(rule)}
    inside = members & set(names) or any(_sources(rule) for rule in rules if _is_all(rule))
    if not inside and not listed:
        raise errors.CloudConfigError(
            f"no rule of {words} lets its members reach each other",
            hint=f"have a rule added that allows all traffic from {names[0]} itself",
        )
    open_to = sorted(
        {s for rule in rules if _has_ssh(rule) for s in (*_sources(rule), *_members(rule))}
    )
    if not open_to and not listed:
        raise errors.CloudConfigError(
            f"no rule of {words} allows SSH (TCP port 22)",
            hint="have a rule added that allows port 22 from the addresses that you connect from",
        )
    return f"{words}, used as it is: SSH from {', '.join(open_to) or 'a prefix list'}"


def _is_all(rule: Tree) -> bool:
    return rule.get("ipProtocol") == requests.ALL


def _has_ssh(rule: Tree) -> bool:
    if _is_all(rule):
        return True
    low, high = xml.text(rule, "fromPort"), xml.text(rule, "toPort")
    ports = low.isdecimal() and high.isdecimal() and int(low) <= 22 <= int(high)
    return rule.get("ipProtocol") in ("tcp", "6") and ports


def _members(rule: Tree) -> list[str]:
    return [xml.text(each, "groupId") for each in xml.items(rule, "groups")]
