"""Findings of `check` and `up` on `data:`: what is there, how large, what its transfer costs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from cloudtrain.core.cloud import facts_of
from cloudtrain.core.errors import CloudtrainError, UsageError, text_of
from cloudtrain.core.model import ClusterConfig, Plan
from cloudtrain.core.paths import size_text
from cloudtrain.core.protocols import Finding
from cloudtrain.datasets.dataset import DataFile, Dataset, parts
from cloudtrain.datasets.fit import too_small
from cloudtrain.datasets.listing import DataSigner, list_dataset, opened_source
from cloudtrain.datasets.transfer import landing_rate, transfer_cost

AT_ONCE = 8
"""Datasets that are listed in parallel."""


RELAYED = "nodes cannot read it themselves: it goes through this machine"


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Data of one dataset that all nodes together read."""

    name: str
    uri: str
    location: str
    """Region of its store; "" if not known."""
    size: int
    """Bytes."""


@dataclass(frozen=True, kw_only=True)
class CheckedData:
    """Findings on all datasets, and what is read of those that could be listed."""

    findings: tuple[Finding, ...] = ()
    traffic: tuple[Traffic, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Checked:
    """A dataset's finding; `split` has the files of each node, None if it could not be listed."""

    finding: Finding
    traffic: Traffic | None = None
    split: tuple[tuple[DataFile, ...], ...] | None = None


def egress_finding(config: ClusterConfig, traffic: Sequence[Traffic]) -> tuple[Finding, ...]:
    """Finding on the cost, in one candidate's place, of reading this data and landing artifacts."""
    texts = [
        f"data.{each.name}: {cost}"
        for each in traffic
        if (cost := transfer_cost(config, each.uri, each.location, each.size))
    ]
    rate = landing_rate(config)
    if rate is not None:
        texts.append(f"artifacts: {rate} (estimate)")
    return (Finding(what="egress", ok=True, text="; ".join(texts)),) if texts else ()


def checked_data(plan: Plan, *, priced: bool = True) -> CheckedData:
    """A finding for each dataset, listed and read with this machine's credentials, one on the disks
    if they are too small, and what is read; nothing without `data:`.

    `priced`: with the cost of its transfer to the plan's place, in the dataset's finding; for
    several places there is `egress_finding`.
    """
    names = tuple(plan.config.data)
    if not names:
        return CheckedData()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        checked = dict(
            zip(names, pool.map(lambda name: _checked(plan, name, priced), names), strict=True)
        )
    splits = {name: each.split for name, each in checked.items() if each.split is not None}
    full = too_small(plan, splits)
    return CheckedData(
        findings=(*(each.finding for each in checked.values()), *([_disks(full)] if full else [])),
        traffic=tuple(each.traffic for each in checked.values() if each.traffic is not None),
    )


def _disks(full: Sequence[str]) -> Finding:
    hint = "set disk_gb, use `shard: true`, or pass `--ignore disk`"
    return Finding(what="disk", ok=False, text="\n".join(full), hint=hint, error=UsageError)


def _checked(plan: Plan, name: str, priced: bool) -> _Checked:
    config = plan.config
    try:
        store = opened_source(config, name)
        dataset = list_dataset(config, name, store)
        split = parts(dataset, [node.role for node in plan.nodes])
        signer = DataSigner(config, dataset, store)
        _read_a_byte(signer, dataset.files)
        shared = facts_of(config.provider).on_this_machine
        total = dataset.size if shared else _total(split)
        relayed = not shared and signer.sign(dataset.files[0], expires_in=60) is None
        read = Traffic(name=name, uri=dataset.source.source, location=signer.location(), size=total)
        cost = transfer_cost(config, read.uri, read.location, total)
    except CloudtrainError as error:
        what = f"data.{name}"
        text, kind = text_of(what, error), type(error)
        return _Checked(
            finding=Finding(what=what, ok=False, text=text, hint=error.hint, error=kind)
        )
    text = "; ".join(
        filter(
            None,
            (
                _described(dataset, split, shared=shared),
                RELAYED if relayed else "",
                cost if priced else "",
            ),
        )
    )
    finding = Finding(what=f"data.{name}", ok=True, text=text)
    return _Checked(finding=finding, split=split, traffic=read)


def _total(split: Sequence[Sequence[DataFile]]) -> int:
    return sum(file.size for part in split for file in part)


def _read_a_byte(signer: DataSigner, files: Sequence[DataFile]) -> None:
    """Read from the smallest file, as a right to list is no right to read."""
    filled = [file for file in files if file.size]
    if filled:
        reading = signer.read(min(filled, key=lambda file: file.size))
        next(reading, b"")


def _described(dataset: Dataset, split: Sequence[Sequence[DataFile]], *, shared: bool) -> str:
    """Files and sizes; `shared`: all nodes use one copy."""
    sizes = [sum(file.size for file in part) for part in split if part]
    count = len(dataset.files)
    text = f"{count:,} file{'s' if count > 1 else ''}, {size_text(dataset.size)}"
    if not sizes:
        return f"{text}; no node gets it"
    each = size_text(max(sizes))
    if dataset.source.shard:
        return f"{text}: at most {each} on each of {len(sizes)} nodes"
    if shared and len(sizes) > 1:
        return f"{text}, one copy for {len(sizes)} nodes of this machine"
    total = f", {size_text(sum(sizes))} in all" if len(sizes) > 1 else ""
    return f"{text} on each of {len(sizes)} node{'s' if len(sizes) > 1 else ''}{total}"
