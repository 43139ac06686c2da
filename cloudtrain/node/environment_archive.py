"""Packs an environment of this node into an archive of several parts, serves them, and unpacks one
that was downloaded to this node.

Packed are the environment and, if it lies beside it, the Python that it was created from; all names
in the archive are relative to the folder of both. An archive is whole or not there: it is written
beside its place. The parts are compressed side by side, each by a process of its own.

Nothing is unpacked before the SHA-256 of every part is as ordered. It is unpacked beside its place,
tried, marked complete and renamed: killed at any moment it leaves nothing that looks complete, and
the next one begins again.
"""

import collections.abc
import fcntl
import hashlib
import http.server
import os
import re
import shutil
import socketserver
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cloudtrain.node import client

PART = 96 << 20
"""Bytes of files in one part; a larger file is a part of its own."""
AT_ONCE = 8
PIECE = 1 << 20
BELOW = b".below"
"""Of a layer (layer.py): the environment below it, by a path that its archive is for, too."""

BASE = "import sys; print(sys.base_prefix); print('%d.%d' % sys.version_info[:2])"
TRIAL = "import sys, pip; print('%d.%d' % sys.version_info[:2])"


class Unfit(Exception):
    """The environment cannot be packed, or the archive is not the expected one or does not work."""


def main() -> None:
    """`pack`, `serve` or `unpack`, by the order on stdin."""
    {"pack": pack, "serve": serve, "unpack": unpack}[sys.argv[1]](client.order())
    os._exit(0)


def pack(order: "dict[str, Any]") -> None:
    folder = os.path.abspath(client.plain(order["folder"]))
    archive = os.path.abspath(client.plain(order["archive"]))
    hold_lock(archive)
    try:
        client.tell({"packed": packed(folder, archive)})
    except (OSError, Unfit) as error:
        client.tell({"error": str(error)})


def unpack(order: "dict[str, Any]") -> None:
    folder = os.path.abspath(client.plain(order["folder"]))
    files = os.path.abspath(client.plain(order["files"]))
    hold_lock(folder)
    try:
        if not os.path.exists(folder + b"/.complete"):
            unpacked(folder, files, order)
        client.tell({"unpacked": True})
    except (OSError, Unfit, subprocess.CalledProcessError) as error:
        client.tell({"error": str(error)})
    # The download, of which nothing is needed again.
    shutil.rmtree(os.path.dirname(files), ignore_errors=True)


def hold_lock(folder: bytes) -> None:
    """Attend to the client, and hold the lock beside a folder that may not be there yet."""
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    lock = os.open(folder + b".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    client.attend()
    fcntl.flock(lock, fcntl.LOCK_EX)


# ── Packing ──────────────────────────────────────────────────────────────────


def packed(folder: bytes, archive: bytes) -> "dict[str, Any]":
    """Pack the folder; returns the parts with their checksums. Raises Unfit, OSError."""
    if not os.path.exists(folder + b"/.complete"):
        raise Unfit("the environment is not complete")
    top = os.path.dirname(folder)
    command = [folder + b"/bin/python", b"-I", b"-S", b"-c", BASE.encode()]
    lines = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.splitlines()
    others, python = bases(top, os.path.realpath(lines[0])), lines[1].decode()
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


def bases(top: bytes, base: bytes) -> "list[bytes]":
    """Folder of the Python that the environment was created from, `base`, and the links to it, if
    it lies inside `top`."""
    real = os.path.realpath(top)
    if not base.startswith(real + b"/"):
        return []
    above = os.path.join(top, os.path.relpath(os.path.dirname(base), real))
    inside = [os.path.join(above, name) for name in os.listdir(above)]
    return sorted(each for each in inside if os.path.realpath(each) == base)


def entries(
    top: bytes, folder: bytes, others: "list[bytes]"
) -> "dict[bytes, tuple[bool, int, int]]":
    """Everything to pack: is it a folder, its size and the time of its last change. Other marks
    in the environment, which begin with a dot, are of this node."""
    found = {}
    for root in [folder, *others]:
        if os.path.islink(root):
            found[os.path.relpath(root, top)] = (False, 0, os.lstat(root).st_mtime_ns)
            continue
        found[os.path.relpath(root, top)] = (True, 0, 0)
        for place, folders, names in os.walk(root):
            if place == folder:
                names = [name for name in names if not name.startswith(b".") or name == BELOW]
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
) -> "list[dict[str, Any]]":
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


def part(top: bytes, paths: "list[bytes]", folder: bytes, number: int) -> "dict[str, Any]":
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
            for data in iter(lambda: packed.read(PIECE), b""):
                sha256.update(data)
                md5.update(data)
                size += len(data)
                file.write(data)
        text = tar.stderr.read().decode("utf-8", "replace").strip()
        codes = tar.wait(), tool.wait()
    os.unlink(os.path.join(folder, name.encode() + b".list"))
    if any(codes):
        raise Unfit(text.splitlines()[0] if text else "tar failed: exit {}, {}".format(*codes))
    return {"name": name, "size": size, "sha256": sha256.hexdigest(), "md5": md5.hexdigest()}


# ── Unpacking ────────────────────────────────────────────────────────────────


def unpacked(folder: bytes, files: bytes, order: "dict[str, Any]") -> None:
    """Unpack in a folder of this process alone, as the tar of a killed one may still write, and
    move it to its place. Raises Unfit, OSError."""
    top, beside = os.path.dirname(folder), os.path.basename(folder) + b".new-"
    parts = [(name, sha256) for name, sha256 in order["parts"]]
    side_by_side(lambda part: verify(files, part), parts)
    for name in os.listdir(top):
        if name.startswith(beside):
            shutil.rmtree(os.path.join(top, name), ignore_errors=True)
    new = tempfile.mkdtemp(prefix=beside, dir=top)
    try:
        extract(files, parts[0], new)  # the folders
        side_by_side(lambda part: extract(files, part, new), parts[1:])
        whole = os.path.join(new, os.path.basename(folder))
        for base in order["bases"]:
            place(new, top, client.plain(base))
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
        message = done.stderr.decode("utf-8", "replace").strip()
        raise Unfit(message.splitlines()[0] if message else f"{name}: cannot be unpacked")


def place(new: bytes, top: bytes, name: bytes) -> None:
    """Move a Python, or a link to it, to its place beside the environments, if none is there."""
    target = os.path.join(top, name)
    if not os.path.lexists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.rename(os.path.join(new, name), target)


def side_by_side(
    work: "collections.abc.Callable[[tuple[str, str]], None]", parts: "list[tuple[str, str]]"
) -> None:
    """Work on every part in threads: most of it is done without the interpreter's lock."""
    with ThreadPoolExecutor(max(1, min(AT_ONCE, os.cpu_count() or 1))) as pool:
        list(pool.map(work, parts))


# ── Serving to nodes of the cluster, while the client is there ─────────────────
# Only to who knows the token, on one address of the node. What is served is no secret (packages of
# an index), and what arrives is trusted by its SHA-256 alone, which nodes get from their client.


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 256
    folder = b""
    token = ""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        found = re.match(r"/([0-9a-f]+)/(part-\d+\.tar\.[a-z]+)\Z", self.path)
        if found is None or found.group(1) != Server.token:
            self.send_error(404)
            return
        with open(os.path.join(Server.folder, found.group(2).encode()), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            wanted = re.match(r"bytes=(\d+)-(\d+)\Z", self.headers.get("Range") or "")
            first, last = (int(wanted.group(1)), int(wanted.group(2))) if wanted else (0, size - 1)
            last = min(last, size - 1)
            if first > last:
                self.send_error(416)
                return
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.send_header("Content-Length", str(last - first + 1))
            self.end_headers()
            self.wfile.flush()
            while first <= last:
                sent = os.sendfile(self.connection.fileno(), file.fileno(), first, last + 1 - first)
                if not sent:
                    raise ConnectionError("the peer is gone")
                first += sent

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing: paths have the token."""


def serve(order: "dict[str, Any]") -> None:
    archive = os.path.abspath(client.plain(order["archive"]))
    Server.folder, Server.token = archive + b"/parts", str(order["token"])
    try:
        server = Server((str(order["address"]), 0), Handler)
    except OSError as error:
        client.tell({"error": str(error)})
        return
    client.attend()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client.tell({"port": server.server_address[1]})
    while sys.stdin.buffer.read(1 << 16):
        pass
    shutil.rmtree(archive, ignore_errors=True)
