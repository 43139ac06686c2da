"""Owner check of a cluster that `cloudtrain down` is about to delete."""

from __future__ import annotations

from cloudtrain.cluster.ownership import owner_lines, refuse_other_owners
from cloudtrain.cluster.session import open_provider, recorded_config, refuse_other_account
from cloudtrain.core.model import ClusterConfig
from cloudtrain.state import Records


def describe_owner(name: str, config: ClusterConfig | None, *, owner: str | None) -> list[str]:
    """Lines on the owner of a cluster whose keys are not here, by its provider: the last check
    before the cluster is deleted.

    Raises UsageError if the cluster belongs to another owner than us, or than `owner`.
    """
    records = Records(name)
    config = config or recorded_config(records)
    refuse_other_account(config, records)
    provider = open_provider(config)
    nodes = provider.find(name)
    refuse_other_owners(records, provider, nodes, owner=owner)
    return owner_lines(nodes) if nodes else []
