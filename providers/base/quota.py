"""Count the machines that a quota leaves room for, in the same way on all clouds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from cloudtrain.core import errors
from cloudtrain.core.model import MachineType
from cloudtrain.core.parallel import ask_all
from cloudtrain.core.partial_list import NotAsked, PartialList
from cloudtrain.core.protocols import Allowance
from cloudtrain.providers.base.words import NOT_REPORTED

Quotas = Mapping[str, tuple[float, float]]
"""Name → limit and usage. The limit is infinite if there is none."""


def unless_short(ask: Callable[[], str]) -> str:
    """Text of `ask`, also where the quota could not be asked. Raises QuotaError, an answer."""

    def text(error: errors.CloudtrainError) -> str:
        if isinstance(error, errors.QuotaError):
            raise error
        return f"{NOT_REPORTED}: {error.message}"

    return errors.if_told(ask, text)


def allowances_in(
    regions: Sequence[str], ask: Callable[[str], list[Allowance]]
) -> PartialList[Allowance]:
    """Allowances in all of these regions; those that do not answer are named."""

    def answer(region: str) -> list[Allowance | NotAsked]:
        try:
            return [*ask(region)]
        except (errors.TransientError, errors.RateError) as error:
            return [NotAsked(place=region, why=error.message)]

    answers = ask_all(regions, answer, name=str, workers=16)
    return PartialList.of_read(each for every in answers for each in every)


def allowance(
    machine: MachineType, region: str, needs: Mapping[str, int], quotas: Quotas, *, spot: bool
) -> Allowance:
    """Allowance of this machine: how many more fit into all quotas that one of them needs.

    `needs`: name → amount for one machine. Not known if a quota is not reported, unless another one
    leaves no room."""
    assert machine.accelerator is not None
    room = {
        name: max(0, math.floor((quotas[name][0] - quotas[name][1]) / amount))
        for name, amount in needs.items()
        if name in quotas and amount and math.isfinite(quotas[name][0])
    }
    missing = [name for name in needs if name not in quotas]
    scarcest = min(room, key=lambda name: room[name], default="")
    known = bool(room) and (not missing or not room[scarcest])
    words = f"{', '.join(missing)}: not reported" if missing else "no limit"
    if known:
        limit, used = quotas[scarcest]
        words = f"{scarcest}: {used:g} of {limit:g} in use"
    return Allowance(
        machine=machine.name,
        accelerator=machine.accelerator,
        region=region,
        spot=spot,
        machines=room[scarcest] if known else None,
        quota=words
        if needs
        else f"no quota is known of {machine.name}{' as spot' if spot else ''}",
    )
