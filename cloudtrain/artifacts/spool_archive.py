"""Spool archives: their names in a store, their contents, and landing their files."""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import IO, Any, NamedTuple

from cloudtrain.artifacts.download import verified
from cloudtrain.artifacts.inventory import json_line, last_line, run_program
from cloudtrain.artifacts.manifest import ManifestWriter
from cloudtrain.artifacts.uploads import Upload, lock_of, revealed, upload_from_node, valid_for
from cloudtrain.core import paths
from cloudtrain.core.codec import PATH, decode
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import CloudtrainError, NodeError
from cloudtrain.core.model import Artifact, Node
from cloudtrain.core.paths import is_inside, shown
from cloudtrain.core.protocols import ArtifactStore, Transport
from cloudtrain.core.retry import NODE_SILENT
from cloudtrain.core.run_record import Run
from cloudtrain.core.shell import script
from cloudtrain.node import formats
from cloudtrain.node.listing import File
from cloudtrain.stores.file import sha256_of

_CHUNK = 1 << 20


def spool_name(run: str, task: str, attempt: int, begun: int, number: int) -> str:
    """Path of an archive in the store. `begun`: Unix time, so that each agent has its own names."""
    return f"{run}/{formats.ARCHIVES}/{task}.{attempt}-{begun:08x}-{number:02d}.tar"


class SpoolName(NamedTuple):
    """One archive in the store; sorts a task's archives in the order of their creation."""

    attempt: int
    begun: str
    number: str
    task: str
    path: str
    size: int = 0


_NAME = re.compile(r"([a-z][a-z0-9-]*?\d+)\.(\d+)-([0-9a-f]{8})-(\d+)\.tar")


def pending_spools(run: str, store: ArtifactStore) -> list[SpoolName]:
    """Archives that have not been ingested yet."""
    return spools_among(run, store.list(f"{run}/{formats.ARCHIVES}/"))


def spools_among(run: str, stored: Iterable[Artifact]) -> list[SpoolName]:
    prefix = f"{run}/{formats.ARCHIVES}/"
    sizes = {found.path: found.size for found in stored if found.path.startswith(prefix)}
    matches = ((path, _NAME.fullmatch(path[len(prefix) :])) for path in sizes)
    return sorted(
        SpoolName(int(match[2]), match[3], match[4], match[1], path, sizes[path])
        for path, match in matches
        if match and path + formats.ARCHIVE_TAKEN not in sizes
    )


def delete_spool(names: Sequence[SpoolName], store: ArtifactStore) -> None:
    """Delete archives, or mark them as taken without the right to delete."""
    for name in names:
        try:
            store.delete(name.path)
        except CloudtrainError:
            store.upload(name.path + formats.ARCHIVE_TAKEN, [b""])


@dataclass(frozen=True, kw_only=True)
class SpoolCheckpoint:
    """A checkpoint folder, if there is one, and its files' stamps by path in the work folder."""

    folder: str | None = field(metadata=PATH)
    files: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class SpoolIndex:
    """Index of an archive: the files that the node read whole, by member name.
    `checkpoint_is_whole`: nothing there changed while the archive was read. `left`: bytes by folder
    that were still to be stored when the node's end had been announced."""

    files: Mapping[str, Artifact]
    checkpoint: SpoolCheckpoint
    checkpoint_is_whole: bool
    left: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Index:
    """An index as JSON has it. Its files are artifacts whose path is called `name`."""

    files: tuple[Mapping[str, object], ...]
    checkpoint: SpoolCheckpoint
    whole: int
    left: Mapping[str, int] = field(default_factory=dict)


class LocalSpool:
    """An archive in a local file. Raises ValueError, KeyError, TypeError or TarError if invalid."""

    def __init__(self, spool: IO[bytes], ledger: ManifestWriter, pool: ThreadPoolExecutor) -> None:
        self._spool, self._ledger, self._pool = spool, ledger, pool
        spool.seek(0)
        with tarfile.open(
            fileobj=spool, mode="r:", encoding="utf-8", errors="surrogateescape"
        ) as archive:
            members = {member.name: member for member in archive if member.isreg()}
        about = members[formats.ABOUT]
        text = os.pread(spool.fileno(), about.size, about.offset_data)
        self.index = parse_index(text, {each.name: each.size for each in members.values()})
        self._starts = {each.name: each.offset_data for each in members.values()}
        files = self.index.files
        sums = pool.map(sha256_of, map(self._pieces, files.values()))
        self.digests = dict(zip(files, sums, strict=True))
        """SHA-256 of the members' actual bytes."""

    def land(self, due: Mapping[str, Artifact]) -> list[Artifact]:
        """Land members, by their paths in the manifest. Raises an error unless all landed."""
        return list(self._pool.map(self._landed, due, due.values()))

    def rest(self, path: str, log: Artifact, start: int) -> Iterator[bytes]:
        """The bytes of a log from `start` on; the manifest has it, in full, as `path`."""
        return self._pieces(log, start)

    def _landed(self, path: str, member: Artifact) -> Artifact:
        key = self._ledger.key(self._ledger.place(path))
        stored = self._ledger.store.upload(key, self._pieces(member))
        return self._ledger.landed(path, stored, member.stamp)

    def _pieces(self, member: Artifact, skip: int = 0) -> Iterator[bytes]:
        """Read by position, as several threads read at once."""
        first = self._starts[member.path]
        end = first + member.size
        for start in range(first + skip, end, _CHUNK):
            yield os.pread(self._spool.fileno(), min(_CHUNK, end - start), start)


def parse_index(text: bytes | str, members: Mapping[str, int]) -> SpoolIndex:
    """Parse the index of an archive with these members and sizes. Raises ValueError, KeyError or
    TypeError for an invalid one."""
    index = decode(_Index, json.loads(text))
    files = {}
    for each in index.files:
        file = decode(Artifact, {**each, "path": each["name"]})
        if members[file.path] != file.size:
            raise ValueError(f"archive index does not match member {shown(file.path)}")
        if each["whole"] == 1:
            files[file.path] = file
    is_whole = index.whole == 1 and all(map(is_inside, index.checkpoint.files))
    return SpoolIndex(
        files=files, checkpoint=index.checkpoint, checkpoint_is_whole=is_whole, left=index.left
    )


# Unpacks spool archives on a node, which downloads them and uploads their files
# (node/unpacker.py)
# As in uploads.py, a node only gets a presigned request for one object.


PLACE = ".parcel"
"""Folder below the run's folder on the node. Never the name of a task: those end with an index."""

TRIED = 3
"""Unreachable nodes after which no more are tried."""


class UnpackingUnavailable(Exception):
    """Reason why no node can unpack an archive."""


class SpoolUnpackers:
    """Nodes of a run's cluster that can unpack archives, as long as they answer."""

    def __init__(
        self,
        run: Run,
        nodes: Sequence[Node],
        transport: Transport | None,
        ledger: ManifestWriter,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._run, self._transport = run, transport
        self._ledger, self._pool = ledger, pool
        self._nodes = [node for node in nodes if transport and node.state == "running"]
        self._lost = 0
        self.why = "nodes are not used to unpack them"
        if transport:
            self.why = "no running node could unpack them"

    def node(self, task: str) -> Node | None:
        """The node that stored the archive if it exists, or another."""
        names = {each.node for each in self._run.tasks if each.name == task}
        return min(self._nodes, key=lambda node: node.name not in names, default=None)

    def none(self, why: str) -> None:
        self._nodes, self.why = [], why

    def lose(self, node: Node, why: str) -> None:
        self._lost += 1
        self._nodes.remove(node)
        if self._lost >= TRIED or not self._nodes:
            self.none(f"{node.name}: {why}")

    @contextmanager
    def unpacked(self, node: Node, path: str, size: int) -> Iterator[UnpackedSpool]:
        """Unpack an archive. Raises UnpackingUnavailable, NodeError; ValueError, KeyError or
        TypeError for an invalid archive."""
        assert self._transport is not None
        top = f"{paths.runs_folder(self._run.cluster)}/{self._run.id}/{PLACE}"
        folder = f"{top}/files"
        try:
            facts = self._fetched(node, folder, path, size)
            upload = Upload(transport=self._transport, store=self._ledger.store, pool=self._pool)
            yield UnpackedSpool(node, folder, facts, self._ledger, upload)
        except NodeError:
            raise  # nothing can be removed there now; the next unpacking there does it
        except BaseException:
            self._remove(node, top)
            raise
        self._remove(node, top)

    def _remove(self, node: Node, folder: str) -> None:
        assert self._transport is not None
        with suppress(CloudtrainError):
            self._transport.run(node, script('rm -rf -- "$1"', folder), timeout=NODE_SILENT)

    def _fetched(self, node: Node, folder: str, path: str, size: int) -> dict[str, Any]:
        """Answer of unpacker.py."""
        assert self._transport is not None
        try:
            lasts, signer = valid_for(size), self._ledger.store.presigner
            request = signer.sign_download(path, expires_in=lasts) if signer else None
        except CloudtrainError as error:
            raise UnpackingUnavailable(error.message) from error
        if request is None:
            raise UnpackingUnavailable("the store cannot presign a download for a node")
        order = {"folder": folder, "lock": lock_of(folder), "size": size}
        order["request"] = revealed(request)
        done = run_program(node, "unpacker", json_line(order), self._transport)
        try:
            facts = json.loads(done.stdout.splitlines()[-1])
            if not isinstance(facts, dict) or not facts.keys() & {"about", "why", "bad"}:
                raise ValueError
        except (ValueError, IndexError):
            why = last_line(done.stderr, done.exit_code)
            raise UnpackingUnavailable(f"{node.name}: {why}") from None
        if "why" in facts:
            raise UnpackingUnavailable(f"{node.name}: {shown(' '.join(str(facts['why']).split()))}")
        return facts


class UnpackedSpool:
    """A spool archive whose files are in a folder of a node."""

    def __init__(
        self,
        node: Node,
        folder: str,
        facts: Mapping[str, Any],
        ledger: ManifestWriter,
        upload: Upload,
    ) -> None:
        if "bad" in facts:
            raise ValueError(shown(str(facts["bad"])))
        members = facts["members"]
        self.digests = {str(name): str(sha256) for name, _, sha256 in members}
        self._numbers = {str(name): str(number) for number, (name, _, _) in enumerate(members)}
        self.index = parse_index(
            str(facts["about"]), {str(name): int(size) for name, size, _ in members}
        )
        self._node, self._folder = node, folder
        self._ledger, self._upload = ledger, upload

    def land(self, due: Mapping[str, Artifact]) -> list[Artifact]:
        """Land members. Raises UnpackingUnavailable unless all are stored as they were read."""
        ledger = self._ledger
        files = {
            ledger.key(ledger.place(path)): File(
                path, self._numbers[member.path], member.size, member.stamp
            )
            for path, member in due.items()
        }
        sent = upload_from_node(self._node, self._folder, files, self._upload)
        stored = []
        for path, member in due.items():
            artifact = sent.arrived.get(self._numbers[member.path])
            if artifact is None or artifact.sha256 != member.sha256:
                raise UnpackingUnavailable(
                    f"{self._node.name}: {sent.why or 'its copy has changed'}"
                )
            stored.append(ledger.landed(path, artifact, member.stamp))
        return stored

    def rest(self, path: str, log: Artifact, start: int) -> Iterator[bytes]:
        """The rest of the log, downloaded from the store, where it has landed."""
        ledger, skip = self._ledger, start
        for piece in verified(ledger.manifest.files[path], ledger.manifest.run, ledger.store):
            if skip < len(piece):
                yield piece[skip:]
            skip = max(0, skip - len(piece))


SpoolArchive = LocalSpool | UnpackedSpool
