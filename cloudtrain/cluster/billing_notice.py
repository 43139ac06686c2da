"""Running costs of existing nodes, in words."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from cloudtrain.cluster.session import Session
from cloudtrain.core.cloud import is_cloud
from cloudtrain.core.errors import CloudtrainError, if_told
from cloudtrain.core.model import ClusterConfig, Node
from cloudtrain.core.paths import some
from cloudtrain.core.protocols import Console, Provider
from cloudtrain.money.estimate import price_of, total
from cloudtrain.money.prices import dollars

NAMED = 8
"""Nodes named in the line; the rest are counted."""


@contextmanager
def report_billed_on_failure(session: Session) -> Iterator[None]:
    """On any error inside, report which nodes are still billed, how much, and until when."""
    try:
        yield
    except CloudtrainError:
        report_billed(session.config, session.provider, session.console)
        raise


def report_billed(config: ClusterConfig, provider: Provider, console: Console) -> None:
    """Report billed nodes, if any. A cloud that does not answer hides no error."""
    if not is_cloud(config.provider):
        return
    nodes: tuple[Node, ...] = if_told(lambda: tuple(provider.nodes(config.name)), ())
    if nodes:
        console.warn(
            f"{billed(config, nodes)}; `cloudtrain down {config.name}` lands what they hold "
            "and destroys them"
        )


def billed(config: ClusterConfig, nodes: tuple[Node, ...]) -> str:
    """Format `still billed: m-chief0, m-worker0, 1.20 $/hour, until 2026-11-22 18:40 UTC`."""
    names = some([node.name for node in nodes], NAMED)
    price = total(price_of(config, node).per_hour for node in nodes)
    cost = f"{dollars(price)}/hour" if price is not None else "price not known"
    ends = [node.expires for node in nodes]
    last = max((end for end in ends if end is not None), default=None)
    until = "without a limit (limits.max_lifetime is off)"
    if last is not None and None not in ends:
        until = f"until {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(last))}"
    return f"still billed: {names}, {cost}, {until}"
