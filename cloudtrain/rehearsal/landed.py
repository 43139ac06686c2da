"""Compares what a run with a fault has landed with what the undisturbed one has; pure.

Two trainings are never the same, and a restart writes more checkpoints and event files than one
attempt. So names are compared with their numbers left out, and not how many there are of a kind;
sizes for what is empty, or less than half as large. Contents are not.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cloudtrain.artifacts.manifest import Manifest, is_record
from cloudtrain.core.model import Artifact
from cloudtrain.core.paths import size_text

_CHANGING = re.compile(r"tmp[a-z0-9_]{8}|[0-9a-f]{8,}|\d+")
"""Parts of names that differ between two runs: those of `tempfile`, digests, steps, times, pids."""

_COMPARED_FROM = 1000
"""Bytes below which half the size means nothing."""

_EVENTS = "events.out.tfevents"
"""TensorBoard's files, which an attempt begins anew."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Files that are missing, or smaller than in the undisturbed run."""

    missing: tuple[str, ...] = ()
    """Paths, as the undisturbed run landed them, of which nothing landed, or only empty files."""
    smaller: tuple[str, ...] = ()
    """`chief0/history.csv: 1.2 kB instead of 5.0 kB`"""


NOTHING_LESS = Compared()


def compared(
    reference: Manifest | None, found: Manifest | None, *, without: Collection[str] = ()
) -> Compared:
    """`without`: tasks without which the run was allowed to end."""
    before, after = _by_name(reference), _by_name(found)
    missing, smaller = [], []
    for name, files in before.items():
        task = name[0]
        if task in without:
            continue
        usual, now = _largest(files), _largest(after.get(name, ()))
        if name not in after or (usual and not now):
            missing.append(files[0].path)
        elif _EVENTS not in name[1] and usual >= _COMPARED_FROM and now < usual / 2:
            text = f"{size_text(now)} instead of {size_text(usual)}"
            smaller.append(f"{after[name][0].path}: {text}")
    return Compared(missing=tuple(missing), smaller=tuple(smaller))


def _by_name(manifest: Manifest | None) -> Mapping[tuple[str, str], list[Artifact]]:
    """Files of tasks, by task and name without numbers."""
    found = defaultdict(list)
    for path, file in sorted(manifest.files.items()) if manifest else ():
        if not is_record(path):
            task, _, name = path.partition("/")
            found[task, _CHANGING.sub("#", name)].append(file)
    return found


def _largest(files: Collection[Artifact]) -> int:
    return max((file.size for file in files), default=0)
