"""Parcels that nodes stored while nobody was there (keeper.py), taken into what has landed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cloudtrain.errors import CloudtrainError
from cloudtrain.fan_out import fan_out
from cloudtrain.landing.inventory import SILENCE, nanoseconds
from cloudtrain.landing.ledger import Ledger
from cloudtrain.landing.manifest import Checkpoint, Landed
from cloudtrain.landing.packer import ABOUT, WORK
from cloudtrain.landing.sync import Source
from cloudtrain.model import Run
from cloudtrain.paths import is_inside, shown
from cloudtrain.protocols import ArtifactStore, Console, Transport
from cloudtrain.shell import Command, script

FOLDER = "parcels"
"""Below the run's prefix. Not the name of a task: those end with their index."""

TAKEN = ".taken"
"""The end of the name of a mark beside a parcel that there was no right to delete."""

AT_ONCE = 16

_CHUNK = 1 << 20


def parcel_name(run: str, task: str, attempt: int, begun: int, number: int) -> str:
    """`begun`: Unix time, so that a later keeper of the attempt has names of its own."""
    return f"{run}/{FOLDER}/{task}.{attempt}-{begun:08x}-{number:02d}.tar"


@dataclass(frozen=True, kw_only=True, order=True)
class Name:
    """One in the store, in the order in which a task's were made."""

    attempt: int
    begun: str
    number: str
    task: str
    path: str


_NAME = re.compile(r"([a-z][a-z0-9-]*?\d+)\.(\d+)-([0-9a-f]{8})-(\d+)\.tar")


def parcels_of(run: str, store: ArtifactStore) -> list[Name]:
    """Those that have not been taken yet."""
    prefix = f"{run}/{FOLDER}/"
    paths = {found.path for found in store.list(prefix)}
    matches = ((path, _NAME.fullmatch(path[len(prefix) :])) for path in paths)
    return sorted(
        Name(task=match[1], attempt=int(match[2]), begun=match[3], number=match[4], path=path)
        for path, match in matches
        if match and path + TAKEN not in paths
    )


def take_parcels(
    run: Run,
    store: ArtifactStore,
    console: Console,
    *,
    there: Collection[str] = (),
    log_path: Callable[[str, int], Path] | None = None,
) -> None:
    """Every file of a parcel that is newer than its landed version lands, checked.

    Also of tasks whose nodes are there: one that took the place of another has none of its files.
    A parcel that cannot be read whole stays. `there`: tasks whose nodes land their own files next,
    so that their parcels are no news. `log_path` names a task's log here, which a parcel
    may have more of. Safe to be killed at any point, and to be done again. The caller holds the
    cluster's lock. StoreError.
    """
    tasks = {task.name for task in run.tasks}
    names = [name for name in parcels_of(run.id, store) if name.task in tasks]
    if not names:
        return
    ledger = Ledger(store, run.id)
    news = sum(name.task not in there for name in names)
    if news:
        console.say(f"{counted(news)} that nodes stored while nobody was there: taken")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        taken = [name for name in names if _take(name, ledger, console, pool, log_path)]
        ledger.settle(pool)
    drop(taken, store)


def counted(parcels: int) -> str:
    return f"{parcels} parcel{'s' * (parcels != 1)}"


def drop(names: Sequence[Name], store: ArtifactStore) -> None:
    """Deleted, or marked where there is no right to that."""
    for name in names:
        try:
            store.delete(name.path)
        except CloudtrainError:
            store.upload(name.path + TAKEN, [b""])


def may_keep(store: ArtifactStore) -> bool:
    """Nothing on a node can store in a folder of this machine."""
    return not store.uri.startswith("file:")


def tell_landed(
    sources: Sequence[Source], ledger: Ledger, transport: Transport, *, final: bool
) -> None:
    """For the keepers on the nodes: by path, the stamp of what the manifest has."""

    def tell(source: Source) -> None:
        files = ledger.manifest.task_files(source.task)
        stamps = {path: each.stamp for path, each in files.items()}
        told = json.dumps({"final": final, "files": stamps}).encode("ascii")
        with suppress(CloudtrainError):  # then its keeper stores what it need not
            folder = source.folder.rpartition("/")[0]
            transport.run(source.node, telling(folder), stdin=told, timeout=SILENCE)

    fan_out(sources, tell, name=lambda source: source.node.name)


def telling(folder: str) -> Command:
    return script(TELLING, folder)


TELLING = r"""
cd "$1" 2>/dev/null && [ -e keeping ] || exit 0
umask 077
cat >landed.new && mv -f landed.new landed
"""


# ── One parcel ───────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class _File:
    """One file of a parcel, as its keeper tells of it, and where its bytes are in it."""

    name: str
    size: int
    stamp: str
    sha256: str
    whole: bool
    start: int

    @property
    def path(self) -> str:
        return self.name[len(WORK) :]


def _take(
    name: Name,
    ledger: Ledger,
    console: Console,
    pool: ThreadPoolExecutor,
    log_path: Callable[[str, int], Path] | None,
) -> bool:
    """Whether nothing in it is needed any more."""
    try:
        with tempfile.TemporaryFile() as spool:
            for piece in ledger.store.download(name.path):
                spool.write(piece)
            spool.flush()
            is_intact = _unpack(name, spool, ledger, console, pool, log_path)
    except (ValueError, KeyError, TypeError, tarfile.TarError) as error:
        console.warn(f"{shown(name.path)} is not a parcel that can be read: {error}; it is left")
        return False
    except OSError as error:
        raise CloudtrainError(
            f"{tempfile.gettempdir()}: {error.strerror or error}, for a copy of {name.path}",
            hint="make room there, or name another folder in TMPDIR",
        ) from error
    ledger.save()
    return is_intact


def _unpack(
    name: Name,
    spool: IO[bytes],
    ledger: Ledger,
    console: Console,
    pool: ThreadPoolExecutor,
    log_path: Callable[[str, int], Path] | None,
) -> bool:
    """Whether every file that its node read whole is here as it was read."""
    files, checkpoint = _read(spool)
    intact = {}
    for file, digest in zip(files, pool.map(lambda each: _digest(spool, each), files), strict=True):
        if file.whole and digest == file.sha256:
            intact[file.name] = file
        elif file.whole:
            console.warn(f"{shown(name.path)}: {shown(file.name)} is not what its node read")
    mine = {file.path: file for file in intact.values() if file.name.startswith(WORK)}
    together = _checkpoint(name.task, checkpoint, mine, ledger)
    inside = tuple(checkpoint["files"]) if checkpoint else ()
    due = [
        file
        for path, file in mine.items()
        if (path not in inside or together) and _is_newer(file, name.task, ledger)
    ]
    landed = pool.map(lambda each: _land(each, f"{name.task}/{each.path}", spool, ledger), due)
    ledger.add(list(landed), together)
    for file in intact.values():
        if file.name == f"logs/attempt-{name.attempt}":
            _take_log(file, name, spool, ledger, log_path)
    return all(file.name in intact for file in files if file.whole)


def _read(spool: IO[bytes]) -> tuple[list[_File], dict[str, Any] | None]:
    """Raises ValueError, KeyError, TypeError or TarError for what is no parcel."""
    spool.seek(0)
    with tarfile.open(
        fileobj=spool, mode="r:", encoding="utf-8", errors="surrogateescape"
    ) as archive:
        members = {member.name: member for member in archive if member.isreg()}
    about = members[ABOUT]
    facts = json.loads(os.pread(spool.fileno(), about.size, about.offset_data))
    files = []
    for each in facts["files"]:
        member = members[str(each["name"])]
        if not is_inside(member.name) or member.size != each["size"]:
            raise ValueError(f"what it tells of {shown(member.name)} is not so")
        files.append(
            _File(
                name=member.name,
                size=member.size,
                stamp=str(each["stamp"]),
                sha256=str(each["sha256"]),
                whole=each["whole"] == 1,
                start=member.offset_data,
            )
        )
    checkpoint = facts["checkpoint"]
    is_whole = facts["whole"] == 1 and all(is_inside(path) for path in checkpoint["files"])
    return files, {**checkpoint, "whole": is_whole} if checkpoint["folder"] else None


def _digest(spool: IO[bytes], file: _File) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(spool, file):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(spool: IO[bytes], file: _File) -> Iterator[bytes]:
    """By position: read by several threads."""
    end = file.start + file.size
    for start in range(file.start, end, _CHUNK):
        yield os.pread(spool.fileno(), min(_CHUNK, end - start), start)


def _checkpoint(
    task: str, told: Mapping[str, Any] | None, mine: Mapping[str, _File], ledger: Ledger
) -> Checkpoint | None:
    """The parcel's, where all its files are in it, or have landed, as they were together; and
    where it is newer than the one that has landed."""
    if told is None or not told["whole"]:
        return None
    stamps: Mapping[str, str] = told["files"]
    known = ledger.manifest.task_files(task)
    for path, stamp in stamps.items():
        sent, landed = mine.get(path), known.get(path)
        if sent is not None and _is_newer(sent, task, ledger):
            if sent.stamp != stamp:
                return None
        elif landed is None or landed.stamp != stamp:
            return None
    old = ledger.manifest.checkpoint
    if old is not None:
        times = [_changed(ledger.manifest.files[path].stamp) for path in old.paths]
        if max(map(_changed, stamps.values())) <= max(times):
            return None
    paths = tuple(f"{task}/{path}" for path in sorted(stamps))
    return Checkpoint(task=task, folder=told["folder"], paths=paths)


def _is_newer(file: _File, task: str, ledger: Ledger) -> bool:
    """By the time at which the node changed it last, which no program can set back."""
    landed = ledger.manifest.files.get(f"{task}/{file.path}")
    return landed is None or _changed(file.stamp) > _changed(landed.stamp)


def _changed(stamp: str) -> int:
    """ns; the second of a stamp's times (inventory.py)."""
    return nanoseconds(stamp.split("/")[1]) if stamp.count("/") == 2 else 0


def _land(file: _File, path: str, spool: IO[bytes], ledger: Ledger) -> Landed:
    place = ledger.place(path)
    artifact = ledger.store.upload(ledger.key(place), _pieces(spool, file))
    mtime = nanoseconds(file.stamp.split("/")[0]) if "/" in file.stamp else 0
    return Landed(
        path=path,
        size=artifact.size,
        sha256=artifact.sha256,
        md5=artifact.md5,
        at=place,
        mtime=mtime,
        stamp=file.stamp if mtime else "",
    )


def _take_log(
    file: _File,
    name: Name,
    spool: IO[bytes],
    ledger: Ledger,
    log_path: Callable[[str, int], Path] | None,
) -> None:
    """A log only grows: the longest is the newest."""
    path = f"logs/{name.task}.attempt-{name.attempt}.log"
    known = ledger.manifest.files.get(path)
    if known is None or known.size < file.size:
        ledger.add([_land(file, path, spool, ledger)])
    here = log_path(name.task, name.attempt) if log_path else None
    if here is None:
        return
    here.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    here.touch(mode=0o600)
    have = here.stat().st_size
    if have < file.size:
        with here.open("r+b") as log:
            log.seek(have)
            rest = _File(**{**vars(file), "start": file.start + have, "size": file.size - have})
            log.writelines(_pieces(spool, rest))
