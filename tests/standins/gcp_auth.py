"""Google's token endpoint, and who a call comes from; the signatures are real."""

from __future__ import annotations

import base64
import functools
import json
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from werkzeug.wrappers import Request, Response

from tests.standins.gcp_errors import ApiError, answer, real

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

SCOPES = (
    "https://www.googleapis.com/auth/cloud-platform",
    "https://www.googleapis.com/auth/compute",
)
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
GOOGLES = "https://oauth2.googleapis.com/token"
"""What google-auth writes as the audience, whatever `token_uri` says."""
AUDIENCES = ("https://compute.googleapis.com/",)


@dataclass
class Authority:
    """Service accounts with their keys, and the tokens that they got."""

    lifetime: float = 3600.0
    """Of a token, in seconds."""
    keys: dict[str, str] = field(default_factory=dict)
    """Key id → public key (PEM)."""
    emails: dict[str, str] = field(default_factory=dict)
    """Key id → service account."""
    people: dict[str, str] = field(default_factory=dict)
    """Refresh token → e-mail."""
    _tokens: dict[str, tuple[str, float]] = field(default_factory=dict)

    def service_account(self, folder: Path, url: str, project: str, name: str = "tests") -> Path:
        """What `GOOGLE_APPLICATION_CREDENTIALS` points to; `url` is this stand-in's."""
        from cryptography.hazmat.primitives import serialization as form

        key = _key(name)
        private = key.private_bytes(
            form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()
        )
        public = key.public_key().public_bytes(
            form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo
        )
        key_id, email = secrets.token_hex(20), f"{name}@{project}.iam.gserviceaccount.com"
        self.keys[key_id], self.emails[key_id] = public.decode(), email
        account = {
            "type": "service_account",
            "project_id": project,
            "private_key_id": key_id,
            "private_key": private.decode(),
            "client_email": email,
            "client_id": str(100000000000000000000 + secrets.randbelow(10**12)),
            "auth_uri": "https://accounts.google.com/o/oauth2/auth",
            "token_uri": f"{url}/token",
            "universe_domain": "googleapis.com",
        }
        file = folder / f"{name}-{project}.json"
        file.write_text(json.dumps(account, indent=2))
        file.chmod(0o600)
        return file

    def person(self, folder: Path, url: str, email: str) -> Path:
        """What `gcloud auth application-default login` leaves; nothing in it says who it is."""
        refresh = f"1//{secrets.token_urlsafe(30)}"
        self.people[refresh] = email
        told = {
            "type": "authorized_user",
            "account": "",
            "client_id": "764086051850-standin.apps.googleusercontent.com",
            "client_secret": "d-standin",
            "refresh_token": refresh,
            "token_uri": f"{url}/token",
            "universe_domain": "googleapis.com",
        }
        file = folder / f"{email}.json"
        file.write_text(json.dumps(told, indent=2))
        file.chmod(0o600)
        return file

    def _refreshed(self, request: Request) -> Response:
        """https://developers.google.com/identity/protocols/oauth2/web-server#offline; the identity
        token comes where `openid` is asked for, and has the e-mail where that is:
        https://developers.google.com/identity/openid-connect/openid-connect#an-id-tokens-payload"""
        email = self.people.get(request.form.get("refresh_token", ""))
        if email is None:
            return _refusal(real("login-revoked"))
        token = f"ya29.a0{secrets.token_urlsafe(48)}"
        self._tokens[token] = email, time.time() + self.lifetime
        scopes = request.form.get("scope", "").split()
        told = {
            "access_token": token,
            "expires_in": int(self.lifetime),
            "token_type": "Bearer",
            "scope": " ".join(scopes),
        }
        if "openid" in scopes:
            claims = {"iss": "https://accounts.google.com", "sub": str(abs(hash(email)))}
            if any(scope.endswith(("email", "userinfo.email")) for scope in scopes):
                claims |= {"email": email}
            told["id_token"] = _unsigned(claims)
        return answer(told)

    def token(self, request: Request) -> Response:
        """https://developers.google.com/identity/protocols/oauth2/service-account"""
        if request.form.get("grant_type") == "refresh_token":
            return self._refreshed(request)
        if request.form.get("grant_type") != GRANT:
            return _refusal(real("grant-not-supported"))
        try:
            email, claims = self._verified(
                request.form.get("assertion", ""), [request.base_url, GOOGLES]
            )
        except ValueError as error:
            return _refusal(real("grant-invalid", why=error))
        if claims.get("iss") != email:
            return _refusal(real("grant-of-another"))
        if not set(str(claims.get("scope", "")).split()) & set(SCOPES):
            return _refusal(real("token-scope-invalid"))
        return answer(self.issue(email))

    def issue(self, email: str) -> dict[str, str | int]:
        """A new token of an account."""
        token = f"ya29.c.{secrets.token_urlsafe(48)}"
        self._tokens[token] = email, time.time() + self.lifetime
        return {"access_token": token, "expires_in": int(self.lifetime), "token_type": "Bearer"}

    def forget_tokens(self) -> None:
        """As when an account's keys are revoked: the next call is refused with 401."""
        self._tokens.clear()

    def caller(self, header: str | None) -> str:
        """The e-mail address behind an `Authorization` header; raises 401."""
        if not header:
            raise real("credentials-missing")
        kind, _, token = header.partition(" ")
        email, expires = self._tokens.get(token, ("", 0.0))
        if kind == "Bearer" and expires > time.time():
            return email
        if kind == "Bearer" and token.count(".") == 2:
            # Google's clients sign one for themselves where they may: https://google.aip.dev/auth/4111
            try:
                email, claims = self._verified(token, None)
            except ValueError:
                pass
            else:
                scopes = set(str(claims.get("scope", "")).split())
                if claims.get("aud") in AUDIENCES or scopes & set(SCOPES):
                    return email
        raise real("credentials-invalid")

    def _verified(self, assertion: str, audience: list[str] | None) -> tuple[str, dict[str, Any]]:
        """Signature, times and audience; raises ValueError."""
        from google.auth import exceptions, jwt

        try:
            key_id = jwt.decode_header(assertion).get("kid")
            if key_id not in self.keys:
                raise ValueError(f"no such key: {key_id}")
            claims = jwt.decode(assertion, certs=self.keys, audience=audience)
        except exceptions.GoogleAuthError as error:
            raise ValueError(str(error)) from error
        return self.emails[key_id], dict(claims)


def _unsigned(claims: dict[str, str]) -> str:
    """A JSON Web Token that nobody checks: it comes straight from Google, over TLS."""
    parts = ({"alg": "RS256", "typ": "JWT"}, claims, {"made": "here"})
    coded = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts)
    return ".".join(part.rstrip("=") for part in coded)


@functools.cache
def _key(name: str) -> RSAPrivateKey:
    """Made once in a process, as it takes a while."""
    from cryptography.hazmat.primitives.asymmetric import rsa

    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _refusal(error: ApiError) -> Response:
    """In OAuth's form."""
    reason = error.body()["error"]["errors"][0]["reason"]
    return answer({"error": reason, "error_description": error.message}, error.code)
