"""Cuts a folder of gigabytes into parts, and puts them together on another machine.

The contents of all files, one after another, are cut into blocks, each packed by itself and checked
by its SHA-256. Parts come in any order, and twice; what is damaged is named. Blank pages become
holes. The standard library alone, as it also runs there.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

BLOCK = 8 << 20
PAGE = 1 << 16
PRESET = 2
"""Of xz: 6 is a tenth smaller and takes five times as long."""
DONE = ".chunks"
INDEX = "index.json"


@dataclass(frozen=True)
class File:
    path: str
    mode: int
    size: int
    link: str | None


@dataclass(frozen=True)
class Block:
    start: int
    end: int
    digest: str
    part: int


@dataclass(frozen=True)
class Index:
    files: tuple[File, ...]
    blocks: tuple[Block, ...]

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Index:
        found: Mapping[str, Any] = json.loads(text)
        return cls(
            tuple(File(**each) for each in found["files"]),
            tuple(Block(**each) for each in found["blocks"]),
        )

    def within(self, start: int, end: int) -> Iterator[tuple[File, int, int, int]]:
        """Files that this span holds: offset in the file, offset in the span, length."""
        at = 0
        for file in self.files:
            low, high = max(start, at), min(end, at + file.size)
            if low < high:
                yield file, low - at, low - start, high - low
            at += file.size


# ── here ─────────────────────────────────────────────────────────────────────


def pack(
    folder: Path, parts: Path, part_bytes: int, first: Sequence[str] = (), preset: int = PRESET
) -> Index:
    """Write `parts/01`, `02`, …, each at most so large, the files of the first globs first."""
    files = tuple(_listed(folder, first))
    total = sum(each.size for each in files)
    spans = [(start, min(start + BLOCK, total)) for start in range(0, total, BLOCK)]
    parts.mkdir(parents=True)
    blocks: list[Block] = []
    part = used = 0
    with ProcessPoolExecutor() as pool:
        packed = pool.map(partial(_packed, folder, Index(files, ()), preset), spans)
        for number, ((start, end), (digest, data)) in enumerate(zip(spans, packed, strict=True)):
            if not part or used + len(data) > part_bytes:
                part, used = part + 1, 0
                (parts / f"{part:02}").mkdir()
            (parts / f"{part:02}" / f"{number:04}.xz").write_bytes(data)
            used += len(data)
            blocks.append(Block(start, end, digest, part))
    index = Index(files, tuple(blocks))
    (parts / "01" / INDEX).write_text(index.text())
    return index


def complete_with(index: Index, glob: str) -> int:
    """The part with which all files of this glob are there; 0 if it has none."""
    named = (
        block.part
        for block in index.blocks
        if any(fnmatch(file.path, glob) for file, *_ in index.within(block.start, block.end))
    )
    return max(named, default=0)


def _listed(folder: Path, first: Sequence[str]) -> list[File]:
    found = []
    for path in folder.rglob("*"):
        link = str(path.readlink()) if path.is_symlink() else None
        if link is None and path.is_dir():
            continue
        status = path.lstat()
        size = 0 if link else status.st_size
        found.append(File(str(path.relative_to(folder)), status.st_mode & 0o777, size, link))

    def rank(file: File) -> int:
        fits = (number for number, glob in enumerate(first) if fnmatch(file.path, glob))
        return next(fits, len(first))

    return sorted(found, key=lambda file: (rank(file), file.path))


def _packed(folder: Path, index: Index, preset: int, span: tuple[int, int]) -> tuple[str, bytes]:
    data = bytearray(span[1] - span[0])
    for file, offset, within, length in index.within(*span):
        with (folder / file.path).open("rb") as opened:
            opened.seek(offset)
            data[within : within + length] = opened.read(length)
    filters = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": preset}]
    packed = lzma.compress(bytes(data), lzma.FORMAT_XZ, lzma.CHECK_CRC32, filters=filters)
    return hashlib.sha256(data).hexdigest(), packed


# ── there ────────────────────────────────────────────────────────────────────


def unpack(part: Path, folder: Path) -> list[str]:
    """Put a part in its place; returns what was damaged."""
    kept = folder.with_name(f"{folder.name}.json")
    if (part / INDEX).exists():
        shutil.copy(part / INDEX, kept)
    index = Index.read(kept.read_text())
    if not (folder / DONE).is_dir():
        _make_blank(folder, index)
    with ProcessPoolExecutor() as pool:
        wrong = pool.map(partial(_put, folder, index), sorted(part.glob("*.xz")))
        return [each for each in wrong if each]


def missing(folder: Path) -> tuple[list[int], list[str]]:
    """Parts that are not all there, and files that lack some of their bytes."""
    index = Index.read(folder.with_name(f"{folder.name}.json").read_text())
    lacking = [
        block
        for number, block in enumerate(index.blocks)
        if not (folder / DONE / f"{number:04}").exists()
    ]
    names = {file.path for each in lacking for file, *_ in index.within(each.start, each.end)}
    return sorted({each.part for each in lacking}), sorted(names)


def _make_blank(folder: Path, index: Index) -> None:
    """Every file in its size, and every link."""
    for file in index.files:
        place = folder / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.link is not None:
            place.symlink_to(file.link)
            continue
        with place.open("wb") as opened:
            opened.truncate(file.size)
        place.chmod(file.mode | 0o600)
    (folder / DONE).mkdir(parents=True)


def _put(folder: Path, index: Index, source: Path) -> str:
    number = int(source.stem)
    block = index.blocks[number]
    try:
        data = lzma.decompress(source.read_bytes())
    except (lzma.LZMAError, EOFError) as error:
        return f"block {number}: {error}"
    if hashlib.sha256(data).hexdigest() != block.digest:
        return f"block {number}: another SHA-256"
    blank = bytes(PAGE)
    for file, offset, within, length in index.within(block.start, block.end):
        with (folder / file.path).open("r+b") as opened:
            for low in range(0, length, PAGE):
                piece = data[within + low : within + min(low + PAGE, length)]
                if piece != blank[: len(piece)]:
                    opened.seek(offset + low)
                    opened.write(piece)
    (folder / DONE / f"{number:04}").touch()
    return ""
