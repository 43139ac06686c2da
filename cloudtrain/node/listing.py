"""Lists the files of a task's work folder that match patterns, with links that stay inside it."""

import errno
import json
import os
import stat
import sys
import typing

from cloudtrain.node import client, patterns

MOST_FOLDERS = 2
"""Maximum nesting of links to folders that are followed, as folders that link to each other would
multiply.
"""

NAMED = 10
"""Maximum number of names reported per reason for files that cannot be listed; the others are
counted.
"""

OUTSIDE = "is a link out of the work folder"
NOTHING = "is a link to nothing"
CIRCLE = "is a link in a circle"
AROUND = "is a link to a folder that it is in"
TOO_MANY = "is reached through too many links"
KINDS = {
    stat.S_IFIFO: "is a named pipe",
    stat.S_IFSOCK: "is a socket",
    stat.S_IFBLK: "is a device",
    stat.S_IFCHR: "is a device",
}
OTHER = "is not a regular file"
REASONS = (OUTSIDE, NOTHING, CIRCLE, AROUND, TOO_MANY, OTHER, *KINDS.values())


class File(typing.NamedTuple):
    """A regular file on a node. `path` is its name in the work folder, `source` its name without
    links.

    While `stamp` (times of content and inode, and the inode) is the same, so is the content, unless
    it was changed within the clock's tick or through a mapping.
    """

    path: str
    source: str
    size: int
    stamp: str


def main() -> None:
    """Print a JSON array for each file, then an object with what was skipped. See inventory.py."""
    order = client.order()
    client.attend()
    wanted = order["patterns"]
    assert isinstance(wanted, list)
    found = Listing(client.plain(str(order["folder"])), wanted)
    for file in found.files():
        source = "" if file.source == file.path else file.source
        sys.stdout.write(json.dumps([file.path, source, file.size, file.stamp]) + "\n")
    client.tell({"others": found.others, "unread": found.unread})


class Folder(typing.NamedTuple):
    """A folder to list. `path` ends in a slash, `through` are the links that led there."""

    path: str
    real: bytes
    through: "tuple[bytes, ...]"


class Listing:
    """Lists a folder. Once `files` has ended, `others` has matching names that are no files in the
    folder (reason → number and a few names), `unread` the unreadable ones with their errors.
    """

    def __init__(self, folder: bytes, wanted: "list[str]") -> None:
        self.folder, self.wanted = folder, wanted
        self.top = os.path.realpath(folder)
        self.others = {}  # type: dict[str, tuple[int, list[str]]]
        self.unread = []  # type: list[str]
        self.waiting = []  # type: list[Folder]

    def files(self) -> "typing.Iterator[File]":
        """List files; none if the folder does not exist. Files that vanish are skipped."""
        if not exists(self.folder):
            return
        self.waiting.append(Folder("", self.top, ()))
        while self.waiting:
            folder = self.waiting.pop()
            try:
                names = sorted(os.listdir(folder.real))
            except OSError as error:
                self.miss(folder.path.rstrip("/") or ".", error)
                continue
            for name in names:
                path = folder.path + name.decode("utf-8", "surrogateescape")
                if not any(patterns.may_hold(path, pattern) for pattern in self.wanted):
                    continue
                try:
                    file = self.file(folder, path, folder.real + b"/" + name)
                except OSError as error:
                    self.miss(path, error)
                    continue
                if file is not None:
                    yield file

    def file(self, folder: Folder, path: str, place: bytes) -> "File | None":
        """The file, or None for anything else; a folder is queued."""
        real, through, facts = place, folder.through, os.lstat(place)
        if stat.S_ISLNK(facts.st_mode):
            try:
                real, facts = self.target(place)
            except Skipped as skipped:
                self.skip(path, str(skipped))
                return None
        if stat.S_ISDIR(facts.st_mode):
            if real != place:
                if (place + b"/").startswith(real + b"/") or real in through:
                    self.skip(path, AROUND)
                    return None
                if len(through) == MOST_FOLDERS:
                    self.skip(path, TOO_MANY)
                    return None
                through = (*through, real)
            self.waiting.append(Folder(path + "/", real, through))
        elif any(patterns.matches(path, pattern) for pattern in self.wanted):
            if stat.S_ISREG(facts.st_mode):
                source = real[len(self.top) + 1 :].decode("utf-8", "surrogateescape")
                return File(path, source, facts.st_size, stamp(facts))
            self.skip(path, KINDS.get(stat.S_IFMT(facts.st_mode), OTHER))
        return None

    def target(self, link: bytes) -> "tuple[bytes, os.stat_result]":
        """The link's real path, and the stat of its target. Raises Skipped, OSError."""
        failure = None
        try:
            facts = os.stat(link)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise Skipped(CIRCLE) from None
            failure = error
        real = os.path.realpath(link)
        if not (real + b"/").startswith(self.top + b"/"):
            raise Skipped(OUTSIDE)
        if isinstance(failure, (FileNotFoundError, NotADirectoryError)):
            raise Skipped(NOTHING)
        if failure is not None:
            raise failure
        return real, facts

    def skip(self, path: str, why: str) -> None:
        count, names = self.others.get(why, (0, []))
        self.others[why] = (count + 1, [*names, path] if count < NAMED else names)

    def miss(self, path: str, error: OSError) -> None:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            self.unread.append(f"{path}: {error.strerror or error}")


class Skipped(Exception):
    """Reason why a link is not followed."""


def exists(folder: bytes) -> bool:
    """True if the folder exists. Raises OSError if that is unknown."""
    try:
        return stat.S_ISDIR(os.stat(folder).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def stamp(facts: os.stat_result) -> str:
    """Stamp as by find's `%T@/%C@/%i`, which earlier versions wrote into manifests."""
    return f"{moment(facts.st_mtime_ns)}/{moment(facts.st_ctime_ns)}/{facts.st_ino}"


def moment(ns: int) -> str:
    whole, rest = divmod(ns, 10**9)
    return f"{whole}.{rest:09d}0"


def times(stamp: str) -> "tuple[int, int]":
    """Return when the content and the inode changed, in ns; zeros if the stamp has no times."""
    parts = stamp.split("/")
    return (nanoseconds(parts[0]), nanoseconds(parts[1])) if len(parts) == 3 else (0, 0)


def nanoseconds(moment: str) -> int:
    whole, _, fraction = moment.partition(".")
    return int(whole) * 10**9 + int(fraction[:9].ljust(9, "0"))
