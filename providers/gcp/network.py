"""Creates one cluster's network, firewall and placement policy, or adopts them if they belong to
the same owner.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from cloudtrain.errors import BusyError, CloudConfigError, NameTakenError, NotFoundError
from cloudtrain.events import ResourceRequested
from cloudtrain.model import Plan
from cloudtrain.parallel import fan_out
from cloudtrain.protocols import Journal
from cloudtrain.providers.base import image_pins, labels
from cloudtrain.providers.base.driver import Location
from cloudtrain.providers.gcp import requests
from cloudtrain.providers.gcp.client import GcpClient, Json
from cloudtrain.providers.gcp.images import GcpImage, Images
from cloudtrain.providers.gcp.listing import last
from cloudtrain.providers.gcp.machine_shapes import COMPACT, FAST, Shape, shape
from cloudtrain.providers.gcp.requests import ClusterNetwork


@dataclass(frozen=True, kw_only=True)
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
        subnet = self.plan.config.network.subnet
        if subnet is not None:
            network, subnetwork = self._existing(subnet)
        else:
            network, subnetwork = self._network(), ""
        works: list[Callable[[], str]] = [
            lambda: subnetwork or self._subnetwork(network),
            lambda: self._rule(requests.ssh_rule(self.cluster, network, self.caller)),
            lambda: self._rule(requests.inside_rule(self.cluster, network)),
            self._policy,
        ]
        made = fan_out(works, lambda work: work(), name=lambda work: self.cluster)
        return ClusterNetwork(
            network=network,
            subnetwork=made[0],
            tag=labels.group_name(self.cluster),
            policy=made[3] or None,
            images=images,
        )

    def _images(self) -> dict[str, GcpImage]:
        """Return the image of each node: with `image: auto`, nodes with GPUs may have a different
        image from those without.
        """
        images, wanted = Images(self.api), self.plan.config.image
        found: dict[str, GcpImage] = {}
        for node in self.plan.nodes:
            kind = shape(node)
            key = f"{wanted}/{kind.gpus.kind if kind.gpus else ''}".rstrip("/")
            if key not in found:
                found[key] = self._image(images, key, kind)
            found[node.name] = found[key]
        return {node.name: found[node.name] for node in self.plan.nodes}

    def _image(self, images: Images, key: str, kind: Shape) -> GcpImage:
        image = image_pins.pinned_image(
            self.plan,
            key,
            self.journal,
            choose=lambda: images.of(self.plan.config.image, kind),
            exact=images.exactly,
            id_of=lambda image: image.exact,
        )
        return replace(image, source=image.exact or image.source)

    def _existing(self, subnet: str) -> tuple[str, str]:
        """Return the network and subnetwork of the config. Raises CloudConfigError if our firewall
        rules cannot protect them.
        """
        path = subnet_path(subnet, self.api.project, self.place.region)
        try:
            found = self.api.get(f"network.subnet {subnet}", path)
        except NotFoundError as error:
            raise CloudConfigError(error.message, code=error.code) from error
        network = _path(str(found.get("network", "")))
        if not network.startswith(f"projects/{self.api.project}/"):
            raise CloudConfigError(
                f"network.subnet {subnet} belongs to another project ({network})",
                hint="firewall rules are created in this project: use a subnetwork of its networks",
            )
        return network, path

    def _network(self) -> str:
        return self._make("network", "global/networks", requests.network(self.cluster))[0]

    def _subnetwork(self, network: str) -> str:
        body = requests.subnetwork(self.cluster, self.place.region, network)
        return self._make("subnetwork", f"regions/{self.place.region}/subnetworks", body)[0]

    def _rule(self, body: Json) -> str:
        """Create a firewall rule, or update it if the caller's address has changed."""
        path, there = self._make("firewall", "global/firewalls", body)
        wanted = {k: v for k, v in body.items() if k not in ("description", "network")}
        if there is not None and any(there.get(key) != value for key, value in wanted.items()):
            what = f"firewall {body['name']}"
            self.api.persist(lambda: self.api.run(what, "PATCH", path, body=wanted))
        return path

    def _policy(self) -> str:
        """Create a compact placement policy if at least two nodes are of families that
        support it.
        """
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
        body = {**body, "description": requests.description(self.cluster, self.plan.owner)}
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
        if parsed is None or parsed.cluster != self.cluster:
            raise NameTakenError(
                f"{what} exists, and cloudtrain did not create it",
                hint="choose another `name`, or delete it",
            )
        labels.refuse_other_owner(what, parsed.owner, self.plan.owner)
        if network is not None and last(there.get("network")) != last(network):
            raise NameTakenError(
                f"{what} is in network {last(there.get('network'))}, not {last(network)}",
                hint=f"run `cloudtrain down {self.cluster}` to delete it",
            )


def subnet_path(subnet: str, project: str, region: str) -> str:
    """Return the subnetwork's path for a name, `regions/R/subnetworks/NAME`, `projects/…` or a URL.

    Raises CloudConfigError for a subnetwork of another region.
    """
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
    """Return the part of a URL from `projects/` on."""
    found = re.search(r"projects/.*", url)
    return found[0] if found else url.strip("/")
