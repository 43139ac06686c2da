"""What an error tells, and that it is made anew rather than changed."""

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import cloudtrain
from cloudtrain.cli.app import COMMANDS, cli
from cloudtrain.cli.check import lines as check_lines
from cloudtrain.cli.errors import show
from cloudtrain.console.plain import PlainConsole
from cloudtrain.core.errors import (
    CapacityError,
    CloudError,
    NodesError,
    PlaceRefusal,
    QuotaError,
    StepFailed,
    text_of,
)
from cloudtrain.core.protocols import Finding
from tests.support.sources import nodes


def test_a_copy_has_the_class_and_the_facts_and_the_first_error_stays_as_it_was() -> None:
    first = CapacityError("no T4", hint="elsewhere", scope="region", code="STOCKOUT")
    copy = first.copy_with(what="m-chief0", in_group=True)
    assert type(copy) is CapacityError
    assert (str(copy), copy.message, copy.hint) == (
        "m-chief0: no T4",
        "m-chief0: no T4",
        "elsewhere",
    )
    assert (copy.scope, copy.code, copy.in_group, copy.exit_code) == ("region", "STOCKOUT", True, 3)
    assert (str(first), first.message, first.in_group) == ("no T4", "no T4", False)


@pytest.mark.parametrize(
    "error",
    [
        StepFailed("m-chief0", "failed", step="base", step_exit_code=3, last_lines=("a", "b")),
        NodesError({"a": CloudError("x", hint="h"), "b": KeyError("y")}),
    ],
)
def test_an_error_that_is_made_of_more_than_words_is_copied_with_all_of_it(
    error: StepFailed | NodesError,
) -> None:
    copy = error.copy_with(hint="again")
    assert vars(copy) == {**vars(error), "hint": "again"}
    assert str(copy) == str(error)


def test_an_error_of_a_node_is_told_apart_by_its_node_and_not_by_how_its_text_begins() -> None:
    begins_alike = CloudError("m-worker1: is what the cloud calls it", what="m-worker10")
    failures = {"m-worker1": CloudError("no room", what="m-worker1"), "m-worker10": begins_alike}
    assert NodesError(failures).message.splitlines() == [
        "m-worker1: no room",
        "m-worker10: m-worker1: is what the cloud calls it",
    ]
    assert text_of("m-worker1", begins_alike) == begins_alike.message


def test_of_several_refusals_the_last_is_enough_however_they_are_worded() -> None:
    east = PlaceRefusal(place="east", error=QuotaError("quota\nof 0"))
    west = PlaceRefusal(place="west", error=CapacityError("no\nroom", what="m-worker1"))
    every = CapacityError("reworded\n").copy_with(refusals=(east, west))
    assert every.brief == "west: m-worker1: no room"
    candidates = (west, PlaceRefusal(place="aws", error=every))
    of_both = CapacityError("of both").copy_with(refusals=candidates)
    assert of_both.brief == "aws: west: m-worker1: no room"
    assert QuotaError("quota\nof 0").brief == "quota of 0"


def test_a_copy_has_no_cause_of_its_own() -> None:
    with pytest.raises(CloudError) as caught:
        raise CloudError("refused") from OSError("reset")
    assert caught.value.copy_with(hint="again").__cause__ is None


FORGED = (
    "refused\nhint: pass --discard\r\n  error: gone\rhint: a\u2028warning: b\x1b[1Ghint: c\nline"
)


def test_a_finding_of_check_quotes_them_too() -> None:
    for ok in (True, False):
        finding = Finding(what="quota", ok=ok, text=FORGED, hint=FORGED, lines=())
        told = "\n".join(check_lines([finding], 5)).splitlines()
        ours = [line for line in told if re.match(r"\W*(error|hint|warning): ", line)]
        assert [line for line in ours if "| " not in line] == ([] if ok else [HINT])


HINT = "             hint: refused"


@pytest.mark.parametrize("where", ["message", "hint", "say", "warn"])
def test_no_line_of_what_a_cloud_or_a_node_says_looks_like_ours(
    capsys: pytest.CaptureFixture[str], where: str
) -> None:
    """The JSON has it as it was."""
    error = CloudError("m: no" if where == "hint" else FORGED, hint=FORGED)
    console = PlainConsole(err=sys.stderr, out=sys.stdout)
    if where in ("say", "warn"):
        getattr(console, where)(FORGED)
    else:
        show(error, as_json=True, debug=False)
    shown = capsys.readouterr()
    lines = [line.strip() for line in shown.err.splitlines()]
    ours = [line for line in lines if re.match(r"(error|hint|warning): ", line)]
    assert len(ours) == (2 if where in ("message", "hint") else 0), shown.err
    assert "| hint: pass --discard" in lines
    assert "line" in lines
    if shown.out:
        assert json.loads(shown.out)["error"]["hint"] == FORGED


SAY_ENOUGH = Counter(
    {
        "artifacts/landing.py": 1,
        "away/away_orders.py": 1,
        "cli/accounts.py": 1,
        "cli/report.py": 1,
        "commands/accounts.py": 1,
        "commands/gpus.py": 2,
        "commands/import_file.py": 4,
        "commands/init.py": 1,
        "config/__init__.py": 1,
        "config/additions.py": 1,
        "config/env_file.py": 1,
        "importers/submit_line.py": 1,
        "importers/values.py": 1,
        "providers/local/provider.py": 1,
        "runs/start.py": 1,
        "ssh/keys.py": 3,
        "ssh/user_config.py": 1,
        "stores/file.py": 1,
        "stores/objects.py": 2,
    }
)
"""How many UsageErrors of a module have no hint, as their text alone says what to do."""


def test_each_error_about_what_a_user_gave_has_a_hint_or_says_enough() -> None:
    """Not click's own, which has the usage line."""
    found = [place for path in sources() for place in without_hint(path)]
    counted = Counter(place.partition(":")[0] for place in found)
    new = [each for each in found if counted[name := each.partition(":")[0]] > SAY_ENOUGH[name]]
    assert new == [], "pass it `hint=`, what to do next; or count it in SAY_ENOUGH here"
    assert counted == SAY_ENOUGH, "a hint was added: count it no more in SAY_ENOUGH here"


def test_commands_flags_and_pages_that_a_hint_names_exist() -> None:
    """Those of errors, findings, refusals and logs."""
    tables = [*(PACKAGE / "providers").rglob("*.yaml"), *(PACKAGE / "diagnosis").glob("*.yaml")]
    texts = [" ".join(path.read_text("utf-8").split()) for path in tables]
    for path in sources():
        for node in nodes(path, ast.Call):
            values = [each.value for each in node.keywords if each.arg == "hint"]
            texts += [ast.unparse(value).replace("\\n", " ") for value in values]
    named = [found for text in texts for found in re.findall(r"`cloudtrain ([\w-]+)([^`]*)`", text)]
    assert len(named) > 50
    unknown = {name for name, _ in named} - COMMANDS.keys()
    assert unknown == set(), "there is no such command"
    for name, words in named:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        known = {flag for item in command.params for flag in item.opts}
        flags = {*re.findall(r"(?<!\S)--[a-z][\w-]*", words.partition(" -- ")[0])} - {"--debug"}
        assert flags - known == set(), f"cloudtrain {name}{words}"
    pages = {page for text in texts for page in re.findall(r"docs/([\w/-]+\.md)", text)}
    lacking = [page for page in pages if not (PACKAGE.parent / "docs" / page).exists()]
    assert lacking == [], "there is no such page"


PACKAGE = Path(cloudtrain.__file__).parent


def sources() -> list[Path]:
    folders = (PACKAGE, PACKAGE / "providers", PACKAGE / "playbooks")
    return [path for folder in folders for path in sorted(folder.rglob("*.py"))]


def without_hint(path: Path) -> Iterator[str]:
    for node in nodes(path, ast.Call):
        if {"hint", None} & {each.arg for each in node.keywords}:
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name == "UsageError" and ast.unparse(node.func) in ("UsageError", "errors.UsageError"):
            yield f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}"
