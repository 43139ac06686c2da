"""Compares what a cloud reports of its machine types with what was known of them, and keeps it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from cloudtrain import catalog
from cloudtrain.catalog import table
from cloudtrain.catalog.gpus import is_same_accelerator
from cloudtrain.catalog.table import learned_machines, learned_row, remember
from cloudtrain.core.cloud import cloud_of
from cloudtrain.core.protocols import MachineFacts

MEMORY_TOLERANCE = 0.02
"""Relative: clouds give MiB, MB or rounded GB."""


def learn(provider: str, reported: Iterable[MachineFacts]) -> tuple[str, ...]:
    """Keep what the cloud reported: it wins over the table from now on. Returns a sentence for each
    machine type that was known otherwise."""
    found = []
    for facts in reported:
        # The table's name of the accelerator, where the cloud's may mean it: EC2 says A100 for both
        # sizes of memory, and names of Azure's machines have no size.
        listed = catalog.listed_machine(provider, facts.name)
        known, told = listed.accelerator if listed else None, facts.accelerator
        if known is not None and told is not None and is_same_accelerator(told.kind, known.kind):
            found.append(replace(facts, accelerator=replace(told, kind=known.kind)))
        else:
            found.append(facts)
    texts = tuple(text for facts in found for text in _differences(provider, facts))
    remember(provider, found)
    return texts


def _differences(provider: str, facts: MachineFacts) -> Iterator[str]:
    known, cloud = catalog.machine_type(provider, facts.name), cloud_of(provider)
    if known is None or cloud is None:
        return
    pairs = []
    if known.accelerator != facts.accelerator:
        pairs.append((str(facts.accelerator or "no GPU"), str(known.accelerator or "no GPU")))
    if facts.vcpus and known.vcpus != facts.vcpus:
        pairs.append((f"{facts.vcpus} vCPUs", f"{known.vcpus}"))
    if facts.memory_gib and not math.isclose(
        known.memory_gib, facts.memory_gib, rel_tol=MEMORY_TOLERANCE
    ):
        pairs.append((f"{facts.memory_gib:g} GiB of memory", f"{known.memory_gib:g}"))
    if facts.arm and not known.arm:
        pairs.append(("ARM", "x86-64"))
    if pairs:
        now, before = (", ".join(words) for words in zip(*pairs, strict=True))
        source = f"the table of {table.packaged(provider).date}"
        if learned_row(provider, facts.name) is not None:
            earlier = learned_machines(provider)
            source = f"its answer of {earlier.date}" if earlier else "an earlier answer"
        yield f"{facts.name}: {cloud.title} says {now}; {source} said {before}"
