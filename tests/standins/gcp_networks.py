"""Acts out networks, subnetworks, firewalls and placement policies."""

from __future__ import annotations

import ipaddress
import re

from tests.standins import gcp_errors as errors
from tests.standins.gcp_catalog import REGIONS
from tests.standins.gcp_errors import Failure
from tests.standins.gcp_lists import page, pages_of_all
from tests.standins.gcp_quotas import too_many
from tests.standins.gcp_world import (
    Body,
    Call,
    Operation,
    Thing,
    World,
    acts,
    check_name,
    deletion,
    fingerprint,
    insertion,
    name_given,
)

AUTO_RANGES = ipaddress.ip_network("10.128.0.0/9")
"""https://cloud.google.com/vpc/docs/subnets#ip-ranges"""


def users(world: World, path: str) -> list[str]:
    """What else would break without it."""
    link, found = world.link(path), []
    for thing in world.under("subnetworks", "firewalls", "instances"):
        body = thing.body
        named = [body.get("network"), *body.get("resourcePolicies", ())]
        for interface in body.get("networkInterfaces", ()):
            named += [interface.get("network"), interface.get("subnetwork")]
        if link in named:
            found.append(thing.path)
    for thing in world.under("nodes"):  # TPUs name them by path
        if path in (thing.body.get("networkConfig") or {}).values():
            found.append(thing.path)
    return found


def _get(call: Call, parameter: str) -> Body:
    return call.world.find(call.path(call.given[parameter])).body


def _list(call: Call, kind: str) -> Body:
    collection = call.method.partition(".")[0]
    there = [t for t in call.world.under(collection) if t.path.startswith(f"{call.base}/")]
    found = [(t.scope, t.body) for t in there if t.scope == call.scope]
    return page(call, kind, found)


def _list_all(call: Call, kind: str) -> Body:
    collection = call.method.partition(".")[0]
    there = [t for t in call.world.under(collection) if t.path.startswith(f"{call.base}/")]
    found = [(thing.scope, thing.body) for thing in there]
    return pages_of_all(call, kind, found, [f"regions/{region}" for region in REGIONS])


def _refuse_if(failure: Failure | None) -> None:
    if failure:
        raise errors.at_once(failure, 403, "quotaExceeded")


# ── Networks ─────────────────────────────────────────────────────────────────


@acts("networks.get")
def network(call: Call) -> Body:
    return _get(call, "network")


@acts("networks.list")
def networks(call: Call) -> Body:
    return _list(call, "Network")


@acts("networks.insert")
def make_network(call: Call) -> Body:
    def act() -> Operation:
        name = name_given(call)
        if "autoCreateSubnetworks" not in call.body or "IPv4Range" in call.body:
            raise errors.real("legacy-network", field="resource", value="")
        path = call.path(name)
        if path not in call.world.things:
            _refuse_if(too_many(call.world, "networks", "NETWORKS"))
        thing = add_network(call.world, path, call.body)
        return insertion(call, thing)

    return call.once(act)


def add_network(world: World, path: str, body: Body) -> Thing:
    told = {
        "routingConfig": {"routingMode": "REGIONAL"},
        "networkFirewallPolicyEnforcementOrder": "AFTER_CLASSIC_FIREWALL",
        "subnetworks": [],
        **body,
    }
    thing = world.add(path, "network", told)
    told["selfLinkWithId"] = world.link(f"{path.rpartition('/')[0]}/{told['id']}")
    if told["autoCreateSubnetworks"]:
        for region, cidr in zip(REGIONS, AUTO_RANGES.subnets(new_prefix=20), strict=False):
            subnet = f"projects/{world.project}/regions/{region}/subnetworks/{thing.name}"
            add_subnet(world, subnet, {"network": told["selfLink"], "ipCidrRange": str(cidr)})
    return thing


@acts("networks.delete")
def delete_network(call: Call) -> Body:
    def act() -> Operation:
        world = call.world
        thing = world.free(call.path(call.given["network"]))
        own = [
            world.things[path]
            for path in users(world, thing.path)
            if thing.body["autoCreateSubnetworks"] and "/subnetworks/" in path
        ]
        for user in users(world, thing.path):
            if world.things[user] not in own:
                raise errors.real("resource-in-use", kind="network", path=thing.path, user=user)

        def removed() -> None:
            for subnet in own:
                world.remove(subnet)

        return deletion(call, thing, removed)

    return call.once(act)


# ── Subnetworks ──────────────────────────────────────────────────────────────


@acts("subnetworks.get")
def subnet(call: Call) -> Body:
    return _get(call, "subnetwork")


@acts("subnetworks.list")
def subnets(call: Call) -> Body:
    return _list(call, "Subnetwork")


@acts("subnetworks.aggregatedList")
def all_subnets(call: Call) -> Body:
    return _list_all(call, "Subnetwork")


@acts("subnetworks.testIamPermissions")
def permissions_on_subnet(call: Call) -> Body:
    world, asked = call.world, call.body.get("permissions", [])
    granted = world.host_granted if call.given["project"] == world.host_project else None
    return {"permissions": [each for each in asked if granted is None or each in granted]}


@acts("subnetworks.insert")
def make_subnet(call: Call) -> Body:
    def act() -> Operation:
        world, body = call.world, dict(call.body)
        path = call.path(name_given(call))
        if path not in world.things:
            _refuse_if(too_many(world, "subnetworks", "SUBNETWORKS"))
        for needed in ("network", "ipCidrRange"):
            if needed not in body:
                raise errors.real("field-required", field=f"resource.{needed}")
        if body.get("purpose", "PRIVATE") != "PRIVATE":
            raise errors.not_acted_out("subnetworks of other purposes than PRIVATE")
        owner = world.free(world.path_of(body["network"], "resource.network", "networks"))
        body["network"] = owner.body["selfLink"]
        cidr = _range("resource.ipCidrRange", body["ipCidrRange"])
        if cidr.version != 4 or not cidr.is_private or cidr.prefixlen > 29:
            raise errors.real("range-not-private", field="resource.ipCidrRange", value=str(cidr))
        body.pop("region", None)
        for other in world.under("subnetworks"):
            same = other.body["network"] == body["network"] and other.path != path
            if same and cidr.overlaps(ipaddress.ip_network(other.body["ipCidrRange"])):
                raise errors.real(
                    "range-conflicts",
                    cidr=cidr,
                    other=other.name,
                    region=other.scope.partition("/")[2],
                )
        thing = add_subnet(world, path, body)
        return insertion(call, thing)

    return call.once(act)


def add_subnet(world: World, path: str, body: Body) -> Thing:
    cidr = ipaddress.ip_network(body["ipCidrRange"])
    told = {
        "name": path.rpartition("/")[2],
        "privateIpGoogleAccess": False,
        "purpose": "PRIVATE",
        "stackType": "IPV4_ONLY",
        **body,
        "gatewayAddress": str(cidr[1]),
        "fingerprint": fingerprint(),
    }
    thing = world.add(path, "subnetwork", told)
    for network in world.under("networks"):
        if network.body["selfLink"] == told["network"]:
            network.body["subnetworks"].append(told["selfLink"])
    return thing


@acts("subnetworks.delete")
def delete_subnet(call: Call) -> Body:
    def act() -> Operation:
        world = call.world
        thing = world.free(call.path(call.given["subnetwork"]))
        for user in users(world, thing.path):
            raise errors.real("resource-in-use", kind="subnetwork", path=thing.path, user=user)

        def removed() -> None:
            for network in world.under("networks"):
                if thing.body["selfLink"] in network.body["subnetworks"]:
                    network.body["subnetworks"].remove(thing.body["selfLink"])

        return deletion(call, thing, removed)

    return call.once(act)


# ── Firewalls ────────────────────────────────────────────────────────────────


@acts("firewalls.get")
def firewall(call: Call) -> Body:
    return _get(call, "firewall")


@acts("firewalls.list")
def firewalls(call: Call) -> Body:
    return _list(call, "Firewall")


@acts("firewalls.insert")
def make_firewall(call: Call) -> Body:
    def act() -> Operation:
        path = call.path(name_given(call))
        if path in call.world.things:
            raise errors.real("resource-exists", path=path)
        _refuse_if(too_many(call.world, "firewalls", "FIREWALLS"))
        thing = call.world.add(path, "firewall", checked_firewall(call.world, call.body))
        return insertion(call, thing)

    return call.once(act)


def checked_firewall(world: World, body: Body) -> Body:
    """With the defaults of https://cloud.google.com/compute/docs/reference/rest/v1/firewalls."""
    default = f"projects/{world.project}/global/networks/default"
    network = body.get("network", default)
    path = world.path_of(network, "resource.network", "networks")
    if path not in world.things:
        raise errors.real("network-absent", field="resource.network", value=network)
    if bool(body.get("allowed")) == bool(body.get("denied")):
        raise errors.real("allowed-and-denied", field="resource.allowed", value="")
    told = {"direction": "INGRESS", "priority": 1000, "disabled": False, **body}
    told |= {"network": world.link(path), "logConfig": {"enable": False}}
    if not 0 <= told["priority"] <= 65535:
        raise errors.real("priority-invalid", field="resource.priority", value=told["priority"])
    for kind in ("allowed", "denied"):
        for number, rule in enumerate(body.get(kind, ())):
            _check_rule(f"resource.{kind}[{number}]", rule)
    for kind in ("sourceTags", "targetTags"):
        for number, tag in enumerate(body.get(kind, ())):
            check_name(f"resource.{kind}[{number}]", tag)
    for kind in ("sourceRanges", "destinationRanges"):
        for number, text in enumerate(body.get(kind, ())):
            _range(f"resource.{kind}[{number}]", text)
    ingress = told["direction"] == "INGRESS"
    for kind in ("destinationRanges",) if ingress else ("sourceTags", "sourceRanges"):
        if body.get(kind):
            raise errors.real(
                "not-of-direction",
                field=f"resource.{kind}",
                value=body[kind],
                direction=told["direction"],
            )
    if ingress and not (body.get("sourceRanges") or body.get("sourceTags")):
        told["sourceRanges"] = ["0.0.0.0/0"]
    if not ingress and not body.get("destinationRanges"):
        told["destinationRanges"] = ["0.0.0.0/0"]
    return told


def _check_rule(at: str, rule: Body) -> None:
    protocol = rule.get("IPProtocol")
    if not protocol:
        raise errors.real("field-required", field=f"{at}.IPProtocol")
    known = ("tcp", "udp", "icmp", "esp", "ah", "sctp", "ipip", "all")
    if protocol.lower() not in known and not re.fullmatch(r"\d{1,3}", protocol):
        raise errors.real("unknown-protocol", field=f"{at}.IPProtocol", value=protocol)
    if rule.get("ports") and protocol.lower() not in ("tcp", "udp", "sctp"):
        raise errors.real("ports-of-another-protocol", field=f"{at}.ports", value=rule["ports"])
    for port in rule.get("ports", ()):
        ends = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", port)
        if not ends or not 0 <= int(ends[1]) <= int(ends[2] or ends[1]) <= 65535:
            raise errors.real("port-invalid", field=f"{at}.ports", value=port)


def _range(at: str, text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        if "/" not in text and at.endswith("ipCidrRange"):
            raise ValueError(text)
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise errors.real("range-invalid", field=at, value=text) from error


@acts("firewalls.patch")
def patch_firewall(call: Call) -> Body:
    return _change_firewall(call, keep=True)


@acts("firewalls.update")
def update_firewall(call: Call) -> Body:
    return _change_firewall(call, keep=False)


KEPT = ("kind", "id", "name", "creationTimestamp", "selfLink", "network")


def _change_firewall(call: Call, *, keep: bool) -> Body:
    def act() -> Operation:
        world = call.world
        thing = world.free(call.path(call.given["firewall"]))
        if call.body.get("name", thing.name) != thing.name:
            raise errors.real("field-fixed", field="resource.name", value=call.body["name"])
        names = thing.body if keep else KEPT
        told = checked_firewall(world, {**{name: thing.body[name] for name in names}, **call.body})
        if told["network"] != thing.body["network"]:
            raise errors.real("field-fixed", field="resource.network", value=told["network"])

        def finish() -> Failure | None:
            failure = world.wanted_failure(call.method, thing.name)
            if not failure:
                thing.body = told
            return failure

        kind = call.method.partition(".")[2]
        return world.operate(kind, thing, call.user, finish=finish)

    return call.once(act)


@acts("firewalls.delete")
def delete_firewall(call: Call) -> Body:
    return call.once(lambda: deletion(call, call.world.free(call.path(call.given["firewall"]))))


# ── Placement policies ───────────────────────────────────────────────────────


@acts("resourcePolicies.get")
def policy(call: Call) -> Body:
    return _get(call, "resourcePolicy")


@acts("resourcePolicies.list")
def policies(call: Call) -> Body:
    return _list(call, "ResourcePolicy")


@acts("resourcePolicies.aggregatedList")
def all_policies(call: Call) -> Body:
    return _list_all(call, "ResourcePolicy")


@acts("resourcePolicies.insert")
def make_policy(call: Call) -> Body:
    def act() -> Operation:
        path = call.path(name_given(call))
        if "groupPlacementPolicy" not in call.body:
            raise errors.not_acted_out("other policies than groupPlacementPolicy")
        thing = call.world.add(path, "resourcePolicy", {**call.body, "status": "READY"})
        return insertion(call, thing)

    return call.once(act)


@acts("resourcePolicies.delete")
def delete_policy(call: Call) -> Body:
    def act() -> Operation:
        thing = call.world.free(call.path(call.given["resourcePolicy"]))
        for user in users(call.world, thing.path):
            raise errors.real("resource-in-use", kind="resource policy", path=thing.path, user=user)
        return deletion(call, thing)

    return call.once(act)
