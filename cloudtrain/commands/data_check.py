"""Findings of `check` and `up` on `data:`: what is there, how large, what its transfer costs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from cloudtrain.datasets.dataset import DataFile, Dataset, parts
from cloudtrain.datasets.listing import list_dataset
from cloudtrain.datasets.signing import DataSigner
from cloudtrain.errors import CloudtrainError
from cloudtrain.model import Plan
from cloudtrain.protocols import Finding

AT_ONCE = 8
"""Datasets that are listed in parallel."""


def data_findings(plan: Plan) -> tuple[Finding, ...]:
    """A finding for each dataset, listed and read with this machine's credentials; none without
    `data:`."""
    names = tuple(plan.config.data)
    if not names:
        return ()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return tuple(pool.map(lambda name: _finding(plan, name), names))


def _finding(plan: Plan, name: str) -> Finding:
    try:
        dataset = list_dataset(plan.config, name)
        split = parts(dataset, [node.role for node in plan.nodes])
        _read_a_byte(DataSigner(plan.config, dataset), dataset.files)
    except CloudtrainError as error:
        text = error.message.removeprefix(f"data.{name}: ")
        return Finding(what=f"data.{name}", ok=False, text=text, hint=error.hint, error=type(error))
    return Finding(what=f"data.{name}", ok=True, text=_described(dataset, split))


def _read_a_byte(signer: DataSigner, files: Sequence[DataFile]) -> None:
    """Read from the smallest file, as a right to list is no right to read."""
    filled = [file for file in files if file.size]
    if filled:
        reading = signer.read(min(filled, key=lambda file: file.size))
        next(reading, b"")


def _described(dataset: Dataset, split: Sequence[Sequence[DataFile]]) -> str:
    sizes = [sum(file.size for file in part) for part in split if part]
    count = len(dataset.files)
    text = f"{count:,} file{'s' if count > 1 else ''}, {in_units(dataset.size)}"
    if not sizes:
        return f"{text}; no node gets it"
    each = in_units(max(sizes))
    if dataset.source.shard:
        return f"{text}: at most {each} on each of {len(sizes)} nodes"
    total = f", {in_units(sum(sizes))} in all" if len(sizes) > 1 else ""
    return f"{text} on each of {len(sizes)} node{'s' if len(sizes) > 1 else ''}{total}"


def in_units(size: float) -> str:
    """Bytes in decimal units: `3.2 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
