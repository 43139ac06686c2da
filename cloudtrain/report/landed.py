"""Lands a report beside a run's logs, and reads landed ones."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from cloudtrain.artifacts.download import verified
from cloudtrain.artifacts.manifest import Manifest
from cloudtrain.core.codec import InvalidRecord, decode
from cloudtrain.core.errors import StoreError
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.report.build import build
from cloudtrain.report.facts import Report
from cloudtrain.report.page import page
from cloudtrain.report.sources import Sources

PAGE, FACTS = "report.html", "report.json"
"""Names below the run's prefix."""

LIMIT = 20.0
"""Seconds that the end of a run waits for its report."""

LARGEST = 32 << 20
"""Limit of the facts in bytes."""


def to_json(report: Report) -> dict[str, Any]:
    return asdict(report)


def written(sources: Sources, *, limit: float = LIMIT) -> Mapping[str, bytes]:
    """Page and facts by their name, within so many seconds. Raises the fault: of any kind, as it
    comes from logs, event files and a library of drawing."""
    found: dict[str, bytes] = {}
    faults: list[Exception] = []

    def work() -> None:
        try:
            report = build(sources)
            text = page(report)
            found[FACTS] = json.dumps(to_json(report)).encode("ascii")
            found[PAGE] = text.encode("utf-8", "replace")
        except Exception as error:  # noqa: BLE001  (raised in the caller's thread)
            faults.append(error)

    thread = threading.Thread(target=work, name="report", daemon=True)
    thread.start()
    thread.join(limit)
    if thread.is_alive():
        raise TimeoutError(f"it was not complete after {limit:g} s")
    if faults:
        raise faults[0]
    return found


def warned(warn: Callable[[str], None], sources: Callable[[], Sources]) -> Mapping[str, bytes]:
    """The same for the end of a run, which a fault of its report neither fails nor delays."""
    try:
        return written(sources())
    except Exception as error:  # noqa: BLE001  (whatever it is, the run's end counts more)
        warn(f"the run's report was not written: {error or type(error).__name__}")
        return {}


def landed_report(run: str, manifest: Manifest | None, store: ArtifactStore) -> Report | None:
    """The report that landed at the end of a run; None if there is none that this version can
    read."""
    file = manifest.files.get(FACTS) if manifest else None
    if file is None or file.size > LARGEST:
        return None
    with suppress(StoreError, InvalidRecord, ValueError, RecursionError):
        found = decode(Report, json.loads(b"".join(verified(file, run, store))))
        return found if found.run.id == run else None
    return None
