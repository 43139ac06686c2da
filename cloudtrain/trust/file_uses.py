"""Lists what a config reads, runs and asks on this machine, for `plan`: no judgement in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from cloudtrain.config import with_candidate
from cloudtrain.config.yaml_source import scalars, variables
from cloudtrain.core.cloud import cloud_of
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.model import ClusterConfig


@dataclass(frozen=True, kw_only=True)
class FileUses:
    variables: tuple[str, ...] = ()
    """Of the environment or `--env-file`, sorted; those of `secrets` among them."""
    programs: tuple[str, ...] = field(default=())
    """Commands that run on this machine for the file."""
    hosts: tuple[str, ...] = ()
    """That the file names, and this machine asks; not those of a cloud that it names itself."""
    data: tuple[str, ...] = ()
    """What it reads with this user's rights and hands to its program: all sources of `data`."""


def file_uses(config: ClusterConfig) -> FileUses:
    from cloudtrain.config.additions import tree_now

    readings = [with_candidate(config, each) for each in config.candidates] or [config]
    # Of the file as it is now; none if it can no longer be read.
    values = scalars(tree_now(config, Path(config.source).name))
    read = {name for _, value in values for name in variables(value.source)}
    return FileUses(
        variables=tuple(sorted({*read, *config.secrets.values()})),
        programs=tuple(dict.fromkeys(name for each in readings for name in _programs(each))),
        hosts=tuple(dict.fromkeys(name for each in readings for name in _hosts(each))),
        data=tuple(dict.fromkeys(each.source for one in readings for each in one.data.values())),
    )


def _programs(config: ClusterConfig) -> Iterator[str]:
    if config.code.git is not None:
        yield "git"
    proxy, cloud = config.network.ssh_proxy, cloud_of(config.provider)
    if proxy is None:
        return
    if proxy.command:
        yield proxy.command
    elif proxy.jump:
        yield f"ssh -J {proxy.jump}"
    elif cloud is not None and cloud.ssh_proxy is not None:
        yield from cloud.ssh_proxy.programs


def _hosts(config: ClusterConfig) -> Iterator[str]:
    endpoints = config.endpoints
    for url in (endpoints.compute, endpoints.auth, endpoints.storage):
        yield from _host(url)
    if (git := config.code.git) is not None:
        place, colon, _ = git.partition(":")  # `git@host:path`
        is_url = "://" in git or not colon or "/" in place
        yield from _host(git if is_url else f"ssh://{place}")
    for source in config.data.values():
        if source.source.startswith("https://"):
            yield from _host(source.source)
    proxy = config.network.ssh_proxy
    for hop in (proxy.jump or "").split(",") if proxy is not None else ():
        yield from _host(f"ssh://{hop}")


def _host(url: str | None) -> Iterator[str]:
    try:
        name = urlsplit(url or "").hostname
    except ValueError:
        return
    if name:
        yield name
