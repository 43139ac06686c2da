"""Marks of nodes that ended themselves: requests to store them, and what they prove of a run.

An agent (node/own_end.py) that shuts its machine down stores a mark beside the run's archives: how
its task ended, and each file that the machine held. The mark is signed with a key that the agent
got over SSH, and counts only if the store has every file that it names."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cloudtrain.artifacts.manifest import ManifestWriter, OwnManifests, left_out
from cloudtrain.artifacts.uploads import revealed
from cloudtrain.core.codec import UNIX_TIME, InvalidRecord, decode
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.presign import PresignedUpload
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.core.run_record import ATTEMPT_NUMBER, Run, Task
from cloudtrain.node import formats
from cloudtrain.state.files import make_folder, write_whole

KEY = "end_key"
"""File in a cluster's folder: what the keys of its runs are made of."""
MOST = 64 << 20
"""Bytes of a mark that are read: a path and a stamp for each of half a million files. Whoever may
write to the store could fill this machine's memory."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Last words of an agent on its node, right before that ends."""

    run: str
    task: str
    attempt: int = field(metadata=ATTEMPT_NUMBER)
    why: str
    exit: str | None
    """The task's exit code, as its shell reported it."""
    ended: float = field(metadata=UNIX_TIME)
    at: float = field(metadata=UNIX_TIME)
    files: Mapping[str, str]
    """Stamp of each file, by its path in the task's work folder."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Bytes by folder of what the task made or changed, and `artifacts.paths` does not name."""


def key_of(folder: Path, run: str) -> str:
    """The key of a run's marks, in hex; made from one that is kept in the cluster's folder."""
    path = folder / KEY
    if not path.exists():
        mine = folder / f"{KEY}.{secrets.token_hex(8)}"
        make_folder(folder)
        write_whole(mine, secrets.token_bytes(32))
        with suppress(FileExistsError):  # two agents are started at once
            os.link(mine, path)
        mine.unlink()
    data = path.read_bytes()
    return hmac.new(data, run.encode(), hashlib.sha256).hexdigest()


def _path(run: str, task: Task, kind: str) -> str:
    return f"{run}/{formats.ARCHIVES}/{task.name}.{task.attempt}.{kind}"


@dataclass(frozen=True, kw_only=True)
class OverRequests:
    """Presigned requests for the mark that a task has ended: with which its agent stores it, and
    those of the others ask for it. Only for their stdin."""

    store: Mapping[str, Any] | None = field(repr=False)
    ask: Mapping[str, Any] | None = field(repr=False)


def over_requests(store: ArtifactStore, run: Run, task: Task, expires_in: float) -> OverRequests:
    """Presign the requests for one task's mark. Raises StoreError."""
    if (signer := store.presigner) is None:
        return OverRequests(store=None, ask=None)
    path = _path(run.id, task, formats.OVER_MARK)
    upload = signer.sign_upload(path, None, expires_in=expires_in)
    read = signer.sign_download(path, expires_in=expires_in)
    ask: Mapping[str, Any] | None
    if read is not None and not read.headers:
        ask = revealed(read)
    else:  # Google's token lasts an hour, its upload session a week
        ask = _status(upload) if upload is not None and upload.chunk else None
    return OverRequests(store=_order(upload), ask=ask)


def requests(
    store: ArtifactStore,
    run: Run,
    task: Task,
    over: Mapping[str, OverRequests],
    others: Mapping[str, Task],
    expires_in: float,
) -> dict[str, Any]:
    """The part of an agent's order that has presigned requests, only for its stdin: for its own
    marks, and to ask for those of the others that decide the run. Raises StoreError."""
    signer, path = store.presigner, _path(run.id, task, formats.END_MARK)
    end = signer.sign_upload(path, None, expires_in=expires_in) if signer else None
    return {
        "over": over[task.name].store if task.name in over else None,
        "end": _order(end),
        "others": {name: over[name].ask if name in over else None for name in others},
        "attempts": {name: other.attempt for name, other in others.items()},
    }


def _order(made: PresignedUpload | None) -> dict[str, Any] | None:
    if made is None:
        return None
    return {"requests": [revealed(each) for each in made.requests], "piece": made.chunk}


def _status(upload: PresignedUpload) -> dict[str, Any]:
    """The question whether a resumable upload is complete, which only its agent can have done:
    nobody else knows the session, or writes more than this question.
    https://cloud.google.com/storage/docs/performing-resumable-uploads#status-check"""
    asked = revealed(upload.requests[0])
    return {**asked, "headers": {"Content-Range": "bytes */*"}}


def read_marks(
    run: Run, store: ArtifactStore, key: str, kind: str = formats.END_MARK
) -> dict[str, Mark]:
    """Marks of the run's tasks, in their current attempts, that are signed with this key. Raises
    StoreError."""
    wanted = {_path(run.id, task, kind): task for task in run.tasks}
    stored = store.list(f"{run.id}/{formats.ARCHIVES}/")
    there = [each.path for each in stored if each.path in wanted and each.size <= MOST]
    found = {}
    for path in there:
        mark, task = _parsed(b"".join(store.download(path)), key), wanted[path]
        told = None if mark is None else (mark.run, mark.task, mark.attempt)
        if mark is not None and told == (run.id, task.name, task.attempt):
            found[task.name] = mark
    return {task.name: found[task.name] for task in run.tasks if task.name in found}


def _parsed(data: bytes, key: str) -> Mark | None:
    try:
        told = json.loads(data)
        text = str(told["mark"])
        mac = hmac.new(bytes.fromhex(key), text.encode("ascii"), hashlib.sha256).hexdigest()
        if not hmac.compare_digest(mac, str(told["mac"])):
            return None
        return decode(Mark, json.loads(text))
    except (ValueError, KeyError, TypeError, RecursionError, InvalidRecord):
        return None


def proven_ends(
    run: Run, store: ArtifactStore, own: OwnManifests, key: str, since: float
) -> dict[str, Mark]:
    """Marks by task that were made after `since` (Unix time), and all of whose files have landed,
    which is recorded in the manifest. The archives must have been ingested. Raises StoreError."""
    marks = {name: m for name, m in read_marks(run, store, key).items() if m.at > since}
    if not marks:
        return {}
    ledger = ManifestWriter(store, run.id, own=own)
    proven = {}
    for task, mark in marks.items():
        landed = ledger.manifest.task_files(task)
        if all(path in landed and landed[path].stamp == mark.files[path] for path in mark.files):
            proven[task] = mark
            ledger.landed_all(task, mark.attempt)
            if mark.left_out:
                ledger.warn(task, [left_out(Counter(mark.left_out))])
    ledger.save()
    return proven
