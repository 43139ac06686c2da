"""Asks a registry of container images what an image is, by the API that all of them have.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md: manifests by tag or digest;
https://distribution.github.io/distribution/spec/auth/token/: a 401 names a service that gives
tokens, to anyone for public images. Nothing is pulled: a manifest and a config have some kB."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from http.client import HTTPException
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

from cloudtrain.core import errors
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.image_name import DIGEST, ImageName, RegistryLogin
from cloudtrain.core.shell import Secret

INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
SECONDS = 20.0
"""Without data."""
MOST = 4 << 20
"""Bytes of a manifest: registries take at least 4 MiB (distribution-spec, "Pushing Manifests")."""
REDIRECTS = 4


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """Description of an image by its registry. `size`: bytes that a node pulls."""

    digest: str
    size: int
    architectures: tuple[str, ...]
    """Those that the image is for; `size` is of the one that was asked for, or of the first."""
    entrypoint: tuple[str, ...] = ()


HUB = "docker.io"


def login_for(
    image: ImageName, given: RegistryLogin | None, profile: str | None = None
) -> RegistryLogin | None:
    """The login that the image needs: none if anybody may have it, the config's, or one made by
    this user's identity for a registry of a cloud. Raises CloudError."""
    if given is not None or image.cloud_registry is None:
        return given
    try:
        Registry(image=image).digest()
    except (errors.CredentialsError, errors.PermissionsError, errors.NotFoundError):
        from cloudtrain.stores.registry_logins import identity_login

        return identity_login(image, profile)
    return None


def login_file(image: ImageName, login: RegistryLogin | None) -> bytes:
    """A file of `docker login` for one pull on a node; empty if none is needed. Raises
    CredentialsError for a login that no node may have."""
    refuse_on_nodes(image, login)
    if login is None:
        return b""
    keys = [image.registry, *(["https://index.docker.io/v1/"] if image.registry == HUB else [])]
    auth = {"auth": base64.b64encode(login.pair).decode("ascii")}
    return json.dumps({"auths": dict.fromkeys(keys, auth)}).encode("ascii")


def refuse_on_nodes(image: ImageName, login: RegistryLogin | None) -> None:
    """Raise CredentialsError for a login with all rights of a person."""
    if login is not None and not login.for_nodes:
        raise errors.CredentialsError(
            f"{image.registry}: a token of your own login has all your rights, so no node gets it",
            hint="act as a service account that may read there: `gcloud auth application-default "
            "login --impersonate-service-account=ACCOUNT`; or set setup.registry_user "
            "(_json_key_base64) and setup.registry_password",
        )


@dataclass
class Registry:
    """The registry of one image."""

    image: ImageName
    login: RegistryLogin | None = None
    _token: Secret | None = None
    _basic: bool = False
    _opener: Any = field(default=None, repr=False)

    def digest(self) -> str:
        """The digest of the tag now. A HEAD is not counted as a pull by Docker Hub
        (https://docs.docker.com/docker-hub/usage/pulls/). Raises CloudError."""
        with self._understood():
            answer = self._ask("HEAD", f"manifests/{self.image.reference}")
            found = answer.headers.get("Docker-Content-Digest", "")
            if DIGEST.fullmatch(found):
                return found
            return _digest_of(self._ask("GET", f"manifests/{self.image.reference}").body)

    def facts(self, architecture: str) -> ImageFacts:
        """Describe the image for an architecture: `amd64`, `arm64`. Raises CloudError."""
        with self._understood():
            return self._facts(architecture)

    def _facts(self, architecture: str) -> ImageFacts:
        answer = self._ask("GET", f"manifests/{self.image.reference}")
        digest, manifest = _digest_of(answer.body), self._json(answer.body)
        if self.image.digest and digest != self.image.digest:
            raise errors.CloudError(f"{self.image}: the registry sent another manifest, {digest}")
        architectures: tuple[str, ...] = ()
        if answer.kind in INDEXES or "manifests" in manifest:
            listed = [each for each in manifest["manifests"] if _runs(each)]
            architectures = tuple(
                dict.fromkeys(each["platform"]["architecture"] for each in listed)
            )
            fit = [each for each in listed if each["platform"]["architecture"] == architecture]
            if not (fit or listed):
                raise errors.CloudConfigError(f"{self.image} has no image for Linux")
            manifest = self._verified("manifests", (fit or listed)[0]["digest"])
        if "config" not in manifest:
            raise errors.CloudConfigError(
                f"{self.image}: its manifest is of a form that Docker itself no longer reads",
                hint="push it again with a current Docker or Podman",
            )
        about = self._verified("blobs", manifest["config"]["digest"])
        layers = sum(int(each.get("size", 0)) for each in manifest.get("layers", ()))
        settings = about.get("config") or {}
        return ImageFacts(
            digest=digest,
            size=layers,
            architectures=architectures or (str(about.get("architecture", "")),),
            entrypoint=tuple(map(str, settings.get("Entrypoint") or ())),
        )

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """Whoever writes images and answers decides their form: any other is an error of theirs."""
        try:
            yield
        except (*errors.SHAPE, RecursionError) as error:
            raise self._strange() from error

    def _strange(self) -> errors.CloudError:
        return errors.CloudError(
            f"{self.image.registry} does not answer as a registry of images for {self.image}"
        )

    def _verified(self, what: str, digest: str) -> Any:
        if not DIGEST.fullmatch(str(digest)):
            raise errors.CloudError(f"{self.image}: {str(digest)[:80]!r} is no digest")
        body = self._ask("GET", f"{what}/{digest}").body
        if _digest_of(body) != digest:
            raise errors.CloudError(f"{self.image}: the registry sent something else for {digest}")
        return self._json(body)

    def _json(self, body: bytes) -> Any:
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self._strange()
        return found

    def _ask(self, method: str, path: str) -> _Answer:
        scheme = "http" if self.image.is_here else "https"
        url = f"{scheme}://{self.image.api}/v2/{self.image.repository}/{path}"
        answer = self._send(method, url)
        if answer.status == 401 and self._token is None and not self._basic:
            self._log_in(answer.headers.get("WWW-Authenticate", ""))
            answer = self._send(method, url)
        if answer.status >= 300:
            raise self._refused(answer)
        return answer

    def _log_in(self, challenge: str) -> None:
        """Get the token that the registry asks for. A token service is asked over TLS alone."""
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "basic":
            self._basic = True
            return
        named = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        realm = named.get("realm", "")
        wanted = ("https", "http") if self.image.is_here else ("https",)
        if scheme.lower() != "bearer" or urlsplit(realm).scheme not in wanted:
            raise errors.CloudError(
                f"{self.image.registry} asks for a login of a form that is not known"
            )
        query = {name: named[name] for name in ("service", "scope") if name in named}
        headers = _basic(self.login) if self.login else {}
        answer = self._open("GET", f"{realm}?{urlencode(query)}", headers)
        if answer.status >= 300:
            raise self._refused(answer)
        found = self._json(answer.body)
        self._token = Secret(str(found.get("token") or found.get("access_token") or ""))

    def _send(self, method: str, url: str) -> _Answer:
        headers = {"Accept": ", ".join((*INDEXES, *MANIFESTS))}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token.reveal()}"
        elif self._basic and self.login is not None:
            headers |= _basic(self.login)
        for _ in range(REDIRECTS):
            answer = self._open(method, url, headers)
            if answer.status not in (301, 302, 303, 307, 308):
                return answer
            before, url = urlsplit(url), urljoin(url, answer.headers.get("Location", ""))
            after = urlsplit(url)
            if after.scheme not in ("https", before.scheme):
                raise errors.CloudError(
                    f"{before.netloc} redirects to {after.scheme}://{after.netloc}"
                )
            if after.netloc != before.netloc or after.scheme != before.scheme:
                headers.pop("Authorization", None)  # another host gets no credential of this one
        raise errors.CloudError(f"{self.image.registry} redirects without an end")

    def _open(self, method: str, url: str, headers: Mapping[str, str]) -> _Answer:
        if self._opener is None:
            self._opener = urllib.request.build_opener(_NoRedirect)
        request = urllib.request.Request(url, method=method, headers=dict(headers))
        try:
            try:
                with self._opener.open(request, timeout=SECONDS) as response:
                    return _Answer(response.status, response.headers, response.read(MOST))
            except urllib.error.HTTPError as error:
                with error:
                    return _Answer(error.code, error.headers, error.read(1 << 16))
        except (OSError, HTTPException) as error:
            why = getattr(error, "reason", None) or error
            raise errors.TransientError(
                f"{urlsplit(url).netloc} cannot be reached: {why}",
                hint="check the registry's name in setup.image, and that this machine reaches it",
            ) from error

    def _refused(self, answer: _Answer) -> errors.CloudError:
        image, words = self.image, answer.words
        if answer.status == 401 or (answer.status == 403 and self.login is None):
            text = (
                f"{image.registry} gives {image} to nobody without a login"
                if (self.login is None)
                else f"{image.registry} does not accept the login for {image}"
            )
            return errors.CredentialsError(f"{text}{words}", hint=HINT)
        if answer.status == 403:
            return errors.PermissionsError(f"{image.registry} refuses {image}{words}")
        if answer.status == 404:
            hint = "check its name and tag; some registries answer so without a login"
            return errors.NotFoundError(f"{image.registry} has no {image}{words}", hint=hint)
        if answer.status == 429:
            hint = "wait, or log in: setup.registry_user and setup.registry_password"
            return errors.RateError(f"{image.registry} has answered too often{words}", hint=hint)
        kind = errors.TransientError if answer.status >= 500 else errors.CloudError
        return kind(f"{image.registry} answers {answer.status} for {image}{words}")


HINT = "set setup.registry_user and setup.registry_password, or check the image's name"


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: Message
    body: bytes

    @property
    def kind(self) -> str:
        return self.headers.get("Content-Type", "").partition(";")[0].strip()

    @property
    def words(self) -> str:
        """The registry's own, as the specification's `errors` has them."""
        try:
            said = str(json.loads(self.body)["errors"][0]["message"])
        except (ValueError, LookupError, TypeError):
            return ""
        return f": {said[:200]}" if said and said.isprintable() else ""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        """urllib would send the token along."""


def _basic(login: RegistryLogin) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(login.pair).decode('ascii')}"}


def _digest_of(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def _runs(listed: Mapping[str, Any]) -> bool:
    """False for attestations, which are listed as images of an unknown platform
    (https://docs.docker.com/build/metadata/attestations/attestation-storage/)."""
    platform = listed.get("platform") or {}
    return platform.get("os") == "linux" and platform.get("architecture") != "unknown"
