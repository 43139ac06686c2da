"""Sessions of the pretended account: roles, MFA codes that are taken once, credentials that end."""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape

from werkzeug.wrappers import Request, Response

from tests.standins.aws_query import Refused, real

SPACE = "https://sts.amazonaws.com/doc/2011-06-15/"


def assume_role(world: Any, request: Request) -> Response:
    """Checks the code of a device, where one is named, and hands out credentials of an hour."""
    given = request.form
    code = given.get("TokenCode")
    if given.get("SerialNumber"):
        if code not in world.mfa_codes:
            raise real("mfa-code-taken")
        world.mfa_codes.remove(code)
    number = len(world.secrets)
    key, secret = f"ASIASTANDIN{number:09d}", f"a session's secret {number}"
    world.secrets[key] = secret
    credentials = {
        "AccessKeyId": key,
        "SecretAccessKey": secret,
        "SessionToken": f"session {number}",
        "Expiration": "2100-01-01T00:00:00Z",
    }
    inner = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in credentials.items())
    body = (
        f'<AssumeRoleResponse xmlns="{SPACE}"><AssumeRoleResult>'
        f"<Credentials>{inner}</Credentials><AssumedRoleUser><AssumedRoleId>AROA:x</AssumedRoleId>"
        f"<Arn>{escape(given['RoleArn'])}</Arn></AssumedRoleUser>"
        "</AssumeRoleResult></AssumeRoleResponse>"
    )
    return Response(body, 200, content_type="text/xml")


def refused(request: Request, error: Refused) -> Response | None:
    """As STS and S3 have it; None for other services.

    https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
    """
    signed = request.headers.get("Authorization", "")
    code = "SignatureDoesNotMatch" if error.code == "AuthFailure" else error.code
    inner = f"<Code>{code}</Code><Message>{escape(error.message)}</Message>"
    if "/sts/" in signed:
        body = f'<ErrorResponse xmlns="{SPACE}"><Error>{inner}</Error></ErrorResponse>'
    elif "/s3/" in signed:
        body = f"<Error>{inner}<RequestId>5E7D2A3C</RequestId></Error>"
    else:
        return None
    return Response(body, error.status, content_type="text/xml")


def check_end(world: Any, key: str, service: str) -> None:
    """Refuses keys that a test has ended: EC2 says RequestExpired, others ExpiredToken
    (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html).
    """
    if key not in world.ended_keys:
        return
    if service == "ec2":
        raise real("request-expired")
    if service == "s3":
        raise real("token-expired-at-s3")
    raise real("token-expired")
