"""Names of container images: the registry, the repository in it, and a tag or digest.

https://github.com/distribution/reference/blob/v0.6.0/reference.go has the grammar, its
normalize.go what short names mean: `ubuntu` is docker.io/library/ubuntu:latest."""

from __future__ import annotations

import re
from dataclasses import replace

from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.shell import Secret

SCHEME = "docker://"
_HUB = "docker.io"
_HUB_API = "registry-1.docker.io"
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]+)?")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
CLOUDS_OWN = {
    "ECR": re.compile(
        r"\d{12}\.dkr\.ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?"
    ),
    "Google": re.compile(r"(?:[a-z0-9-]+\.)?gcr\.io|[a-z0-9-]+-docker\.pkg\.dev"),
    "ACR": re.compile(r"[a-z0-9-]+\.azurecr\.(?:io|cn|us)"),
}
"""Registries of the clouds, which an identity of the cloud may log in to."""
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class ImageName:
    """An image by its whole name. Of `tag` and `digest` the digest decides."""

    registry: str
    repository: str
    tag: str = "latest"
    digest: str = ""

    def __str__(self) -> str:
        end = f"@{self.digest}" if self.digest else f":{self.tag}"
        return f"{self.registry}/{self.repository}{end}"

    @property
    def recorded(self) -> str:
        """With tag and digest; Podman takes no name with both."""
        return f"{self.registry}/{self.repository}:{self.tag}" + (
            f"@{self.digest}" if self.digest else ""
        )

    def pinned(self, digest: str) -> ImageName:
        return replace(self, digest=digest)

    @property
    def reference(self) -> str:
        """Name in requests to the registry's API."""
        return self.digest or self.tag

    @property
    def api(self) -> str:
        """Host, and port if it is named, of the registry's API."""
        return _HUB_API if self.registry == _HUB else self.registry

    @property
    def cloud_registry(self) -> str | None:
        """A key of `CLOUDS_OWN`; None for any other registry."""
        found = (name for name, host in CLOUDS_OWN.items() if host.fullmatch(self.registry))
        return next(found, None)

    @property
    def is_here(self) -> bool:
        """True for a registry of the machine that asks, which may speak HTTP without TLS, as with
        Docker (https://docs.docker.com/reference/cli/dockerd/#insecure-registries)."""
        host = self.registry.rsplit(":", 1)[0]
        return host in ("localhost", "[::1]") or bool(re.fullmatch(r"127(\.\d{1,3}){3}", host))


@dataclass(frozen=True, kw_only=True)
class RegistryLogin:
    """User and password, or a token, for a registry."""

    user: str
    password: Secret
    for_nodes: bool = True
    """False for what lets its holder do all that the user may do: it stays on this machine."""

    @property
    def pair(self) -> bytes:
        """As HTTP's Basic and Docker's config.json encode it."""
        return f"{self.user}:{self.password.reveal()}".encode()


def image_name(text: str) -> ImageName:
    """Parse a name as `docker pull` takes it, also after `docker://`. Raises ValueError, whose text
    says what it must be."""
    scheme, separator, after = text.partition("://")
    if separator and f"{scheme}://" != SCHEME:
        raise ValueError("must be an image's name, such as docker://tensorflow/tensorflow:2.17.0")
    name, at, digest = (after if separator else text).partition("@")
    if at and not DIGEST.fullmatch(digest):
        raise ValueError("must have a digest of the form sha256:… with 64 hex digits after its @")
    first, slash, rest = name.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        first, rest = _HUB, name
    elif first in ("index.docker.io", _HUB_API):
        first = _HUB
    path, colon, tag = rest.partition(":")
    if not _HOST.fullmatch(first) or not _REPOSITORY.fullmatch(path):
        in_lower = path.lower() != path and _REPOSITORY.fullmatch(path.lower())
        how = " in lower case" if in_lower else ""
        raise ValueError(
            f"must be an image's name{how}, such as nvcr.io/nvidia/tensorflow:24.08-tf2-py3"
        )
    if colon and not _TAG.fullmatch(tag):
        raise ValueError("must have a tag of letters, digits and . _ - after its colon")
    if first == _HUB and "/" not in path:
        path = f"library/{path}"
    return ImageName(registry=first, repository=path, tag=tag or "latest", digest=digest)
