"""Calls of Linux that Python has not: for mounts, `confine`, and the size of a running node's disk.

`confine` takes from a process, and from all that it starts, the ways around its namespaces:

- No program gives it rights: setuid bits and file capabilities have no effect
  (PR_SET_NO_NEW_PRIVS).
- System calls that reach what has no namespace, or that open much of the kernel, are refused: keys
  of the user's keyring, which go by user alone (keyrings(7)), and what Docker refuses as well
  (https://docs.docker.com/engine/security/seccomp/, read 2026-11-26). No user namespace of its own.
- Abstract Unix sockets of programs outside are refused from Linux 6.12 on
  (https://docs.kernel.org/userspace-api/landlock.html, read 2026-11-26): they belong to the
  network, which the node shares."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path

from cloudtrain.core import own_python
from cloudtrain.core.errors import CloudtrainError

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
CAPABILITY_VERSION_3 = 0x2008_0522
CAP_WAKE_ALARM = 35

LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF = 444, 446
LANDLOCK_CREATE_RULESET_VERSION = 1
SCOPES = 1 | 2
"""Abstract Unix sockets and signals."""
SCOPES_FROM = 6

CLONE_NEWUSER = 0x1000_0000
CLONE3 = 435
"""Its flags are in memory, where a filter cannot read: libraries then use clone."""

# (AUDIT_ARCH of linux/audit.h, clone, unshare, what is refused); asm/unistd_64.h and
# asm-generic/unistd.h, read 2026-11-26.
_SAME = (425, 426, 427)  # io_uring_setup, io_uring_enter, io_uring_register
_MACHINES = {
    # add_key, request_key, keyctl, perf_event_open, open_by_handle_at, bpf, userfaultfd
    "x86_64": (0xC000_003E, 56, 272, (248, 249, 250, 298, 304, 321, 323, *_SAME)),
    "aarch64": (0xC000_00B7, 220, 97, (217, 218, 219, 241, 265, 280, 282, *_SAME)),
}
X32 = 0x4000_0000

# linux/bpf_common.h, linux/seccomp.h
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF_0000, 0x0005_0000
_NUMBER, _ARCH, _FIRST = 0, 4, 16
"""Offsets in struct seccomp_data; the low half of the first argument on a little-endian machine."""


def confine() -> None:
    """Confine this process, which has one thread. Raises OSError."""
    _drop_capabilities()
    checked(libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _scope()
    machine = _MACHINES.get(os.uname().machine)
    if machine is not None and sys.byteorder == "little":
        _refuse_calls(*machine)


def _drop_capabilities() -> None:
    """Keep no right over this namespace but one that has no effect in it: the programs that are
    started here lack that one, so none of them may look into this process or trace it
    (PTRACE_MODE checks in ptrace(2))."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    held = (ctypes.c_uint32 * 6)()
    libc().capget(header, held)
    kept = held[4] & (1 << (CAP_WAKE_ALARM - 32))  # of those permitted, the second 32 bits
    checked(libc().capset(header, (ctypes.c_uint32 * 6)(0, 0, 0, 0, kept, 0)), "capset")


def _scope() -> None:
    version = call(LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_CREATE_RULESET_VERSION)
    if version < SCOPES_FROM:
        return
    rules = (ctypes.c_uint64 * 3)(0, 0, SCOPES)
    size = ctypes.sizeof(rules)
    descriptor = call(LANDLOCK_CREATE_RULESET, ctypes.addressof(rules), size, 0)
    checked(min(descriptor, 0), "landlock_create_ruleset")
    try:
        checked(call(LANDLOCK_RESTRICT_SELF, descriptor, 0), "landlock_restrict_self")
    finally:
        os.close(descriptor)


def _refuse_calls(arch: int, clone: int, unshare: int, refused: tuple[int, ...]) -> None:
    no, unknown = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
    lines: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, arch),
        (_RETURN, 0, 0, unknown),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, X32),
        (_RETURN, 0, 0, unknown),
        (_EQUAL, 0, 1, CLONE3),
        (_RETURN, 0, 0, unknown),
    ]
    for number in refused:
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, no)]
    lines += [
        (_EQUAL, 1, 0, clone),
        (_EQUAL, 0, 3, unshare),
        (_LOAD, 0, 0, _FIRST),
        (_ANY_BIT, 0, 1, CLONE_NEWUSER),
        (_RETURN, 0, 0, no),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(lines), ctypes.addressof(code)))
    place = ctypes.addressof(program)
    checked(libc().prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, place, 0, 0), "seccomp")


# mount(2), open_tree(2), move_mount(2) and mount_setattr(2), which are of Linux 5.12:
# https://man7.org/linux/man-pages/man2/mount_setattr.2.html, the numbers in
# include/uapi/asm-generic/unistd.h, which are the same on every architecture (read 2026-11-26).


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


# ── the disk of a running node ─────────────────────────────────────────────────────────────────


FILL_TRIES = 50
"""To make a disk as small as what is on it: more may be written in between."""


def resize_disk(pid: int, home: Path, size: int | None) -> int | None:
    """Set the size of the disk that a node's home is on, in bytes; None: no more than is used.

    Returns the size before; None if its home is on no disk of its own. For a process without
    threads, which must end then: it is in the namespaces of `pid`. Raises OSError."""
    fields = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    own = [each for each in fields if each[4] == str(home).replace(" ", "\\040")]
    if not own or own[-1][own[-1].index("-") + 1] != "tmpfs":
        return None
    namespaces = [] if os.geteuid() == 0 else [os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)]
    namespaces.append(os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY))
    for descriptor in namespaces:
        checked(libc().setns(descriptor, 0), "setns")
    before = os.statvfs(home)
    for tries in reversed(range(FILL_TRIES)):
        now = os.statvfs(home)
        least = max(1, now.f_blocks - now.f_bfree) * now.f_frsize
        try:
            options = f"size={least if size is None else size}"
            flags = MS_REMOUNT | MS_NOSUID | MS_NODEV
            mount("none", str(home), flags, options=options)
            break
        except OSError:
            if not tries:
                raise
    return before.f_blocks * before.f_frsize


BOOTSTRAP = (
    "import sys; sys.path[:] = sys.argv[4:]; "
    "from cloudtrain.providers.local.linux import main; main(*sys.argv[1:4])"
)


def resize_in_process(pid: int, home: Path, size: int | None) -> int | None:
    """Run `resize_disk` in a process of its own. Raises CloudtrainError."""
    words = [str(pid), str(home), json.dumps(size)]
    done = subprocess.run(
        own_python.code(BOOTSTRAP, *words, *own_python.import_path()),
        capture_output=True,
        text=True,
        cwd=own_python.NEUTRAL,
        check=False,
    )
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2]
        raise CloudtrainError(
            f"cannot resize the disk of {home}: {last}",
            hint="run it where `up` says nothing of shared files (docs/local.md)",
        )
    before: int | None = json.loads(done.stdout)
    return before


def main(pid: str, home: str, size: str) -> None:
    print(json.dumps(resize_disk(int(pid), Path(home), json.loads(size))))
