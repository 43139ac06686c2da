"""Archives as the unpacker reads them: sparse files, and formats of earlier commits."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from cloudtrain.artifacts.spool_archive import parse_index
from cloudtrain.node import unpacker

# ── On the node ──────────────────────────────────────────────────────────────


def test_a_sparse_file_does_not_fill_a_disk(tmp_path: Path) -> None:
    member = tarfile.TarInfo("work/a")
    member.type = tarfile.GNUTYPE_SPARSE
    archive = member.tobuf(tarfile.GNU_FORMAT) + b"\0" * 10240
    with pytest.raises((ValueError, tarfile.TarError)):
        unpacker.unpacked(io.BytesIO(archive), os.fsencode(tmp_path))  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_no_file_can_have_is_why_a_checkpoint_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacker, "SPARE", 0)  # `make units` has its files in memory
    file = {"path": "a\0b", "size": 0, "request": None, "content": ""}
    order = {"work": str(tmp_path), "files": [file]}
    answer = unpacker.fetched(order, os.fsencode(tmp_path / "new"))
    assert answer == {"why": "embedded null byte"}


def test_archives_of_an_earlier_commit_are_unpacked(tmp_path: Path) -> None:
    for number, path in enumerate(
        sorted(Path(__file__).parents[1].glob("frozen/*/spool/**/*.tar"))
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        with path.open("rb") as file:
            facts = unpacker.unpacked(file, os.fsencode(folder))  # type: ignore[arg-type]
        members = {name: size for name, size, _ in facts["members"]}  # type: ignore[attr-defined]
        index = parse_index(str(facts["about"]), members)
        assert index.files
        for at, member in enumerate(members):
            digest = hashlib.sha256((folder / str(at)).read_bytes()).hexdigest()
            assert digest == index.files[member].sha256
