"""Archives of environments between nodes: killed, cut, changed, or without room for them."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cloudtrain.core.errors import CloudtrainError, NodeError
from cloudtrain.core.model import Node
from cloudtrain.datasets.exchange import NoRoute
from tests.support import environment_parts as parts
from tests.support.environment_parts import Cluster, SameHomes, nodes
from tests.support.hurried import hurry_nodes
from tests.support.lanes import Cases
from tests.support.nodes_here import node
from tests.support.package_index import PackageIndex, package_index
from tests.support.wheels import digest

BUILDER = node("built")


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry_nodes(monkeypatch)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackageIndex]:
    if reason := parts.unavailable():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("index")
    parts.wheels(folder / "wheels")
    with package_index(folder / "wheels", folder / "log") as index:
        yield index


@pytest.fixture(scope="module")
def built(index: PackageIndex, tmp_path_factory: pytest.TempPathFactory) -> SameHomes:
    """One node has created its environment."""
    folder = tmp_path_factory.mktemp("nodes")
    made = SameHomes(folder / "all", folder / "home", index)
    Cluster(made, None, BUILDER.name).up(cache="off")
    return made


@pytest.fixture
def transport(built: SameHomes, index: PackageIndex, tmp_path: Path) -> SameHomes:
    """Nodes of this test alone. The builder's is a copy."""
    made = SameHomes(tmp_path / "all", built.place, index)
    built_home = built.home(BUILDER)
    subprocess.run(
        ["cp", "-a", str(built_home), str(made.home(BUILDER))[: -len("/built")]], check=True
    )
    index.forget()
    return made


@pytest.fixture(scope="module")
def whole(built: SameHomes) -> str:
    """The digest of the builder's."""
    (environment,) = built.environments(BUILDER)
    return digest(environment)


def killed_anywhere(
    transport: SameHomes,
    program: str,
    do: Callable[[], None],
    after: Callable[[int], None],
    cases: Cases,
) -> int:
    """Does it again and again, killed some operations later each time, until it comes to its end:
    eight later, with a first one that is drawn; each operation with `--sweep`."""
    first, step = (1, 1) if cases.every else (cases.random.randint(1, 8), 8)
    for number in itertools.count(first, step):
        transport.kill(program, number)
        try:
            do()
        except CloudtrainError:
            after(number)
            continue
        finally:
            transport.kill(program, 0)
        return number
    raise AssertionError


@pytest.mark.sweep(2, of="archives")
def test_a_packer_that_is_killed_anywhere_leaves_no_archive(
    transport: SameHomes, whole: str, cases: Cases
) -> None:
    place = transport.home(BUILDER) / BUILDER.cache / "archives" / parts.KEY

    def nothing_is_there(number: int) -> None:
        assert not place.exists()
        assert transport.is_whole(BUILDER, whole)

    killed = killed_anywhere(
        transport,
        "environment_archive pack",
        lambda: fetched_elsewhere(transport, whole),
        nothing_is_there,
        cases,
    )
    assert killed > 8


def fetched_elsewhere(transport: SameHomes, whole: str) -> None:
    packed = parts.pack(transport, BUILDER)
    (other,) = nodes("other")
    parts.fetch(transport, other, packed)
    assert transport.is_whole(other, whole)


@pytest.mark.sweep(2, of="archives")
@pytest.mark.parametrize("program", ["environment_archive unpack"])
def test_a_node_whose_fetch_is_killed_anywhere_has_no_half_environment(
    transport: SameHomes, whole: str, program: str, cases: Cases
) -> None:
    (other,) = nodes("other")

    def nothing_is_in_use(number: int) -> None:
        if transport.is_whole(other, whole):  # killed after the last rename
            (environment,) = transport.environments(other)
            subprocess.run(["rm", "-rf", str(environment)], check=True)

    def fetched() -> None:
        parts.fetch(transport, other, parts.pack(transport, BUILDER))

    killed = killed_anywhere(transport, program, fetched, nothing_is_in_use, cases)
    assert killed > 8
    assert transport.is_whole(other, whole)
    assert transport.halves(other) == []


@pytest.mark.sweep(2, of="archives")
def test_a_builder_that_is_killed_while_it_serves_lets_the_others_create_their_own(
    transport: SameHomes, whole: str
) -> None:
    packed = parts.pack(transport, BUILDER)
    (other,) = nodes("other")
    transport.kill("environment_archive serve", 1)
    with pytest.raises((NodeError, NoRoute)):
        parts.fetch(transport, other, packed)
    assert not transport.is_whole(other, whole)


@pytest.mark.sweep(2, of="archives")
@pytest.mark.parametrize("change", ["one byte", "truncated", "gone"])
def test_an_archive_that_was_changed_on_its_builder_is_refused(
    transport: SameHomes, whole: str, change: str
) -> None:
    packed = parts.pack(transport, BUILDER)
    (other,) = nodes("other")
    place = transport.home(BUILDER) / BUILDER.cache / "archives" / parts.KEY / "parts"
    part = max(place.iterdir(), key=lambda each: each.stat().st_size)
    data = part.read_bytes()
    if change == "gone":
        part.unlink()
    else:
        middle = len(data) // 2
        changed = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        part.write_bytes(changed if change == "one byte" else data[:middle])
    with pytest.raises((CloudtrainError, NoRoute)) as refused:
        parts.fetch(transport, other, packed)
    assert not transport.is_whole(other, whole)
    assert transport.halves(other) == []
    if change == "one byte":
        assert "SHA-256" in str(refused.value)
    parts.fetch(transport, other, parts.pack(transport, BUILDER))
    assert transport.is_whole(other, whole)


@pytest.fixture
def small(transport: SameHomes) -> Iterator[Callable[[str], Node]]:
    """A node with a disk of its own, with mount(8)'s options for a tmpfs; again: with others."""
    (other,) = nodes("other")
    disk = transport.home(other)
    disk.mkdir(parents=True, exist_ok=True)

    def mounted(options: str) -> Node:
        options = f"remount,{options}" if os.path.ismount(disk) else options
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], check=True)
        return other

    try:
        yield mounted
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


@pytest.mark.sweep(2, of="archives")
@pytest.mark.parametrize(
    ("disk", "words"),
    [("size=512m", "are free in"), ("size=4g,nr_inodes=100", "No space left on device")],
    ids=["for its download", "for its files"],
)
def test_a_node_without_room_uses_nothing_of_it(
    transport: SameHomes, whole: str, small: Callable[[str], Node], disk: str, words: str
) -> None:
    packed = parts.pack(transport, BUILDER)
    other = small(disk)
    with pytest.raises((CloudtrainError, NoRoute), match=words):
        parts.fetch(transport, other, packed)
    assert not transport.is_whole(other, whole)
    assert transport.halves(other) == []
    packed = parts.pack(transport, BUILDER)
    parts.fetch(transport, small("size=4g,nr_inodes=100000"), packed)
    assert transport.is_whole(other, whole)


@pytest.mark.sweep(2, of="archives")
def test_what_the_tar_of_a_killed_unpacker_still_writes_is_not_in_use(
    transport: SameHomes, whole: str
) -> None:
    packed = parts.pack(transport, BUILDER)
    (other,) = nodes("other")
    transport.kill("environment_archive unpack", 12)
    with pytest.raises(CloudtrainError):
        parts.fetch(transport, other, packed)
    transport.kill("environment_archive unpack", 0)
    left = transport.halves(other)
    parts.fetch(transport, other, packed)
    (environment,) = transport.environments(other)
    assert environment.name not in left
    for name in left:  # as a tar that still runs would
        late = environment.parent / name / environment.name / "late"
        late.parent.mkdir(parents=True, exist_ok=True)
        late.write_text("half a file")
    assert transport.is_whole(other, whole)


def test_an_environment_that_is_not_whole_is_not_packed(transport: SameHomes) -> None:
    (environment,) = transport.environments(BUILDER)
    (environment / ".complete").unlink()
    with pytest.raises(NodeError, match="not complete"):
        parts.pack(transport, BUILDER)


@pytest.mark.sweep(2, of="archives")
def test_two_clients_that_fetch_to_one_node_at_once_both_have_it(
    transport: SameHomes, whole: str
) -> None:
    packed = parts.pack(transport, BUILDER)
    (other,) = nodes("other")
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(parts.fetch, transport, other, packed) for _ in range(2)]:
            done.result()
    assert transport.is_whole(other, whole)
    assert transport.halves(other) == []
