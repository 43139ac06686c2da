"""`cloudtrain docs`: the pages, as the package has them."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from cloudtrain.cli.app import cli

DOCS = Path(__file__).resolve().parents[2] / "docs"


def docs(*words: str) -> Result:
    return CliRunner().invoke(cli, ["docs", *words])


def test_a_page_is_printed_as_it_is_written() -> None:
    for name in ("config", "config.md", "docs/config.md", "Config"):
        assert docs(name).stdout == (DOCS / "config.md").read_text("utf-8")


def test_a_page_of_a_folder_is_found_by_its_own_name() -> None:
    text = (DOCS / "internals" / "states.md").read_text("utf-8")
    assert docs("states").stdout == docs("docs/internals/states.md").stdout == text


def test_without_a_page_it_is_the_one_that_lists_them() -> None:
    assert docs().stdout == (DOCS / "index.md").read_text("utf-8")


def test_every_page_is_listed_with_its_title() -> None:
    listed = {line.split()[0]: line for line in docs("--list").stdout.splitlines()}
    paths = [*DOCS.glob("*.md"), *DOCS.glob("*/*.md")]
    assert listed.keys() == {str(path.relative_to(DOCS).with_suffix("")) for path in paths}
    assert listed["config"].endswith("The config file") or "config" in listed["config"].lower()
    found = json.loads(docs("--list", "--json").stdout)["pages"]
    assert {one["name"] for one in found} == listed.keys()


def test_a_page_as_json_has_its_text() -> None:
    found = json.loads(docs("glossary", "--json").stdout)
    assert (found["name"], found["title"]) == ("glossary", "Glossary")
    assert found["text"].startswith("# Glossary\n")


def test_an_unknown_page_names_the_nearest() -> None:
    done = docs("confg")
    assert done.exit_code != 0
    assert "did you mean `cloudtrain docs config`?" in str(done.exception) + done.output + str(
        getattr(done.exception, "hint", "")
    )
    assert docs("../pyproject").exit_code != 0
