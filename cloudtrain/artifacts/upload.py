"""By what files get from their nodes into a store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from cloudtrain.artifacts.inventory import Stop
from cloudtrain.protocols import ArtifactStore, Transport


@dataclass(frozen=True, kw_only=True)
class Upload:
    """Requests are made, and small files stored, side by side in `pool`; `stop` ends it all."""

    transport: Transport
    store: ArtifactStore
    pool: ThreadPoolExecutor
    stop: Stop = field(default_factory=Stop)
