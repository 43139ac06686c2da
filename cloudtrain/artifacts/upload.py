"""The means by which files get from their nodes into a store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from cloudtrain.artifacts.inventory import Stop
from cloudtrain.core.protocols import ArtifactStore, Transport


@dataclass(frozen=True, kw_only=True)
class Upload:
    """Transport, store and threads of an upload. Requests are signed, and small files stored, side
    by side in `pool`; `stop` ends everything.
    """

    transport: Transport
    store: ArtifactStore
    pool: ThreadPoolExecutor
    stop: Stop = field(default_factory=Stop)
