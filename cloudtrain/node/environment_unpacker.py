"""Unpacks an archive of an environment that was downloaded to this node.

Nothing of it is unpacked before the SHA-256 of every part is as ordered. It is unpacked beside its
place, tried, marked complete and renamed: killed at any moment it leaves nothing that looks
complete, and the next one begins again.
"""

import collections.abc
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor

from cloudtrain.node import client

AT_ONCE = 8
PIECE = 1 << 20
TRIAL = "import sys, pip; print('%d.%d' % sys.version_info[:2])"


class Unfit(Exception):
    """The archive is not the one that was ordered, or does not work on this node."""


def main() -> None:
    order = client.order()
    folder = os.path.abspath(client.plain(str(order["folder"])))
    files = os.path.abspath(client.plain(str(order["files"])))
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    lock = os.open(folder + b".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    client.attend()
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        if not os.path.exists(folder + b"/.complete"):
            parts = order["parts"]
            assert isinstance(parts, list)
            unpack(folder, files, [(str(name), str(sha)) for name, sha in parts], order)
        client.tell({"unpacked": True})
    except (OSError, Unfit, subprocess.CalledProcessError) as error:
        client.tell({"error": str(error)})
    # The download, of which nothing is needed again.
    shutil.rmtree(os.path.dirname(files), ignore_errors=True)
    os._exit(0)


def unpack(
    folder: bytes, files: bytes, parts: "list[tuple[str, str]]", order: "dict[str, object]"
) -> None:
    """Raises Unfit, OSError.

    It is unpacked in a folder of this process alone: the tar of a killed one may still write.
    """
    top, beside = os.path.dirname(folder), os.path.basename(folder) + b".new-"
    side_by_side(lambda part: verify(files, part), parts)
    for name in os.listdir(top):
        if name.startswith(beside):
            shutil.rmtree(os.path.join(top, name), ignore_errors=True)
    new = tempfile.mkdtemp(prefix=beside, dir=top)
    try:
        extract(files, parts[0], new)  # the folders
        side_by_side(lambda part: extract(files, part, new), parts[1:])
        whole = os.path.join(new, os.path.basename(folder))
        bases = order["bases"]
        assert isinstance(bases, list)
        for base in bases:
            place(new, top, client.plain(str(base)))
        python = subprocess.run(
            [whole + b"/bin/python", b"-I", b"-c", TRIAL.encode()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        if python.returncode or python.stdout.decode().strip() != order["python"]:
            raise Unfit(f"its Python {order['python']} does not run here")
        for mark in (b"/.sealed", b"/.complete"):
            os.close(os.open(whole + mark, os.O_WRONLY | os.O_CREAT, 0o644))
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(whole, folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def verify(files: bytes, part: "tuple[str, str]") -> None:
    name, wanted = part
    digest = hashlib.sha256()
    with open(os.path.join(files, client.plain(name)), "rb", buffering=0) as file:
        for data in iter(lambda: file.read(PIECE), b""):
            digest.update(data)
    if digest.hexdigest() != wanted:
        raise Unfit(f"{name} has the SHA-256 {digest.hexdigest()}, not {wanted}")


def extract(files: bytes, part: "tuple[str, str]", new: bytes) -> None:
    name = part[0]
    tool = "zstd" if name.endswith(".zst") else "gzip"
    with open(os.path.join(files, client.plain(name)), "rb") as file:
        unzip = subprocess.Popen([tool, "-d", "-c"], stdin=file, stdout=subprocess.PIPE)
    done = subprocess.run(
        ["tar", "--no-same-owner", "-xpf", "-", "-C", os.fsdecode(new)],
        stdin=unzip.stdout,
        stderr=subprocess.PIPE,
    )
    assert unzip.stdout is not None
    unzip.stdout.close()
    if unzip.wait() or done.returncode:
        words = done.stderr.decode("utf-8", "replace").strip()
        raise Unfit(words.splitlines()[0] if words else f"{name}: cannot be unpacked")


def place(new: bytes, top: bytes, name: bytes) -> None:
    """Move a Python, or a link to it, to its place beside the environments, if none is there."""
    target = os.path.join(top, name)
    if not os.path.lexists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.rename(os.path.join(new, name), target)


def side_by_side(
    work: "collections.abc.Callable[[tuple[str, str]], None]", parts: "list[tuple[str, str]]"
) -> None:
    """Do the work for every part in threads: most of it is done by other processes, or without the
    interpreter's lock.
    """
    with ThreadPoolExecutor(max(1, min(AT_ONCE, os.cpu_count() or 1))) as pool:
        list(pool.map(work, parts))
