"""Signs the downloads of one dataset, and reads it here where nodes cannot."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.core.errors import PermissionsError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.presign import PresignedRequest
from cloudtrain.core.protocols import DataStore
from cloudtrain.datasets.dataset import DataFile, Dataset
from cloudtrain.datasets.listing import named, open_source

VALID = 600.0
"""Seconds for which every signed request is valid at least. Longer ones end with the credentials
that signed them: tokens of Google and temporary keys of AWS after an hour at most."""


class DataSigner:
    """Signer of one dataset, with this machine's credentials. Thread-safe. `store`: its own, if it
    is open already."""

    def __init__(
        self, config: ClusterConfig, dataset: Dataset, store: DataStore | None = None
    ) -> None:
        self._dataset = dataset
        with named(dataset.name):
            self._store = store or open_source(config, dataset.name)

    def sign(self, file: DataFile, *, expires_in: float) -> PresignedRequest | None:
        """Sign a GET of the listed version, for that object (Google: for the dataset's prefix).

        The request has all headers that a node must send; once the object has changed, the service
        answers 412 or 404. None if nodes cannot read it, or this machine may not sign: it has to
        relay it by `read`. Raises DataError.
        """
        key = self._dataset.key(file)
        try:
            with named(self._dataset.name):
                return self._store.sign(key, file.version, expires_in=expires_in)
        except PermissionsError:
            return None

    def read(self, file: DataFile, offset: int = 0) -> Iterator[bytes]:
        """Yield the bytes of the listed version from `offset`. Raises DataError, also if the
        object has changed."""
        if offset >= file.size:
            return
        with named(self._dataset.name):
            yield from self._store.read(self._dataset.key(file), file.version, offset)

    def location(self) -> str:
        """The region of the data, "" if it is not known."""
        return self._store.location()
