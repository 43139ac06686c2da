"""`cloudtrain trust`: what a file would do with the user's rights, and the user's consent to it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from cloudtrain.core.model import ClusterConfig
from cloudtrain.trust.consent import fact_lines, open_facts
from cloudtrain.trust.file_facts import FileFact, file_facts
from cloudtrain.trust.record import forget, remember

__all__ = ["TrustReport", "forget", "remember", "trust_report"]


@dataclass(frozen=True, kw_only=True)
class TrustReport:
    """All facts of a file, and those that the user has not agreed to."""

    config: ClusterConfig
    facts: tuple[FileFact, ...]
    lines: tuple[str, ...]
    """A line for each fact, with its place in the file."""
    open: tuple[FileFact, ...]


def trust_report(config: ClusterConfig, hosts: Collection[str] = ()) -> TrustReport:
    """Offline; changes nothing. `hosts`: those of `--trust-endpoint`."""
    found = file_facts(config)
    return TrustReport(
        config=config,
        facts=found,
        lines=tuple(fact_lines(config, found)),
        open=open_facts(config, hosts),
    )
