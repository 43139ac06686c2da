"""Effect of each field's change on an existing cluster, as docs/config.md shows it.

A test fails if a field of the file is missing here.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["next run", "live", "replace", "down first"]


class Effect(NamedTuple):
    kind: Kind
    note: str = ""


KINDS: dict[Kind, str] = {
    "next run": "the next `train` reads it",
    "live": "`up` applies it to the existing nodes",
    "replace": "existing nodes stay as created: `up` and `train` refuse the file, `up --replace` "
    "recreates the nodes that differ",
    "down first": "it describes another cluster: `up` refuses the file until `down`",
}

_SETUP = Effect("live", "the next `train` applies it too; what is no longer listed stays installed")
_RUN = Effect("next run")
_DATA = Effect("next run", "nodes download what they lack")
_REPLACE = Effect("replace")
_CANDIDATES = (
    "a cluster that is up stays in its candidate; fields of that one have the effects of this table"
)
_HOST = Effect("down first", "more machines can be added")

EFFECT: dict[str, Effect] = {
    "name": Effect("down first", "another name is another cluster, next to the first"),
    "provider": Effect("down first"),
    "project": Effect("down first"),
    "placement": Effect("replace", "only if it no longer lists the place of the nodes"),
    "any_of": Effect("live", _CANDIDATES),
    "ordered": Effect("live", _CANDIDATES),
    "network.subnet": _REPLACE,
    "network.vpc": _REPLACE,
    "network.firewall": _REPLACE,
    "network.http_proxy": _REPLACE,
    "network.no_proxy": _REPLACE,
    "network.ssh_from": Effect("live", "each `up` updates the firewall"),
    "network.ssh_proxy": Effect(
        "live", "`up` updates the firewall; other commands use what the last `up` had"
    ),
    "network.os_login": _REPLACE,
    "network.private": _REPLACE,
    "network.close": Effect("live", "for nodes created from then on"),
    "identity": Effect(
        "replace",
        "a running node would keep tokens of the old one, and GCP changes stopped VMs only",
    ),
    "disk_key": Effect("replace", "a disk keeps the key with which it was created"),
    "resource_group": Effect("down first"),
    "tags": Effect("replace", "networks, firewalls and groups that exist keep theirs until `down`"),
    "strategy": Effect("next run", "roles that it adds or removes: as `count`"),
    "nodes.ROLE.count": Effect(
        "live", "`up` adds nodes; surplus nodes are deleted only by `up --shrink`"
    ),
    "nodes.ROLE.machine": _REPLACE,
    "nodes.ROLE.accelerator": _REPLACE,
    "nodes.ROLE.disk_gb": _REPLACE,
    "nodes.ROLE.spot": _REPLACE,
    "nodes.ROLE.provisioning": _REPLACE,
    "image": _REPLACE,
    "setup.tensorflow": _SETUP,
    "setup.python": _SETUP,
    "setup.keras": _SETUP,
    "setup.packages": _SETUP,
    "setup.requirements": _SETUP,
    "setup.install": _SETUP,
    "setup.run": _SETUP,
    "setup.timeout": _RUN,
    "setup.cache": _RUN,
    "setup.prove": _RUN,
    "code.git": _RUN,
    "code.ref": _RUN,
    "code.token": _RUN,
    "code.path": _RUN,
    "train.command": _RUN,
    "train.dir": _RUN,
    "train.env": _RUN,
    "train.port": _RUN,
    "train.max_restarts": _RUN,
    "train.spot_retries": _RUN,
    "train.retry_exit_codes": _RUN,
    "train.success": _RUN,
    "train.tf_config": _RUN,
    "train.checkpoints": _RUN,
    "train.start_timeout": _RUN,
    "train.stall_timeout": _RUN,
    "train.deadline": _RUN,
    "train.grace": _RUN,
    "train.evaluator_grace": _RUN,
    "artifacts.store": _RUN,
    "artifacts.create": _RUN,
    "artifacts.encryption": _RUN,
    "artifacts.paths": _RUN,
    "artifacts.limit": _RUN,
    "artifacts.require": _RUN,
    "artifacts.every": _RUN,
    "data.NAME.from": _DATA,
    "data.NAME.shard": _DATA,
    "data.NAME.rest": _DATA,
    "data.NAME.role": _DATA,
    "data.NAME.requester_pays": _DATA,
    "endpoints.compute": Effect("down first"),
    "endpoints.storage": _RUN,
    "endpoints.auth": Effect("live", "every command reads it"),
    "limits.max_lifetime": Effect(
        "live",
        "it counts from the creation of the cluster. AWS, Azure: `up` changes the expiry of "
        "running nodes; GCP cannot: refused, `up --replace` recreates them",
    ),
    "limits.idle": Effect("live", "the next command that works on the cluster reads it"),
    "limits.max_price": Effect("live", "`up` checks it"),
    "limits.budget": Effect(
        "live",
        "what was spent since the first `up` counts. AWS, Azure: `up` moves the expiry of running "
        "nodes; GCP cannot: a lower budget that they would exceed is refused",
    ),
    "limits.wait": _RUN,
    "limits.give_back": _RUN,
    "away.identity": Effect("next run", "the next `run --away` reads it"),
    "away.machine": Effect("next run", "the next `run --away` reads it"),
    "hosts[].address": _HOST,
    "hosts[].role": _HOST,
    "hosts[].user": _HOST,
    "hosts[].key": Effect("live", "every command reads it"),
    "hosts[].port": _HOST,
    "secrets": _RUN,
}
