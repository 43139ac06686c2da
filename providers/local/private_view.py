"""Gives a process its own view of this machine's files, in a mount namespace of its own.

Nothing outside it changes, and the kernel removes all of it with the last process inside.

Root needs CAP_SYS_ADMIN; any other user gets a user namespace, where only that user exists, so
`sudo` does not work in it. Both may be refused (all documented, read 2026-11-23):

- containers: Docker's seccomp profile allows unshare(2) and mount(2) only with CAP_SYS_ADMIN
  (https://docs.docker.com/engine/security/seccomp/);
- Ubuntu from 23.10 on: AppArmor creates the user namespace, but without rights: mount(2) fails
  (https://ubuntu.com/blog/ubuntu-23-10-restricted-unprivileged-user-namespaces);
- `user.max_user_namespaces=0` (user_namespaces(7)).

So it is not predicted: `enter` does it, in a process that is given up if it fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER = 0x0002_0000, 0x1000_0000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 1, 2, 4, 32
MS_BIND, MS_REC, MS_SLAVE = 4096, 16_384, 1 << 19
MS_RELATIME = 1 << 21
KEPT = {  # statvfs(3)'s flags → mount(2)'s: a user namespace may not clear them
    2: 2,  # nosuid
    4: 4,  # nodev
    8: 8,  # noexec
    1024: 1024,  # noatime
    2048: 2048,  # nodiratime
    4096: MS_RELATIME,
}
CAPABILITY_VERSION_3 = 0x2008_0522
FILL_TRIES = 50
"""To make a disk as small as what is on it: more may be written in between."""

SHARED_MEMORY = "/dev/shm"
TEMPORARY = {"/tmp": "temporary/tmp", "/var/tmp": "temporary/var"}
"""Path of a folder of this machine → the folder of the node in its place."""


@dataclass(frozen=True, kw_only=True)
class View:
    """What a node sees in place of this machine's files; all paths are absolute."""

    hidden: Sequence[str]
    """Folders that are empty and read-only on the node, but for what is shown in them."""
    writable: Sequence[str]
    """Files and folders that are as on this machine."""
    read_only: Sequence[str]
    disk: str = ""
    """Size of a disk of its own for the home of a new node, in memory, as tmpfs(5) has it; empty:
    none."""


def enter(view: View, folder: Path) -> None:
    """Move this process into a mount namespace with that view; `folder` is the node's.

    Raises OSError. The process may then have half a view: it must end.
    """
    as_root = os.geteuid() == 0
    _unshare(CLONE_NEWNS if as_root else CLONE_NEWNS | CLONE_NEWUSER, os.geteuid(), os.getegid())
    _mount("none", "/", MS_REC | MS_SLAVE)
    with _opened(view, folder) as shown:
        empty = _place(view, shown)
    for target in empty:
        _mount("none", target, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    if view.disk:
        _mount_disk(folder / "home", view.disk)
    if not as_root:
        _drop_capabilities()


def _unshare(flags: int, user: int, group: int) -> None:
    _checked(_libc().unshare(flags), "unshare")
    if flags & CLONE_NEWUSER:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            Path("/proc/self", name).write_text(text)


@contextlib.contextmanager
def _opened(view: View, folder: Path) -> Iterator[Mapping[str, tuple[int, bool]]]:
    """Descriptors of what is shown, by path, and whether it is writable.

    Opened before anything is hidden. A path that does not exist is left out.
    """
    sources = {path: (path, False) for path in view.read_only}
    sources |= {path: (path, True) for path in view.writable}
    for path, name in TEMPORARY.items():
        own = folder / name
        own.parent.mkdir(mode=0o700, exist_ok=True)
        own.mkdir(exist_ok=True)
        own.chmod(0o1777)
        sources[path] = (str(own), True)
    opened: dict[str, tuple[int, bool]] = {}
    try:
        for path, (source, writable) in sources.items():
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                opened[path] = (os.open(source, os.O_PATH | os.O_CLOEXEC), writable)
        yield opened
    finally:
        for descriptor, _ in opened.values():
            os.close(descriptor)


def _place(view: View, shown: Mapping[str, tuple[int, bool]]) -> list[str]:
    """Mount everything, what is deeper later, so that it stands in what is above it.

    Returns the empty folders: they become read-only once all is placed.
    """
    empty = []
    for path in sorted({*view.hidden, *shown, SHARED_MEMORY}, key=_depth):
        if path in shown:
            _show(path, *shown[path])
        elif Path(path).is_dir():
            mode = "mode=1777" if path == SHARED_MEMORY else "mode=0755"
            _mount("tmpfs", path, MS_NOSUID | MS_NODEV, kind="tmpfs", options=mode)
            if path != SHARED_MEMORY:
                empty.append(path)
    return empty


def _show(path: str, descriptor: int, writable: bool) -> None:
    target = Path(path)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            target.mkdir()
        else:
            target.touch()
    _mount(f"/proc/self/fd/{descriptor}", path, MS_BIND | MS_REC)
    if not writable:
        flags = os.statvfs(path).f_flag
        kept = sum(mount for seen, mount in KEPT.items() if flags & seen)
        _mount("none", path, MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def _mount_disk(home: Path, size: str) -> None:
    """Put the home on a disk of its own, with the links that are in it; not one that has files."""
    links: dict[Path, str] = {}
    for place, folders, files in os.walk(home):
        for path in (Path(place, name) for name in (*folders, *files)):
            if path.is_symlink():
                links[path] = str(path.readlink())
            elif not path.is_dir():
                return
    _mount("tmpfs", str(home), MS_NOSUID | MS_NODEV, kind="tmpfs", options=f"size={size},mode=0700")
    for path, target in links.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)


def resize_disk(pid: int, home: Path, size: int | None) -> int | None:
    """Set the size of the disk that a node's home is on, in bytes; None: no more than is used.

    Returns the size before; None if its home is on no disk of its own. For a process without
    threads, which must end then: it is in the namespaces of `pid`. Raises OSError.
    """
    if os.geteuid() != 0:
        _join(pid, "user")
    _join(pid, "mnt")
    fields = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    own = [each for each in fields if each[4] == str(home).replace(" ", "\\040")]
    if not own or own[-1][own[-1].index("-") + 1] != "tmpfs":
        return None
    before = os.statvfs(home)
    for tries in reversed(range(FILL_TRIES)):
        now = os.statvfs(home)
        least = max(1, now.f_blocks - now.f_bfree) * now.f_frsize
        try:
            options = f"size={least if size is None else size}"
            _mount("none", str(home), MS_REMOUNT | MS_NOSUID | MS_NODEV, options=options)
            break
        except OSError:
            if not tries:
                raise
    return before.f_blocks * before.f_frsize


def _join(pid: int, kind: str) -> None:
    with Path(f"/proc/{pid}/ns/{kind}").open("rb") as namespace:
        _checked(_libc().setns(namespace.fileno(), 0), f"setns {kind}")


def _depth(path: str) -> tuple[int, str]:
    return len(Path(path).parts), path


def _mount(source: str, target: str, flags: int, *, kind: str = "", options: str = "") -> None:
    result = _libc().mount(
        os.fsencode(source), os.fsencode(target), kind.encode(), flags, options.encode()
    )
    _checked(result, f"mount {target}")


def _drop_capabilities() -> None:
    """Keep none of the rights over this namespace: the server opens files for its client."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    _checked(_libc().capset(header, (ctypes.c_uint32 * 6)()), "capset")


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mount.argtypes = (
        *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p),
        *(ctypes.c_ulong, ctypes.c_char_p),
    )
    return libc


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
