"""Findings of `check`, the same on all clouds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from cloudtrain.core.errors import CloudError
from cloudtrain.core.protocols import Finding
from cloudtrain.providers.base.words import NOT_REPORTED


def finding(what: str, ask: Callable[[], str]) -> Finding:
    """Finding with the text of `ask`, or its error; what is not reported counts as not checked."""
    try:
        text = ask()
    except CloudError as error:
        return Finding.of(what, error)
    return Finding(what=what, ok=True, text=text, told=NOT_REPORTED not in text)


def in_each(what: str, regions: Sequence[str], ask: Callable[[str], str]) -> Iterator[Finding]:
    """One finding per region. It is enough if one region passes, as `up` tries them all."""
    found = {region: finding(what, partial(ask, region)) for region in regions}
    served = any(each.ok for each in found.values())
    for region, each in found.items():
        text = each.text if region in each.text else f"{region}: {each.text}"
        yield replace(each, ok=served, text=text, error=None if served else each.error)
