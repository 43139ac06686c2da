"""Short-lived logins for the clouds' own registries of images, by this user's identity.

Each is made here for one pull. None is the user's own credential, but until it expires it may read
whatever the user may read there: docs/images.md. Sources are as of 2026-11-27, none was tried on an
account."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from urllib.parse import urlencode

from cloudtrain.core.errors import SHAPE, CloudtrainError, CredentialsError, TransientError
from cloudtrain.core.image_name import CLOUDS_OWN, ImageName, RegistryLogin
from cloudtrain.core.shell import Secret

SECONDS = 20.0


def identity_login(image: ImageName, project: str | None = None) -> RegistryLogin | None:
    """A login for a registry of a cloud's own host; None for any other. `project`: the profile of
    AWS. Raises CredentialsError, TransientError."""
    if image.cloud_registry is None:
        return None
    try:
        return MAKERS[image.cloud_registry](image, project)
    except CloudtrainError:
        raise
    except ImportError as error:
        text = f"{image.registry} needs a package that is not installed: {error}"
        raise CredentialsError(text, hint="install it, or set setup.registry_user") from None
    except Exception as error:
        words = f"{type(error).__name__}: {error}" if isinstance(error, SHAPE) else error
        raise CredentialsError(f"no login for {image.registry}: {words}") from error


def _ecr(image: ImageName, profile: str | None) -> RegistryLogin:
    """https://docs.aws.amazon.com/AmazonECR/latest/APIReference/API_GetAuthorizationToken.html:
    user and password in base64, for 12 hours."""
    from cloudtrain.identities.aws import identity

    found = CLOUDS_OWN["ECR"].fullmatch(image.registry)
    region = found["region"] if found else None
    answer = identity(profile).client("ecr", region_name=region).get_authorization_token()
    pair = base64.b64decode(answer["authorizationData"][0]["authorizationToken"]).decode()
    user, _, password = pair.partition(":")
    return RegistryLogin(user=user, password=Secret(password))


def _google(image: ImageName, _: str | None) -> RegistryLogin:
    """https://cloud.google.com/artifact-registry/docs/docker/authentication#token: an access token,
    for an hour; of a service account one that only reads. A person's cannot be narrowed: Credential
    Access Boundaries are for Cloud Storage alone
    (https://cloud.google.com/iam/docs/downscoping-short-lived-credentials)."""
    from google.auth.transport.requests import Request

    from cloudtrain.identities import google

    credentials, _project = google.find()
    narrows = hasattr(credentials, "service_account_email") and hasattr(credentials, "with_scopes")
    if narrows:
        credentials = credentials.with_scopes([READ_ONLY])
    try:
        credentials.refresh(Request())
    except Exception as error:
        raise google.explained(f"a login for {image.registry}", error) from error
    token = Secret(str(credentials.token))
    return RegistryLogin(user="oauth2accesstoken", password=token, for_nodes=narrows)


READ_ONLY = "https://www.googleapis.com/auth/cloud-platform.read-only"


def _acr(image: ImageName, _: str | None) -> RegistryLogin:
    """https://github.com/Azure/acr/blob/main/docs/AAD-OAuth.md: a token of Entra is exchanged for a
    refresh token of this registry alone, for 3 hours."""
    from cloudtrain.identities.azure import identity

    token = identity().token("https://containerregistry.azure.net/.default")
    form = {"grant_type": "access_token", "service": image.registry, "access_token": token}
    request = urllib.request.Request(
        f"https://{image.registry}/oauth2/exchange", urlencode(form).encode("ascii")
    )
    try:
        with urllib.request.build_opener(_Stays).open(request, timeout=SECONDS) as answer:
            found = str(json.loads(answer.read(1 << 16))["refresh_token"])
    except urllib.error.HTTPError as error:
        with error:
            text = f"{image.registry} gives you no token: {error.code} {error.reason}"
        raise CredentialsError(text, hint="you need its role AcrPull") from None
    except OSError as error:
        raise TransientError(f"{image.registry} cannot be reached: {error}") from error
    return RegistryLogin(user="00000000-0000-0000-0000-000000000000", password=Secret(found))


class _Stays(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        """A token goes to nobody else."""


Maker = Callable[[ImageName, str | None], RegistryLogin]
MAKERS: Mapping[str, Maker] = {"ECR": _ecr, "Google": _google, "ACR": _acr}
