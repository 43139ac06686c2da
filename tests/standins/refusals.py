"""Real refusals, word for word, from `corpus/<cloud>.yaml`: for stand-ins and for tests."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

CORPUS = Path(__file__).parent / "corpus"
CLOUDS = ("aws", "azure", "gcp")


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One refusal as it was met."""

    asked: str
    status: int | Literal["operation"]
    quoted: Literal["whole", "message"]
    body: str
    names: Mapping[str, str]
    met: str
    read: object
    means: Mapping[str, Any]
    zone: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)

    def text(self, **names: str) -> str:
        """Return the body with a stand-in's own names in the place of the recorded ones."""
        unknown = names.keys() - self.names.keys()
        assert not unknown, f"{unknown} is not in `names`"
        own = {self.names[name]: json.dumps(given)[1:-1] for name, given in names.items()}
        for recorded in self.names.values():
            assert recorded in self.body, f"{recorded} is not in the body"
        longest = sorted(own, key=len, reverse=True)
        pattern = "|".join(map(re.escape, longest))
        return re.sub(pattern, lambda found: own[found[0]], self.body) if own else self.body

    def json(self, **names: str) -> dict[str, Any]:
        return dict(json.loads(self.text(**names)))


@cache
def recorded(cloud: str) -> Mapping[str, Recorded]:
    given = yaml.safe_load((CORPUS / f"{cloud}.yaml").read_text())
    return {name: Recorded(**entry) for name, entry in given.items()}
