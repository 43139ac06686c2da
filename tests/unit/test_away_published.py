"""State and log of a desk, written to a store and read from it."""

from __future__ import annotations

import errno
import io
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloudtrain.away import published
from cloudtrain.away.orders import new_order_key
from cloudtrain.away.published import (
    PIECE,
    STALE,
    AwayState,
    EventReader,
    Published,
    Publisher,
    log_stream,
    write_state,
)
from cloudtrain.away.signatures import (
    ANSWER,
    DESK_ID,
    DeskKeys,
    SigningKey,
    new_desk_id,
    publish_desk_key,
)
from cloudtrain.cluster.session import record_cluster
from cloudtrain.console.event_stream import EventStream
from cloudtrain.console.plain import PlainConsole
from cloudtrain.core.errors import ConfigError, StoreError
from cloudtrain.core.model import ClusterConfig, NodeGroup
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.state import Records
from cloudtrain.state.away_record import AwayRecord, away_record, mark_of, save_away
from tests.support.run_index_parts import store

__all__ = ["store"]

NOW = 1_795_000_000.0
DESK = new_desk_id(NOW)
PATH = f".away/mnist/{DESK}/state.json"
STATE = AwayState(
    cluster="mnist",
    desk=DESK,
    phase="training",
    text="2 of 2 nodes",
    run="20261124-000000-aaaa",
    as_of=NOW + 60,
    began=NOW,
    expires=NOW + 3600,
    place="gcp us-east4-c",
    price_per_hour=0.03,
)


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def publisher(store: ArtifactStore, warnings: list[str], tmp_path: Path) -> Callable[[], Publisher]:
    """A new process of the same desk."""
    key = new_order_key(tmp_path / "controller's")
    return lambda: Publisher(
        store, "mnist", DESK, log_file=tmp_path / "desk" / "log", warn=warnings.append, key=key
    )


@pytest.fixture
def keys(tmp_path: Path) -> DeskKeys:
    """Those of the record on the machine that sent the run away."""
    desk = new_order_key(tmp_path / "controller's").public
    order = new_order_key(tmp_path / "laptop's").public
    return DeskKeys(
        AwayRecord(
            cluster="mnist",
            desk=DESK,
            node="mnist-desk",
            store="",
            public_key=order,
            desk_key=desk,
            created=NOW,
        )
    )


def whole(store: ArtifactStore) -> bytes:
    reader, data = Published(store, "mnist"), b""
    while more := reader.log(len(data)):
        data += more
    return data


# ── the state ────────────────────────────────────────────────────────────────


def test_the_last_state_is_read_back(
    store: ArtifactStore, publisher: Callable[[], Publisher], keys: DeskKeys
) -> None:
    assert Published(store, "mnist").state() is None
    desk = publisher()
    assert desk.state(replace(STATE, phase="starting", run=None))
    assert desk.state(STATE)
    assert Published(store, "mnist", keys=keys).state() == STATE
    assert Published(store, "mnist", DESK, keys=keys).state() == STATE
    assert Published(store, "mnist-2").state() is None


def other_desk(store: ArtifactStore, key: SigningKey) -> None:
    """A run that is away too has its own key, and a report that is signed by it."""
    write_state(store, STATE, key)


def other_purpose(store: ArtifactStore, key: SigningKey) -> None:
    text = json.dumps({**asdict(STATE)})
    data = {"signed": text, "signature": key.sign(ANSWER, text)}
    store.upload(PATH, [json.dumps(data).encode()])


def changed(store: ArtifactStore, key: SigningKey) -> None:
    write_state(store, STATE, key)
    data = b"".join(store.download(PATH)).replace(b"training", b"ended")
    store.upload(PATH, [data])


def claims_it(store: ArtifactStore, key: SigningKey) -> None:
    """Without a signature, as earlier versions wrote it."""
    text = json.dumps({**asdict(STATE), "unsigned": ""})
    store.upload(PATH, [text.encode()])


def replayed(store: ArtifactStore, key: SigningKey) -> None:
    write_state(store, replace(STATE, sequence=6), key)


@pytest.mark.parametrize(
    ("attack", "has_the_key"),
    [
        (other_desk, False),
        (other_purpose, True),
        (changed, True),
        (claims_it, True),
        (replayed, True),
    ],
)
def test_a_report_that_the_runs_desk_did_not_sign_as_its_latest_is_shown_as_such(
    attack: Callable[[ArtifactStore, SigningKey], None],
    has_the_key: bool,
    store: ArtifactStore,
    publisher: Callable[[], Publisher],
    keys: DeskKeys,
    tmp_path: Path,
) -> None:
    publisher().state(replace(STATE, sequence=7))

    def read() -> str:
        seen = tmp_path / "seen"  # of another process each time
        state = Published(store, "mnist", DESK, keys=keys, seen_file=seen).state()
        assert state is not None
        return state.unsigned

    assert [read(), read()] == ["", ""]
    attack(store, new_order_key(tmp_path / ("controller's" if has_the_key else "another's")))
    assert read() == "not signed by this run's controller"
    publisher().state(replace(STATE, sequence=8))
    assert read() == ""


def certificate_of_another_life(store: ArtifactStore, record: AwayRecord, key: SigningKey) -> None:
    publish_desk_key(store, key, replace(record, desk=new_desk_id(NOW + 9)))
    there = f".away/mnist/{new_desk_id(NOW + 9)}/key.json"
    found = [each.path for each in store.list(".away/mnist/") if each.path.endswith("key.json")]
    (other,) = (path for path in found if record.desk not in path)
    assert other.rpartition("-")[0] == there.rpartition("-")[0]
    store.copy(other, f".away/mnist/{record.desk}/key.json")


@pytest.mark.parametrize("case", ["true", "no label", "forged", "of another life", "unreadable"])
def test_another_machine_trusts_the_desk_whose_label_has_the_hash_of_the_order_key(
    case: str, store: ArtifactStore, publisher: Callable[[], Publisher], tmp_path: Path
) -> None:
    order_key, mine = new_order_key(tmp_path / "laptop's"), new_order_key(tmp_path / "controller's")
    record = AwayRecord(
        cluster="mnist",
        desk=DESK,
        node="mnist-desk",
        store="",
        public_key=order_key.public,
        desk_key=mine.public,
        created=NOW,
    )
    publisher().state(STATE)
    publish_desk_key(store, order_key, record)
    if case == "forged":  # a whole set, by somebody who may write to the store
        theirs = new_order_key(tmp_path / "theirs")
        publish_desk_key(store, theirs, replace(record, desk_key=theirs.public))
        write_state(store, replace(STATE, phase="ended"), theirs)
    elif case == "of another life":
        certificate_of_another_life(store, record, order_key)
    elif case == "unreadable":
        store.upload(f".away/mnist/{DESK}/key.json", [b"[" * 4000])
    labels = () if case == "no label" else (mark_of(record),)
    later = new_desk_id(NOW + 100)
    store.upload(f".away/mnist/desks/{later}", [b""])
    found = Published(store, "mnist", keys=DeskKeys(None, lambda: labels))
    assert found.desk == (DESK if labels else later)  # not the one that the store calls the latest
    state = Published(store, "mnist", DESK, keys=DeskKeys(None, lambda: labels)).state()
    assert state is not None
    assert bool(state.unsigned) == (case != "true")


def test_the_latest_desk_counts_whatever_an_earlier_one_still_writes(
    store: ArtifactStore, publisher: Callable[[], Publisher], tmp_path: Path
) -> None:
    later = new_desk_id(NOW + 100)
    Publisher(store, "mnist", later, log_file=tmp_path / "2", warn=print).state(
        replace(STATE, desk=later)
    )
    publisher().state(STATE)
    store.upload(".away/mnist/desks/zzz", [b""])
    assert Published(store, "mnist").desk == later
    earlier = Published(store, "mnist", DESK).state()
    assert earlier is not None
    assert earlier.desk == DESK


def test_ids_of_desks_sort_by_time_and_differ() -> None:
    ids = [new_desk_id(NOW + second) for second in range(20)]
    assert ids == sorted(ids)
    assert new_desk_id(NOW) != new_desk_id(NOW)
    assert all(DESK_ID.match(each) for each in ids)


def test_a_state_of_a_later_version_is_read(
    store: ArtifactStore, publisher: Callable[[], Publisher]
) -> None:
    publisher().state(STATE)
    write_state(store, STATE, None)
    text = b"".join(store.download(PATH)).replace(b'"training"', b'"dancing", "more": 1')
    store.upload(PATH, [text])
    state = Published(store, "mnist").state()
    assert state is not None
    assert state.phase == "dancing"  # type: ignore[comparison-overlap]


def test_the_beginning_of_long_texts_is_written(
    store: ArtifactStore, publisher: Callable[[], Publisher]
) -> None:
    publisher().state(replace(STATE, text="🙂" * 10_000, error="🙂" * 100_000))
    state = Published(store, "mnist").state()
    assert state is not None
    assert (state.text, state.error) == ("🙂" * 300, "🙂" * 4000)


@pytest.mark.parametrize("data", [b"", b"{}", b"[" * 1000, b"[" * 100_000, b"\xff"])
def test_a_state_that_cannot_be_read_is_named(
    data: bytes, store: ArtifactStore, publisher: Callable[[], Publisher]
) -> None:
    publisher().state(STATE)
    store.upload(f".away/mnist/{DESK}/state.json", [data])
    with pytest.raises(StoreError, match=r"state\.json"):
        Published(store, "mnist").state()


def test_the_state_of_another_cluster_is_refused(
    store: ArtifactStore, publisher: Callable[[], Publisher]
) -> None:
    publisher().state(STATE)
    write_state(store, STATE, None)
    text = b"".join(store.download(PATH)).replace(b'"mnist"', b'"other"')
    store.upload(PATH, [text])
    with pytest.raises(StoreError, match=f"it is the state of {DESK} of other"):
        Published(store, "mnist").state()


def test_a_desk_that_has_not_reported_for_minutes_is_silent() -> None:
    assert not STATE.is_silent(STATE.as_of + STALE)
    assert STATE.is_silent(STATE.as_of + STALE + 1)
    assert not replace(STATE, phase="ended").is_silent(STATE.as_of + 1e6)


# ── the log ──────────────────────────────────────────────────────────────────


@given(
    pieces=st.lists(st.tuples(st.binary(max_size=40), st.sampled_from("-sfr")), max_size=12),
    piece=st.integers(1, 20),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_byte_is_lost_or_repeated_whatever_fails(
    pieces: list[tuple[bytes, str]], piece: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """After each write the log is sent or not, the store fails after it has taken the bytes, or
    the desk's process is restarted."""
    from cloudtrain.stores import open_store

    folder = tmp_path_factory.mktemp("log")
    store = open_store((folder / "store").as_uri())
    upload = store.upload

    def lost_answer(path: str, data: object) -> object:
        upload(path, data)  # type: ignore[arg-type]
        raise StoreError("the answer was lost")

    def desk() -> Publisher:
        return Publisher(store, "mnist", DESK, log_file=folder / "log", warn=lambda _: None)

    reader = Published(store, "mnist", DESK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(published, "PIECE", piece)
        now, written, read = desk(), b"", b""
        for data, what in pieces:
            now.log(data)
            written += data
            store.upload = lost_answer if what == "f" else upload  # type: ignore
            if what == "r":
                now = desk()
            if what != "-":
                assert now.send_log() or what == "f"
            read += reader.log(len(read))
            assert written.startswith(read)
        store.upload = upload  # type: ignore[method-assign]
        assert now.send_log()
        while more := reader.log(len(read)):
            read += more
    assert read == written


def test_a_log_longer_than_a_piece_is_read_from_any_offset(
    store: ArtifactStore, publisher: Callable[[], Publisher]
) -> None:
    data = bytes(range(256)) * (PIECE // 100)
    desk = publisher()
    desk.log(data)
    assert desk.send_log()
    reader = Published(store, "mnist", DESK)
    for offset in (0, 1, PIECE - 1, PIECE, PIECE + 1, len(data) - 1):
        assert reader.log(offset) == data[offset:]
    assert reader.log(len(data)) == b""
    assert len(list(store.list(f".away/mnist/{DESK}/log/"))) == 3


def test_a_store_that_fails_is_one_warning_until_it_answers(
    store: ArtifactStore,
    publisher: Callable[[], Publisher],
    warnings: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = publisher()

    def fails(*_: object) -> object:
        raise StoreError("no answer")

    for number in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(store, "upload", fails)
            desk.log(b"line\n")
            assert not desk.send_log()
            assert not desk.state(STATE)
        assert len(warnings) == number
        assert desk.send_log()
    assert desk.state(STATE)
    assert whole(store) == b"line\n" * 2


def test_a_full_disk_of_the_desk_is_one_warning(
    publisher: Callable[[], Publisher], warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = publisher()

    def full(*_: object, **__: object) -> object:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        desk.log(b"one\n")
        desk.log(b"two\n")
    assert len(warnings) == 1
    assert "No space left" in warnings[0]


def test_the_last_state_comes_after_the_whole_log(
    store: ArtifactStore, publisher: Callable[[], Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = publisher()
    desk.state(STATE)
    desk.log(b"last words\n")
    desk.state(replace(STATE, phase="ended", exit_code=0))
    assert whole(store) == b"last words\n"


def test_what_a_console_shows_is_the_log_and_is_read_as_events(
    store: ArtifactStore, publisher: Callable[[], Publisher]
) -> None:
    desk = publisher()
    desk.state(STATE)
    plain = PlainConsole(err=io.StringIO(), out=io.StringIO())
    console = EventStream(plain, log_stream(desk.log), clock=lambda: NOW)
    console.say("run a is starting")
    console.task_output("chief0", "Epoch 1/2\nEpé".encode())
    console.task_output("chief0", b"ch 2/2\nrest")
    console.warn("careful")
    console.flush()
    desk.send_log()
    reader, data = EventReader(), whole(store)
    found = [
        each for start in range(0, len(data), 7) for each in reader.feed(data[start : start + 7])
    ]
    assert [(each.event, each.task, each.line or each.text) for each in found] == [
        ("message", "", "run a is starting"),
        ("output", "chief0", "Epoch 1/2"),
        ("output", "chief0", "Epéch 2/2"),
        ("warning", "", "careful"),
        ("output", "chief0", "rest"),
    ]
    assert {each.time for each in found} == {NOW}


@given(st.binary())
def test_no_bytes_of_a_log_stop_its_reader(data: bytes) -> None:
    list(EventReader().feed(data + b"\n"))


# ── the record ───────────────────────────────────────────────────────────────


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Records:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "home"))
    return Records("mnist")


CONFIG = ClusterConfig(
    name="mnist", provider="local", strategy="one_device", nodes={"chief": NodeGroup()}
)
RECORD = AwayRecord(
    cluster="mnist",
    desk=DESK,
    node="mnist-desk",
    store="gs://b/p",
    public_key="ssh-ed25519 AAAA",
    created=NOW,
)


def test_the_record_of_being_away_is_read_back_and_names_its_fault(records: Records) -> None:
    assert away_record(records) is None
    records.create()
    save_away(records, RECORD)
    assert away_record(records) == RECORD
    (records.folder / "away.json").write_text("{")
    with pytest.raises(ConfigError, match=r"away\.json"):
        away_record(records)


def test_the_record_outlives_down_and_ends_with_the_next_cluster_of_that_name(
    records: Records,
) -> None:
    records.create()
    save_away(records, RECORD)
    key = new_order_key(records.folder)
    records.create()
    assert away_record(records) == RECORD
    records.close()
    assert away_record(records) == RECORD
    assert not key.path.exists()
    record_cluster(CONFIG, records)
    assert away_record(records) is None
