"""Reads the GPU code in a library: NVIDIA's "fatbin" containers in an ELF file.

NVIDIA documents only that a container has machine code and PTX for several architectures
(https://docs.nvidia.com/cuda/cuda-compiler-driver-nvcc/#gpu-compilation). The layout below is that
of https://github.com/n-eiling/cuda-fatbin-decompression (README and fatbin-decompress.h), and was
compared with TensorFlow's wheels: each PTX begins with the version that its entry's header has.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = struct.pack("<I", 0xBA55ED50)
HEADER = struct.Struct("<IHHQ")
"""Magic, version, bytes of this header, bytes after it."""
ENTRY = struct.Struct("<HHIQIIHHI")
"""Kind, -, bytes of the header and of the payload, packed bytes, -, minor, major, architecture."""
PTX, MACHINE_CODE, LTO = 1, 2, 8
KINDS = (PTX, MACHINE_CODE, 4, LTO, 16, 32)
FIRST = 6000
"""Bytes of PTX that have its `.target` and a first `.entry`."""


@dataclass(frozen=True)
class Entry:
    kind: int
    architecture: int
    """90 for sm_90 and sm_90a."""
    start: int
    end: int
    """Of its payload in the file."""
    version: tuple[int, int]
    """Of PTX: its ISA's."""
    packed: bool

    def text(self, data: bytes) -> str:
        """The beginning of PTX."""
        payload = data[self.start : self.end]
        return (unpacked(payload) if self.packed else payload[:FIRST]).decode("latin-1")

    def target(self, data: bytes) -> str:
        """What PTX is for: `sm_90a`."""
        found = re.search(r"^\.target (\w+)", self.text(data), re.MULTILINE)
        return found[1] if found else f"sm_{self.architecture}"


def containers(data: bytes | bytearray) -> Iterator[tuple[Entry, ...]]:
    """The entries of each container that can be read to its end."""
    at = 0
    while (at := data.find(MAGIC, at)) >= 0:
        _, version, header, size = HEADER.unpack_from(data, at)
        end = at + header + size
        if version != 1 or header != HEADER.size or end > len(data):
            at += len(MAGIC)
            continue
        entries = tuple(_entries(data, at + header, end))
        yield entries
        at = end if entries else at + header


def _entries(data: bytes | bytearray, at: int, end: int) -> Iterator[Entry]:
    while at + 64 <= end:
        kind, _, head, size, packed, _, minor, major, architecture = ENTRY.unpack_from(data, at)
        start = at + head
        if kind not in KINDS or not 32 <= head <= 4096 or start + size > end:
            return
        yield Entry(kind, architecture, start, start + size, (major, minor), packed > 0)
        at = start + size


def unpacked(block: bytes, most: int = FIRST) -> bytes:
    """The beginning of an LZ4 block (https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md)."""
    out, at = bytearray(), 0
    try:
        while len(out) < most and at < len(block):
            token = block[at]
            length, at = _length(block, at + 1, token >> 4)
            out += block[at : at + length]
            at += length
            (back,) = struct.unpack_from("<H", block, at)
            length, at = _length(block, at + 2, token & 15)
            for _ in range(length + 4):
                out.append(out[-back])
    except (IndexError, struct.error):
        pass  # a block ends with letters that nothing follows
    return bytes(out)


def _length(block: bytes, at: int, length: int) -> tuple[int, int]:
    more = 255 if length == 15 else 0
    while more == 255:
        more = block[at]
        length, at = length + more, at + 1
    return length, at
