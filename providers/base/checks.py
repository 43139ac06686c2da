"""Findings of `check`, the same on all clouds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NoReturn

from cloudtrain.core.errors import CloudError, CloudtrainError
from cloudtrain.core.protocols import Finding
from cloudtrain.providers.base.words import NOT_REPORTED


class NotChecked(CloudError):
    """Answer that could not be had, which fails nothing; its message is the finding's text."""


def finding(what: str, ask: Callable[[], str]) -> Finding:
    """Finding with the text of `ask`, or its error; what is not reported counts as not checked. One
    that `--ignore` takes is a row of core/finding_kinds.py too."""
    try:
        text = ask()
    except NotChecked as error:
        return Finding(what=what, ok=True, text=error.message, told=False)
    except CloudError as error:
        return Finding.of(what, error)
    return Finding(what=what, ok=True, text=text, told=NOT_REPORTED not in text)


def not_checked(about: str) -> Callable[[CloudtrainError], NoReturn]:
    """Make of an error, for `if_told`, what fails nothing: its message after `about`."""

    def refuse(error: CloudtrainError) -> NoReturn:
        raise NotChecked(f"{about}: {error.message}") from error

    return refuse


def in_each(what: str, regions: Sequence[str], ask: Callable[[str], str]) -> Iterator[Finding]:
    """One finding per region. It is enough if one region passes, as `up` tries them all."""
    found = {region: finding(what, partial(ask, region)) for region in regions}
    served = any(each.ok for each in found.values())
    for region, each in found.items():
        text = each.text if region in each.text else f"{region}: {each.text}"
        yield replace(each, ok=served, text=text, error=None if served else each.error)
