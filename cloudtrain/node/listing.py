"""Lists files of a task that match patterns, links inside included, and what it made or changed."""

import errno
import os
import stat
import sys

from cloudtrain.node import changes, client, formats, short_json

TYPE_CHECKING = False  # `typing` takes longer to import than all the rest
if TYPE_CHECKING:
    import typing

MOST_FOLDERS = 2
"""Maximum nesting of links to folders, as folders that link to each other would multiply."""

NAMED = 10
"""Maximum number of names reported per reason for files left out; the others are counted."""

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
KEY = "looks like a key"
REASONS = (OUTSIDE, NOTHING, CIRCLE, AROUND, TOO_MANY, OTHER, KEY, *KINDS.values())


class File:
    """A regular file on a node. `path` is its name in the work folder, `source` its name without
    links; outside the work folder, `path` has a prefix of formats.py and `source` is absolute.
    `named`: it matches a pattern; the others were made or changed by the task.

    While `stamp` (times of content and inode, and the inode) is the same, so is the content, unless
    it was changed within the clock's tick or through a mapping.
    """

    # Not by collections.namedtuple, which with its import takes a third as long as Python's start.
    __slots__ = ("named", "path", "size", "source", "stamp")

    def __init__(self, path: str, source: str, size: int, stamp: str, named: bool = True) -> None:
        self.path = path
        self.source = source
        self.size = size
        self.stamp = stamp
        self.named = named

    def facts(self) -> "tuple[str, str, int, str, bool]":
        return self.path, self.source, self.size, self.stamp, self.named

    def __eq__(self, other: object) -> bool:
        return isinstance(other, File) and self.facts() == other.facts()

    def __hash__(self) -> int:
        return hash(self.facts())

    def __repr__(self) -> str:
        return f"File{self.facts()!r}"


def main() -> None:
    """Print a JSON array for each file, then an object with what was skipped. See inventory.py.
    `changed` of the order: `list` what the task made or changed without being named, or `sum` it up
    by folder. `home`: also what it made or changed there."""
    order = client.order()
    client.attend()
    home = os.getcwdb() if order["home"] else None
    found = Listing(client.plain(order["folder"]), order["patterns"], home, not order["changed"])
    for file in found.files():
        show(file)
    left_out = {}  # type: dict[str, tuple[int, int]]
    for file in found.changed() if order["changed"] else ():
        if order["changed"] == "list":
            show(file)
            continue
        folder = top_of(file.path)
        count, size = left_out.get(folder, (0, 0))
        left_out[folder] = (count + 1, size + file.size)
    client.tell({"others": found.others, "unread": found.unread, "left_out": left_out})


def show(file: File) -> None:
    facts = [file.path, "" if file.source == file.path else file.source, file.size, file.stamp]
    sys.stdout.write(short_json.written(facts if file.named else [*facts, 0]) + "\n")


def top_of(path: str) -> str:
    """The file, or the folder with a slash, at the top of the work folder, the code or the home."""
    prefixes = (each for each in (formats.IN_HOME, formats.IN_CODE) if path.startswith(each))
    prefix = next(prefixes, "")
    name, slash, _ = path[len(prefix) :].partition("/")
    return prefix + name + slash


def fitting(files: "typing.Iterable[File]", limit: int) -> "set[str]":
    """Paths of the unnamed files that land: as many as fit into `limit` bytes."""
    found = set()
    for file in sorted((f for f in files if not f.named), key=lambda f: (f.size, f.path)):
        limit -= file.size
        if limit < 0:
            break
        found.add(file.path)
    return found


class Folder:
    """A folder to list. `path` ends in a slash, `through` are the links that led there."""

    def __init__(self, path: str, real: bytes, through: "tuple[bytes, ...]") -> None:
        self.path, self.real, self.through = path, real, through


class Listing:
    """Lists a folder. Once `files` has ended, `others` has matching names that are no files in the
    folder (reason → number and a few names), `unread` the unreadable ones with their errors.
    `home`: where `changed` looks, too. `restored`: also the files of a checkpoint that was put
    there and is as it was."""

    def __init__(
        self, folder: bytes, wanted: "list[str]", home: "bytes | None" = None, restored: bool = True
    ) -> None:
        self.folder, self.wanted, self.home = folder, wanted, home
        self.task = os.path.dirname(os.path.abspath(folder))
        self.top = os.path.realpath(folder)
        self.shared = self.link(formats.SHARED)
        self.others_shared = self.link(formats.SHARED_BY_OTHER)
        self.restored = (None if restored else self.record(changes.RESTORED)) or {}
        self.others = {}  # type: dict[str, tuple[int, list[str]]]
        self.unread = []  # type: list[str]
        self.waiting = []  # type: list[Folder]
        self.shared_at = b""
        """Link to the shared folder, by whose name its files are read."""

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
            whole = any(matches(folder.path, pattern) for pattern in self.wanted)
            for name in names:
                path = folder.path + client.text(name)
                if not whole and not any(may_hold(path, pattern) for pattern in self.wanted):
                    continue
                try:
                    file = self.file(folder, path, folder.real + b"/" + name, whole)
                except OSError as error:
                    self.miss(path, error)
                    continue
                if file is not None and not self.is_ours(file):
                    yield file

    def link(self, name: str) -> "bytes | None":
        """Target of a link beside the work folder. It is only read: a shared folder whose server
        is gone would not answer."""
        try:
            return os.readlink(os.path.join(self.task, name.encode()))
        except OSError:
            return None

    def is_shared(self, place: bytes, folder: "bytes | None") -> bool:
        return folder is not None and os.readlink(place) == folder

    def record(self, name: str) -> "dict[bytes, bytes] | None":
        return changes.kept(os.path.join(self.task, name.encode()))

    def is_ours(self, file: File) -> bool:
        """True for a file of a checkpoint that was put there from the store, and is as it was."""
        if not self.restored:
            return False
        inode = file.stamp.rpartition("/")[2].encode()
        stamp_there = b"%d/%d/%s" % (*times(file.stamp), inode)  # as in the records of changes.py
        return self.restored.get(client.plain(file.source)) == stamp_there

    def changed(self) -> "typing.Iterator[File]":
        """List what the task made or changed in its code and in the home, apart from caches, keys
        and what matches a pattern; nothing for a task of an earlier version, which has no record.
        """
        code = os.path.join(os.path.realpath(self.task), b"code")
        own = self.top[len(code) + 1 :]
        whole = [
            each for each in self.wanted if each.endswith("/**") and literal(each[:-3]) == each[:-3]
        ]
        covered = [os.path.join(own, client.plain(each[:-3])) for each in whole]
        others = [each for each in self.wanted if each not in whole]
        own += b"/" if own else b""
        for path, facts in self.different(code, changes.BEFORE, covered=covered):
            place = os.path.join(code, path)
            if not path.startswith(own):
                yield from self.unnamed(formats.IN_CODE + client.text(path), place, facts, code)
                continue
            name = client.text(path[len(own) :])
            if not any(matches(name, pattern) for pattern in others):
                yield from self.unnamed(name, place, facts, self.top)
        if self.home is not None:
            after = self.record(changes.HOME_AFTER)
            for path, facts in self.different(self.home, changes.HOME_BEFORE, after):
                place = os.path.join(self.home, path)
                name = formats.IN_HOME + client.text(path)
                yield from self.unnamed(name, place, facts, self.home)

    def different(
        self,
        top: bytes,
        record: str,
        after: "dict[bytes, bytes] | None" = None,
        covered: "typing.Sequence[bytes]" = (),
    ) -> "typing.Iterator[tuple[bytes, os.stat_result]]":
        """Files that are not as in the record, but as in `after` if a later run has recorded them:
        what changed since then is that run's."""
        before = self.record(record)
        if before is None:
            return

        def miss(path: bytes, error: OSError) -> None:
            if path not in before:
                self.miss(client.text(os.path.join(top, path)), error)

        apart = changes.OF_HOME if top == self.home else ()
        for path, facts in changes.files(top, apart, covered, miss):
            now = changes.stamp(facts)
            if before.get(path) != now and (after is None or after.get(path) == now):
                yield path, facts

    def unnamed(
        self, name: str, place: bytes, facts: os.stat_result, top: bytes
    ) -> "typing.Iterator[File]":
        """The file at a place below `top`; nothing for a link to a folder, in which files land
        under their own names."""
        real = place
        if stat.S_ISLNK(facts.st_mode):
            try:
                real, facts = self.target(place, top)
            except Skipped as skipped:
                self.skip(name, str(skipped))
                return
            except OSError as error:
                self.miss(name, error)
                return
        if not stat.S_ISREG(facts.st_mode):
            return
        # Only here: its patterns take longer than the list of an empty folder.
        from cloudtrain.node import key_shapes

        if key_shapes.file_reason(real, facts.st_size):
            self.skip(name, KEY)
            return
        source = real[len(self.top) + 1 :] if top == self.top else real
        file = File(name, client.text(source), facts.st_size, stamp(facts), False)
        if not self.is_ours(file):
            yield file

    def file(self, folder: Folder, path: str, place: bytes, whole: bool) -> "File | None":
        """The file, or None for anything else; a folder is queued. `whole`: all below the folder
        matches."""
        real, through, facts = place, folder.through, os.lstat(place)
        if stat.S_ISLNK(facts.st_mode) and self.is_shared(place, self.others_shared):
            return None  # another task lands it
        is_first = self.shared_at in (b"", place)  # others lead there as well, also from inside
        if stat.S_ISLNK(facts.st_mode) and is_first and self.is_shared(place, self.shared):
            self.shared_at, facts = place, os.stat(place)
        elif stat.S_ISLNK(facts.st_mode):
            try:
                real, facts = self.target(place, self.top)
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
        elif whole or any(matches(path, pattern) for pattern in self.wanted):
            if stat.S_ISREG(facts.st_mode):
                source = client.text(real[len(self.top) + 1 :])
                return File(path, source, facts.st_size, stamp(facts))
            self.skip(path, KINDS.get(stat.S_IFMT(facts.st_mode), OTHER))
        return None

    def target(self, link: bytes, top: bytes) -> "tuple[bytes, os.stat_result]":
        """The link's real path below `top`, and the stat of its target. Raises Skipped, OSError."""
        failure = None
        try:
            facts = os.stat(link)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise Skipped(CIRCLE) from None
            failure = error
        real = os.path.realpath(link)
        if self.shared and self.shared_at:
            shared = os.path.realpath(self.shared)
            if (real + b"/").startswith(shared + b"/"):
                real = self.shared_at + real[len(shared) :]
        if not (real + b"/").startswith(top + b"/"):
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
    """Times when the content and the inode changed, in ns; zeros if the stamp has no times."""
    parts = stamp.split("/")
    return (nanoseconds(parts[0]), nanoseconds(parts[1])) if len(parts) == 3 else (0, 0)


def nanoseconds(moment: str) -> int:
    whole, _, fraction = moment.partition(".")
    return int(whole) * 10**9 + int(fraction[:9].ljust(9, "0"))


# Globs over relative paths with `/`: which paths match one, which folders may contain matches


MAGIC = "*?["


def matches(path: str, pattern: str) -> bool:
    """True if a pattern matches a relative path or a folder above it. `*`, `?` and `[…]` stay
    within one part of the path, `**` matches any number of parts, also none. Hidden files match
    like others; `.` matches everything. A pattern with `..` or a leading `/` matches nothing."""
    wanted = _parts(pattern)
    return len(wanted) in _reached(_parts(path), wanted) if _is_valid(pattern) else False


def may_hold(folder: str, pattern: str) -> bool:
    """True if the pattern can match the folder or something in it."""
    return bool(_reached(_parts(folder), _parts(pattern))) and _is_valid(pattern)


def literal(path: str) -> str:
    """Pattern that matches this one path."""
    return "".join("[" + each + "]" if each in MAGIC else each for each in path)


def _is_valid(pattern: str) -> bool:
    return pattern != "" and not pattern.startswith("/") and ".." not in pattern.split("/")


def _parts(path: str) -> "list[str]":
    return [part for part in path.split("/") if part not in ("", ".")]


def _reached(parts: "list[str]", pattern: "list[str]") -> "set[int]":
    """Positions in the pattern that the parts can lead to; once at its end, they stay there."""
    end = len(pattern)
    positions = _past_stars({0}, pattern)
    for part in parts:
        if end in positions:
            return {end}
        stay = {each for each in positions if pattern[each] == "**"}
        after = {each + 1 for each in positions - stay if _is_like(part, pattern[each])}
        positions = _past_stars(stay | after, pattern)
    return positions


def _is_like(part: str, pattern: str) -> bool:
    """True if one part of a path matches one of a pattern."""
    if not any(each in pattern for each in MAGIC):
        return part == pattern
    from fnmatch import fnmatchcase  # imports `re`, which takes as long as the start of Python

    return fnmatchcase(part, pattern)


def _past_stars(positions: "set[int]", pattern: "list[str]") -> "set[int]":
    """Positions after `**`, which can also match nothing."""
    found = set(positions)
    for position in positions:
        while position < len(pattern) and pattern[position] == "**":
            position += 1
            found.add(position)
    return found
