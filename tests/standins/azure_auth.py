"""The authority that tokens come from, as azure-identity and libcloud ask it; and a "
"managed identity."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Mapping
from typing import Any

from werkzeug.wrappers import Request, Response

from tests.standins.azure_errors import Refusal, real
from tests.standins.azure_world import World

TENANT = "00000000-0000-4000-8000-00000000000a"
CLIENT = "00000000-0000-4000-8000-00000000000b"
OBJECT = "00000000-0000-4000-8000-00000000000c"
"""The caller's service principal."""
SECRET = "the-stand-in-knows-this-secret"
WRONG_SECRET = "secret-wrong"
"""The refusal of a wrong secret, in the corpus."""
IDENTITY_PATH = "/msi/token"
IDENTITY_HEADER = "the-stand-in-knows-this-header"
AUDIENCES = ("https://management.azure.com", "https://management.core.windows.net")

_PLACES = re.compile(
    r"/(?:(?P<tenant>[^/]+)/(?P<what>v2\.0/\.well-known/openid-configuration"
    r"|\.well-known/openid-configuration|oauth2/v2\.0/token|oauth2/token|discovery/instance)"
    rf"|(?P<identity>{IDENTITY_PATH[1:]}))\Z"
)


def action(path: str) -> str | None:
    """None where it is no call to the authority."""
    found = _PLACES.match(path)
    return (found["identity"] or found["what"].rpartition("/")[2]) if found else None


def answer(world: World, request: Request) -> Response:
    found = _PLACES.match(request.path)
    assert found
    if found["identity"]:
        return _managed_identity(world, request)
    if found["what"] == "discovery/instance":
        return _told(_instance(request))
    if found["tenant"].lower() not in (TENANT, "common", "organizations"):
        return _refused(real("tenant-absent", tenant=found["tenant"]))
    if found["what"].endswith("openid-configuration"):
        return _told(_configuration(request.host_url.rstrip("/"), found["tenant"]))
    return _token(world, request, found["what"])


def _configuration(url: str, tenant: str) -> dict[str, Any]:
    base = f"{url}/{tenant}"
    return {
        "issuer": f"{base}/v2.0",
        "authorization_endpoint": f"{base}/oauth2/v2.0/authorize",
        "token_endpoint": f"{base}/oauth2/v2.0/token",
        "device_authorization_endpoint": f"{base}/oauth2/v2.0/devicecode",
        "jwks_uri": f"{base}/discovery/v2.0/keys",
        "token_endpoint_auth_methods_supported": ["client_secret_post"],
        "response_types_supported": ["code", "id_token"],
        "subject_types_supported": ["pairwise"],
        "id_token_signing_alg_values_supported": ["RS256"],
    }


def _instance(request: Request) -> dict[str, Any]:
    host, url = request.host, request.host_url
    return {
        "tenant_discovery_endpoint": f"{url}{TENANT}/v2.0/.well-known/openid-configuration",
        "api-version": "1.1",
        "metadata": [{"preferred_network": host, "preferred_cache": host, "aliases": [host]}],
    }


def _token(world: World, request: Request, what: str) -> Response:
    given = request.form
    if request.method != "POST" or given.get("grant_type") != "client_credentials":
        return _refused(real("grant-not-supported"))
    who = world.people.get(given.get("client_id", ""))
    if who is None:
        return _refused(real("application-absent", application=given.get("client_id", "")))
    if given.get("client_secret") != SECRET:
        return _refused(real(WRONG_SECRET))
    if what == "oauth2/token":
        audience = given.get("resource", "")
    elif given.get("scope", "").endswith("/.default"):
        audience = given["scope"].removesuffix("/.default")
    else:
        return _refused(real("token-scope-invalid"))
    token = issue(world, audience, given["client_id"])
    seconds = int(world.token_lifetime)
    if what == "oauth2/token":
        return _told(_first_version(world, token, audience))
    return _told(
        {
            "token_type": "Bearer",
            "expires_in": seconds,
            "ext_expires_in": seconds,
            "access_token": token,
        }
    )


def _managed_identity(world: World, request: Request) -> Response:
    """https://learn.microsoft.com/azure/app-service/overview-managed-identity#rest-endpoint-reference"""
    if request.headers.get("X-IDENTITY-HEADER") != IDENTITY_HEADER:
        return _told({"statusCode": 401, "message": "The X-IDENTITY-HEADER is not ours."}, 401)
    audience = request.args.get("resource", "")
    if "api-version" not in request.args or not audience:
        return _told({"statusCode": 400, "message": "api-version and resource are required."}, 400)
    return _told(_first_version(world, issue(world, audience), audience))


def _first_version(world: World, token: str, audience: str) -> dict[str, str]:
    seconds = int(world.token_lifetime)
    return {
        "token_type": "Bearer",
        "expires_in": str(seconds),
        "expires_on": str(int(time.time()) + seconds),
        "resource": audience,
        "access_token": token,
    }


def issue(world: World, audience: str, client: str = CLIENT) -> str:
    """In the form of a JSON Web Token; what makes it valid is that it is known here.

    https://learn.microsoft.com/entra/identity-platform/access-token-claims-reference: `oid` is the
    caller's own, whatever application it is asked by.
    """
    ends = time.time() + world.token_lifetime  # The clients' clock: tests do not turn that one.
    claims = {
        "aud": audience,
        "exp": int(ends),
        "tid": TENANT,
        "appid": client,
        "oid": world.people[client],
        "uti": world.number(),
    }
    token = ".".join(
        _part(one) for one in ({"alg": "RS256", "typ": "JWT"}, claims, {"made": "here"})
    )
    world.tokens[token] = (ends, audience.rstrip("/"))
    return token


def _part(value: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def check(world: World, request: Request) -> None:
    """Raises Refusal unless the call bears a token of ours that is for the resource manager."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise _unauthorized(request, real("authorization-missing"))
    if token not in world.tokens:
        raise _unauthorized(request, real("token-invalid"))
    ends, audience = world.tokens[token]
    now = time.time()
    if ends <= now:
        expired, now_is = (time.strftime("%m/%d/%Y %H:%M:%S", time.gmtime(t)) for t in (ends, now))
        raise _unauthorized(request, real("token-expired", expired=expired, now=now_is))
    if audience not in (*AUDIENCES, request.host_url.rstrip("/")):
        raise _unauthorized(request, real("token-of-another-audience", audience=audience))


def _unauthorized(request: Request, refusal: Refusal) -> Refusal:
    refusal.headers["WWW-Authenticate"] = (
        f'Bearer authorization_uri="{request.host_url}{TENANT}", error="invalid_token", '
        f'error_description="{refusal.message}"'
    )
    return refusal


def _told(value: Any, status: int = 200) -> Response:
    return Response(json.dumps(value), status, content_type="application/json; charset=utf-8")


def _refused(refusal: Refusal) -> Response:
    """In OAuth's form, with the number of `AADSTS…`."""
    number = int(refusal.message.partition(":")[0].removeprefix("AADSTS"))
    told = {"error": refusal.code, "error_description": refusal.message, "error_codes": [number]}
    return _told(told, refusal.status)
