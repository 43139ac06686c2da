"""`cloudtrain gpus`"""

from __future__ import annotations

import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any

import click

from cloudtrain.cli import candidates, options
from cloudtrain.cli.accounts import CLOUDS, accounts_of, project_option
from cloudtrain.cli.nodes import error_json
from cloudtrain.cli.printing import print_json, print_lines
from cloudtrain.console.lines import terminal_width
from cloudtrain.core.codec import View, encode, pick
from cloudtrain.core.errors import UsageError
from cloudtrain.core.paths import some

if TYPE_CHECKING:
    from cloudtrain.commands.accounts import AccountQuota
    from cloudtrain.commands.gpus import GpuKind, GpuMachine, GpuReport, Place
    from cloudtrain.core.model import Accelerator, Market
    from cloudtrain.core.protocols import Allowance

RENEWED_BY = "`cloudtrain gpus --refresh-prices` renews them"
NOT_SOLD = "-"


@options.command("gpus", "cloudtrain gpus A100:8 --spot")
@click.argument("kind", required=False, metavar="[KIND[:COUNT]]", shell_complete=candidates.gpus)
@options.option("--cloud", "Query the accounts: what their quotas allow.")
@options.option("--provider", "Only this cloud's machines.", type=click.Choice(CLOUDS))
@project_option
@options.option(
    "--region REGION",
    "Only this region, or a zone's region. Repeatable.",
    name="regions",
    multiple=True,
)
@options.option("--spot", "Only machines sold as spot, by that price.")
@options.option("--all", "Show each region, and every n1 machine of GCP.", name="every")
@options.refresh_prices
@options.as_json
def gpus_command(
    kind: str | None,
    cloud: bool,
    provider: str | None,
    project: str | None,
    regions: tuple[str, ...],
    spot: bool,
    every: bool,
    refresh_prices: bool,
    as_json: bool,
) -> int:
    """Show the GPUs that clouds rent; with KIND, the machines that have it, the cheapest first:
    where, and at what price on demand and as spot. Offline, unless --refresh-prices or --cloud:
    how many more of each machine the quotas of your accounts allow, in each region."""
    name, count = parsed(kind)
    if cloud and name is None:
        raise UsageError("--cloud requires a KIND", hint="for example `cloudtrain gpus T4 --cloud`")
    if project and not cloud:
        raise UsageError("--project requires --cloud", hint="add --cloud")
    if refresh_prices:
        from cloudtrain.commands.plan import refresh_prices as fetch

        fetch()
    from cloudtrain.commands.gpus import gpus

    report = gpus(name, count, spot=spot, provider=provider, regions=regions)
    answers: tuple[AccountQuota, ...] = ()
    if cloud:
        from cloudtrain.commands.accounts import account_quotas

        accounts = accounts_of(None, provider, project)
        machines = shown(report, every=every)
        answers = account_quotas(machines, accounts, only_known=bool(regions))
    if as_json:
        quotas = {"accounts": encode(answers, VIEWS)} if cloud else {}
        print_json({**as_document(report), **quotas})
    else:
        width = terminal_width(sys.stdout)
        print_lines(text(report, answers, every=every, spot=spot, width=width))
    return max((answer.exit_code for answer in answers), default=0)


def parsed(kind: str | None) -> tuple[str | None, int | None]:
    """`A100:8` → `A100`, 8. Raises UsageError."""
    if kind is None:
        return None, None
    found = re.fullmatch(r"([^:]+)(?::([1-9]\d*))?", kind)
    if found is None:
        raise UsageError(f"{kind!r} is no GPU: write KIND or KIND:COUNT", hint="for example A100:8")
    return found[1], int(found[2]) if found[2] else None


def text(
    report: GpuReport,
    answers: Sequence[AccountQuota] = (),
    *,
    every: bool = False,
    spot: bool = False,
    width: int | None = None,
) -> Iterator[str]:
    """Lines of at most `width` characters, as far as names allow; None: any."""
    if not report.machines:
        yield from table([KIND_HEAD, *map(kind_cells, report.kinds)])
        prices = [(kind.gpu.kind, (kind.on_demand, kind.spot)) for kind in report.kinds]
    else:
        machines = shown(report, every=every)
        places = [(m, place) for m in machines for place in (m.places if every else m.places[:1])]
        prices = [(m.name, (place.on_demand, place.spot)) for m, place in places]
        yield from machine_lines(machines, every=every, spot=spot, width=width)
        yield from other_markets(machines, width)
        if len(machines) < len(report.machines):
            yield f"{len(report.machines) - len(machines)} more machines: --all"
    if answers:
        rows = list(quota_cells(answers, every=every))
        yield ""
        yield "how many more of each machine your quotas of GPUs and vCPUs allow"
        yield from table([QUOTA_HEAD, *rows]) if rows else ()
        yield from quota_remarks(answers)
    yield ""
    if unfit := [kind.gpu.kind for kind in report.kinds if kind.no_tensorflow]:
        said = f"no TensorFlow runs on {', '.join(unfit)} (docs/machines.md)"
        yield from textwrap.wrap(said, width or len(said))
    yield "? is not known, - is not sold"
    yield from price_lines(report)
    for day, names in sorted(report.older(prices).items()):
        yield f"not in newer tables, of {day}: {some(names)}"


def shown(report: GpuReport, *, every: bool) -> Sequence[GpuMachine]:
    """Machines of a usual shape, or all."""
    return [m for m in report.machines if m.by_default or every] or report.machines


KIND_HEAD = ("GPU", "GB", "CUDA", "in a machine", "clouds", "$/hour", "spot")


def kind_cells(kind: GpuKind) -> tuple[str, ...]:
    major, minor = kind.gpu.capability
    return (
        kind.gpu.kind,
        f"{kind.gpu.memory_gb}",
        f"{major}.{minor}",
        " ".join(map(str, kind.counts)),
        " ".join(kind.providers),
        dollars(kind.on_demand and kind.on_demand.price),
        dollars(kind.spot and kind.spot.price),
    )


MACHINE_HEAD = ("cloud", "machine", "GPUs", "vCPUs", "GiB", "$/hour", "spot", "$/GPU", "region")


def machine_lines(
    machines: Sequence[GpuMachine], *, every: bool, spot: bool, width: int | None
) -> Iterator[str]:
    """A line for each machine, without its memory and vCPUs if it is wider than the terminal
    otherwise, or two where that does not help."""
    rows = [(m, p) for m in machines for p in (m.places if every else m.places[:1])]
    cells = [machine_cells(machine, place, spot=spot) for machine, place in rows]
    where = [place.region for _, place in rows]
    if not every:
        where = [
            f"{name} +{len(machine.places) - 1}" if len(machine.places) > 1 else name
            for name, (machine, _) in zip(where, rows, strict=True)
        ]
    for omitted in (), ("GiB",), ("GiB", "vCPUs"), ():
        kept = [name not in omitted for name in MACHINE_HEAD[:-1]]
        lines = list(table([tuple(compress(row, kept)) for row in (MACHINE_HEAD[:-1], *cells)]))
        fits = width is None or max(len(lines[0]) + 2 + len(name) for name in where) <= width
        if fits:
            break
    yield f"{lines[0]}  {MACHINE_HEAD[-1]}" if fits else lines[0]
    for line, name in zip(lines[1:], where, strict=True):
        if fits:
            yield f"{line}  {name or '?'}"
        else:
            yield line
            if name:
                yield f"       {name}"


def other_markets(machines: Sequence[GpuMachine], width: int | None) -> Iterator[str]:
    """Other ways in which machines are sold: a line for each group of one cloud with the same."""
    groups: dict[tuple[str, tuple[Market, ...]], dict[str, None]] = {}
    for machine in machines:
        others = tuple(dict.fromkeys(other for place in machine.places for other in place.others))
        if others:
            groups.setdefault((machine.provider, others), {})[machine.name] = None
    for (provider, others), names in groups.items():
        line = f"{some(names)} of {provider}: also {', '.join(others)}"
        yield from textwrap.wrap(line, width or len(line), subsequent_indent="  ")


def machine_cells(machine: GpuMachine, place: Place, *, spot: bool) -> tuple[str, ...]:
    counted = place.spot if spot or place.on_demand is None else place.on_demand
    per_gpu = counted.price_per_gpu if counted else None
    return (
        machine.provider,
        machine.name,
        f"{machine.accelerator.count}",
        f"{machine.vcpus}",
        f"{machine.memory_gib:g}",
        dollars(place.on_demand.price) if place.on_demand else NOT_SOLD,
        dollars(place.spot.price) if place.spot else NOT_SOLD,
        "?" if per_gpu is None else f"{per_gpu:.3f}",
    )


def dollars(price: float | None) -> str:
    """`?` for a price that is not known."""
    return "?" if price is None else f"{price:.3f}"


NUMBERS = frozenset({"GB", "CUDA", "GPUs", "vCPUs", "GiB", "$/hour", "on demand", "spot", "$/GPU"})


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Aligned columns; numbers to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            f"{cell:>{width}}" if name in NUMBERS else f"{cell:{width}}"
            for cell, width, name in zip(row, widths, rows[0], strict=True)
        ]
        yield "  ".join(cells).rstrip()


def price_lines(report: GpuReport) -> Iterator[str]:
    """Lines on what prices include and, once for all of them, on their day and age."""
    from cloudtrain.money.estimate import STALE_AFTER

    yield "$/hour of a whole machine, without disks, addresses and traffic"
    if report.age is None:
        yield f"no prices are known: {RENEWED_BY}"
        return
    days = sorted(set(report.dates.values()))
    clouds = [", ".join(name for name, day in report.dates.items() if day == each) for each in days]
    words = [f"{day} ({names})" for day, names in zip(days, clouds, strict=True)]
    age = "1 day old" if report.age.days == 1 else f"{report.age.days} days old"
    if len(days) == 1:
        yield f"prices of {days[0]}, {age}"
    else:
        yield f"prices of {', '.join(words)}, up to {age}"
    if report.stale:
        yield f"warning: older than {STALE_AFTER.days} days: {RENEWED_BY}"


def as_document(report: GpuReport) -> dict[str, Any]:
    """Prices in $/hour; null: not known, or not sold. A date is that of the oldest price."""
    return pick(report, "kinds machines price_dates=dates stale", VIEWS)


def _place_json(place: Place) -> dict[str, Any]:
    dates = [offer.date for offer in (place.on_demand, place.spot) if offer and offer.date]
    offered = {"on_demand": place.on_demand, "spot": place.spot}
    return {
        "region": place.region or None,
        "sold": [market for market, offer in offered.items() if offer is not None]
        + [market.replace("-", "_") for market in place.others],
        "price_per_hour": place.on_demand.price if place.on_demand else None,
        "spot_price_per_hour": place.spot.price if place.spot else None,
        "price_date": min(dates).isoformat() if dates else None,
    }


VIEWS: dict[str, View] = {
    "Accelerator": str,
    "GpuKind": lambda kind: {
        **pick(kind.gpu, "kind memory_gb architecture"),
        "compute_capability": ".".join(map(str, kind.gpu.capability)),
        **pick(kind, "counts providers cheapest=on_demand cheapest_spot=spot", VIEWS),
        "tensorflow": not kind.no_tensorflow,
    },
    "Offer": "provider machine region price_per_hour=price price_date=date",
    "GpuMachine": "provider machine=name accelerator vcpus memory_gib chosen_by_default=by_default "
    "regions=places",
    "Place": _place_json,
    "AccountQuota": lambda answer: {
        **pick(answer, "provider=account.config.provider project=account.config.project"),
        **pick(answer, "allowances not_asked", VIEWS),
        "error": error_json(answer.error, answer.exit_code),
    },
}


QUOTA_HEAD = ("cloud", "machine", "GPUs", "on demand", "spot", "region")


def quota_cells(answers: Sequence[AccountQuota], *, every: bool) -> Iterator[tuple[str, ...]]:
    """A row for each machine and all regions that allow the same of it; `every`: for each region.
    Regions are in order of price, those that allow none last."""
    names = Counter(answer.account.config.provider for answer in answers)
    for answer in answers:
        provider = answer.account.config.provider
        name = provider if names[provider] == 1 else str(answer.account)
        for machine, accelerator, regions in _allowed_machines(answer.allowances):
            groups: dict[tuple[str, str, str], list[str]] = {}
            for region, pair in regions.items():
                on_demand, spot = (_number(pair.get(market)) for market in (False, True))
                groups.setdefault((on_demand, spot, region if every else ""), []).append(region)
            for (on_demand, spot, _), places in sorted(
                groups.items(), key=lambda group: set(group[0][:2]) <= {"0", "-"}
            ):
                where = places[0] if len(places) == 1 else f"{places[0]} +{len(places) - 1}"
                yield name, machine, f"{accelerator.count}", on_demand, spot, where


def _allowed_machines(
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


def quota_remarks(answers: Sequence[AccountQuota]) -> Iterator[str]:
    """Remarks on quotas that allow no machine or are not known, and on accounts and regions that
    did not answer."""
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
