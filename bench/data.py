"""A dataset from each store's stand-in onto nodes: ours beside the SDKs' own bulk calls and the
vendors' and others' tools, in one run. Writes bench/data.md.

    python -m venv peers && peers/bin/pip install -r bench/requirements.txt
    python bench/data.py --peers-env peers

The servers run on this machine too, and most of them in Python: what they take is in every row.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.latency import delayed  # noqa: E402
from bench.stores import THREADS, place, rclone_s3, run  # noqa: E402
from cloudtrain.artifacts.inventory import Stop  # noqa: E402
from cloudtrain.core.model import ClusterConfig, DataSource, Node  # noqa: E402
from cloudtrain.core.ship import program  # noqa: E402
from cloudtrain.datasets.dataset import Dataset  # noqa: E402
from cloudtrain.datasets.exchange import Exchange  # noqa: E402
from cloudtrain.datasets.listing import DataSigner, list_dataset, open_source  # noqa: E402
from cloudtrain.stores import open_store  # noqa: E402
from tests.standins import stores  # noqa: E402
from tests.standins.stores import ACCOUNT, KEY, Store  # noqa: E402
from tests.support.landing_parts import FolderTransport  # noqa: E402

SETS = {
    "1 × 512 MB": (1, 1 << 29),
    "1,000 × 100 kB": (1000, 100_000),
    "10,000 × 1 kB": (10_000, 1000),
}
"""Files, bytes of each."""
OURS = "**ours: listed and signed here, downloaded and verified by the node**"
SEVERAL = (
    " Eight nodes are eight processes side by side; ours lists once for all of them, as `train` "
    "does."
)

Work = Callable[[Path], object]
"""Downloads the whole set into the folder that it is given."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers-env", type=Path, help="an environment with requirements.txt")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="stores by the start of their name: s3 gs az")
    parser.add_argument("--nodes", nargs="*", type=int, default=[1, 8])
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--latency", nargs="*", type=float, default=[0.0, 0.03], help="seconds")
    options = parser.parse_args()
    peers = f"{options.peers_env / 'bin'}:" if options.peers_env else ""
    found = {
        tool: path
        for tool in ("s5cmd", "rclone")
        if (path := shutil.which(tool, path=f"{peers}{os.environ['PATH']}"))
    }
    kinds: dict[str, Callable[[], Any]] = {
        "s3://, moto's server (Python)": stores.s3,
        "gs://, fake-gcs-server (Go)": stores.fake_gcs,
        "az://, Azurite (Node.js)": stores.az,
    }
    if "rclone" in found:
        rclone = found["rclone"]
        kinds["s3://, rclone's server (Go)"] = lambda: rclone_s3(rclone)
    lines = [
        "# Datasets onto nodes beside other ways to get there",
        "",
        f"Made by `python bench/data.py`: {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, load average {os.getloadavg()[0]:.1f} at the start (other "
        f"work on the machine: ratios more than figures). Median of {options.runs} by turns (the "
        "best in brackets), seconds; then the median as a multiple of ours.",
        "",
        "Ours lists and signs, compares size, version and checksum of every file, and keeps a "
        "record. s5cmd and boto3 compute no checksum: MD5 takes 0.7 s of CPU for 512 MB. Alone on "
        "both cores that was 0.1 s of 0.8 for one node (s5cmd 0.7) and 1.2 of 5.8 for eight. "
        "1,000 × 100 kB with 30 ms of latency took 1.02 s and 0.90 by s5cmd: of this 0.1 s the "
        "cause is not known. The SDKs' rows begin with the SDK imported. The "
        "servers share the cores with the clients, and most of each row is theirs. With latency, "
        "`bench/latency.py` is before the server."
        + (SEVERAL if max(options.nodes) > 1 else " One node."),
        "",
    ]
    for kind, server in kinds.items():
        for latency in options.latency:
            if options.only and not kind.startswith(tuple(options.only)):
                continue
            lines += table(kind, server, found, options, latency)
            (Path(__file__).parent / "data.md").write_text("\n".join(lines))
    print("\n".join(lines))


def table(
    kind: str,
    server: Callable[[], Any],
    found: dict[str, str],
    options: argparse.Namespace,
    latency: float,
) -> list[str]:
    columns: dict[str, dict[str, list[float]]] = {}
    with server() as near, patch.dict(os.environ, near.environment):
        prefixes = {
            title: f"{place(near)}/{title.split()[0].replace(',', '')}" for title in options.sets
        }
        for title, prefix in prefixes.items():
            fill(prefix, *SETS[title])
        late = delayed(near, latency) if latency else nullcontext(near)
        with late as store, patch.dict(os.environ, store.environment):
            for title, prefix in prefixes.items():
                for nodes in options.nodes:
                    name = title if nodes == 1 else f"{nodes} nodes, {title}"
                    columns[name] = column(store, prefix, found, nodes, SETS[title], options.runs)
    more = f", with {latency * 1000:.0f} ms of latency" if latency else ""
    lines = [
        f"## {kind}{more}",
        "",
        f"| | {' | '.join(columns)} |",
        "|---|" + "---|" * len(columns),
    ]
    for row in dict.fromkeys(row for column in columns.values() for row in column):
        cells = []
        for times in columns.values():
            own, middle = statistics.median(times[OURS]), statistics.median(times.get(row, [0]))
            best = min(times.get(row, [0]))
            cells.append(f"{middle:.2f} ({best:.2f}) · {middle / own:.2f} ×" if middle else "–")
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return [*lines, ""]


def fill(prefix: str, count: int, size: int) -> None:
    """Store the set and list it once, as rclone's server computes ETags when first asked."""
    store, data = open_store(prefix), os.urandom(min(size, 1 << 20))
    with ThreadPoolExecutor(8) as pool:
        pieces = [data] * max(1, size >> 20)
        list(pool.map(lambda n: store.upload(f"{n:05}", pieces), range(count)))
    assert len(list(store.list())) == count


def column(
    store: Store,
    prefix: str,
    found: dict[str, str],
    nodes: int,
    files: tuple[int, int],
    runs: int,
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {}
    rows = rows_of(store, prefix, found, nodes)
    for number in range(runs):
        order = list(rows.items())
        order = order[number % len(order) :] + order[: number % len(order)]
        for row, work in order:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
                folders = [Path(name) / str(node) for node in range(nodes)]
                for folder in folders:
                    folder.mkdir()
                began = time.perf_counter()
                work(folders)
                times.setdefault(row, []).append(time.perf_counter() - began)
                for folder in folders:
                    check(folder, *files)
            print(f"{nodes} × {files}: {row}: {times[row][-1]:.2f}", file=sys.stderr)
    return times


def check(folder: Path, count: int, size: int) -> None:
    sizes = [path.stat().st_size for path in folder.rglob("0????") if path.is_file()]
    assert sizes == [size] * count, (len(sizes), count)


def ours(uri: str, folders: Sequence[Path]) -> None:
    """As `train` does it: one listing and one signer for all nodes."""
    config = ClusterConfig(
        name="m",
        provider="local",
        strategy="custom",
        nodes={},
        data={"d": DataSource(source=uri)},
    )
    store = open_source(config, "d")
    dataset = list_dataset(config, "d", store)
    signer = DataSigner(dataset, store)
    side_by_side(lambda folder: to_node(dataset, signer, folder), folders)


def to_node(dataset: Dataset, signer: DataSigner, folder: Path) -> None:
    node = Node(name="node", state="running", address="", internal="", role="chief", index=0)
    exchange = Exchange(
        node=node,
        dataset=dataset,
        signer=signer,
        roots=(str(folder),),
        copies=False,
        relay=False,
        progress=lambda text: None,
        stop=Stop(),
    )
    started = program("downloader")
    done = FolderTransport(folder).run(
        node,
        started.command,
        stdin=chain((started.source,), exchange.orders()),
        on_stdout=exchange.answers.hear,
        on_stderr=exchange.answers.overhear,
    )
    exchange.folder(done.exit_code)


def side_by_side(work: Work, folders: Sequence[Path]) -> None:
    with ThreadPoolExecutor(len(folders)) as pool:
        list(pool.map(work, folders))


def rows_of(
    store: Store, prefix: str, found: dict[str, str], nodes: int
) -> dict[str, Callable[[Sequence[Path]], object]]:
    """Each row's work on the folders of its nodes."""
    rows: dict[str, Callable[[Sequence[Path]], object]] = {
        OURS: lambda folders: ours(prefix, folders)
    }
    for row, work in others(store, prefix, found, nodes == 1).items():
        rows[row] = lambda folders, work=work: side_by_side(work, folders)  # type: ignore[misc]
    return rows


def others(store: Store, prefix: str, found: dict[str, str], alone: bool) -> dict[str, Work]:
    """The other tools' rows; the SDKs' are for one node: eight would share an interpreter."""
    scheme, name = urlsplit(store.uri).scheme, prefix.rpartition("/")[2]
    rclone = (*(found.get("rclone", ""), "copy", "--config", "/dev/null"), "--transfers")
    remotes = {
        "s3": ":s3,provider=Other,env_auth=true,endpoint='{AWS_ENDPOINT_URL_S3}':bucket/",
        "gs": ":gcs,anonymous=true,endpoint='{STORAGE_EMULATOR_HOST}/storage/v1/':bucket/",
        "az": f":azureblob,account={ACCOUNT},key='{KEY}',endpoint='{store.endpoint}':container/",
    }
    rows: dict[str, Work] = {}
    if "rclone" in found:
        remote = remotes[scheme].format(**store.environment) + name
        for transfers in (THREADS, 64):
            rows[f"`rclone copy --transfers {transfers}`"] = lambda folder, transfers=transfers: (
                run(  # type: ignore[misc]
                    *rclone, str(transfers), remote, folder
                )
            )
    if scheme == "s3" and "s5cmd" in found:
        endpoint = store.environment["AWS_ENDPOINT_URL_S3"]
        rows["`s5cmd cp`"] = lambda folder: run(
            *(found["s5cmd"], "--endpoint-url", endpoint, "cp"),
            *(f"s3://bucket/{name}/*", f"{folder}/"),
            AWS_DEFAULT_REGION="us-east-1",
        )
    if alone:
        rows.update({"s3": s3_sdk, "gs": gs_sdk, "az": az_sdk}[scheme](store, name))
    return rows


def s3_sdk(store: Store, name: str) -> dict[str, Work]:
    import boto3
    from botocore.config import Config

    def work(folder: Path) -> None:
        config = Config(max_pool_connections=THREADS)
        client = boto3.client("s3", region_name="us-east-1", config=config)
        pages = client.get_paginator("list_objects_v2").paginate(Bucket="bucket", Prefix=f"{name}/")
        keys = [found["Key"] for page in pages for found in page["Contents"]]
        with ThreadPoolExecutor(THREADS) as pool:
            list(
                pool.map(
                    lambda key: client.download_file("bucket", key, str(folder / Path(key).name)),
                    keys,
                )
            )

    return {f"boto3 `download_file`, {THREADS} threads": work}


def gs_sdk(store: Store, name: str) -> dict[str, Work]:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage
    from google.cloud.storage import transfer_manager

    def work(folder: Path) -> None:
        client = storage.Client(
            project="test-project",
            credentials=AnonymousCredentials(),
            client_options={"api_endpoint": store.environment["STORAGE_EMULATOR_HOST"]},
        )
        blobs = list(client.list_blobs("bucket", prefix=f"{name}/"))
        pairs = [(blob, str(folder / Path(blob.name).name)) for blob in blobs]
        if len(pairs) == 1:
            transfer_manager.download_chunks_concurrently(
                *pairs[0], worker_type=transfer_manager.THREAD, max_workers=THREADS
            )
            return
        done = transfer_manager.download_many(
            pairs, worker_type=transfer_manager.THREAD, max_workers=THREADS
        )
        assert not any(isinstance(each, Exception) for each in done), done[0]

    return {f"`transfer_manager`, {THREADS} threads": work}


def az_sdk(store: Store, name: str) -> dict[str, Work]:
    from azure.storage.blob import BlobServiceClient

    def work(folder: Path) -> None:
        container = BlobServiceClient.from_connection_string(
            store.environment["AZURE_STORAGE_CONNECTION_STRING"]
        ).get_container_client("container")

        def one(key: str) -> None:
            with (folder / Path(key).name).open("wb") as file:
                container.download_blob(key, max_concurrency=4).readinto(file)

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(one, container.list_blob_names(name_starts_with=f"{name}/")))

    return {f"`download_blob(max_concurrency=4)`, {THREADS} threads": work}


if __name__ == "__main__":
    main()
