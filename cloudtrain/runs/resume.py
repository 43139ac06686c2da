"""The checkpoint of another run from which a run begins until it has landed one of its own."""

from __future__ import annotations

from cloudtrain.artifacts.checkpoints import StoredCheckpoint, stored_checkpoint
from cloudtrain.cluster.session import store_at
from cloudtrain.core.errors import DataError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.core.run_record import Run
from cloudtrain.core.store_kinds import scheme_of
from cloudtrain.stores import open_store


def source_store(uri: str, config: ClusterConfig) -> ArtifactStore:
    """The store of another run: `endpoints.storage` is its address only if it is of the same kind
    as the config's own.
    """
    own = config.artifacts.store
    if own is not None and scheme_of(own) == scheme_of(uri):
        return store_at(uri, config)
    return open_store(uri)


def source_of(run: Run, config: ClusterConfig) -> StoredCheckpoint | None:
    """The checkpoint that the run resumes from; None if it begins by itself.

    Raises DataError if it no longer exists: training from the beginning instead would waste what
    the nodes cost.
    """
    if run.resumed_from is None:
        return None
    source = run.resumed_from
    landed = stored_checkpoint(source.run, source_store(source.store, config))
    if landed is None:
        raise DataError(
            f"{source.store}/{source.run}: the checkpoint from which run {run.id} resumes is gone",
            hint="pass the URI of a copy to `cloudtrain train --resume`, or train without it",
        )
    return landed
