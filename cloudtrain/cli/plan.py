"""`cloudtrain plan`"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from cloudtrain.cli import options
from cloudtrain.cli.printing import print_json, print_lines
from cloudtrain.cli.target import plan_of, read_target
from cloudtrain.core.codec import View, encode, pick
from cloudtrain.core.paths import size_text

if TYPE_CHECKING:
    from cloudtrain.checks.code_sizes import CodePlace
    from cloudtrain.commands.plan import PlannedOffer, PlanReport
    from cloudtrain.money.estimate import Estimate


@options.command("plan", "cloudtrain plan gcp.yaml --json")
@options.file()
@options.refresh_prices
@options.option("--all", "Show every node, even of a large cluster.", name="every")
@options.ignore
@options.as_json
def plan_command(
    file: str, refresh_prices: bool, every: bool, as_json: bool, ignore: tuple[str, ...]
) -> None:
    """Show what `up` and `train` would create and run: every node, TF_CONFIG and command, and
    the price. Offline, unless --refresh-prices: queries nothing, changes nothing."""
    plan = plan_of(file, read_target)
    from cloudtrain.commands import plan as planning

    if refresh_prices:
        planning.refresh_prices()
    report = planning.plan_report(plan, ignore=ignore)
    if as_json:
        print_json(as_document(report))
    else:
        print_lines(text(as_document(report), price_lines(report), every=every))


NO_PRICE = "none: nothing is rented"
FILE_USES = {"variables": "reads", "data": "data", "programs": "runs here", "hosts": "asks"}
"""Titles of what a file uses."""
MAX_SINGLE = 16
"""Nodes that are shown one by one; of a larger cluster, the first of each role."""


def text(
    plan: dict[str, Any], price: Sequence[str] | None = None, *, every: bool = True
) -> list[str]:
    """Lines about a plan; `price`: its price in lines, None as it is there."""
    lines = [f"{plan['name']}  {plan['provider']}  {plan['strategy']}"]
    if plan["offers"]:
        lines += offer_lines(plan)
    elif plan["placement"]:
        lines.append(f"  placement  {', '.join(plan['placement'])}")
    if every or len(plan["nodes"]) <= MAX_SINGLE:
        for node in plan["nodes"]:
            lines += node_text(node)
    else:
        lines += by_role(plan["nodes"])
    if plan["network"]:
        lines.append(f"  network    {network_text(plan['network'])}")
    if plan["code"]:
        lines += code_lines(plan["code"])
    for name, title in FILE_USES.items():
        named = [f"${{{each}}}" if name == "variables" else each for each in plan["uses"][name]]
        lines += [f"  {title:9}  {', '.join(named)}"] if named else []
    lines += [f"  shared     {shared_text(plan['shared'])}"] if plan["shared"] else []
    lines.append(f"  done when  {', '.join(plan['deciding'])} exit 0")
    lines.append(f"  lands      {landing_text(plan['lands'])}")
    lines.append(f"  store      {plan['store'] or 'this machine'}")
    lines += [
        f"  {'' if n else 'price':9}  {line}" for n, line in enumerate(price or [plan["price"]])
    ]
    lines += [f"  set        {override}" for override in plan["set"]]
    lines += [f"  default    {name}, from {place}" for name, place in plan["defaults"].items()]
    lines += [f"  differs    {line}" for line in plan["differs"]]
    return [*lines, *(f"  note: {note}" for note in plan["notes"])]


def shared_text(shared: dict[str, Any]) -> str:
    """The shared folder, and where it is."""
    where = f"in {shared['path']} of every node" if shared["path"] else "on this machine"
    if shared["served"]:
        where = f"on the disk of {shared['node']}, with which all is lost that has not landed"
    return f"{shared['folder']}/ in every work folder, {where}; lands from {shared['node']}"


def landing_text(lands: dict[str, Any]) -> str:
    """Files that are kept of those that a task makes or changes."""
    globs = [path for path in lands["paths"] if path != "auto"]
    if "auto" not in lands["paths"]:
        return f"{', '.join(dict.fromkeys(['output/**', *globs]))} and nothing else"
    places = "its work folder and home" if lands["home"] else "its work folder"
    more = f"; {', '.join(globs)}" if globs else ""
    limit = size_text(lands["limit"])
    return f"what a task makes or changes in {places}, up to {limit} of each{more}"


def price_lines(report: PlanReport) -> tuple[str, ...]:
    from cloudtrain.money.prices import in_lines

    return in_lines(report.bill, report.config) if report.bill else (NO_PRICE,)


def offer_lines(plan: dict[str, Any]) -> list[str]:
    """A line for each offer, in the order in which `up` tries them; below, one is planned."""
    offers = plan["offers"]
    width = max(len(f"{each['provider']} {each['place']}") for each in offers)
    prices = [each["price"] for each in offers]
    dates = {each["price_date"] for each in offers}  # of all: below, with that of the plan
    lines = []
    for number, each in enumerate(offers):
        title = plan["candidate_order"] if number == 0 else ""
        place = f"{each['provider']} {each['place']}"
        line = (
            f"  {title:9}  {number + 1:2}  {place:{width}}  {each['price']:{max(map(len, prices))}}"
        )
        line += f"  {each['machines']}"
        line += f"  prices of {each['price_date']}" if len(dates) > 1 else ""
        line += f"  egress: {each['egress']}" if each["egress"] else ""
        lines.append(line)
        if each["refused"]:
            lines += [f"               not taken: {text}" for text in each["refused"].splitlines()]
    return [*lines, f"  planned    {plan['provider']} {', '.join(plan['placement'])}"]


NAMED = 5
"""Places that are named in a line, if they matter; the rest is counted."""


def code_lines(code: dict[str, Any]) -> list[str]:
    """Lines on what goes to every node, by size, and on what stays here and why."""
    from cloudtrain.core.paths import some

    heavy = [each for each in code["places"] if each["bytes"] * 50 > code["bytes"] > 1_000_000]
    named = ", ".join(f"{each['path']} {size_text(each['bytes'])}" for each in heavy[:NAMED])
    lines = [
        f"  code       {code['files']} files, {size_text(code['bytes'])}: {named}".rstrip(": ")
    ]
    left_out = [
        f"{each['path']} {'' if each['all_counted'] else 'over '}{size_text(each['bytes'])} "
        f"({each['why']})"
        for each in code["left_out"]
    ]
    return [*lines, f"  left out   {some(left_out, NAMED)}"] if left_out else lines


def network_text(network: dict[str, dict[str, Any]]) -> str:
    """`up to 25 Gbit/s between nodes`; with several machine types, each with its own."""
    words = {
        machine: f"{'up to ' if known['up_to'] else ''}{known['gbits']:g} Gbit/s"
        for machine, known in network.items()
    }
    if len(words) == 1:
        return f"{next(iter(words.values()))} between nodes"
    return f"{', '.join(f'{each} {words[each]}' for each in words)} between nodes"


def node_text(node: dict[str, Any], others: int = 0) -> list[str]:
    """One node, or the first of several equal ones."""
    bought = node["provisioning"] if node["provisioning"] != "on demand" else None
    kind = [node["machine"], node["accelerator"], bought]
    kind.append(f"{node['disk_gb']} GB" if node["disk_gb"] else None)
    kind.append(f"{node['price_per_hour']:.4g} $/hour" if node["price_per_hour"] else None)
    name = f"  {node['name']}" + (f" and {others} more" if others else "")
    lines = ["  ".join(filter(None, [name, *kind, f"port {node['port']}"]))]
    lines.append(f"    command    {node['command']}")
    if node["tf_config"]:
        lines.append(f"    TF_CONFIG  {node['tf_config']}")
    return lines


def by_role(nodes: list[dict[str, Any]]) -> list[str]:
    """The first node of each role; the whole TF_CONFIG once, as it lists every node."""
    lines: list[str] = []
    shown = False
    for _, of_role in groupby(nodes, key=lambda node: node["role"]):
        first, *others = of_role
        whole = node_text(first, len(others))
        if shown and first["role"] != "evaluator" and first["tf_config"]:
            task = json.loads(first["tf_config"])["task"]
            whole[-1] = f"    TF_CONFIG  as above, with the task {json.dumps(task)}"
        if others and first["tf_config"]:
            whole.append("               the others differ in the task index (--all shows each)")
        shown = shown or bool(first["tf_config"])
        lines += whole
    return lines


def as_document(report: PlanReport) -> dict[str, Any]:
    """The report as --json prints it. Prices are null if not known, 0 if nothing is rented."""
    from cloudtrain.core.cloud import facts_of, served_folder
    from cloudtrain.money.prices import in_words

    config, cost = report.config, report.bill
    return {
        **pick(config, "name provider strategy placement"),
        "candidate_order": config.candidate_order or None,
        "offers": [_offer_json(each) for each in report.offers],
        "nodes": [
            {
                **pick(task.node, "name role index machine accelerator disk_gb", VIEWS),
                **pick(task.node, "spot provisioning", VIEWS),
                "price_per_hour": rounded(task.price_per_hour),
                "port": task.node.port,
                **pick(task, "command tf_config"),
            }
            for task in report.tasks
        ],
        **pick(report, "deciding set=config.overrides defaults=config.defaults differs notes"),
        **pick(report, "network code uses", VIEWS),
        "lands": {
            **pick(config.artifacts, "paths limit"),
            "home": not facts_of(config.provider).takes_hosts,
        },
        "shared": config.shared
        and {
            **pick(config.shared, "folder path"),
            "node": report.plan.nodes[0].name,
            "served": served_folder(config) is not None,
        },
        "store": config.artifacts.store,
        "price": in_words(cost, config) if cost else NO_PRICE,
        **_price_json(cost, 0.0),
        "price_parts": {
            name: rounded(getattr(cost, name, 0.0)) for name in ("machines", "disks", "addresses")
        },
        "price_at_most": rounded(report.price_at_most),
        "price_place": cost.place if cost else None,
        "price_date": encode(cost.date) if cost else None,
    }


VIEWS: dict[str, View] = {
    "Accelerator": str,
    "Provisioning": str,
    "Bandwidth": "gbits up_to",
    "CodeSizes": lambda code: {
        **pick(code, "files bytes=size"),
        "places": [_code_place(each) for each in code.delivered],
        "left_out": [
            {**_code_place(each), **pick(each, "all_counted=whole why")} for each in code.left_out
        ],
    },
}


def _code_place(place: CodePlace) -> dict[str, Any]:
    from cloudtrain.core.paths import shown

    return {"path": shown(place.path), "bytes": place.size}


def _price_json(cost: Estimate | None, nothing: float | None) -> dict[str, Any]:
    return {
        "price_per_hour": rounded(cost.per_hour if cost else nothing),
        "price_per_hour_at_most": rounded(cost.most if cost else nothing),
    }


def _offer_json(planned: PlannedOffer) -> dict[str, Any]:
    from cloudtrain.money.prices import per_hour

    offer = planned.offer
    kinds = dict.fromkeys(
        f"{node.provisioning.shown} {node.machine}".lstrip()
        + (f" {node.accelerator}" if node.accelerator else "")
        for node in offer.plan.nodes
    )
    return {
        **pick(offer, "provider=plan.config.provider project=plan.config.project place"),
        "machines": ", ".join(kinds),
        "price": per_hour(offer.price),
        **_price_json(offer.price, None),
        "price_date": encode(offer.price.date) if offer.price else None,
        "egress": planned.egress or None,
        "refused": planned.refused or None,
    }


def rounded(amount: float | None) -> float | None:
    return None if amount is None else round(amount, 6)
