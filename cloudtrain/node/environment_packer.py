"""Packs an environment of this node into an archive of several parts, for nodes alike.

Packed are the environment and, if it lies beside it, the Python that it was created from; all names
in the archive are relative to the folder of both. An archive is whole or not there: it is written
beside its place. The parts are compressed side by side, each by a process of its own.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

from cloudtrain.node import client

PART = 96 << 20
"""Bytes of files in one part; a larger file is a part of its own."""
AT_ONCE = 8

BASE = "import sys; print(sys.base_prefix); print('%d.%d' % sys.version_info[:2])"


class Unfit(Exception):
    """The environment cannot be packed."""


def main() -> None:
    order = client.order()
    folder = os.path.abspath(client.plain(str(order["folder"])))
    archive = os.path.abspath(client.plain(str(order["archive"])))
    os.makedirs(os.path.dirname(archive), exist_ok=True)
    lock = os.open(archive + b".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    client.attend()
    try:
        client.tell({"packed": packed(folder, archive)})
    except (OSError, Unfit) as error:
        client.tell({"error": str(error)})
    os._exit(0)


def packed(folder: bytes, archive: bytes) -> "dict[str, object]":
    """Pack the folder; returns the parts with their checksums. Raises Unfit, OSError."""
    if not os.path.exists(folder + b"/.complete"):
        raise Unfit("the environment is not complete")
    top = os.path.dirname(folder)
    base, python = python_of(folder)
    others = bases(top, base)
    before = entries(top, folder, others)
    new = archive + b".new"
    for old in (new, archive):
        shutil.rmtree(old, ignore_errors=True)
    os.makedirs(new + b"/parts")
    parts = compressed(top, before, new + b"/parts")
    if entries(top, folder, others) != before:
        shutil.rmtree(new, ignore_errors=True)
        raise Unfit("the environment was changed meanwhile")
    os.rename(new, archive)
    names = [os.path.relpath(each, top).decode("utf-8", "surrogateescape") for each in others]
    return {"parts": parts, "python": python, "bases": names}


def python_of(folder: bytes) -> "tuple[bytes, str]":
    """The real folder of the Python that the environment was created from, and its version."""
    asked = [folder + b"/bin/python", b"-I", b"-S", b"-c", BASE.encode()]
    lines = subprocess.run(asked, stdout=subprocess.PIPE, check=True).stdout.splitlines()
    return os.path.realpath(lines[0]), lines[1].decode()


def bases(top: bytes, base: bytes) -> "list[bytes]":
    """The Python's folder and the links to it, if it lies inside `top`."""
    real = os.path.realpath(top)
    if not base.startswith(real + b"/"):
        return []
    above = os.path.join(top, os.path.relpath(os.path.dirname(base), real))
    inside = [os.path.join(above, name) for name in os.listdir(above)]
    return sorted(each for each in inside if os.path.realpath(each) == base)


def entries(
    top: bytes, folder: bytes, others: "list[bytes]"
) -> "dict[bytes, tuple[bool, int, int]]":
    """What to pack: is it a folder, its size and the time of its last change. Marks in the
    environment, which begin with a dot, are of this node.
    """
    found = {}
    for root in [folder, *others]:
        if os.path.islink(root):
            found[os.path.relpath(root, top)] = (False, 0, os.lstat(root).st_mtime_ns)
            continue
        found[os.path.relpath(root, top)] = (True, 0, 0)
        for place, folders, names in os.walk(root):
            if place == folder:
                names = [name for name in names if not name.startswith(b".")]
            for name in names + folders:
                path = os.path.join(place, name)
                facts = os.lstat(path)
                is_folder = name in folders and not os.path.islink(path)
                size = 0 if is_folder else facts.st_size
                stamp = 0 if is_folder else facts.st_mtime_ns
                found[os.path.relpath(path, top)] = (is_folder, size, stamp)
    return found


def compressed(
    top: bytes, found: "dict[bytes, tuple[bool, int, int]]", folder: bytes
) -> "list[dict[str, object]]":
    """Write the parts. The first has the folders, for the others to fill."""
    groups = [[path for path in found if found[path][0]]]  # type: list[list[bytes]]
    size = PART
    for path in sorted(path for path in found if not found[path][0]):
        if size >= PART:
            groups.append([])
            size = 0
        groups[-1].append(path)
        size += found[path][1] + 512
    parts = []
    with ThreadPoolExecutor(max(1, min(AT_ONCE, os.cpu_count() or 1))) as pool:
        packing = [pool.submit(part, top, paths, folder, n) for n, paths in enumerate(groups)]
        for done, each in enumerate(packing, 1):
            parts.append(each.result())
            client.tell({"at": done, "of": len(groups)})
    return parts


def part(top: bytes, paths: "list[bytes]", folder: bytes, number: int) -> "dict[str, object]":
    zstd = shutil.which("zstd")
    name = "part-{:03d}.tar.{}".format(number, "zst" if zstd else "gz")
    squeeze = [zstd, "-q", "-1", "-c"] if zstd else ["gzip", "-1", "-n", "-c"]
    with open(os.path.join(folder, name.encode() + b".list"), "w+b") as names:
        names.write(b"".join(path + b"\0" for path in paths))
        names.flush()
        listed = os.fsdecode(names.name)
        pack = ["tar", "--null", "--no-recursion", "--no-unquote", "-C", os.fsdecode(top)]
        pack += ["-cf", "-", "-T", listed]
        tar = subprocess.Popen(pack, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        tool = subprocess.Popen(squeeze, stdin=tar.stdout, stdout=subprocess.PIPE)
        packed = tool.stdout
        assert tar.stdout is not None
        assert tar.stderr is not None
        assert packed is not None
        tar.stdout.close()
        sha256, md5, size = hashlib.sha256(), hashlib.md5(), 0
        with open(os.path.join(folder, name.encode()), "wb", buffering=0) as file:
            for data in iter(lambda: packed.read(1 << 20), b""):
                sha256.update(data)
                md5.update(data)
                size += len(data)
                file.write(data)
        words = tar.stderr.read().decode("utf-8", "replace").strip()
        codes = tar.wait(), tool.wait()
    os.unlink(os.path.join(folder, name.encode() + b".list"))
    if any(codes):
        raise Unfit(words.splitlines()[0] if words else "tar failed: exit {}, {}".format(*codes))
    return {"name": name, "size": size, "sha256": sha256.hexdigest(), "md5": md5.hexdigest()}
