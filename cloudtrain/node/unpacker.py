"""Downloads one archive and unpacks it, or the files of a checkpoint, each by a request of its own.

Files of an archive are named by numbers. One JSON line lists the real names and the SHA-256 of each
file. The program ends with its client. Its order contains secrets and stays in memory.
"""

import base64
import contextlib
import hashlib
import http.client
import io
import os
import shutil
import ssl
import tarfile
import time
import urllib.parse
from typing import Any

from cloudtrain.node import client, formats, web

LARGEST_ABOUT = 64 << 20
PIECE = 1 << 20
SPARE = 1 << 30
"""Bytes to leave free on the disk for other programs on the node."""


def main() -> None:
    order = client.order()
    folder = client.plain(order["folder"])
    if "files" not in order:
        os.umask(0o077)
        os.makedirs(os.path.dirname(folder), exist_ok=True)
    client.alone(client.plain(order["lock"]))
    client.attend()
    client.tell(fetched(order, folder))
    os._exit(0)


def fetched(order: "dict[str, Any]", folder: bytes) -> "dict[str, Any]":
    """The program's answer: of an archive what `unpacked` says, of a checkpoint the SHA-256 of its
    files in the given order. `bad`: the archive is invalid; `why`: it is impossible here."""
    files = order.get("files")
    size = order["size"] if files is None else sum(each["size"] for each in files)
    try:
        if files is not None and not os.path.isdir(client.plain(order["work"])):
            return {"why": "its work folder does not exist"}
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        room = os.statvfs(folder)
        if room.f_bavail * room.f_frsize < size + SPARE:
            what = "a copy" if files is None else "the checkpoint"
            return {"why": "not enough disk space for " + what}
        if files is None:
            return unpacked(Stream(order["request"], size), folder)
        return {"sha256": [restored(each, folder) for each in files]}
    except web.Refused as error:
        return {"why": str(error)}
    except (tarfile.TarError, ValueError, OverflowError) as error:
        return {"bad" if files is None else "why": str(error) or type(error).__name__}
    except OSError as error:
        return {"why": error.strerror or str(error)}


def unpacked(stream: Any, folder: bytes) -> "dict[str, Any]":
    about = None
    members = []  # type: list[tuple[str, int, str]]
    with tarfile.open(
        fileobj=stream, mode="r|", bufsize=PIECE, encoding="utf-8", errors="surrogateescape"
    ) as archive:
        for member in archive:
            # A few bytes of a sparse file could fill the disk.
            if not member.isreg() or member.issparse():
                continue
            content: Any = archive.extractfile(member)
            if member.name != formats.ABOUT:
                name = os.path.join(folder, str(len(members)).encode())
                members.append((member.name, member.size, written(content, name)))
            elif member.size > LARGEST_ABOUT:
                raise ValueError("its index is too large")
            else:
                about = content.read().decode("utf-8")
    if about is None:
        raise ValueError("it has no index")
    return {"about": about, "members": members}


def written(content: Any, name: bytes) -> str:
    digest = hashlib.sha256()
    with open(name, "xb") as file:
        for data in iter(lambda: content.read(PIECE), b""):
            digest.update(data)
            file.write(data)
    return digest.hexdigest()


def restored(file: "dict[str, Any]", folder: bytes) -> str:
    """Write a file of a checkpoint, downloaded or from the order; returns its SHA-256."""
    content = io.BytesIO(base64.b64decode(file["content"]))  # type: Any
    if file["request"] is not None:
        content = Stream(file["request"], file["size"])
    name = os.path.join(folder, client.plain(file["path"]))
    os.makedirs(os.path.dirname(name), exist_ok=True)
    return written(content, name)


class Stream:
    """The bytes of one object, by a request that can be repeated from where it broke off."""

    def __init__(self, request: "dict[str, Any]", size: int) -> None:
        self.request, self.size = request, size
        self.at = 0
        self.web = web.Web()
        self.connection = None  # type: http.client.HTTPConnection | None
        self.answer = None  # type: http.client.HTTPResponse | None

    def read(self, length: int) -> bytes:
        """Read `length` bytes, fewer only at the end."""
        data = b""
        wanted = min(length, self.size - self.at)
        while len(data) < wanted:
            piece = self.piece(wanted - len(data))
            self.at += len(piece)
            data += piece
        return data

    def piece(self, most: int) -> bytes:
        tries = web.TRIES if self.at else web.MISSES
        for number in range(tries):
            try:
                if self.answer is None:
                    self.answer = self.opened()
                data = self.answer.read(most)
                if data:
                    return data
                raise http.client.IncompleteRead(b"")
            except ssl.CertificateError as error:
                raise web.Refused(str(error)) from None
            except (OSError, http.client.HTTPException, web.Transient) as error:
                self.close()
                if number == tries - 1:
                    text = str(error) or type(error).__name__
                    host = urllib.parse.urlsplit(str(self.request["url"])).netloc
                    raise web.Refused(f"{host}: {text}") from None
            time.sleep(web.PAUSE * 2**number)
        raise AssertionError("the last try returns or raises")

    def opened(self) -> http.client.HTTPResponse:
        ranged = {"Range": f"bytes={self.at}-"} if self.at else {}
        part = web.Part(self.request, 0, 0, 0, headers=ranged)
        target = urllib.parse.urlsplit(part.url)
        made = self.web.made(target.scheme, target.hostname or "", target.port)
        self.connection = made
        made.connect()
        made.sock.settimeout(web.ANSWER_SECONDS)
        path = target.path + ("?" + target.query if target.query else "")
        made.request(part.method, path, headers=part.headers)
        answer = made.getresponse()
        if answer.status == (206 if self.at else 200):
            return answer
        text = web.words(answer, answer.read(web.MOST_WORDS), part)
        if answer.status in web.TRANSIENT:
            raise web.Transient(text)
        raise web.Refused(text)

    def close(self) -> None:
        if self.connection is not None:
            with contextlib.suppress(OSError):
                self.connection.close()
        self.connection = self.answer = None
