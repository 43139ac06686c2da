"""Creates a cluster's network, firewall and placement policy, or adopts the same owner's."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import BusyError, CloudConfigError, NameTakenError, NotFoundError
from cloudtrain.core.events import ResourceRequested
from cloudtrain.core.model import Plan
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.protocols import Journal
from cloudtrain.providers.base import image_pins, labels
from cloudtrain.providers.base.driver import Location
from cloudtrain.providers.gcp import requests, reservations
from cloudtrain.providers.gcp.client import GcpClient, Json
from cloudtrain.providers.gcp.images import GcpImage, Images
from cloudtrain.providers.gcp.listing import last
from cloudtrain.providers.gcp.machine_types import COMPACT, FAST, shape
from cloudtrain.providers.gcp.requests import ClusterNetwork
from cloudtrain.providers.gcp.teardown import delete


@dataclass(frozen=True)
class NetworkBuilder:
    """Creates the network resources of one cluster in one place."""

    api: GcpClient
    plan: Plan
    place: Location
    caller: str
    journal: Journal
    tpu: bool = False
    """The nodes are the hosts of a TPU: no images, and no placement policy."""

    @property
    def cluster(self) -> str:
        return self.plan.config.name

    def create(self) -> ClusterNetwork:
        images = {} if self.tpu else self._images()
        wanted = self.plan.config.network
        if wanted.subnet or wanted.vpc:
            network, subnetwork = existing(self.api, self.plan, self.place.region)
        else:
            body = requests.network(self.cluster)
            network, subnetwork = self._make("network", "global/networks", body)[0], ""
        works: list[Callable[[], str]] = [
            self._policy,
            lambda: subnetwork or self._subnetwork(network),
        ]
        if wanted.firewall is None:
            works += [
                lambda: self._ssh_rule(network),
                lambda: self._rule(requests.inside_rule(self.cluster, network)),
            ]
        policy, subnetwork, *_ = fan_out(works, lambda work: work(), name=lambda _: self.cluster)
        own = (labels.group_name(self.cluster),)
        return ClusterNetwork(
            network=network,
            subnetwork=subnetwork,
            tags=own if wanted.firewall is None else wanted.firewall,
            policy=policy or None,
            images=images,
            bound=frozenset() if self.tpu else reservations.bound(self.api, self.place, self.plan),
        )

    def _images(self) -> dict[str, GcpImage]:
        """The image of each node: with `image: auto`, those with GPUs may have another one."""
        images, wanted = Images(self.api), self.plan.config.image
        found: dict[str, GcpImage] = {}
        known: dict[str, GcpImage] = {}
        for node in self.plan.nodes:
            kind = shape(node)
            key = f"{wanted}/{kind.gpus.kind if kind.gpus else ''}".rstrip("/")
            if key not in known:
                image = image_pins.pinned_image(
                    self.plan,
                    key,
                    self.journal,
                    choose=partial(images.of, wanted, kind),
                    exact=images.exactly,
                    id_of=lambda image: image.exact,
                )
                known[key] = replace(image, source=image.exact or image.source)
            found[node.name] = known[key]
        return found

    def _subnetwork(self, network: str) -> str:
        body = requests.subnetwork(self.cluster, self.place.region, network)
        return self._make("subnetwork", f"regions/{self.place.region}/subnetworks", body)[0]

    def _ssh_rule(self, network: str) -> str:
        """Let the caller in; without one, delete the rule of an earlier `up`."""
        body = requests.ssh_rule(self.cluster, network, self.caller)
        if self.caller:
            return self._rule(body)
        what = f"firewall {body['name']}"
        path = self.api.path(f"global/firewalls/{body['name']}")
        there = self.api.find(what, path)
        if there is not None:
            self._refuse_foreign(what, there, body)
            delete(self.api, what, path)
        return ""

    def _rule(self, body: Json) -> str:
        """Create a firewall rule, or update it if the caller's address has changed."""
        path, there = self._make("firewall", "global/firewalls", body)
        wanted = {k: v for k, v in body.items() if k not in ("description", "network")}
        if there is not None and any(there.get(key) != value for key, value in wanted.items()):
            what = f"firewall {body['name']}"
            self.api.persist(lambda: self.api.run(what, "PATCH", path, body=wanted))
        return path

    def _policy(self) -> str:
        """Create a compact placement policy if two nodes are of families that support one."""
        close = "off" if self.tpu else self.plan.config.network.close
        families = COMPACT if close == "on" else FAST
        together = [n for n in self.plan.nodes if shape(n).family in families]
        if len(together) < 2 or close == "off":
            return ""
        path = f"regions/{self.place.region}/resourcePolicies"
        return self._make("placement policy", path, requests.policy(self.cluster))[0]

    def _make(self, kind: str, collection: str, body: Json) -> tuple[str, Json | None]:
        """Create a resource if it does not exist. Returns its path and its body if it existed."""
        name = str(body["name"])
        plan, creation = self.plan, labels.of_creation(self.plan)
        facts = requests.description(self.cluster, plan.owner, plan.config.tags, creation)
        body = {**body, "description": facts}
        what, path = f"{kind} {name}", self.api.path(f"{collection}/{name}")
        announced: list[str] = []

        def attempt() -> Json | None:
            there = self.api.find(what, path)
            if there is not None:
                self._refuse_foreign(what, there, body)
                return there
            if not announced:
                self.journal(ResourceRequested(what=kind, name=name))
                announced.append(name)
            try:
                self.api.run(what, "POST", collection, body=body)
            except NameTakenError as taken:  # the answer was lost, or it is not listed yet
                raise BusyError(taken.message, hint=taken.hint, code=taken.code) from taken
            return None

        return path, self.api.persist(attempt)

    def _refuse_foreign(self, what: str, there: Json, body: Json) -> None:
        parsed = requests.read_description(str(there.get("description") or ""))
        network = body.get("network")
        labels.refuse_foreign(what, parsed, self.plan)
        if network is not None and last(there.get("network")) != last(network):
            raise NameTakenError(
                f"{what} is in network {last(there.get('network'))}, not {last(network)}",
                hint=f"run `cloudtrain down {self.cluster}` to delete it",
            )


def existing(api: GcpClient, plan: Plan, region: str) -> tuple[str, str]:
    """The paths of the config's network and subnetwork in a region. Raises CloudConfigError.
    Firewall rules are in the project of their network: those of a Shared VPC are its host project's
    to make: https://cloud.google.com/vpc/docs/shared-vpc (documented)."""
    wanted = plan.config.network
    if wanted.vpc:
        network, path = _of_vpc(api, wanted.vpc, region)
    else:
        subnet = wanted.subnet or ""
        path = subnet_path(subnet, api.project, region)
        try:
            found = api.get(f"network.subnet {subnet}", path)
        except NotFoundError as error:
            raise CloudConfigError(error.message, code=error.code) from error
        network = _path(str(found.get("network", "")))
    if not network.startswith(f"projects/{api.project}/") and wanted.firewall is None:
        raise CloudConfigError(
            f"{network} is of another project (a Shared VPC), in which cloudtrain creates no "
            "firewall rules",
            hint="have rules made there that allow SSH from your addresses and all traffic between "
            "the nodes, and set network.firewall to their target tag, or to `existing` if they "
            "have none",
        )
    return network, path


def _of_vpc(api: GcpClient, vpc: str, region: str) -> tuple[str, str]:
    """The paths of a network and its only subnetwork in a region."""
    network = vpc if "/" in vpc else f"projects/{api.project}/global/networks/{vpc}"
    project = network.split("/")[1]
    where = f"projects/{project}/regions/{region}/subnetworks"
    found = [
        _path(str(each.get("selfLink", "")))
        for page in api.pages(f"subnetworks of {vpc} in {region}", where)
        for each in page.get("items") or ()
        if _path(str(each.get("network", ""))) == network
        and each.get("purpose", "PRIVATE") == "PRIVATE"  # those of load balancers take no VMs
    ]
    if len(found) != 1:
        names = ", ".join(last(each) for each in found) or "none"
        raise CloudConfigError(
            f"network.vpc {vpc} has no single subnetwork in {region}: {names}",
            hint="choose other regions" if not found else "name one by network.subnet instead",
            scope="region",
        )
    return network, found[0]


def subnet_path(subnet: str, project: str, region: str) -> str:
    """The subnetwork's path for a name, `regions/R/subnetworks/NAME`, `projects/…` or a URL. Raises
    CloudConfigError for a subnetwork of another region."""
    path = _path(subnet)
    if "/" not in path:
        return f"projects/{project}/regions/{region}/subnetworks/{path}"
    found = re.fullmatch(r"(projects/[^/]+/)?regions/([^/]+)/subnetworks/[^/]+", path)
    if found is None:
        raise CloudConfigError(
            f"network.subnet {subnet!r} is invalid", hint="use the name of a subnetwork"
        )
    if found[2] != region:
        raise CloudConfigError(
            f"network.subnet {subnet} is in {found[2]}, but `placement` is in {region}",
            hint="use the name alone, for the subnetwork of that name in each region",
        )
    return path if found[1] else f"projects/{project}/{path}"


def _path(url: str) -> str:
    """The part of a URL from `projects/` on."""
    found = re.search(r"projects/.*", url)
    return found[0] if found else url.strip("/")
