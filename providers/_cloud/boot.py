"""First-boot data: a user of ours, a host key that is known beforehand, an end that is armed."""

from __future__ import annotations

from cloudtrain.model import HostKey


def user_data(*, public_key: str, host_key: HostKey, expires: float | None) -> str:
    """A `#cloud-config` document. `expires` (Unix time): the node shuts down then by itself, also
    after reboots; None where the cloud ends it."""
    raise NotImplementedError
