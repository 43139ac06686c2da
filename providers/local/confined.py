"""Takes from a process, and from all that it starts, the ways around its namespaces.

- No program gives it rights: setuid bits and file capabilities have no effect
  (PR_SET_NO_NEW_PRIVS).
- System calls that reach what has no namespace, or that open much of the kernel, are refused: keys
  of the user's keyring, which go by user alone (keyrings(7)), and what Docker refuses as well
  (https://docs.docker.com/engine/security/seccomp/, read 2026-11-26). No user namespace of its own.
- Abstract Unix sockets of programs outside are refused from Linux 6.12 on
  (https://docs.kernel.org/userspace-api/landlock.html, read 2026-11-26): they belong to the
  network, which the node shares.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

from cloudtrain.providers.local.mounts import call, checked, libc

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
    (PTRACE_MODE checks in ptrace(2)).
    """
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
