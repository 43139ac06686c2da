"""Give a process its own view of this machine in namespaces of its own: files, processes, devices.

Nothing outside it changes, and the kernel removes all of it with the first process inside.

What is shown as it is on this machine is read-only, but for what the view names. Root needs
CAP_SYS_ADMIN and becomes the user `NODE_USER`, to whom root's files in the view belong; any other
user gets a user namespace, where only that user exists. Both may be refused (all documented, read
2026-11-23):

- containers: Docker's seccomp profile allows unshare(2) and mount(2) only with CAP_SYS_ADMIN
  (https://docs.docker.com/engine/security/seccomp/);
- Ubuntu from 23.10 on: AppArmor creates the user namespace, but without rights: mount(2) fails
  (https://ubuntu.com/blog/ubuntu-23-10-restricted-unprivileged-user-namespaces);
- `user.max_user_namespaces=0` (user_namespaces(7));
- Linux before 5.12, which has no mount_setattr(2).

So it is not predicted: `enter` does it, in a process that is given up if it fails."""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.providers.local import linux
from cloudtrain.providers.local.linux import CLONE_NEWUSER, checked, libc

CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWIPC = 0x0002_0000, 0x2000_0000, 0x0800_0000
NODE_USER = 65_530
"""User and group of a node whose owner is root: none that a system gives away
(https://systemd.io/UIDS-GIDS/, "65520…65533 unused", read 2026-11-26)."""
OUTSIDE = ("TMPDIR", "PIP_CACHE_DIR", "UV_CACHE_DIR")
"""Variables that name folders which a node does not see. The caches are the user's own: what is
built on a node must not get there."""
SHARED_MEMORY = "/dev/shm"
TEMPORARY = {"/tmp": "temporary/tmp", "/var/tmp": "temporary/var"}
"""Path of a folder of this machine → the folder of the node in its place."""
DEVICES = (
    *("null", "zero", "full", "random", "urandom", "tty"),
    *("nvidia*", "dri", "kfd", "dxg", "infiniband"),
)
"""What a node has of /dev: what every program may use, and GPUs with their network."""
LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}


@dataclass(frozen=True, kw_only=True)
class View:
    """Files that a node sees in place of this machine's; all paths are absolute."""

    hidden: Sequence[str]
    """Folders that are empty and read-only on the node, but for what is shown in them."""
    writable: Sequence[str]
    """Folders for nodes alone."""
    read_only: Sequence[str]
    shared: Sequence[str] = ()
    """Files and folders of the user's that are as on this machine, writable."""
    instead: Mapping[str, str] = field(default_factory=dict)
    """Folder → another folder of this machine that is in its place, writable."""
    disk: str = ""
    """Size of a disk of its own for the home of a new node, in memory, as tmpfs(5) has it; empty:
    none."""


def enter(view: View, folder: Path) -> None:
    """Become the first process of a node with that view; `folder` is the node's.

    Returns in another process than it was called in, which has ended. Raises OSError, in one or the
    other: it may then have half a view and must end."""
    as_root, (owners, devices, groups) = os.geteuid() == 0, same_for_all()
    flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | (0 if as_root else CLONE_NEWUSER)
    _unshare(flags, os.geteuid(), os.getegid())
    if os.fork():  # before all else: each page that both write to is copied once more
        os._exit(0)
    linux.mount("none", "/", linux.MS_REC | linux.MS_SLAVE)
    with _cloned(view, folder, owners) as shown:
        linux.change("/", set_flags=linux.RDONLY)
        _place_devices(devices)
        empty = _place(view, shown)
    if owners is not None:
        os.close(owners)
    home = folder / "home"
    if view.disk and not any(files for _, _, files in os.walk(home)):  # it is new
        owner = f",uid={NODE_USER},gid={NODE_USER}" if as_root else ""
        _tmpfs(str(home), f"size={view.disk},mode=0700{owner}")
    for target in empty:
        linux.change(target, set_flags=linux.RDONLY, deep=False)
    # A /proc shows the processes of the namespace that its mounter is in.
    nothing_more = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    linux.mount("proc", "/proc", nothing_more, kind="proc")
    if as_root:
        os.setgroups(groups)
        os.setresgid(NODE_USER, NODE_USER, NODE_USER)
        os.setresuid(NODE_USER, NODE_USER, NODE_USER)
    linux.confine()


@cache
def same_for_all() -> tuple[int | None, Sequence[str], Sequence[int]]:
    """Facts that a process which forks all nodes finds out once: the map of owners, the devices,
    and the groups that may use GPUs."""
    shown = [str(path) for name in DEVICES for path in Path("/dev").glob(name)]
    nodes = (each for path in shown for each in (Path(path), *Path(path).rglob("*")))
    found = (one.stat() for one in nodes if one.is_char_device())
    groups = sorted({one.st_gid for one in found if one.st_mode & 0o060} - {0})
    return _owner_map(), shown, groups


def _owner_map() -> int | None:
    """A user namespace that maps a disk's root to the node's user; None if refused."""
    if os.geteuid() != 0:
        return None
    wait, ready = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        refused = libc().unshare(CLONE_NEWUSER)
        os.write(ready[1], b"n" if refused else b"y")
        os.close(wait[1])
        os.read(wait[0], 1)
        os._exit(0)
    try:
        if os.read(ready[0], 1) != b"y":
            return None
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{child}/{name}").write_text(f"0 {NODE_USER} 1")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # root of a container that may not map users
        return None
    finally:
        for end in (*wait, *ready):
            os.close(end)
        os.waitpid(child, 0)


def _unshare(flags: int, user: int, group: int) -> None:
    checked(libc().unshare(flags), "unshare")
    if flags & CLONE_NEWUSER:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            Path("/proc/self", name).write_text(text)


@contextlib.contextmanager
def _cloned(view: View, folder: Path, owners: int | None) -> Iterator[Mapping[str, int]]:
    """Detached copies, by path, of the mounts of what is shown.

    Made before anything is hidden. A path that does not exist is left out."""
    sources = {path: (path, False) for path in view.read_only}
    sources |= {path: (path, True) for path in (*view.shared, *view.writable)}
    sources |= {path: (source, True) for path, source in view.instead.items()}
    for path, name in TEMPORARY.items():
        own = folder / name
        own.parent.mkdir(mode=0o700, exist_ok=True)
        own.mkdir(exist_ok=True)
        own.chmod(0o1777)
        sources[path] = (str(own), True)
    if os.geteuid() == 0:
        sources["/etc/passwd"] = (str(_accounts(folder)), False)
    cloned: dict[str, int] = {}
    given = {*view.writable, *view.instead, "/etc/passwd"}
    try:
        for path, (source, writable) in sources.items():
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                cloned[path] = linux.clone(source)
                # Everybody may write to temporary folders, also root, to make places for mounts.
                mapped = path in TEMPORARY or _belongs_to_node(cloned[path], owners)
                if not mapped and path in given:
                    os.chown(source, NODE_USER, NODE_USER)
                flags = linux.NOSUID | linux.NODEV | (0 if writable else linux.RDONLY)
                linux.change(cloned[path], set_flags=flags)
        yield cloned
    finally:
        for descriptor in cloned.values():
            os.close(descriptor)


def _accounts(folder: Path) -> Path:
    """The machine's /etc/passwd with the node's user first, who has root's name: programs such as
    ssh refuse to run for a user without a line."""
    name, shell = pwd.getpwuid(0).pw_name, "/bin/sh"
    own = f"{name}:x:{NODE_USER}:{NODE_USER}:local node:{folder / 'home'}:{shell}\n"
    path = folder / "passwd"
    path.write_text(own + Path("/etc/passwd").read_text(errors="surrogateescape"))
    path.chmod(0o600)
    return path


def _belongs_to_node(cloned: int, owners: int | None) -> bool:
    """Let what is root's in this copy be the node's user's; False where the file system cannot do
    that, such as overlayfs."""
    if os.geteuid() != 0:
        return True
    if owners is not None:
        with contextlib.suppress(OSError):
            linux.change(cloned, set_flags=linux.IDMAP, user_namespace=owners)
            return True
    return False


def _place(view: View, shown: Mapping[str, int]) -> list[str]:
    """Mount everything, what is deeper later, so that it stands in what is above it.

    Returns the empty folders: they become read-only once all is placed."""
    empty = []
    before = os.umask(0o022)
    for path in sorted({*view.hidden, *shown}, key=lambda each: (len(Path(each).parts), each)):
        if path in shown:
            _show(path, shown[path])
        elif Path(path).is_dir():
            _tmpfs(path, "mode=0755")
            empty.append(path)
    os.umask(before)
    return empty


def _show(path: str, cloned: int) -> None:
    target = Path(path)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        if stat.S_ISDIR(os.fstat(cloned).st_mode):
            target.mkdir()
        else:
            target.touch()
    linux.attach(cloned, path)


def _place_devices(shown: Sequence[str]) -> None:
    """Replace /dev by what a node may use."""
    cloned = {path: linux.clone(path) for path in shown}
    _tmpfs("/dev", "mode=0755", nodev=False)
    for path, descriptor in cloned.items():
        _show(path, descriptor)
        os.close(descriptor)
    for name, target in LINKS.items():
        Path("/dev", name).symlink_to(target)
    Path("/dev/pts").mkdir()
    options = "newinstance,ptmxmode=0666,mode=0620"
    linux.mount("devpts", "/dev/pts", linux.MS_NOSUID | linux.MS_NOEXEC, "devpts", options)
    Path(SHARED_MEMORY).mkdir()
    linux.change("/dev", set_flags=linux.RDONLY, deep=False)
    _tmpfs(SHARED_MEMORY, "mode=1777")


def _tmpfs(path: str, options: str, *, nodev: bool = True) -> None:
    flags = linux.MS_NOSUID | (linux.MS_NODEV if nodev else 0)
    linux.mount("tmpfs", path, flags, "tmpfs", options)
