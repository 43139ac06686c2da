"""Text and JSON of `gpus --cloud` on what accounts' quotas allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from cloudtrain.commands.gpu_quota import AccountQuota
from cloudtrain.core.errors import UsageError
from cloudtrain.core.model import Accelerator
from cloudtrain.core.protocols import Allowance

HEAD = ("cloud", "machine", "GPUs", "on demand", "spot", "region")


def cells(answers: Sequence[AccountQuota], *, every: bool) -> Iterator[tuple[str, ...]]:
    """A row for each machine and all regions that allow the same of it; `every`: for each region.

    Regions are in order of price, those that allow none last.
    """
    names = Counter(answer.account.config.provider for answer in answers)
    for answer in answers:
        provider = answer.account.config.provider
        name = provider if names[provider] == 1 else str(answer.account)
        for machine, accelerator, regions in _machines(answer.allowances):
            groups: dict[tuple[str, str, str], list[str]] = {}
            for region, pair in regions.items():
                on_demand, spot = (_number(pair.get(market)) for market in (False, True))
                groups.setdefault((on_demand, spot, region if every else ""), []).append(region)
            for (on_demand, spot, _), places in sorted(groups.items(), key=_allows_none):
                where = places[0] if len(places) == 1 else f"{places[0]} +{len(places) - 1}"
                yield name, machine, f"{accelerator.count}", on_demand, spot, where


def _allows_none(group: tuple[tuple[str, str, str], list[str]]) -> bool:
    return set(group[0][:2]) <= {"0", "-"}


def _machines(
    allowances: Sequence[Allowance],
) -> Iterator[tuple[str, Accelerator, dict[str, dict[bool, Allowance]]]]:
    """Each machine with its regions, and in these its markets."""
    found: dict[tuple[str, Accelerator], dict[str, dict[bool, Allowance]]] = {}
    for each in allowances:
        regions = found.setdefault((each.machine, each.accelerator), {})
        regions.setdefault(each.region, {})[each.spot] = each
    for (machine, accelerator), regions in found.items():
        yield machine, accelerator, regions


def _number(allowance: Allowance | None) -> str:
    if allowance is None:
        return "-"
    return "?" if allowance.machines is None else f"{allowance.machines}"


def remarks(answers: Sequence[AccountQuota]) -> Iterator[str]:
    """Remarks on quotas that allow no machine or are not known, and on accounts and regions that
    did not answer.
    """
    for answer in answers:
        name = str(answer.account)
        if answer.error is not None:
            yield f"{name}: not checked: {' '.join(answer.error.message.split())}"
            if answer.error.hint and (answer.exit_code or isinstance(answer.error, UsageError)):
                yield f"  hint: {answer.error.hint}"
        elif not answer.allowances:
            yield f"{name}: no region answered that is known to have these machines"
        none = [each.quota.partition(":")[0] for each in answer.allowances if each.machines == 0]
        if none:
            yield f"{name}: used up or 0: {', '.join(dict.fromkeys(none))}"
        yield from dict.fromkeys(
            f"{name}: {each.quota}" for each in answer.allowances if each.machines is None
        )
        for place in answer.not_asked:
            if not place.denied:
                yield f"{name}: not checked: {place}".replace("\n", " ")
        if denied := [place.place for place in answer.not_asked if place.denied]:
            yield f"{name}: not checked, access denied: {', '.join(denied)}"


def document(answers: Sequence[AccountQuota]) -> list[dict[str, Any]]:
    return [_account_json(answer) for answer in answers]


def _account_json(answer: AccountQuota) -> dict[str, Any]:
    error = answer.error
    return {
        "provider": answer.account.config.provider,
        "project": answer.account.config.project,
        "allowances": [
            {**vars(each), "accelerator": str(each.accelerator)} for each in answer.allowances
        ],
        "not_asked": [vars(each) for each in answer.not_asked],
        "error": None
        if error is None
        else {"message": error.message, "hint": error.hint, "exit_code": answer.exit_code},
    }
