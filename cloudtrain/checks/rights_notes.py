"""Notes of `plan`, `check` and `up` on what a file does with the user's rights, and whom its nodes
let in.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from cloudtrain.config import with_candidate
from cloudtrain.core.cloud import is_cloud
from cloudtrain.core.model import ClusterConfig
from cloudtrain.trust.consent import fact_lines
from cloudtrain.trust.file_facts import file_facts

WIDE = {4: 16, 6: 48}
"""Bits of the widest range that is one network of a company or a site: 65,536 addresses, and the
/48 of a site (RFC 6177)."""


def rights_notes(config: ClusterConfig) -> tuple[str, ...]:
    return (*fact_lines(config, file_facts(config)), *open_notes(config))


def open_notes(config: ClusterConfig) -> tuple[str, ...]:
    """Notes on who may try to log in, if that is more than one network; each note once."""
    readings = [with_candidate(config, each) for each in config.candidates] or [config]
    return tuple(dict.fromkeys(note for each in readings for note in _open(each)))


def _open(config: ClusterConfig) -> Iterator[str]:
    source = config.network.ssh_from
    if not is_cloud(config.provider) or config.network.firewall is not None:
        return  # nothing is opened here
    if source in ("auto", "none"):
        return
    network = ipaddress.ip_network(source)
    bits, version = network.prefixlen, network.version
    if network.version == 6 and network.network_address.ipv4_mapped and bits >= 96:
        bits, version = bits - 96, 4
    if bits < WIDE[version]:
        count = f"{network.num_addresses:,}" if version == 4 else f"2^{128 - bits}"
        yield (
            f"network.ssh_from: port 22 is open to {count} addresses ({source}); `auto` opens it "
            "to yours alone"
        )
