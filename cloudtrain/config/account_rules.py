"""Rules on fields that depend on the account's cloud: its own resources, identities, tags."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cloudtrain.config.sections import ConfigFile
from cloudtrain.config.yaml_source import Path
from cloudtrain.core.cloud import Cloud, ResourceName, cloud_of

Found = Iterator[tuple[Path, str]]


def broken_account_rules(file: ConfigFile) -> Found:
    """Every such rule that the file breaks, as a path and a sentence."""
    yield from _identity(file)
    yield from _away(file)
    yield from _resource_names(file)
    yield from _networks(file)
    yield from _tags(file)


def _identity(file: ConfigFile) -> Found:
    """Rules on `identity`: its form on the cloud; on machines that are not rented, none is given.

    The value is not repeated, as it may come from a variable.
    """
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
    for path, value, form in _named(file, cloud):
        if value is None:
            continue
        if cloud is None:
            yield path, f"is only for a cloud, not for provider {file.provider}"
        elif form is None:
            yield path, f"is not for {cloud.title}, which has no such thing"
        elif not form.accepts(value):
            yield path, f"must be {form.word}, such as {form.example}"


def _named(
    file: ConfigFile, cloud: Cloud | None
) -> Iterator[tuple[Path, str | None, ResourceName | None]]:
    yield ("resource_group",), file.resource_group, cloud.resource_group if cloud else None
    yield ("disk_key",), file.disk_key, cloud.disk_key if cloud else None
    if file.network is not None:
        yield ("network", "vpc"), file.network.vpc, cloud.vpc if cloud else None
        for name in file.network.firewall or ():
            yield ("network", "firewall"), name, cloud.firewall if cloud else None


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
