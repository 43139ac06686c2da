"""Calls of Linux for mounts that Python has not: mount(2), open_tree(2), move_mount(2) and
mount_setattr(2), which are of Linux 5.12.

https://man7.org/linux/man-pages/man2/mount_setattr.2.html, the numbers in
include/uapi/asm-generic/unistd.h, which are the same on every architecture (read 2026-11-26).
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 2, 4, 8, 32
MS_REC, MS_SLAVE = 16_384, 1 << 19

RDONLY, NOSUID, NODEV, IDMAP = 1, 2, 4, 0x0010_0000
"""MOUNT_ATTR_…"""

OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE = -100, 0x1000, 0x8000
OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH = 1, 4


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("user_namespace", ctypes.c_uint64),
    )


def mount(source: str, target: str, flags: int, kind: str = "", options: str = "") -> None:
    result = libc().mount(
        os.fsencode(source), os.fsencode(target), kind.encode(), flags, options.encode()
    )
    checked(result, f"mount {target}")


def clone(path: str) -> int:
    """A descriptor of a detached copy of the mount at or around `path`, and of those below it."""
    flags = OPEN_TREE_CLONE | os.O_CLOEXEC | AT_RECURSIVE
    descriptor = call(OPEN_TREE, AT_FDCWD, os.fsencode(path), flags)
    checked(min(descriptor, 0), f"open_tree {path}")
    return descriptor


def attach(cloned: int, path: str) -> None:
    done = call(MOVE_MOUNT, cloned, b"", AT_FDCWD, os.fsencode(path), MOVE_MOUNT_F_EMPTY_PATH)
    checked(done, f"move_mount {path}")


def change(place: int | str, *, set_flags: int, user_namespace: int = 0, deep: bool = True) -> None:
    """Set flags of a mount, of all below it too if `deep`."""
    at, path = (AT_FDCWD, os.fsencode(place)) if isinstance(place, str) else (place, b"")
    attributes = _Attributes(set_flags, 0, 0, user_namespace)
    flags = (0 if path else AT_EMPTY_PATH) | (AT_RECURSIVE if deep else 0)
    done = call(
        MOUNT_SETATTR, at, path, flags, ctypes.addressof(attributes), ctypes.sizeof(attributes)
    )
    checked(done, f"mount_setattr {place if isinstance(place, str) else ''}".strip())


def call(number: int, *arguments: int | bytes | None) -> int:
    """syscall(2); -1 if it failed, and then `checked` raises why."""
    words = [each if isinstance(each, bytes) else ctypes.c_long(each or 0) for each in arguments]
    return int(libc().syscall(ctypes.c_long(number), *words))


@cache
def libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    library.prctl.argtypes = (ctypes.c_int, *4 * (ctypes.c_ulong,))
    library.mount.argtypes = (
        *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p),
        *(ctypes.c_ulong, ctypes.c_char_p),
    )
    return library


def checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
