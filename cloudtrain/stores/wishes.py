"""Wishes that a config has of a service, beside the objects themselves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """`encryption`: of uploads, as `artifacts.encryption` has it. `requester_pays`: for reads of
    input data.
    """

    encryption: str | None = None
    requester_pays: bool = False


NO_WISHES = Wishes()
