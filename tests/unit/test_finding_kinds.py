"""Kinds of findings are named as `check` names them, and listed as docs/commands.md has them."""

from __future__ import annotations

from pathlib import Path

import cloudtrain
from cloudtrain.commands.init import page
from cloudtrain.core.finding_kinds import FINDINGS, IGNORABLE


def test_each_kind_is_the_name_of_a_finding_somewhere() -> None:
    folders = (Path(cloudtrain.__file__).parent / name for name in ("checks", "providers"))
    code = "".join(
        path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.py")
    )
    assert [name for name in FINDINGS if f'"{name}"' not in code] == []


def test_the_page_lists_what_can_be_ignored() -> None:
    listed = ", ".join(f"`{name}`" for name in IGNORABLE)
    assert f"- `--ignore WHAT,…`: {listed}" in page("commands").text
