"""Fields of a request that are only wished for: left out, and said once, if they are refused."""

from __future__ import annotations

from typing import Any

from cloudtrain.core.errors import CloudConfigError, CloudError
from cloudtrain.core.retry import LONG_WAIT, report_wait


class Wishes:
    """The wishes of one command; what an endpoint refused once is not sent to it again."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._left_out: set[str] = set()

    def without_refused(self, body: Any) -> Any:
        """The body of a request without the wishes that were refused."""
        if isinstance(body, dict):
            kept = {k: v for k, v in body.items() if k not in self._left_out}
            return {k: self.without_refused(v) for k, v in kept.items()}
        return [self.without_refused(each) for each in body] if isinstance(body, list) else body

    def refused(self, error: CloudError, body: Any) -> bool:
        """True if the refusal of this body names a wish in it: the request is worth repeating."""
        if not isinstance(error, CloudConfigError):
            return False
        found = [name for name in self._names if name in error.message and _has(body, name)]
        for name in found:
            self._left_out.add(name)
            report_wait(f"goes on without {name}: {error.message}", taken=LONG_WAIT)
        return bool(found)


def _has(body: Any, name: str) -> bool:
    if isinstance(body, dict):
        return name in body or any(_has(each, name) for each in body.values())
    return isinstance(body, list) and any(_has(each, name) for each in body)
