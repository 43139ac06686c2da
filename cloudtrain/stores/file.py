"""Artifacts in a local folder, which may be a mount."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import os
import stat
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote_to_bytes

from cloudtrain.core import moments
from cloudtrain.core.errors import PermissionsError, StoreAway, StoreError, UsageError
from cloudtrain.core.model import Artifact
from cloudtrain.core.paths import is_inside, shown
from cloudtrain.core.presign import Presigner
from cloudtrain.core.protocols import SMALL, ArtifactStore, Swapped
from cloudtrain.stores import StoreWishes, disk

PARTIAL = ".partial"
"""Top-level folder for files being written; neither a run nor a user can have this name."""

_CHUNK = 1 << 20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_STALE = 24 * 3600.0


def opened(
    uri: str, *, endpoint: str | None, project: str | None, wishes: StoreWishes
) -> FileStore:
    return FileStore(uri)


class FileStore:
    """Store in a folder. A file gets its name only once it is complete. What `upload` stored is on
    the disk, what `upload_all` stored after `sync`."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.root = folder_of(uri)
        self.presigner: Presigner | None = None  # a folder of this machine
        self._disk = disk.Disk(self.root)
        self._batched = 0

    def create(self, location: str | None, tags: Mapping[str, str] | None = None) -> bool:
        is_new = not self.root.is_dir()
        with _explained(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
        return is_new

    def check(self) -> None:
        """Check the store; also deletes what killed uploads left more than a day ago."""
        name = f"{PARTIAL}/check-{uuid.uuid4().hex}"
        try:  # first, so that an error names the folder as the user wrote it
            self.root.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError as error:  # /proc raises this for a new name
            raise StoreError(
                f"cannot write to {shown(self.root)}: {error.strerror}",
                hint="choose a writable folder",
            ) from error
        except OSError:
            pass  # the upload reports it, with a hint
        try:
            self.upload(name, [b"cloudtrain"])
            if b"".join(self.download(name)) != b"cloudtrain":
                raise StoreError(f"{self.root}: a file read back differs from what was written")
            with _explained(self.root):
                (self.root / name).unlink()
                self.clear(moments.wall() - _STALE)
        except StoreError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.errno in (errno.EACCES, errno.EPERM):
                raise PermissionsError(error.text, hint=error.hint) from cause
            raise

    def upload(self, path: str, data: Iterable[bytes]) -> Artifact:
        return self._upload({path: data}, synced=True)[0]

    def upload_all(self, files: Mapping[str, Iterable[bytes]]) -> list[Artifact]:
        """Store files together. Only `sync` promises that they are on the disk: of few, each is
        synced before it has its name, and its folder. Of many, the disk is, once, which waits for
        what others write to it too."""
        self._batched += len(files)
        if self._batched <= disk.FEW or not disk.SYNCFS_TELLS:
            return self._upload(files, synced=True)
        with _explained(self.root):
            self._disk.note(make=True)
            try:
                return self._upload(files, synced=False)
            finally:
                self._disk.note()  # another thread may have synced it meanwhile

    def sync(self) -> None:
        """Wait until all that was stored is on the disk. Raises StoreError, then every time."""
        with _explained(self.root):
            self._disk.sync()

    def _upload(self, files: Mapping[str, Iterable[bytes]], *, synced: bool) -> list[Artifact]:
        targets = {path: self._file(path) for path in files}
        batch, folders = f"{PARTIAL}/{os.urandom(16).hex()}", defaultdict[str, dict[str, str]](dict)
        partials, stored = list[str](), list[Artifact]()
        with (
            _explained(next(iter(targets.values()), str(self.root))),
            _folder(self.root, batch, create=True) as (beside, name),
        ):
            try:
                for path, data in files.items():
                    partials.append(f"{name}-{len(partials)}")
                    folders[path.rpartition("/")[0]][path] = partials[-1]
                    with _explained(targets[path]):
                        descriptor = os.open(partials[-1], _NEW, 0o666, dir_fd=beside)
                        size, digest = _write(descriptor, data, synced=synced)
                    stored.append(Artifact(path=path, size=size, sha256=digest))
                for made in folders.values():
                    self._name(made, beside, synced=synced)
            except BaseException:
                for partial in partials:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(partial, dir_fd=beside)
                raise
        return stored

    def _name(self, made: Mapping[str, str], beside: int, *, synced: bool) -> None:
        """Give written files, by their path in one folder, their names, and sync the folder."""
        any_path = next(iter(made))
        with (
            _explained(self._file(any_path)),
            _folder(self.root, any_path, create=True) as (folder, _),
        ):
            for path, partial in made.items():
                with _explained(self._file(path)):
                    name = path.rpartition("/")[2]
                    os.replace(partial, name, src_dir_fd=beside, dst_dir_fd=folder)
            if not synced:
                return
            try:  # to the disk, too: the nodes' copies may be deleted next
                os.fsync(folder)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # of some network mounts
                    raise

    def list(self, prefix: str = "", known: Collection[str] = ()) -> Iterator[Artifact]:
        folder, _, name = prefix.rpartition("/")
        if folder and not is_inside(folder):
            return
        start = len(str(self.root).rstrip("/")) + 1
        with _explained(self.root / folder):
            for entry in _walk(self.root / folder, name):
                path = entry.path[start:]
                if not path.startswith(f"{PARTIAL}/"):
                    yield Artifact(path=path, size=entry.stat().st_size, sha256="")

    def download(self, path: str) -> Iterator[bytes]:
        with _explained(self._file(path)), _folder(self.root, path) as (folder, name):
            yield from _read(folder, name)

    def checksums(self, paths: Iterable[str]) -> dict[str, str]:
        """SHA-256 of each file; opens each folder once for those that follow each other."""
        sums = {}
        for _, files in itertools.groupby(paths, lambda path: path.rpartition("/")[0]):
            first = next(files)
            with _explained(self._file(first)), _folder(self.root, first) as (folder, _):
                for path in (first, *files):
                    with _explained(self._file(path)):
                        sums[path] = sha256_of(_read(folder, path.rpartition("/")[2]))
        return sums

    def copy(self, source: str, target: str) -> None:
        self.upload(target, self.download(source))

    def delete(self, path: str) -> None:
        missing = contextlib.suppress(FileNotFoundError)
        with _explained(self._file(path)), missing, _folder(self.root, path) as (folder, name):
            os.unlink(name, dir_fd=folder)

    def swap(self, path: str, data: bytes | None, version: str) -> Swapped:
        with _explained(self._file(path)), self._alone() as now:
            found = _small(self.root, path, now)
            if found.version != version:
                return found
            if data is None:
                self.delete(path)
                return Swapped(done=True)
            self.upload(path, [data])
            return Swapped(done=True, version=_small(self.root, path, now).version)

    def peek(self, path: str) -> Swapped:
        with _explained(self._file(path)), self._alone() as now:
            return _small(self.root, path, now)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[float]:
        """Lock out other processes' swaps. Yields the time now, by the file server's clock."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with _folder(self.root, f"{PARTIAL}/swaps", create=True) as (folder, name):
            descriptor = os.open(name, flags, 0o666, dir_fd=folder)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # works over NFS, too, for all clients
            os.utime(descriptor)
            yield os.fstat(descriptor).st_mtime
        finally:
            os.close(descriptor)

    def _file(self, path: str) -> str:
        if not is_inside(path):
            raise StoreError(f"{self.root}: {path!r} is not a path inside the store")
        return f"{self.root}/{path}"

    def clear(self, before: float) -> None:
        """Delete leftovers of killed uploads, last written before that Unix time."""
        if (self.root / PARTIAL).is_symlink():
            return
        for left in (self.root / PARTIAL).iterdir():
            with contextlib.suppress(FileNotFoundError):
                if left.stat().st_mtime < before:
                    left.unlink()


def _small(root: Path, path: str, now: float) -> Swapped:
    """Version, content and age of a file, if it exists."""
    try:
        with _folder(root, path) as (folder, name):
            descriptor, _ = _opened(folder, name)
    except FileNotFoundError:
        return Swapped(done=False)
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(file.fileno())
        version = f"{facts.st_mtime_ns}-{facts.st_ino}"
        data = file.read(SMALL)
    return Swapped(done=False, version=version, data=data, age=now - facts.st_mtime)


def sha256_of(pieces: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def folder_of(uri: str) -> Path:
    """The folder of a URI, percent-encoded or not. The path starts at the third slash."""
    path = os.fsdecode(unquote_to_bytes(uri[len("file://") :]))
    if not path.startswith("/"):
        raise UsageError(
            f"{uri}: has a host or a relative path",
            hint="write a folder on this machine with three slashes: file:///absolute/path",
        )
    if "\0" in path:
        raise UsageError(f"{uri}: a path cannot contain a NUL byte")
    return Path(path)


@contextlib.contextmanager
def _folder(root: Path, path: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
    """Descriptor of the folder that a path below `root` is in, and the path's last name. Follows no
    link below `root`, also none that is made meanwhile: others can write to a shared disk."""
    *folders, name = path.split("/")
    if create:
        root.mkdir(parents=True, exist_ok=True)
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            below = _below(at, folder, create=create)
            os.close(at)
            at = below
        yield at, name
    finally:
        os.close(at)


def _below(at: int, folder: str, *, create: bool) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(folder, flags, dir_fd=at)
    except FileNotFoundError:
        if not create:
            raise
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(folder, dir_fd=at, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, f"{folder} is a link") from None
        raise
    with contextlib.suppress(FileExistsError):  # by another thread, or process
        os.mkdir(folder, dir_fd=at)
    return os.open(folder, flags, dir_fd=at)


def _opened(folder: int, name: str) -> tuple[int, int]:
    """Open a regular file and nothing else: a pipe could block forever. Also returns its size."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=folder)
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "Not a regular file")
    return descriptor, facts.st_size


def _read(folder: int, name: str) -> Iterator[bytes]:
    descriptor, size = _opened(folder, name)
    try:
        while chunk := os.read(descriptor, min(size + 1, _CHUNK)):
            yield chunk
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: Iterable[bytes], *, synced: bool) -> tuple[int, str]:
    """Write a file, sync it to the disk, and close it; returns its size and SHA-256."""
    size, digest = 0, hashlib.sha256()
    try:
        for chunk in data:
            view = memoryview(chunk)
            digest.update(view)
            size += len(view)
            while view:
                view = view[os.write(descriptor, view) :]
        if synced:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return size, digest.hexdigest()


def _walk(folder: Path, name: str = "") -> Iterator[os.DirEntry[str]]:
    """Yield the files below an existing folder whose paths start with `name`."""
    try:
        with os.scandir(folder) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in entries:
        if not entry.name.startswith(name):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))
        elif entry.is_file(follow_symlinks=False):
            yield entry


_AWAY = frozenset(
    {
        *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH),
        *(errno.ENOTCONN, errno.ECONNREFUSED, errno.ECONNRESET, errno.ENETUNREACH),
    }
)
"""Of a mount whose server does not answer."""

_HINTS = {
    errno.ENOSPC: "free some space there, or choose another place",
    errno.EDQUOT: "free some of your quota, or choose another place",
    errno.EACCES: "give yourself write access there, or choose another place",
    errno.EPERM: "give yourself write access there, or choose another place",
    errno.EROFS: "choose a writable place",
    errno.ENOTDIR: "a file is in the way of a folder: move it, or choose another place",
    errno.EEXIST: "a file is in the way of a folder: move it, or choose another place",
    errno.EISDIR: "a folder is in the way of a file: move it, or choose another place",
    errno.ELOOP: "links in a store are not followed: check who put it there",
    errno.EINVAL: "check who put it there",
    errno.ENOENT: "something has deleted it: check whether the folder still exists",
}


@contextlib.contextmanager
def _explained(path: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = error.strerror or str(error)
        kind = StoreAway if error.errno in _AWAY else StoreError
        raise kind(
            f"{shown(path)}: {text}",
            hint=_HINTS.get(error.errno or 0, "check that the store can be read and written")
            + ", then run the command again",
        ) from error


# ── batches of small files ─────────────────────────────────────────────────────
# A store in a folder handles one faster than its files one by one.


BATCH_BYTES = 1 << 17
"""Bytes that make a batch full; a larger file is one of its own."""

BATCH = 32
"""Most files in a batch."""


def most_in_batch(store: ArtifactStore) -> int:
    return BATCH if isinstance(store, FileStore) else 1


def batches(files: Iterable[Artifact], most: int) -> Iterator[list[Artifact]]:
    """Split files, in their order, into batches of at most `most`."""
    batch, size = list[Artifact](), 0
    for file in files:
        if batch and (len(batch) == most or size + file.size > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.size
    if batch:
        yield batch


def upload_all(store: ArtifactStore, files: Mapping[str, Iterable[bytes]]) -> list[Artifact]:
    """`ArtifactStore.upload` for each file, by path. If one fails, others may be stored."""
    if isinstance(store, FileStore):
        return store.upload_all(files)
    return [store.upload(path, data) for path, data in files.items()]


def sync(store: ArtifactStore) -> None:
    """Wait until what `upload_all` has stored is where a power cut leaves it. Raises StoreError."""
    if isinstance(store, FileStore):
        store.sync()


def stored_checksums(store: ArtifactStore, paths: Sequence[str]) -> list[str]:
    """SHA-256 of what the store returns for each path. Raises StoreError."""
    if isinstance(store, FileStore):
        sums = store.checksums(paths)
        return [sums[path] for path in paths]
    return [sha256_of(store.download(path)) for path in paths]
