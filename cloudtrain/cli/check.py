"""`cloudtrain check`"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from cloudtrain.cli import options
from cloudtrain.cli.printing import print_json, print_lines, shown
from cloudtrain.cli.target import plan_of
from cloudtrain.console.lines import quoted
from cloudtrain.core.codec import pick
from cloudtrain.core.finding_kinds import THIS_MACHINE

if TYPE_CHECKING:
    from cloudtrain.core.protocols import Finding

HOSTS = 8
"""Good hosts with a line of their own."""


@options.command("check", "cloudtrain check gcp.yaml")
@options.file(required=False)
@options.option(
    "--deep",
    "Also test the account, for about a cent: one cheapest machine is created, logged in to,"
    " has its end confirmed, uploads a file and is deleted; azure validates the requests besides.",
)
@options.option("--all", "Show each finding about this machine and each host.", name="every")
@options.option(
    "--policy", "Only print the least policy or role for this file, to paste; asks nobody."
)
@options.option(
    "--gpu",
    "Instead ask the machines of `hosts` about their GPUs, for a minute: driver, fabric, errors,"
    " memory, and what TensorFlow computes there.",
)
@options.ignore
@options.events
@options.shows("progress")
@options.as_json
@options.record
def check_command(
    file: str | None,
    deep: bool,
    every: bool,
    policy: bool,
    gpu: bool,
    as_json: bool,
    ignore: tuple[str, ...],
) -> int:
    """Find problems that would stop `up` or `train`, before anything is created: in the config,
    machines and their price, credentials, quota, code, secrets and the store. Changes nothing. The
    exit code is that of the most serious finding."""
    plan = plan_of(file)
    from cloudtrain.checks.check import check, least_policy

    if policy:
        print_lines(least_policy(plan.config).splitlines())
        return 0
    if gpu:
        from cloudtrain.checks.host_gpus import host_gpus

        findings = host_gpus(plan.config)
    else:
        with shown() as progress:
            findings = check(plan, deep=progress if deep else None, ignore=ignore)
    code = worst(findings)
    if as_json:
        print_json({"ok": not code, "findings": [as_document(f) for f in findings]})
    else:
        print_lines(of_gpus(findings) if gpu else screen(findings, every=every), painted=painted)
    return code


def of_gpus(findings: Sequence[Finding]) -> Iterator[str]:
    """All findings, then a summary."""
    yield from lines(findings, max(len(each.what) for each in findings))
    wrong = sum(not finding.ok for finding in findings)
    yield f"{wrong} of {len(findings)} findings would stop a training" if wrong else "all is well"


def worst(findings: Sequence[Finding]) -> int:
    """The exit code: of candidates, that of the best one counts."""
    codes: dict[str, int] = {"": 0}
    for finding in findings:
        code = 0 if finding.ok else exit_code(finding)
        codes[finding.place] = max(code, codes.get(finding.place, 0))
    return max(codes.pop(""), min(codes.values(), default=0))


def screen(findings: Sequence[Finding], *, every: bool = False) -> Iterator[str]:
    """Good findings on a line each, those about this machine and about many hosts on one for all,
    unless `every`; then the bad ones in full, with hints; then a summary. Those of each candidate
    below its name."""
    of_all = [finding for finding in findings if not finding.place]
    folded: list[Finding] = []
    good = [] if every else [finding for finding in of_all if finding.ok and finding.told]
    for kind, of_kind, most in (
        ("this machine", [each for each in good if each.what in THIS_MACHINE], 1),
        ("hosts", [each for each in good if each.what.startswith("host ")], HOSTS),
    ):
        if len(of_kind) > most:
            yield f"ok    {kind} ({len(of_kind)})"
            folded += of_kind
    width = max((len(each.what) for each in findings if each not in folded), default=0)
    yield from lines([each for each in of_all if each not in folded], width)
    places = list(dict.fromkeys(finding.place for finding in findings if finding.place))
    for place in places:
        yield f"{place}:"
        of_place = [finding for finding in findings if finding.place == place]
        yield from (f"  {line}" for line in lines(of_place, width))
    if not places:
        yield summary(findings)
        return
    open_to = [
        place for place in places if not any(f.place == place and not f.ok for f in findings)
    ]
    wrong = sum(not finding.ok for finding in of_all)
    if wrong:
        yield f"{wrong} of {len(of_all)} findings would stop `cloudtrain up` everywhere"
    elif open_to:
        yield f"nothing found would stop `cloudtrain up` in {'; '.join(open_to)}"
    else:
        yield "each candidate has findings that would stop `cloudtrain up`"


SIGNS = {"ok": "green", "?": "yellow", "FAIL": "red"}


def painted(text: str) -> str:
    """The text with the sign of each finding in its colour."""
    return re.sub(
        r"^((?:  )?)(ok|\?|FAIL)(?= )",
        lambda found: found[1] + click.style(found[2], SIGNS[found[2]]),
        text,
        flags=re.MULTILINE,
    )


def lines(findings: Sequence[Finding], width: int) -> Iterator[str]:
    for finding in findings:
        if finding.ok:
            first, *more = quoted(finding.text).splitlines() or [""]
            shown = finding.lines or (f"{first} …" if more else first,)
            sign = "ok   " if finding.told else "?    "
            yield f"{sign} {finding.what:{width}}  {shown[0]}".rstrip()
            yield from (f"      {'':{width}}  {line}" for line in shown[1:])
    wrong = [finding for finding in findings if not finding.ok]
    for finding in wrong:
        first, *more = finding.lines or quoted(finding.text).splitlines() or [""]
        yield f"FAIL  {finding.what:{width}}  {first}"
        yield from (f"      {'':{width}}  {line}" for line in more)
        if finding.hint:
            yield f"      {'':{width}}  hint: {quoted(finding.hint)}"


def summary(findings: Sequence[Finding]) -> str:
    wrong = [finding for finding in findings if not finding.ok]
    unchecked = dict.fromkeys(f.what for f in findings if f.ok and not f.told)
    if wrong:
        return f"{len(wrong)} of {len(findings)} findings would stop `cloudtrain up`"
    if unchecked:
        return f"nothing found would stop `cloudtrain up`; not checked: {', '.join(unchecked)}"
    return "nothing would stop `cloudtrain up`"


def exit_code(finding: Finding) -> int:
    code = getattr(finding.error, "exit_code", 1)
    assert isinstance(code, int)
    return code


def as_document(finding: Finding) -> dict[str, Any]:
    return {
        "what": finding.what,
        "place": finding.place or None,
        **pick(finding, "ok told text hint"),
        "exit_code": 0 if finding.ok else exit_code(finding),
    }
