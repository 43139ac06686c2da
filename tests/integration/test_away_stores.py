"""Orders, states and logs of a desk over each kind of store, between two of its clients."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import boto3
import pytest

from cloudtrain.away.orders import (
    OrderInbox,
    answer_of,
    new_order,
    new_order_key,
    post_order,
)
from cloudtrain.away.published import PIECE, AwayState, Published, Publisher
from cloudtrain.away.signatures import DeskKeys, new_desk_id
from cloudtrain.core.protocols import StoreBackend
from cloudtrain.state.away_record import AwayRecord
from cloudtrain.stores import open_store
from tests.standins.stores import KINDS, strict_s3

NOW = 1_795_000_000.0


@pytest.fixture(scope="module", params=["file", "ministack", "gs by others", "az"])
def uri(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.lower().endswith("_proxy"):
                patch.delenv(name)
        if request.param == "file":
            yield tmp_path_factory.mktemp("store").as_uri()
            return
        if request.param == "ministack":
            port, environment = stack.enter_context(strict_s3())
            environment["AWS_ENDPOINT_URL_S3"] = f"http://127.0.0.1:{port}"
            uri = "s3://bucket/a/prefix"
        else:
            store = stack.enter_context(KINDS[request.param]())
            environment, uri = store.environment, store.uri
        for name, value in environment.items():
            patch.setenv(name, value)
        if request.param == "ministack":
            # A session of its own: the default one keeps the first credentials of the process.
            boto3.Session().client("s3", region_name="us-east-1").create_bucket(Bucket="bucket")
        yield uri


@pytest.fixture
def machines(uri: str, tmp_path: Path) -> tuple[StoreBackend, StoreBackend]:
    """The desk's client of the store, and a reader's."""
    own = f"{uri}/{tmp_path.name}"
    return open_store(own), open_store(own)


def test_a_reader_sees_the_state_and_every_byte_of_a_log_that_grows_meanwhile(
    machines: tuple[StoreBackend, StoreBackend], tmp_path: Path
) -> None:
    desk, laptop = machines
    name = new_desk_id(NOW)
    assert Published(laptop, "mnist").desk is None
    key, order_key = new_order_key(tmp_path / "desk's"), new_order_key(tmp_path / "laptop's")
    record = AwayRecord(
        cluster="mnist",
        desk=name,
        node="mnist-desk",
        store="",
        public_key=order_key.public,
        desk_key=key.public,
        created=NOW,
    )
    publisher = Publisher(desk, "mnist", name, log_file=tmp_path / "log", warn=pytest.fail, key=key)
    state = AwayState(cluster="mnist", desk=name, phase="training", as_of=NOW, began=NOW)
    publisher.state(state)
    lines = [b"%07d %s\n" % (number, b"x" * 90) for number in range(PIECE // 40)]

    def write() -> None:
        for start in range(0, len(lines), 400):
            publisher.log(b"".join(lines[start : start + 400]))
            publisher.send_log()

    writer = threading.Thread(target=write)
    writer.start()
    reader, read = Published(laptop, "mnist", keys=DeskKeys(record)), b""
    assert reader.state() == state
    until = time.monotonic() + 60
    while len(read) < sum(map(len, lines)) and time.monotonic() < until:
        read += reader.log(len(read))
    writer.join()
    assert read == b"".join(lines)
    assert reader.log(len(read)) == b""


def test_an_order_posted_on_one_machine_is_carried_out_once_on_another(
    machines: tuple[StoreBackend, StoreBackend], tmp_path: Path
) -> None:
    desk, laptop = machines
    warnings: list[str] = []
    key, name = new_order_key(tmp_path), new_desk_id(NOW)
    inbox = OrderInbox(desk, "mnist", name, key.public, tmp_path / "seen", warn=warnings.append)
    assert inbox.take(NOW) == ()
    order = new_order("mnist", name, "down", now=NOW)
    post_order(laptop, key, order)
    assert inbox.take(NOW) == (order,)
    received = answer_of(laptop, order)
    assert received is not None
    assert received.state == "received"
    post_order(laptop, key, order)
    assert inbox.take(NOW) == ()
    inbox.answer(order, "done", "gone", now=NOW)
    done = answer_of(laptop, order)
    assert done is not None
    assert (done.state, done.text) == ("done", "gone")
    assert len(warnings) == 1
    assert "it was carried out before" in warnings[0]


@pytest.mark.parametrize("uri", ["ministack", "az"], indirect=True)
def test_the_upload_that_a_node_was_given_writes_nothing_for_or_in_the_name_of_a_desk(
    machines: tuple[StoreBackend, StoreBackend],
) -> None:
    """On the stand-ins that verify signatures."""
    store, _ = machines
    presigner = store.presigner
    assert presigner is not None
    run = "20261124-000000-aaaa"
    given = presigner.sign_upload(f"{run}/chief0/output/x", 4, expires_in=600)
    assert given is not None
    (request,) = given.requests

    def put(url: str) -> int:
        filled = {name: value.format_map(_Filled()) for name, value in request.headers.items()}
        asked = Request(url, data=b"data", method=request.method, headers=filled)
        try:
            with urlopen(asked, timeout=20) as answer:
                return int(answer.status)
        except HTTPError as error:
            return error.code

    url = request.url.reveal()
    for other in (f".away/mnist/{new_desk_id(NOW)}/state.json", ".away/mnist/desks/x"):
        assert put(url.replace(f"{run}/chief0/output/x", other)) == 403
    assert list(store.list(".away/")) == []
    assert put(url) in (200, 201)


class _Filled(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "jXd/OF09/siBXSD3SWAm3A==" if key == "md5" else ""  # of b"data"
