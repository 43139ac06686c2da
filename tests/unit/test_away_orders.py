"""Orders to a desk: signed, for it alone, fresh, and carried out once."""

from __future__ import annotations

import base64
import contextlib
import json
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cloudtrain.away.orders import (
    FRESH,
    LARGEST,
    Order,
    OrderInbox,
    answer_of,
    load_order_key,
    new_order,
    new_order_key,
    post_order,
    signed,
    verified,
)
from cloudtrain.away.signatures import ORDER, SigningKey, new_desk_id
from cloudtrain.core.errors import CredentialsError, StoreError
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.state.files import DiskFull
from tests.support.run_index_parts import store

__all__ = ["store"]

NOW = 1_795_000_000.0
DESK = new_desk_id(NOW)
ORDERS = f".away/mnist/{DESK}/orders"


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return new_order_key(tmp_path / "record")


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def inbox(
    store: ArtifactStore, key: SigningKey, warnings: list[str], tmp_path: Path
) -> Callable[[], OrderInbox]:
    """A new process of the same desk."""
    return lambda: OrderInbox(
        store, "mnist", DESK, key.public, tmp_path / "seen", warn=warnings.append
    )


def stop(**changes: object) -> Order:
    order = new_order("mnist", DESK, "stop-run", run="20261124-000000-aaaa", now=NOW)
    return replace(order, **changes)  # type: ignore[arg-type]


# ── the key ──────────────────────────────────────────────────────────────────


def test_the_private_key_is_readable_by_its_owner_alone_and_made_once(tmp_path: Path) -> None:
    key = new_order_key(tmp_path / "record")
    assert stat.S_IMODE(key.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.path.parent.stat().st_mode) == 0o700
    assert key.public.startswith("ssh-ed25519 ")
    assert new_order_key(tmp_path / "record").public == key.public
    assert load_order_key(key.path).public == key.public


def test_the_private_key_is_not_in_its_representation(key: SigningKey) -> None:
    assert repr(key) == f"SigningKey(path={key.path!r})"


@pytest.mark.parametrize("text", ["", "-----BEGIN PRIVATE KEY-----\nAAAA\n", "ssh-ed25519 AAAA"])
def test_a_file_that_is_no_key_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key.pem"
    path.write_text(text)
    with pytest.raises(CredentialsError, match=r"key\.pem cannot be read: it is not an unencrypt"):
        load_order_key(path)
    with pytest.raises(CredentialsError, match="No such file"):
        load_order_key(tmp_path / "none.pem")


# ── what is carried out ──────────────────────────────────────────────────────


def test_an_order_is_taken_once_and_its_receipt_published(
    store: ArtifactStore, key: SigningKey, inbox: Callable[[], OrderInbox], warnings: list[str]
) -> None:
    order = stop()
    assert answer_of(store, order) is None
    post_order(store, key, order)
    desk = inbox()
    assert desk.take(NOW + 5) == (order,)
    answer = answer_of(store, order)
    assert answer is not None
    assert (answer.state, answer.as_of) == ("received", NOW + 5)
    desk.answer(order, "done", "run stopped", now=NOW + 60)
    done = answer_of(store, order)
    assert done is not None
    assert (done.state, done.text) == ("done", "run stopped")
    assert desk.take(NOW + 70) == ()
    assert warnings == []


def test_orders_are_taken_from_the_oldest_on(
    store: ArtifactStore, key: SigningKey, inbox: Callable[[], OrderInbox]
) -> None:
    orders = tuple(stop(nonce=f"{9 - n:032x}", created=NOW + n) for n in range(5))
    for order in orders:
        post_order(store, key, order)
    assert inbox().take(NOW) == orders


def test_an_order_posted_again_is_ignored_also_by_the_desks_next_process(
    store: ArtifactStore, key: SigningKey, inbox: Callable[[], OrderInbox], warnings: list[str]
) -> None:
    order = stop()
    post_order(store, key, order)
    desk = inbox()
    assert desk.take(NOW) == (order,)
    desk.answer(order, "done", now=NOW)
    for again in (desk, inbox()):
        post_order(store, key, order)
        assert again.take(NOW + 1) == ()
        assert again.take(NOW + 2) == ()
    assert warnings == [f"ignored {ORDERS}/{order.nonce}.json: it was carried out before"] * 2
    answer = answer_of(store, order)
    assert answer is not None
    assert answer.state == "done"


def test_a_down_that_a_killed_process_had_taken_is_carried_out_by_the_next_one(
    store: ArtifactStore, key: SigningKey, inbox: Callable[[], OrderInbox], tmp_path: Path
) -> None:
    """Else a desk that is restarted while it goes down would create the cluster again."""
    order = new_order("mnist", DESK, "down", now=NOW)
    post_order(store, key, order)
    post_order(store, key, stop())
    assert len(inbox().take(NOW)) == 2
    with (tmp_path / "seen").open("ab") as seen:
        seen.write(b"torn {")
    again = inbox()
    assert again.take(NOW + 9 * FRESH) == (order,)
    assert again.take(NOW + 9 * FRESH) == ()
    again.answer(order, "done", "🙂" * 10_000, now=NOW)
    answer = answer_of(store, order)
    assert answer is not None
    assert (answer.state, len(answer.text)) == ("done", 4000)
    assert inbox().take(NOW) == ()


def test_an_order_is_recorded_before_it_is_carried_out(
    store: ArtifactStore, key: SigningKey, inbox: Callable[[], OrderInbox], tmp_path: Path
) -> None:
    order = stop()
    post_order(store, key, order)
    kept = tmp_path / "seen"
    desk, uploaded = inbox(), store.upload

    def look(path: str, data: object) -> object:
        assert order.nonce in kept.read_text(), "answered before it was recorded"
        return uploaded(path, data)  # type: ignore[arg-type]

    store.upload = look  # type: ignore[method-assign,assignment]
    assert desk.take(NOW) == (order,)


def test_an_order_that_cannot_be_recorded_is_not_carried_out_until_it_can(
    store: ArtifactStore,
    key: SigningKey,
    inbox: Callable[[], OrderInbox],
    warnings: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order = stop()
    post_order(store, key, order)
    desk = inbox()

    def full(path: Path, line: bytes) -> None:
        raise DiskFull("seen: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("cloudtrain.away.orders.append_line", full)
        assert desk.take(NOW) == ()
        assert desk.take(NOW) == ()
    assert len(warnings) == 1
    assert desk.take(NOW) == (order,)


@pytest.mark.parametrize("away", [-FRESH, FRESH])
def test_a_clock_that_is_off_by_minutes_is_accepted(
    away: float, store: ArtifactStore, key: SigningKey, inbox: Callable[[], OrderInbox]
) -> None:
    post_order(store, key, stop())
    assert len(inbox().take(NOW + away)) == 1


# ── what is not ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("late", "words"),
    [(20 * 60, "it is 20 min old by the controller's"), (-20 * 60, "it is from 20 min ahead")],
)
def test_an_order_of_another_time_is_refused_and_its_sender_told(
    late: float,
    words: str,
    store: ArtifactStore,
    key: SigningKey,
    inbox: Callable[[], OrderInbox],
    warnings: list[str],
) -> None:
    order = stop()
    post_order(store, key, order)
    desk = inbox()
    assert desk.take(NOW + late) == ()
    assert desk.take(NOW + late) == ()
    answer = answer_of(store, order)
    assert answer is not None
    assert answer.state == "refused"
    assert words in answer.text
    assert len(warnings) == 1


def test_an_order_for_another_desk_or_cluster_is_ignored(
    store: ArtifactStore, key: SigningKey, inbox: Callable[[], OrderInbox], warnings: list[str]
) -> None:
    """Copied to this one, as whoever may write to the store could do."""
    others = [stop(desk=new_desk_id(NOW)), stop(cluster="other")]
    for order in others:
        store.upload(f"{ORDERS}/{order.nonce}.json", [signed(key, order)])
    desk = inbox()
    assert desk.take(NOW) == ()
    assert desk.take(NOW) == ()
    assert len(warnings) == 2
    assert all("it is for controller" in text for text in warnings)
    assert [answer_of(store, replace(each, desk=DESK, cluster="mnist")) for each in others] == [
        None,
        None,
    ]


def test_a_copy_under_another_name_is_ignored(
    store: ArtifactStore, key: SigningKey, inbox: Callable[[], OrderInbox], warnings: list[str]
) -> None:
    order = stop()
    store.upload(f"{ORDERS}/{'0' * 32}.json", [signed(key, order)])
    assert inbox().take(NOW) == ()
    assert warnings == [f"ignored {ORDERS}/{'0' * 32}.json: it is a copy of another order"]


def test_an_order_of_another_key_or_changed_after_signing_is_ignored(
    store: ArtifactStore,
    key: SigningKey,
    inbox: Callable[[], OrderInbox],
    warnings: list[str],
    tmp_path: Path,
) -> None:
    foreign, order = stop(), stop()
    post_order(store, new_order_key(tmp_path / "foreign"), foreign)
    changed = signed(key, order).replace(b"stop-run", b"down")
    store.upload(f"{ORDERS}/{order.nonce}.json", [changed])
    assert inbox().take(NOW) == ()
    assert len(warnings) == 2
    assert all("its signature is not of the cluster's order key" in text for text in warnings)


def test_a_signature_of_the_same_text_for_another_purpose_is_none(key: SigningKey) -> None:
    """As if the key had signed the order's text for something else."""
    order = stop()
    text = json.loads(signed(key, order))["order"]
    bare = key._private.sign(text.encode())
    forged = {"order": text, "signature": base64.b64encode(bare).decode()}
    with pytest.raises(ValueError, match="signature"):
        verified(key.public, json.dumps(forged).encode())


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("note.txt", b"hello"),
        (f"{'a' * 32}.json", b""),
        (f"{'a' * 32}.json", b"[" * LARGEST),
        (f"{'a' * 32}.json", b"x" * (LARGEST + 1)),
        (f"{'a' * 32}.json", b'{"order": 1, "signature": "AA=="}'),
        (f"{'a' * 32}.json", b'{"order": "{}", "signature": "\xff"}'),
        (f"{'A' * 32}.json", b"{}"),
        (f"deeper/{'a' * 32}.json", b"{}"),
    ],
)
def test_what_is_no_order_is_ignored_with_one_warning_and_hinders_none(
    name: str,
    data: bytes,
    store: ArtifactStore,
    key: SigningKey,
    inbox: Callable[[], OrderInbox],
    warnings: list[str],
) -> None:
    store.upload(f"{ORDERS}/{name}", [data])
    order = stop()
    post_order(store, key, order)
    desk = inbox()
    assert desk.take(NOW) == (order,)
    assert desk.take(NOW) == ()
    assert len(warnings) == 1
    assert name in warnings[0]


def test_a_flood_of_files_delays_an_order_and_does_not_hide_it(
    store: ArtifactStore, key: SigningKey, inbox: Callable[[], OrderInbox]
) -> None:
    for number in range(100):
        store.upload(f"{ORDERS}/{number:032x}.json", [b"no"])
    order = stop(nonce="f" * 32)
    post_order(store, key, order)
    desk = inbox()
    assert [desk.take(NOW) for _ in range(4)] == [(), (), (), (order,)]


def test_a_store_that_fails_is_one_warning_and_asked_again(
    store: ArtifactStore,
    key: SigningKey,
    inbox: Callable[[], OrderInbox],
    warnings: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order = stop()
    post_order(store, key, order)
    desk = inbox()

    def fails(*_: object) -> Iterator[bytes]:
        raise StoreError("no answer")

    for method in ("list", "download"):
        with monkeypatch.context() as patch:
            patch.setattr(store, method, fails)
            assert desk.take(NOW) == ()
            assert desk.take(NOW) == ()
    assert len(warnings) == 2
    assert desk.take(NOW) == (order,)


def test_an_order_is_carried_out_even_if_its_receipt_cannot_be_written(
    store: ArtifactStore,
    key: SigningKey,
    inbox: Callable[[], OrderInbox],
    warnings: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order = stop()
    post_order(store, key, order)

    def fails(*_: object) -> object:
        raise StoreError("denied")

    monkeypatch.setattr(store, "upload", fails)
    monkeypatch.setattr(store, "delete", fails)
    desk = inbox()
    assert desk.take(NOW) == (order,)
    assert desk.take(NOW) == ()
    assert warnings == [f"the order {order} was not answered: denied"]


# ── whatever is written ──────────────────────────────────────────────────────

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
@example(b'{"order":"\\ud800","signature":"AAAA"}')
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_without_a_signature_are_an_order(key: SigningKey, data: bytes) -> None:
    with pytest.raises(ValueError):
        verified(key.public, data)


@given(
    json_values | st.fixed_dictionaries({}, optional={"cluster": json_values, "verb": json_values})
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_signed_values_that_are_no_order_are_refused_by_name(
    key: SigningKey, value: object
) -> None:
    text = json.dumps(value)
    signature = key.sign(ORDER, text)
    with pytest.raises(ValueError, match="this version cannot read it"):
        verified(key.public, json.dumps({"order": text, "signature": signature}).encode())


@given(st.integers(0, 10_000), st.integers(1, 255))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_changed_byte_makes_another_order(key: SigningKey, at: int, flip: int) -> None:
    order = stop()
    data = bytearray(signed(key, order))
    data[at % len(data)] ^= flip
    with contextlib.suppress(ValueError):
        assert verified(key.public, bytes(data)) == order  # a change outside the signed text
