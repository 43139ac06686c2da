"""Meanings of EC2's refusals: codes and reasons as rows, and how its answers are read.

Codes: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
State reasons: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from cloudtrain.core import errors
from cloudtrain.providers.aws import xml
from cloudtrain.providers.base.faults import Table, plain, seconds

NO_PROFILE = "InvalidIamInstanceProfile"
"""Our code for EC2's InvalidParameterValue with such words: EC2 has no code of its own for it."""

TABLE = Table(file=Path(__file__).with_name("faults.yaml"))

NOT_HERE = frozenset({"AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException"})
"""Error codes with which a region that is not enabled for this account rejects valid credentials:
https://docs.aws.amazon.com/IAM/latest/UserGuide/id_credentials_temp_enable-regions.html"""
UNKNOWN_ACTION = frozenset(
    {"InvalidAction", "UnsupportedOperation", "NotImplemented", "UnknownOperationException"}
)
"""Error codes of a partial EC2 endpoint for an action that it does not support."""


def of_answer(
    asked: str,
    *,
    status: int,
    headers: Mapping[str, str],
    body: str,
    reach: errors.Scope = "region",
    facts: Mapping[str, str] | None = None,
) -> errors.CloudError:
    """The error for an HTTP error response; `reach` is how far the request went."""
    code, message = _told(body)
    message = message or f"HTTP {status} without a message"
    error = TABLE.error(
        asked,
        causes=[(code, message)],
        words=_ENCODED.sub("", message),
        status=status,
        reach=reach,
        facts=facts,
        retry_after=seconds(headers),
    )
    return _with_command(error, message)


def of_reason(name: str, code: str, message: str) -> errors.CloudError | None:
    """The error for an instance that ended by itself; None if a user ended it: no failure."""
    causes = [(each, message or code) for each in (code, code.partition(".")[2]) if each]
    known = [cause for cause in causes if TABLE.row(cause[0], cause[1]) is not None]
    if not known:
        return None
    made = TABLE.error("", causes=known, words=message or code, reach="zone")
    return _with_command(made.copy_with(what=name, code=code), message)


def of_exception(asked: str, error: Exception) -> errors.CloudError:
    """The error for an exception of libcloud, requests or botocore."""
    from botocore.exceptions import ClientError

    if isinstance(error, ClientError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400))
        made = TABLE.error(asked, causes=[(code, str(error))], status=status)
        return _with_command(made, str(error))
    return TABLE.of_exception(asked, error)


def _told(body: str) -> tuple[str, str]:
    """The code and message of EC2's XML error; no code for anything else, as a proxy's page."""
    try:
        answer = xml.tree(body)
        listed = xml.items(answer, "Errors") or [xml.part(answer, "Error") or answer]
        return xml.text(listed[0], "Code"), xml.text(listed[0], "Message")
    except (ValueError, TypeError, AttributeError):  # no XML, or of another shape
        return "", plain(body)


def _with_command(error: errors.CloudError, message: str) -> errors.CloudError:
    """The error, with the command that decodes the statement that denied a call, if any."""
    encoded = _ENCODED.search(message)
    if not encoded:
        return error
    late = "after `cloudtrain up`, see the cluster's events.jsonl for the policy that denied it"
    command = f"aws sts decode-authorization-message --encoded-message {encoded[1]}"
    return error.copy_with(hint=f"{error.hint}; {late}" if error.hint else None, detail=command)


_ENCODED = re.compile(r"\s*Encoded authorization failure message: (\S+)")
"""Matches the encoded statement and policy that denied a call; decoding it needs a permission:
https://docs.aws.amazon.com/STS/latest/APIReference/API_DecodeAuthorizationMessage.html"""
