"""Brings the datasets of a config to the nodes of a run: each node downloads what it lacks. A node
gets presigned requests alone, one for each file that it asks for (node/downloader.py). What nodes
cannot reach is read here and sent over SSH."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from cloudtrain.artifacts.inventory import Stop
from cloudtrain.cluster.session import Session
from cloudtrain.core.cloud import facts_of, is_cloud
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import NodeUnreachable
from cloudtrain.core.model import DataSource, Node
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.protocols import Stage
from cloudtrain.core.retry import AWAY
from cloudtrain.core.run_record import Run
from cloudtrain.core.store_kinds import is_on_this_machine
from cloudtrain.datasets.dataset import DataFile, Dataset, parts
from cloudtrain.datasets.exchange import Exchange, NoRoute
from cloudtrain.datasets.listing import DataSigner, list_dataset, open_source
from cloudtrain.state.files import write_whole

SCRATCH = ("/opt/cloudtrain/nvme/cloudtrain", "/opt/dlami/nvme/cloudtrain", "/mnt/cloudtrain")
"""Folders on local disks that playbooks/base or images of clouds mount, faster than the disk
of the node's home.

Instance store volumes on AWS's deep learning images, the temporary disk on Azure: both are empty
after a stop. https://docs.aws.amazon.com/dlami/latest/devguide/ami-support-policy.html,
https://learn.microsoft.com/azure/virtual-machines/managed-disks-overview#temporary-disk"""


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """Files of one dataset for a node, and for all that share its cache."""

    node: Node
    dataset: Dataset
    """With the files of this node alone."""

    @property
    def place(self) -> tuple[str, str, str]:
        """Place of the files: deliveries with the same place are one."""
        return self.node.storage, self.node.cache, self.dataset.digest


def deliver_data(session: Session, run: Run) -> Mapping[str, Mapping[str, str]]:
    """Bring each node its datasets, if it lacks them; returns their folders by node name and
    dataset name. All attempts of a run use the listing of the first. Raises DataError, also for an
    object that has changed since it was listed, NodeError, NodesError."""
    if not session.config.data:
        return {}
    config, due, signers = session.config, list[Delivery](), dict[str, DataSigner]()
    for name in config.data:
        store, path = open_source(config, name), session.records.listing_path(run.id, name)
        dataset = load_listing(path, name, config.data[name])
        if dataset is None:  # before the run's first attempt
            dataset = list_dataset(config, name, store)
            save_listing(path, dataset)
        due += deliveries(session, dataset)
        signers[name] = DataSigner(dataset, store)
    first = {each.place: each for each in reversed(due)}
    stop = Stop()
    todo = list(first.values())
    with session.console.stage("data", len(first)) as stage:
        found = fan_out(
            todo,
            lambda each: delivered(session, each, signers[each.dataset.name], stage, stop),
            name=lambda each: each.node.name,
            on_interrupt=stop.set,
        )
    folder = {each.place: path for each, path in zip(todo, found, strict=True)}
    by_node: dict[str, dict[str, str]] = {}
    for each in due:
        by_node.setdefault(each.node.name, {})[each.dataset.name] = folder[each.place]
    return by_node


def deliveries(session: Session, dataset: Dataset) -> Iterator[Delivery]:
    """Files for each node of the plan that gets some."""
    nodes = {node.name: node for node in session.nodes}
    planned = session.plan.nodes
    for node, own in zip(planned, parts(dataset, [node.role for node in planned]), strict=True):
        if own and node.name in nodes:
            mine = dataset if own == dataset.files else replace(dataset, files=own)
            yield Delivery(node=nodes[node.name], dataset=mine)


def delivered(
    session: Session, delivery: Delivery, signer: DataSigner, stage: Stage, stop: Stop
) -> str:
    """Have the node download what it lacks; returns the dataset's absolute folder there."""
    node, name = delivery.node, delivery.dataset.name
    scratch = SCRATCH if is_cloud(session.config.provider) else ()

    def once(relay: bool) -> str:
        exchange = Exchange(
            node=node,
            dataset=delivery.dataset,
            signer=signer,
            roots=(*scratch, node.cache),
            copies=not relay
            and is_on_this_machine(session.config.data[name].source)
            and facts_of(session.config.provider).on_this_machine,
            relay=relay,
            progress=lambda text: stage.node(f"{node.name} {name}", text),
            stop=stop,
        )
        return exchange.download(session.transport)

    def download(relay: bool = False) -> str:
        return AWAY.call(lambda: once(relay), on=NodeUnreachable, clock=session.clock)

    try:
        folder = download()
    except NoRoute as error:
        session.console.warn(f"{node.name}: {error}: data.{name} goes through this machine")
        folder = download(relay=True)
    stage.done(f"{node.name} {name}", f"in {folder}")
    return folder


# ── the listing of a run ───────────────────────────────────────────────────────
# It is kept, so that all attempts and nodes use the same objects.


def save_listing(path: Path, dataset: Dataset) -> None:
    """Write the listing, whole after a crash."""
    facts = {
        "source": dataset.source.source,
        "base": dataset.base,
        "single": dataset.single,
        "files": [
            [file.path, file.size, file.version, file.md5, file.crc32c] for file in dataset.files
        ],
    }
    write_whole(path, gzip.compress(json.dumps(facts).encode("ascii"), 6))


def load_listing(path: Path, name: str, source: DataSource) -> Dataset | None:
    """Read it; None if there is none of this source, or it is damaged."""
    try:
        facts = json.loads(gzip.decompress(path.read_bytes()))
        if facts["source"] != source.source:
            return None
        files = tuple(
            DataFile(path=path, size=size, version=version, md5=md5, crc32c=crc32c)
            for path, size, version, md5, crc32c in facts["files"]
        )
        return Dataset(
            name=name, source=source, files=files, base=facts["base"], single=facts["single"]
        )
    except (OSError, EOFError, ValueError, LookupError, TypeError):
        return None
