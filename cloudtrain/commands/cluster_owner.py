"""Whose a cluster is that `cloudtrain down` is about to end."""

from __future__ import annotations

from cloudtrain.cluster.ownership import owner_lines, refuse_other_owners
from cloudtrain.cluster.session import open_provider, recorded_config, refuse_other_account
from cloudtrain.model import ClusterConfig
from cloudtrain.state import Records


def whose(name: str, config: ClusterConfig | None, *, owner: str | None) -> list[str]:
    """What its provider tells of a cluster whose keys are not here, for who is about to end it.

    Raises UsageError where it is another's than ours, or than `owner` where told.
    """
    records = Records(name)
    config = config or recorded_config(records)
    refuse_other_account(config, records)
    provider = open_provider(config)
    nodes = provider.find(name)
    refuse_other_owners(records, provider, nodes, owner=owner)
    return owner_lines(nodes) if nodes else []
