"""Uses that a config would make of this user's credentials, variables, programs and files; pure but
for a look at the paths that it names.

An ordinary config does none of it. What a cloud's own hosts get, and what is in the file's own
project, needs no question."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from cloudtrain.config import requirements, with_candidate
from cloudtrain.config.cloud_rules import asked_at
from cloudtrain.core.cloud import facts_of
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.image_name import image_name
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.network import (
    ServiceHost,
    host_of,
    is_below,
    is_loopback,
    named_host,
    split_user,
)
from cloudtrain.node.key_shapes import looks_like_key_name

FORGES = (
    *("github.com", "gitlab.com", "bitbucket.org", "codeberg.org", "huggingface.co"),
    *("dev.azure.com", ".visualstudio.com"),
)
"""Git servers that get `code.token` without a question: only their operators run them."""
ACCOUNTS = re.compile(
    r"(?i)_*(AWS|AMAZON|S3|AZURE|ARM|AZ|GOOGLE|GCP|GCLOUD|GCS|CLOUDSDK|GITHUB|GH|GITLAB|SSH)_.*"
)
"""Names of variables that are credentials of accounts, if they are credentials."""
PROJECT = (".git", ".hg", "pyproject.toml", "setup.py")
"""What the top folder of a project has: paths of a config may lead anywhere below it."""
KEYS = re.compile(r"id_(rsa|dsa|ecdsa|ecdsa_sk|ed25519|ed25519_sk)")
"""Keys in ~/.ssh that OpenSSH offers to any host by itself (ssh_config(5), IdentityFile)."""

OUTSIDE = "which is outside of its project"
MOST_LOOKED_AT = 100_000
"""Entries of a folder of data inside of the project; one with more needs consent as others do."""


@dataclass(frozen=True, kw_only=True)
class FileFact:
    """One thing that needs the user's consent."""

    kind: str
    """`credentials`, `identity`, `variable`, `program`, `login` or `file`."""
    field: str
    """Where the file says so: `endpoints.auth`."""
    what: str
    """The address, command or path itself."""
    text: str
    """What is done with it, as the end of a sentence on the file."""
    host: ServiceHost | None = None
    """The host that it is about; the user may have named it elsewhere."""
    content: str = ""
    """What else it is about: SHA-256 of the project's own files that a program is made of, the
    target of a link."""

    @property
    def key(self) -> str:
        """The same for the same fact, wherever in the file it stands."""
        import hashlib  # slow to import, and `plan` needs none

        named = json.dumps([self.kind, self.what, self.content])
        return hashlib.sha256(named.encode("utf-8", "surrogateescape")).hexdigest()


def file_facts(config: ClusterConfig) -> tuple[FileFact, ...]:
    """Every such fact of the config and of each candidate, once. What came from the user's own
    defaults is the user's."""
    readings = [with_candidate(config, each) for each in config.candidates] or [config]
    found = [
        *(fact for reading in readings for fact in _of_reading(reading)),
        *_token(config),
        *_index_password(config),
        *_registry_password(config),
        *_program(config),
        *_secrets(config),
        *_files(config),
    ]
    return tuple({fact.key: fact for fact in reversed(found)}.values())[::-1]


def _of_reading(config: ClusterConfig) -> Iterator[FileFact]:
    """Facts of what each candidate may have for itself."""
    data = [each.source for each in config.data.values()]
    for service in ("compute", "auth", "storage"):
        url, field = getattr(config.endpoints, service), f"endpoints.{service}"
        if url is None or field in config.defaults:
            continue
        host = host_of(url)
        for cloud in asked_at(service, config.provider, config.artifacts.store, data):
            if not cloud.signs_by_host and not is_below(host.name, cloud.credential_hosts):
                yield _sent(field, f"{cloud.title} credentials", host, cloud.name)
    if config.identity is not None and "identity" not in config.defaults:
        text = f"lets its program on the nodes act as {config.identity} of your account"
        yield FileFact(kind="identity", field="identity", what=config.identity, text=text)
    proxy = config.network.ssh_proxy
    if proxy is not None and proxy.command:
        yield FileFact(
            kind="program",
            field="network.ssh_proxy.command",
            what=proxy.command,
            text=f"runs on this machine: {proxy.command}",
            content=_content(config, proxy.command),
        )


def _sent(field: str, what: str, host: ServiceHost, key: str) -> FileFact:
    here = ", where any program of this machine may listen" if is_loopback(host.name) else ""
    return FileFact(
        kind="credentials",
        field=field,
        what=f"{field} {key} {host.scheme}://{host}",
        text=f"sends your {what} to {host}{here}",
        host=host,
    )


def _token(config: ClusterConfig) -> Iterator[FileFact]:
    url, name = config.code.git, config.code.token
    if url is None or name is None:
        return
    variable = config.secrets.get(name, name)
    scheme, _, rest = url.partition("://")
    authority, _, _ = rest.partition("/")
    try:
        host = host_of(f"{scheme.lower()}://{authority.rpartition('@')[2]}")
    except ValueError:
        text = f"sends your ${{{variable}}} to {url}"
        yield FileFact(kind="credentials", field="code.token", what=f"{variable} {url}", text=text)
        return
    if not is_below(host.name, FORGES):
        yield _sent("code.token", f"${{{variable}}}", host, variable)


def _index_password(config: ClusterConfig) -> Iterator[FileFact]:
    url, name = config.setup.index, config.setup.index_password
    if url is None or name is None:
        return
    variable = config.secrets.get(name, name)
    yield _sent("setup.index_password", f"${{{variable}}}", host_of(split_user(url)[1]), variable)


def _registry_password(config: ClusterConfig) -> Iterator[FileFact]:
    name = config.setup.registry_password
    if config.setup.image is None:
        return
    image = image_name(config.setup.image)
    if name is None:
        if image.cloud_registry is not None and "setup.image" not in config.defaults:
            what = f"{image.registry}/{image.repository}"
            text = f"hands its nodes a token of yours to pull {what}, if that is not public"
            yield FileFact(kind="credentials", field="setup.image", what=what, text=text)
        return
    variable = config.secrets.get(name, name)
    host = host_of(f"{'http' if image.is_here else 'https'}://{image.registry}")
    yield _sent("setup.registry_password", f"${{{variable}}}", host, variable)


def _program(config: ClusterConfig) -> Iterator[FileFact]:
    command = config.notify.command
    if command is not None:
        yield FileFact(
            kind="program",
            field="notify.command",
            what=command,
            text=f"runs on this machine: {command}",
            content=_content(config, command),
        )


def _secrets(config: ClusterConfig) -> Iterator[FileFact]:
    for name, variable in config.secrets.items():
        is_account = ACCOUNTS.fullmatch(variable) and looks_like_key_name(variable)
        if is_account and name not in config.own_secrets:
            yield FileFact(
                kind="variable",
                field=f"secrets.{name}",
                what=variable,
                text=f"hands your ${{{variable}}} to its program on the nodes",
            )


def _content(config: ClusterConfig, command: str) -> str:
    """Digest of the files of the project, or of the current folder, that the command names."""
    import hashlib  # slow to import, and `plan` needs none

    top = project_of(config)
    digest = hashlib.sha256()
    for word in shlex.split(command):
        for path in {Path(word), config.folder / word}:
            resolved = _resolved(path)
            if resolved is None or not resolved.is_file():
                continue
            if any(resolved.is_relative_to(folder) for folder in (top, Path.cwd())):
                digest.update(hashlib.sha256(resolved.read_bytes()).digest())
    return digest.hexdigest()


# ── Files ────────────────────────────────────────────────────────────────────


def _files(config: ClusterConfig) -> Iterator[FileFact]:
    top = project_of(config)
    for field, path in _paths(config):
        resolved = _resolved(path)
        what, text = str(resolved or path), ""
        if resolved is None or not resolved.is_relative_to(top):
            text = f"reads {what}, {OUTSIDE}"
        elif field.startswith("data."):
            text = _way_out(resolved, top)
        if text:
            outside = text.endswith(f"{what}, {OUTSIDE}")
            content = "" if outside else text
            yield FileFact(kind="file", field=field, what=what, text=text, content=content)
    yield from _store(config, top)
    yield from _hosts(config, top)


def _paths(config: ClusterConfig) -> Iterator[tuple[str, Path]]:
    """Local paths that the config reads, by their fields."""
    if config.code.path is not None:
        yield "code.path", config.folder / _expanded(config.code.path)
    git = config.code.git
    if git is not None and "://" not in git and git.startswith(("/", "./", "../", "~/")):
        yield "code.git", config.folder / _expanded(git)
    elif git is not None and git.lower().startswith("file://"):
        yield "code.git", _of_uri(git)
    if config.setup.requirements is not None and not config.setup.requirements.startswith("code:"):
        try:
            named = [each.path for each in requirements.files(config)]
        except CloudtrainError:  # said where it is read
            named = [config.folder / _expanded(config.setup.requirements)]
        yield from (("setup.requirements", path) for path in named)
    for name, source in config.data.items():
        if source.source.startswith("file://"):
            yield f"data.{name}", _of_uri(source.source)


def _store(config: ClusterConfig, top: Path) -> Iterator[FileFact]:
    """A folder of results needs no question, but among settings of programs it does."""
    store, field = config.artifacts.store, "artifacts.store"
    if store is None or not store.startswith("file://") or field in config.defaults:
        return
    path = _of_uri(store)
    resolved = _resolved(path)
    if resolved is not None and resolved.is_relative_to(top):
        return
    hidden = any(part.startswith(".") for part in (resolved or path).parts)
    if resolved is None or hidden or _home().is_relative_to(resolved):
        shown = str(resolved or path)
        text = f"writes below {shown}, among files of yours"
        yield FileFact(kind="file", field=field, what=f"write {shown}", text=text)


def _hosts(config: ClusterConfig, top: Path) -> Iterator[FileFact]:
    if not facts_of(config.provider).takes_hosts:
        return
    for number, host in enumerate(config.hosts):
        field = f"hosts[{number}]"
        if host.key is not None:
            resolved = _resolved(config.folder / _expanded(host.key))
            inside = resolved and resolved.is_relative_to(top)
            own = resolved and resolved.parent == _home() / ".ssh" and KEYS.fullmatch(resolved.name)
            if not inside and not own:
                shown = str(resolved or host.key)
                text = f"logs in with the key {shown}, {OUTSIDE}"
                yield FileFact(kind="file", field=f"{field}.key", what=f"key {shown}", text=text)
        if _is_here(host.address):
            named = None
            with suppress(ValueError):
                named = named_host(host.address)._replace(port=host.port)
            yield FileFact(
                kind="login",
                field=f"{field}.address",
                what=f"{host.user or ''}@{host.address}:{host.port}",
                text=f"runs its program on this machine as {host.user or 'you'}: {host.address}",
                host=named,
            )


def _is_here(address: str) -> bool:
    """True for a name or address of this machine, in any form that its resolver takes."""
    import socket  # slow to import

    name = address.strip("[]").rstrip(".").lower()
    own = socket.gethostname().lower()
    if name in {"localhost", "ip6-localhost", "ip6-loopback", own, own.partition(".")[0]}:
        return True
    if name.endswith((".localhost", ".localdomain")) or is_loopback(name) or name in ("::", "0"):
        return True
    try:
        return socket.inet_aton(name)[0] in (0, 127)
    except OSError:
        return False


def project_of(config: ClusterConfig) -> Path:
    """The top folder of the project that the file belongs to: the nearest one with a mark of
    PROJECT, else the file's own. No home folder is a project of what is below it."""
    folder, home = config.folder.resolve(), _home()
    for each in (folder, *folder.parents):
        if home.is_relative_to(each):
            break
        if any((each / mark).exists() for mark in PROJECT):
            return each
    return folder


def _way_out(folder: Path, top: Path) -> str:
    """Fault of a folder of data, whose links are followed; "" if none leads out of the project."""
    looked = 0
    for place, folders, files in os.walk(folder):
        looked += len(folders) + len(files)
        if looked > MOST_LOOKED_AT:
            return f"reads {folder}, where links may lead out of its project: it is large"
        for path in (Path(place, name) for name in (*folders, *files)):
            if path.is_symlink():
                target = _resolved(path)
                if target is None or not target.is_relative_to(top):
                    return f"reads {target or path}, {OUTSIDE}"
    return ""


def _home() -> Path:
    return Path.home().resolve()


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # no such user
        return Path(path)


def _of_uri(uri: str) -> Path:
    return Path(unquote(uri.partition("://")[2]))


def _resolved(path: Path) -> Path | None:
    """Path with its links followed; None if they lead in circles or the path is invalid."""
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):
        return None
