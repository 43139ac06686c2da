"""The list of a folder's files, on real folders: links, what is no file, what cannot be read."""

from __future__ import annotations

import os
import posixpath
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.core.paths import is_inside
from cloudtrain.node import listing
from cloudtrain.node.listing import File, Listing, times


def listed(folder: Path, *patterns: str) -> tuple[dict[str, File], Listing]:
    found = Listing(os.fsencode(folder), list(patterns or ("**",)))
    return {file.path: file for file in found.files()}, found


TARGETS = st.text(alphabet="ab./", min_size=1, max_size=8)
TREES = st.dictionaries(
    st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map("/".join),
    st.one_of(st.just("d"), st.just("f"), TARGETS.map(lambda target: "l" + target)),
    max_size=12,
)


@given(tree=TREES)
def test_links_are_followed_inside_and_nowhere_else(tree: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder).resolve() / "work"
        work.mkdir()
        for path in sorted(tree):
            place = work / path
            if not place.parent.is_dir() or place.parent.resolve() != place.parent:
                continue
            kind, target = tree[path][0], tree[path][1:]
            if kind == "d":
                place.mkdir()
            elif kind == "f":
                place.write_text(path)
            else:
                place.symlink_to(target)
        files, found = listed(work)
        assert found.unread == []
        for path, file in files.items():
            assert is_inside(path)
            assert is_inside(file.source)
            assert (work / path).resolve() == work / file.source
            assert posixpath.realpath(work / file.source) == str(work / file.source)
        names = [name for _, few in found.others.values() for name in few]
        assert files.keys().isdisjoint(names)


def test_folders_that_link_to_each_other_are_listed_in_bounded_time(tmp_path: Path) -> None:
    names = [f"d{number}" for number in range(8)]
    for one in names:
        (tmp_path / one).mkdir()
    for one in names:
        (tmp_path / one / "file").write_text(one)
        for two in names:
            (tmp_path / one / f"to-{two}").symlink_to(f"../{two}")
    files, found = listed(tmp_path)
    assert 8 <= len(files) < 1_000, "and 109,600 ways lead to a file"
    assert set(found.others) == {listing.AROUND, listing.TOO_MANY}


def test_a_folder_that_is_not_there_has_no_files_and_one_that_vanishes_is_not_missed(
    tmp_path: Path,
) -> None:
    files, found = listed(tmp_path / "nothing")
    assert (files, found.unread, found.others) == ({}, [], {})
    (tmp_path / "a").mkdir()
    (tmp_path / "b").write_text("b")
    names = iter(Listing(os.fsencode(tmp_path), ["**"]).files())
    assert next(names).path == "b"
    (tmp_path / "a").rmdir()
    assert list(names) == []


def test_a_folder_that_cannot_be_read_is_named_where_it_matters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root, to whom nothing is forbidden."""
    for name in ("output", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text(name)
    real = os.listdir

    def listdir(folder: bytes) -> list[bytes]:
        if folder.endswith((b"/output", b"/other")):
            raise PermissionError(13, "Permission denied")
        return real(folder)

    monkeypatch.setattr(listing.os, "listdir", listdir)
    files, found = listed(tmp_path, "output/**")
    assert (files, found.unread) == ({}, ["output: Permission denied"])


def test_a_stamp_is_written_as_find_writes_it(tmp_path: Path) -> None:
    """Manifests of earlier versions have find's."""
    (tmp_path / "x").write_text("x")
    os.utime(tmp_path / "x", ns=(0, 1_700_000_000_123_456_789))
    files, _ = listed(tmp_path)
    facts = (tmp_path / "x").stat()
    changed, inode = f"{facts.st_ctime_ns:010d}", facts.st_ino
    assert files["x"].stamp == (f"1700000000.1234567890/{changed[:-9]}.{changed[-9:]}0/{inode}")
    assert times(files["x"].stamp)[0] == 1_700_000_000_123_456_789
