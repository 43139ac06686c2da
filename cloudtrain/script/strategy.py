"""Tells for which `strategy:` a script was written."""

from __future__ import annotations

from fnmatch import fnmatchcase

from cloudtrain.script.facts import ScriptFacts, Use
from cloudtrain.training.strategies import STRATEGIES


def strategy_in(facts: ScriptFacts) -> str | None:
    """The name for `strategy:` of a config; None if the script uses none or may use several."""
    found = strategies_in(facts)
    return next(iter(found)) if len(found) == 1 else None


def strategies_in(facts: ScriptFacts) -> dict[str, Use]:
    """Each strategy that the script uses, with its first place; in the order of the script."""
    found: dict[str, Use] = {}
    for use in facts.names:
        for strategy in STRATEGIES.values():
            if any(fnmatchcase(use.name, pattern) for pattern in strategy.uses):
                found.setdefault(strategy.name, use)
    return found
