"""SFTP subsystem of a local node: the user's own files, relative paths from the node's home."""

# The protocol uses strings and descriptors, as `os` does.
# ruff: noqa: PTH101, PTH102, PTH105, PTH106, PTH107, PTH115, PTH116, PTH211

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import paramiko
from paramiko.sftp import SFTP_FAILURE, SFTP_OK

T = TypeVar("T")


class Files(paramiko.SFTPServerInterface):
    """File operations of the server's process, whose working folder is the node's home."""

    def open(
        self, path: str, flags: int, attr: paramiko.SFTPAttributes
    ) -> paramiko.SFTPHandle | int:
        def opened() -> paramiko.SFTPHandle:
            mode = 0o666 if attr.st_mode is None else stat.S_IMODE(attr.st_mode)
            return OpenFile(os.open(path, flags, mode), flags)

        return _answer(opened)

    def list_folder(self, path: str) -> list[paramiko.SFTPAttributes] | int:
        return _answer(
            lambda: [
                paramiko.SFTPAttributes.from_stat(entry.stat(follow_symlinks=False), entry.name)
                for entry in os.scandir(path)
            ]
        )

    def stat(self, path: str) -> paramiko.SFTPAttributes | int:
        return _answer(lambda: paramiko.SFTPAttributes.from_stat(os.stat(path)))

    def lstat(self, path: str) -> paramiko.SFTPAttributes | int:
        return _answer(lambda: paramiko.SFTPAttributes.from_stat(os.lstat(path)))

    def remove(self, path: str) -> int:
        return _done(lambda: os.remove(path))

    def rename(self, oldpath: str, newpath: str) -> int:
        """Rename; an existing target is an error in version 3 of the protocol."""
        return SFTP_FAILURE if os.path.lexists(newpath) else self.posix_rename(oldpath, newpath)

    def posix_rename(self, oldpath: str, newpath: str) -> int:
        return _done(lambda: os.replace(oldpath, newpath))

    def mkdir(self, path: str, attr: paramiko.SFTPAttributes) -> int:
        mode = 0o777 if attr.st_mode is None else stat.S_IMODE(attr.st_mode)
        return _done(lambda: os.mkdir(path, mode))

    def rmdir(self, path: str) -> int:
        return _done(lambda: os.rmdir(path))

    def chattr(self, path: str, attr: paramiko.SFTPAttributes) -> int:
        return _done(lambda: _change(path, attr))

    def symlink(self, target_path: str, path: str) -> int:
        return _done(lambda: os.symlink(target_path, path))

    def readlink(self, path: str) -> str | int:
        return _answer(lambda: os.readlink(path))

    def canonicalize(self, path: str) -> str:
        return str(Path(path).resolve())


class OpenFile(paramiko.SFTPHandle):
    """An open file. It stores no position, as each request includes one."""

    def __init__(self, descriptor: int, flags: int) -> None:
        super().__init__(flags)
        self._descriptor = descriptor

    def close(self) -> None:
        os.close(self._descriptor)

    def read(self, offset: int, length: int) -> bytes | int:
        return _answer(lambda: os.pread(self._descriptor, length, offset))

    def write(self, offset: int, data: bytes) -> int:  # type: ignore[override]
        def written() -> None:
            view = memoryview(data)
            position = offset
            while view:
                count = os.pwrite(self._descriptor, view, position)
                view, position = view[count:], position + count

        return _done(written)

    def stat(self) -> paramiko.SFTPAttributes | int:
        return _answer(lambda: paramiko.SFTPAttributes.from_stat(os.fstat(self._descriptor)))

    def chattr(self, attr: paramiko.SFTPAttributes) -> int:
        """Set mode and times: scp and sftp do so on the open file, and copies fail without it."""
        return _done(lambda: _change(self._descriptor, attr))


class Subsystem(paramiko.SFTPServer):
    """paramiko's server plus the exit status that OpenSSH's clients wait for."""

    def finish_subsystem(self) -> None:
        if self.sock:
            self.sock.send_exit_status(0)
        super().finish_subsystem()


def _change(target: str | int, attr: paramiko.SFTPAttributes) -> None:
    """Set attributes; paramiko's `set_file_attr` truncates a file before it sets its size."""
    if attr.st_size is not None:
        os.truncate(target, attr.st_size)
    if attr.st_uid is not None and attr.st_gid is not None:
        os.chown(target, attr.st_uid, attr.st_gid)
    if attr.st_mode is not None:
        os.chmod(target, stat.S_IMODE(attr.st_mode))
    if attr.st_atime is not None and attr.st_mtime is not None:
        os.utime(target, (attr.st_atime, attr.st_mtime))


def _done(action: Callable[[], object]) -> int:
    return _answer(lambda: (action(), SFTP_OK)[1])


def _answer(action: Callable[[], T]) -> T | int:
    try:
        return action()
    except OSError as error:
        return paramiko.SFTPServer.convert_errno(error.errno or 0)
