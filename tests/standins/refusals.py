"""Real refusals, word for word, from `corpus/<cloud>.yaml`: for stand-ins and for tests."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal
from xml.sax.saxutils import escape

import yaml

CORPUS = Path(__file__).parent / "corpus"
CLOUDS = ("aws", "azure", "gcp")


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One refusal as it was met, or as a stand-in words it."""

    asked: str
    status: int | Literal["operation"]
    quoted: Literal["whole", "message", "model"]
    body: str
    names: Mapping[str, str] = field(default_factory=dict)
    met: str = ""
    read: object = None
    rule: str = ""
    means: Mapping[str, Any] = field(default_factory=dict)
    zone: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)

    def text(self, **names: object) -> str:
        """Return the body with a stand-in's own names in the place of the recorded ones."""
        unknown = names.keys() - self.names.keys()
        assert not unknown, f"{unknown} is not in `names`"
        escaped = escape if self.body.startswith("<") else _in_json
        own = {self.names[name]: escaped(_shown(given)) for name, given in names.items()}
        for recorded in self.names.values():
            assert recorded in self.body, f"{recorded} is not in the body"
        longest = sorted(own, key=len, reverse=True)
        pattern = "|".join(map(re.escape, longest))
        return re.sub(pattern, lambda found: own[found[0]], self.body) if own else self.body

    def json(self, **names: object) -> dict[str, Any]:
        return dict(json.loads(self.text(**names)))


@cache
def recorded(cloud: str) -> Mapping[str, Recorded]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    given = yaml.load((CORPUS / f"{cloud}.yaml").read_text(), loader)
    return {name: _entry(cloud, entry) for name, entry in given.items()}


def _entry(cloud: str, given: dict[str, Any]) -> Recorded:
    if "body" in given:
        return _recorded(cloud, given)
    words = {key: given.pop(key, "") for key in ("code", "message", "rpc", "target", "header")}
    found = re.findall(r"\{(\w+)\}", "".join(words.values()))
    asked, envelope = _FORMS[cloud]
    whole = {
        "asked": asked,
        "quoted": "message" if "met" in given else "model",
        "body": envelope(given["status"], words),
        "names": {name: f"{{{name}}}" for name in found},
    }
    return _recorded(cloud, whole | given)


def _recorded(cloud: str, entry: dict[str, Any]) -> Recorded:
    try:
        return Recorded(**entry)
    except TypeError as error:
        raise AssertionError(f"corpus/{cloud}.yaml, {entry}: corpus/README.md: {error}") from None


def _of_ec2(_status: object, words: Mapping[str, str]) -> str:
    error = f"<Code>{words['code']}</Code><Message>{escape(words['message'])}</Message>"
    return f"<Response><Errors><Error>{error}</Error></Errors><RequestID>1</RequestID></Response>"


def _of_azure(_status: object, words: Mapping[str, str]) -> str:
    error = {key: words[key] for key in ("code", "message", "target") if words[key]}
    return json.dumps({"error": error})


def _of_google(status: object, words: Mapping[str, str]) -> str:
    """An operation's, that of Google's newer APIs (`rpc` alone), or Compute Engine's."""
    code, message = words["code"], words["message"]
    if status == "operation":
        return json.dumps({"code": code, "message": message})
    error: dict[str, Any] = {"code": status, "message": message}
    if code:
        domain = "usageLimits" if code.endswith("Exceeded") else "global"
        error["errors"] = [{"message": message, "domain": domain, "reason": code}]
        if words["header"]:
            error["errors"][0] |= {"location": words["header"], "locationType": "header"}
    if words["rpc"]:
        error["status"] = words["rpc"]
    return json.dumps({"error": error})


_FORMS: Mapping[str, tuple[str, Callable[[object, Mapping[str, str]], str]]] = {
    "aws": ("RunInstances in us-east-1", _of_ec2),
    "azure": ("PUT virtualMachines/m-worker0", _of_azure),
    "gcp": ("projects/p/zones/us-central1-a/instances", _of_google),
}
"""By cloud: what is asked unless an entry says it, and the envelope of its API."""


def _shown(given: object) -> str:
    return given if isinstance(given, str) else json.dumps(given, default=str)


def _in_json(text: str) -> str:
    return json.dumps(text)[1:-1]
