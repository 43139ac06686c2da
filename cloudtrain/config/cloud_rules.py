"""Rules on fields that depend on the cloud: its resources, identities, networks, tags, markets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from cloudtrain.catalog import tpus
from cloudtrain.config.network_sections import NetworkSection
from cloudtrain.config.sections import ConfigFile
from cloudtrain.config.yaml_source import Path
from cloudtrain.core.cloud import EVERYWHERE, Cloud, ResourceName, cloud_of, clouds, facts_of
from cloudtrain.core.model import Limits, Market
from cloudtrain.core.network import host_of, is_loopback
from cloudtrain.training.strategies import STRATEGIES

Found = Iterator[tuple[Path, str]]


def _identity(file: ConfigFile) -> Found:
    """Rules on `identity`: its form on the cloud; on machines that are not rented, none is given.
    The value is not repeated, as it may come from a variable."""
    if file.identity is None or file.provider is None:
        return
    cloud = cloud_of(file.provider)
    if cloud is None:
        yield (
            ("identity",),
            f"is only for a cloud: with provider {file.provider} a script has the credentials of "
            "the machine that it runs on",
        )
    elif cloud.identity is None:
        yield ("identity",), f"is not supported on {cloud.title}"
    elif not cloud.identity.accepts(file.identity):
        yield ("identity",), f"must be {cloud.identity.word}, such as {cloud.identity.example}"


def _away(file: ConfigFile) -> Found:
    """Rules on `away`: a rented machine, with an identity in the cloud's form."""
    if file.away is None or file.provider is None:
        return
    cloud = cloud_of(file.provider)
    if cloud is None:
        yield ("away",), f"is only for a cloud: provider {file.provider} rents no machine"
    elif cloud.identity is None:
        yield ("away",), f"is not supported on {cloud.title}: its machines get no identity"
    elif file.away.identity is None:
        yield (
            ("away", "identity"),
            f"is missing: {cloud.identity.word} for the machine that attends to `run --away`",
        )
    elif not cloud.identity.accepts(file.away.identity):
        text = f"must be {cloud.identity.word}, such as {cloud.identity.example}"
        yield ("away", "identity"), text
    elif cloud.identity.same(file.identity, file.away.identity):
        yield (
            ("away", "identity"),
            "is also `identity`, which every process on the training nodes has: use another one",
        )


def _resource_names(file: ConfigFile) -> Found:
    """Rules on fields that name resources of the account, by their form on the cloud."""
    cloud = cloud_of(file.provider)
    if file.provider is None:
        return
    given: list[tuple[Path, str | None]] = [
        (("resource_group",), file.resource_group),
        (("disk_key",), file.disk_key),
    ]
    if file.network is not None:
        given.append((("network", "vpc"), file.network.vpc))
        given += [(("network", "firewall"), name) for name in file.network.firewall or ()]
    for path, value in given:
        form: ResourceName | None = getattr(cloud, str(path[-1]), None)
        if value is None:
            continue
        if cloud is None:
            yield path, f"is only for a cloud, not for provider {file.provider}"
        elif form is None:
            yield path, f"is not for {cloud.title}, which has no such thing"
        elif not form.accepts(value):
            yield path, f"must be {form.word}, such as {form.example}"


def _networks(file: ConfigFile) -> Found:
    """Rules on existing networks: what excludes what."""
    network, cloud = file.network, cloud_of(file.provider)
    if network is None:
        return
    if network.no_proxy and not network.http_proxy:
        yield ("network", "no_proxy"), "needs `http_proxy`: it lists exceptions from it"
    if network.http_proxy and file.provider is not None and cloud is None:
        text = f"is for rented nodes: with provider {file.provider} the machine's own settings hold"
        yield ("network", "http_proxy"), text
    if network.subnet and network.vpc:
        yield ("network", "vpc"), "conflicts with `subnet`, which is in one: use one of the two"
    if network.firewall is None or cloud is None:
        return
    if not (network.subnet or network.vpc):
        yield (
            ("network", "firewall"),
            f"needs {'`vpc` or ' if cloud.vpc else ''}`subnet`: it belongs to an existing network",
        )
    if len(network.firewall) > cloud.most_firewalls:
        yield ("network", "firewall"), f"at most {cloud.most_firewalls} on {cloud.title}"
    if not network.firewall and not cloud.firewalls_of_subnets:
        word = cloud.firewall.word if cloud.firewall else "its name"
        yield (
            ("network", "firewall"),
            f"every node of {cloud.title} needs one of its own: set it to {word}",
        )


def _tags(file: ConfigFile) -> Found:
    """Rules on `tags`: what the cloud accepts."""
    if not file.tags or file.provider is None:
        return
    cloud = cloud_of(file.provider)
    if cloud is None or cloud.tags is None:
        yield ("tags",), f"is only for a cloud that has tags: provider {file.provider} has none"
        return
    rules, seen = cloud.tags, dict[str, str]()
    if len(file.tags) > rules.most:
        yield ("tags",), f"has {len(file.tags)} tags: {cloud.title} has room for {rules.most}"
    for name, value in file.tags.items():
        key = name.lower() if rules.ignores_case else name
        if name.lower().startswith(rules.reserved):
            yield ("tags", name), f"{cloud.title} reserves names that begin so"
        elif key in rules.taken:
            yield ("tags", name), "is set by cloudtrain, to the node's name"
        elif key in seen:
            yield ("tags", name), f"is the same tag as `{seen[key]}` on {cloud.title}"
        elif not (re.fullmatch(rules.name, name) and re.fullmatch(rules.value, value)):
            yield ("tags", name), f"a tag on {cloud.title} must have {rules.words}"
        seen[key] = name


# ── `network.ssh_proxy`, `network.ssh_from`, OS Login ────────────────────────


BY_CLOUD = ("iap", "ssm", "bastion")
"""Ways by a cloud's own service, `Cloud.ssh_proxy`."""
BY_USER = ("jump", "command")
PROXY: Path = ("network", "ssh_proxy")
SSH_FROM: Path = ("network", "ssh_from")


def _access(file: ConfigFile) -> Found:
    network = file.network
    if network is None or file.provider is None:
        return
    cloud = cloud_of(file.provider)
    if network.os_login and not (cloud and cloud.os_login):
        having = ", ".join(each.title for each in clouds() if each.os_login)
        yield ("network", "os_login"), f"is only for {having}"
    if network.ssh_proxy is None:
        if network.ssh_from == "none" and network.firewall is None:
            yield SSH_FROM, "is none, and without `ssh_proxy` nothing reaches the nodes"
        return
    ways = [way for way in (*BY_USER, *BY_CLOUD) if getattr(network.ssh_proxy, way)]
    if len(ways) != 1:
        found = ", ".join(ways) or "none"
        yield PROXY, f"takes one of {', '.join((*BY_USER, *BY_CLOUD))}, not {found}"
    elif ways[0] in BY_CLOUD:
        yield from _by_cloud(file, cloud, network, ways[0])
    else:
        yield from _by_user(file, cloud, network, ways[0])


def _by_cloud(file: ConfigFile, cloud: Cloud | None, network: NetworkSection, way: str) -> Found:
    if cloud is None or _service(cloud) != way:
        having = next(each.title for each in clouds() if _service(each) == way)
        yield (*PROXY, way), f"is only for {having}"
        return
    if network.ssh_from not in (None, "auto"):
        yield SSH_FROM, f"conflicts with `ssh_proxy: {way}`, which decides it: leave it out"
    strategy = STRATEGIES.get(file.strategy or "")
    if strategy is not None and strategy.tpus:
        yield (*PROXY, way), "is not for TPUs, whose hosts are no VMs: use `jump`"
    if way == "bastion" and network.subnet is None and network.vpc is None:
        text = "requires `subnet`: a Bastion reaches the nodes of its own and of peered networks"
        yield (*PROXY, way), text


def _by_user(file: ConfigFile, cloud: Cloud | None, network: NetworkSection, way: str) -> Found:
    if facts_of(file.provider or "").on_this_machine:
        yield (*PROXY, way), f"is not for provider {file.provider}: its nodes are on this machine"
    elif cloud is None or network.firewall is not None:
        return
    elif network.ssh_from in (None, "auto"):
        yield (
            SSH_FROM,
            f"is missing: with `ssh_proxy.{way}` it is the address from which the nodes see "
            "connections come, such as 10.0.0.5/32, or none",
        )


def _service(cloud: Cloud) -> str:
    return cloud.ssh_proxy.field if cloud.ssh_proxy else ""


# ── `endpoints`: what gets credentials as they are is asked by https alone ───


def _endpoints(file: ConfigFile) -> Found:
    for service in ("compute", "auth", "storage"):
        url = getattr(file.endpoints, service, None)
        if url is None:
            continue
        host = host_of(url)
        if host.scheme == "https" or is_loopback(host.name):
            continue
        store = file.artifacts.store if file.artifacts is not None else None
        data = [each.source for each in (file.data or {}).values() if each and each.source]
        if any(not cloud.signs_by_host for cloud in asked_at(service, file.provider, store, data)):
            yield (
                ("endpoints", service),
                "is http://, by which everybody on the way could read your credentials: use "
                "https:// (without it only this machine itself is asked)",
            )


def asked_at(
    service: str, provider: str | None, store: str | None, data: Iterable[str]
) -> list[Cloud]:
    """Clouds whose credentials go to `endpoints.SERVICE`. Of the storage service these are the
    store's, else the nodes' own, and without one those of `data`."""
    own = cloud_of(provider or "")
    if service != "storage" or (store is None and own is not None):
        return [own] if own is not None else []
    schemes = {uri.partition("://")[0].lower() for uri in ([store] if store else data)}
    return [cloud for cloud in clouds() if cloud.store_scheme in schemes]


# ── `nodes.ROLE.provisioning` ────────────────────────────────────────────────


def _provisioning(file: ConfigFile) -> Found:
    """Rules on how machines are bought. What a cloud does not sell is refused by `plan`."""
    cloud = cloud_of(file.provider)
    for role, group in (file.nodes or {}).items():
        bought = group.provisioning if group is not None else None
        if group is None or bought is None:
            continue
        at: Path = ("nodes", role, "provisioning")
        if group.spot is not None:
            yield at, "conflicts with `spot`, which is short for it: use one of the two"
        if cloud is None:
            continue
        if bought.market not in cloud.markets:
            known = ", ".join(cloud.markets)
            yield at, f"{bought.market} is not known on {cloud.title}: it has {known}"
        elif bought.market not in EVERYWHERE and tpus.tpu_type(cloud.name, group.machine):
            yield at, f"{bought.market} is not for TPUs: use on-demand or spot"
        name = cloud.reservations.get(bought.market)
        if name is not None and not name.accepts(bought.name):
            yield at, f"{bought.name!r} is not {name.word}, such as {name.example}"
        yield from _run_time(file, cloud, role, bought.market)


def _run_time(file: ConfigFile, cloud: Cloud, role: str, market: Market) -> Found:
    """Rule on the lifetime of machines that a cloud sells for a limited time."""
    if market not in cloud.run_times:
        return
    shortest, longest = cloud.run_times[market]
    limits, given = file.limits, "max_lifetime"
    lifetime = Limits().max_lifetime
    if limits is not None and given in limits.given:
        lifetime = limits.max_lifetime
    if lifetime is None or not shortest <= lifetime <= longest:
        yield (
            ("limits", given),
            f"must be between {shortest / 60:g}m and {longest / 86400:g}d: {cloud.vendor} sells "
            f"machines by {market} for no other time (nodes.{role})",
        )


def broken_cloud_rules(file: ConfigFile) -> Found:
    """Every such rule that the file breaks, as a path and a sentence."""
    rules = (_provisioning, _identity, _away, _resource_names, _networks, _tags)
    for rule in (*rules, _access, _endpoints):
        yield from rule(file)
