"""`cloudtrain plan`: every node, TF_CONFIG and command to come; offline."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain

from cloudtrain.away.desk_cluster import away_notes
from cloudtrain.catalog.bandwidth import Bandwidth, between_nodes
from cloudtrain.checks.code_sizes import CodeSizes, code_sizes
from cloudtrain.checks.commands import command_problems, launched, too_long, unfilled
from cloudtrain.checks.notes import data_notes, notes, rights_notes, unknown_places
from cloudtrain.checks.price import price
from cloudtrain.checks.setup import setup_problems
from cloudtrain.cluster.drift import lifetime_note, override_notes, recorded_drift
from cloudtrain.cluster.place_choice import ClusterOffer, cluster_offers
from cloudtrain.cluster.plan import (
    CHOOSES,
    OTHER_GPUS,
    deciding_tasks,
    fallback_price,
    plan_errors,
    plan_notes,
    tasks,
    without_code,
)
from cloudtrain.cluster.task_launch import TaskLaunch
from cloudtrain.config.location import location_of, placed
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import ConfigError, UsageError
from cloudtrain.core.model import ClusterConfig, NodePlan, Plan
from cloudtrain.datasets.estimates import landing_rate, reading_rate
from cloudtrain.money.estimate import Estimate, budget_seconds, estimate
from cloudtrain.money.node_parts import after_the_end
from cloudtrain.training.strategies import enforced_lifetime
from cloudtrain.trust.file_uses import FileUses, file_uses


@dataclass(frozen=True, kw_only=True)
class PlannedTask:
    node: NodePlan
    price_per_hour: float | None
    """$ of its machine; None if not known, 0 if nothing is billed."""
    command: str
    """Addresses that are known only after `up` appear as `<node name>`."""
    tf_config: str | None
    """JSON; None if the strategy sets none."""


@dataclass(frozen=True, kw_only=True)
class PlannedOffer:
    """One place in which `up` would try to create the cluster."""

    offer: ClusterOffer
    refused: str
    """Why it would not be taken, by the tables and `limits.max_price`; "" if it may be."""
    egress: str = ""
    """What each GB of `data` costs to read there, and of artifacts to land, in words."""


@dataclass(frozen=True, kw_only=True)
class PlanReport:
    """Report on what `up` and `train` would do, by the config, the tables and the record here."""

    plan: Plan
    tasks: tuple[PlannedTask, ...]
    deciding: tuple[str, ...]
    """Names of the tasks that must exit 0 for the run to succeed."""
    differs: tuple[str, ...]
    """Differences between the recorded nodes and this plan: `up` would refuse or apply them."""
    notes: tuple[str, ...]
    """Settings that work, but hardly as intended."""
    bill: Estimate | None
    """None if nothing is billed."""
    network: Mapping[str, Bandwidth] = field(default_factory=dict)
    """Bandwidth of a node to the others, by machine type, as far as it is known."""
    offers: tuple[PlannedOffer, ...] = ()
    """In the order in which `up` tries them; the rest of the report is about `plan`'s place alone.
    Empty without candidates."""
    uses: FileUses = field(default_factory=FileUses)
    """What the file reads, runs and asks on this machine."""
    code: CodeSizes | None = None
    """What of a folder goes to every node; None for other code."""

    @property
    def config(self) -> ClusterConfig:
        return self.plan.config

    @property
    def price_at_most(self) -> float | None:
        """$ until `limits.max_lifetime` or `limits.budget`; None if nothing enforces it or the
        price is not known."""
        lifetime = enforced_lifetime(self.config)
        if self.bill is None:
            return 0.0
        if self.bill.most is None or not lifetime:
            return None
        paid = budget_seconds(self.bill, self.config)
        seconds = lifetime if paid is None else max(0.0, min(paid, lifetime))
        return self.bill.most * seconds / 3600


def plan_report(plan: Plan, *, ignore: Collection[str] = ()) -> PlanReport:
    """Every node, TF_CONFIG and command. Offline; changes nothing.

    Raises UsageError for machines that no cloud offers, and for GPUs that TensorFlow has no code
    for; ConfigError for a setup that cannot be installed, invalid places and too long lines.
    `ignore`: names of findings to ignore."""
    config = plan.config
    refuse_machines(plan, ignore)
    started = launched(plan)
    places = () if "placement" in ignore else unknown_places(config)
    wrong = (placed(config, problem) for problem in command_problems(config))
    problems = (*setup_problems(config), *places, *wrong, *too_long(config, started))
    if problems:
        raise ConfigError(problems)
    code, cost = code_sizes(config), estimate(plan)
    return PlanReport(
        plan=plan,
        tasks=tuple(
            PlannedTask(
                node=node,
                price_per_hour=cost.nodes[node.name].machine if cost else 0.0,
                command=launch.command,
                tf_config=_tf_config(launch),
            )
            for node, launch in zip(plan.nodes, started, strict=True)
        ),
        deciding=tuple(sorted(deciding_tasks(tasks(plan), config))),
        differs=(
            *override_notes(config),
            *recorded_drift(plan).lines(config),
            *lifetime_note(plan),
        ),
        notes=tuple(_notes(plan, code)),
        bill=cost,
        network=between_nodes(plan),
        offers=planned_offers(config),
        uses=file_uses(config),
        code=code,
    )


def _notes(plan: Plan, code: CodeSizes | None) -> Iterator[str]:
    config = plan.config
    yield from (*rights_notes(config), *plan_notes(plan), *notes(config))
    yield from (f"code: {text}: `up` refuses it" for text in (code.problems if code else ()))
    yield from (f"{placed(config, each)}: `up` refuses it" for each in unfilled(config))
    yield from (*data_notes(config), *away_notes(config))
    end, dearer = after_the_end(plan), fallback_price(plan)
    yield from filter(None, (end, dearer and f"spot nodes may become {dearer}"))


def planned_offers(config: ClusterConfig) -> tuple[PlannedOffer, ...]:
    """The offers of all candidates, each with what rules it out."""
    found = []
    for offer in cluster_offers(config):
        refused, there = offer.not_sold, offer.plan.config
        if not refused:
            refused = next((each.text for each in price(offer.plan) if not each.ok), "")
        rates = {"data": reading_rate(there), "artifacts": landing_rate(there)}
        egress = ", ".join(f"{what} {rate}" for what, rate in rates.items() if rate is not None)

        found.append(PlannedOffer(offer=offer, refused=refused, egress=egress))
    return tuple(found)


def _tf_config(launch: TaskLaunch) -> str | None:
    value = launch.environment.get("TF_CONFIG")
    return None if value is None else str(value)


def refuse_machines(plan: Plan, ignore: Collection[str]) -> None:
    """Raise UsageError with every problem of the machines, each with its line."""
    problems = {
        hint: wrong
        for what, wrong, hint in (
            ("machines", plan_errors(plan), CHOOSES),
            ("gpus", without_code(plan), OTHER_GPUS),
        )
        if wrong and what not in ignore
    }
    if problems:
        lines = []
        for text in chain.from_iterable(problems.values()):
            role = text.partition(":")[0].removeprefix("nodes.")
            place = location_of(plan.config, f"nodes.{role}.machine")
            lines.append(f"{place}: {text}" if place else text)
        raise UsageError("\n".join(lines), hint="; ".join(problems))


def refresh_prices() -> dict[str, str]:
    """Fetch today's prices into this user's cache; cloud → its file."""
    from datetime import date

    from cloudtrain.catalog.refresh import refresh

    return {cloud: str(path) for cloud, path in refresh(date.today()).items()}
