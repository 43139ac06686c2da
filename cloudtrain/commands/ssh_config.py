"""`cloudtrain ssh-config`: entries by which OpenSSH's programs reach the nodes by name."""

from __future__ import annotations

from cloudtrain.cluster.session import open_provider, recorded_config
from cloudtrain.core.errors import UsageError
from cloudtrain.ssh import keys
from cloudtrain.state import Records


def ssh_config(name: str) -> str:
    """Entries for the nodes that exist now. Pins their host keys, too."""
    records = Records(name)
    there = open_provider(recorded_config(records)).nodes(name)
    if not there:
        raise UsageError(f"{name} has no nodes", hint=f"`cloudtrain up {name}` creates them")
    identity = keys.load_identity(records.folder)
    nodes = [node for node in there if keys.is_known(identity, node)]
    keys.write_known_hosts(identity, nodes)
    return keys.ssh_config(identity, nodes)
