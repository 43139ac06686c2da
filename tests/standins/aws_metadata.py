"""The instance metadata service, version 2, as botocore asks it for the credentials of a role.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-security-credentials.html. All
nodes have this machine's address, so that it answers while exactly one instance has a profile.
"""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

from moto.ec2.models import ec2_backends
from moto.iam.models import iam_backends
from werkzeug.wrappers import Request, Response

ROOT = "/latest/"
SESSION = "X-aws-ec2-metadata-token"
TTL = "X-aws-ec2-metadata-token-ttl-seconds"
ROLES = f"{ROOT}meta-data/iam/security-credentials/"
LASTS = 6 * 3600.0


def serves(path: str) -> bool:
    return path.startswith(ROOT)


def told(world: Any, request: Request) -> Response:
    if request.method == "PUT" and request.path == f"{ROOT}api/token":
        known = bool(request.headers.get(TTL))
        return Response("a session" if known else "", status=200 if known else 400)
    if request.headers.get(SESSION) != "a session":
        return Response(status=401)
    role = attached(world)
    if role is not None and request.path == ROLES:
        return Response(role)
    if role is not None and request.path == f"{ROLES}{role}":
        return Response(json.dumps(credentials(world)), content_type="text/plain")
    return Response(status=404)


def credentials(world: Any) -> dict[str, str]:
    key, secret = f"ASIA{secrets.token_hex(8).upper()}", secrets.token_urlsafe(30)
    world.secrets[key] = secret
    now = time.time()
    return {
        "Code": "Success",
        "LastUpdated": _date(now),
        "Type": "AWS-HMAC",
        "AccessKeyId": key,
        "SecretAccessKey": secret,
        "Token": secrets.token_urlsafe(60),
        "Expiration": _date(now + LASTS),
    }


def attached(world: Any) -> str | None:
    """Name of the role in the profile of the only instance that has one."""
    found = [
        instance.iam_instance_profile
        for region in world.regions
        for reservation in ec2_backends[world.account][region].reservations.values()
        for instance in reservation.instances
        if instance.iam_instance_profile and instance.state != "terminated"
    ]
    if len(found) != 1:
        return None
    named = next(iter(found[0].values())) if isinstance(found[0], dict) else str(found[0])
    profiles = iam_backends[world.account]["aws"].instance_profiles.values()
    roles = [one.roles[0].name for one in profiles if named in (one.name, one.arn) and one.roles]
    return roles[0] if roles else None


def _date(when: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when))
