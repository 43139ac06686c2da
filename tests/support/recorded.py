"""Reads a file of `cloudtrain --record`: as refusals, and as a cloud that answers the same again.

python -m tests.support.recorded FILE      its refusals, as entries for tests/standins/corpus
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import requests
import yaml

from cloudtrain.core import errors
from cloudtrain.core.errors import CloudError
from cloudtrain.providers.aws import faults as aws
from cloudtrain.providers.azure import faults as azure
from cloudtrain.providers.gcp import faults as gcp
from tests.standins.refusals import Recorded


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One line of a file."""

    format: int
    time: float
    cloud: str
    method: str
    url: str
    status: int | None
    headers: dict[str, str]
    body: Any
    action: str = ""
    error: str = ""

    @property
    def path(self) -> str:
        return urlsplit(self.url).path

    @property
    def asked(self) -> str:
        """As the corpus has it."""
        if self.cloud == "gcp":
            return re.sub(r"^.*?/(?=projects/|b/)", "", self.path)
        return self.action or f"{self.method} {'/'.join(self.path.strip('/').split('/')[-2:])}"

    @property
    def text(self) -> str:
        return self.body if isinstance(self.body, str) else json.dumps(self.body)


def answers(path: Path) -> list[Answer]:
    """The whole lines of a file: of a command that was killed, the last one is not."""
    found = []
    for line in path.read_bytes().splitlines():
        with suppress(ValueError):
            found.append(Answer(**json.loads(line)))
    return found


def refusals(found: Iterable[Answer]) -> Iterator[tuple[str, Recorded]]:
    """Cloud and refusal, also those of operations that were accepted."""
    accepted: dict[str, str] = {}
    for answer in found:
        status: int | Literal["operation"] = "operation"
        body = answer.body if isinstance(answer.body, dict) else {}
        accepted[urlsplit(answer.headers.get("azure-asyncoperation", "")).path] = answer.asked
        if answer.status is not None and answer.status >= 400:
            asked, status, text = answer.asked, answer.status, answer.text
        elif answer.cloud == "gcp" and body.get("error"):
            target = re.sub(r"^.*?/(?=projects/)", "", str(body.get("targetLink")))
            made = str(body.get("operationType")) == "insert"
            asked = target.rpartition("/")[0] if made else target
            text = json.dumps(body["error"]["errors"][0])
        elif answer.cloud == "azure" and body.get("error"):
            asked = accepted.get(answer.path, answer.asked)
            text = json.dumps(body["error"])
        else:
            continue
        refusal = Recorded(
            asked=asked,
            status=status,
            quoted="whole",
            body=text,
            headers=answer.headers,
            names={},
            met="--record",
            read="",
            means={},
        )
        yield answer.cloud, refusal


def classified(cloud: str, entry: Recorded) -> CloudError:
    """The error that the cloud's driver makes of a refusal."""
    reach: errors.Scope = "zone" if entry.zone else "region"
    status = entry.status if isinstance(entry.status, int) else 0
    if cloud == "aws":
        region = {"region": entry.asked.rpartition(" in ")[2]}
        text = entry.text()
        return aws.of_answer(
            entry.asked, status=status, headers={}, body=text, reach=reach, facts=region
        )
    if cloud == "azure" and status:
        return azure.of_answer(
            entry.asked, status=status, headers=entry.headers, body=entry.text(), reach=reach
        )
    if cloud == "azure":
        return azure.of_error(entry.asked, entry.json(), reach=reach)
    facts = {"project": entry.asked.split("/")[1]}
    if status:
        return gcp.of_answer(
            "asking", status=status, headers={}, body=entry.text(), path=entry.asked, facts=facts
        )
    return gcp.of_operation("asking", [entry.json()], path=entry.asked, facts=facts)


def entries(found: Iterable[Answer]) -> str:
    """The refusals as entries of the corpus, each once, with what is made of it today."""
    made: dict[str, dict[str, Any]] = {}
    for cloud, entry in refusals(found):
        error = classified(cloud, entry)
        means = {"error": type(error).__name__, "scope": error.scope}
        body = {"asked": entry.asked, "status": entry.status, "quoted": "whole", "body": entry.body}
        name = f"{cloud}-{re.sub('[^a-z0-9]+', '-', error.code.lower()) or 'unknown'}"
        made.setdefault(name, {**body, "names": {}, "met": "", "read": "", "means": means})
    return yaml.safe_dump(made, sort_keys=False, width=1000, allow_unicode=True)


@dataclass
class Replay:
    """Sends no request: what was answered to the same one is answered again, in the same order, the
    last answer for ever. In the place of `recorder.recorded`.
    """

    found: list[Answer]
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._left: dict[tuple[str, str], list[Answer]] = defaultdict(list)
        for answer in self.found:
            if answer.status is not None:
                self._left[(answer.method, answer.action or answer.path)].append(answer)

    def send(self, request: Any, **_: Any) -> requests.Response:
        path = urlsplit(request.url).path
        action = ""
        if "Action=" in str(request.body):
            text = request.body.decode() if isinstance(request.body, bytes) else request.body
            region = request.headers["Authorization"].split("/")[2]
            named = re.findall(r"(?:^|&)Action=(\w+)", text)[0]
            action = f"{named} in {region}"
        self.asked.append(f"{request.method} {action or path}")
        left = self._left.get((request.method, action or path))
        assert left, f"{self.asked[-1]} was not recorded"
        answer = left.pop(0) if len(left) > 1 else left[0]
        response = requests.Response()
        response.status_code = int(answer.status or 0)
        response.headers.update(answer.headers)
        response._content = answer.text.encode()
        response.encoding, response.url, response.request = "utf-8", request.url, request
        return response


if __name__ == "__main__":
    sys.stdout.write(entries(answers(Path(sys.argv[1]))))
