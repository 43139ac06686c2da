"""The hint to a missing package adds it to the installation that is there, from where that came."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.core import extras
from cloudtrain.core.extras import Installed, install_hint, origin_of

REQUIRES = (
    "click>=8.4",
    "apache-libcloud>=3.9; extra == 'gcp'",
    'google-cloud-storage >=2.14 ; python_version > "3" and extra == "gcp"',
    "boto3; extra == 'aws'",
)


@pytest.mark.parametrize(
    ("installed", "line"),
    [
        ({"editable": Path("/src/ct")}, "pip install -e '/src/ct[gcp]'"),
        ({"origin": "/a b/cloudtrain-1-py3-none-any.whl"},
         "pip install '/a b/cloudtrain-1-py3-none-any.whl[gcp]'"),
        ({"origin": "git+https://host/x@v1"},
         "pip install 'cloudtrain[gcp] @ git+https://host/x@v1'"),
        ({}, "pip install 'cloudtrain[gcp]'"),
        ({"owner": "uv", "editable": Path("/s")}, "uv pip install -e '/s[gcp]'"),
        ({"owner": "pipx", "environment": "cloudtrain-2"},
         "pipx inject cloudtrain-2 'apache-libcloud>=3.9' 'google-cloud-storage>=2.14'"),
        ({"owner": "uv tool", "origin": "/w.whl"},
         "uv tool install --with 'apache-libcloud>=3.9' --with 'google-cloud-storage>=2.14'"
         " /w.whl"),
        ({"owner": "uv tool", "editable": Path("/s")},
         "uv tool install --with 'apache-libcloud>=3.9' --with 'google-cloud-storage>=2.14'"
         " --editable /s"),
    ],
)  # fmt: skip
def test_the_line_follows_how_it_was_installed(installed: dict[str, Any], line: str) -> None:
    assert install_hint("gcp", Installed(requires=REQUIRES, **installed)) == line


@pytest.mark.parametrize(
    ("direct", "origin"),
    [
        ({"url": "file:///a%20b/x.whl", "archive_info": {}}, "/a b/x.whl"),
        ({"url": "https://host/x.git",
          "vcs_info": {"vcs": "git", "requested_revision": "main", "commit_id": "a"}},
         "git+https://host/x.git@main"),
        ({"url": "https://host/x.whl", "archive_info": {}}, "https://host/x.whl"),
        ({}, ""),
    ],
)  # fmt: skip
def test_pips_record_says_where_it_came_from(direct: dict[str, object], origin: str) -> None:
    assert origin_of(direct) == origin


@pytest.mark.parametrize(
    ("file", "text", "begins"),
    [
        ("pipx_metadata.json", "{}", "pipx inject venv "),
        ("uv-receipt.toml", "", "uv tool install --with "),
        ("pyvenv.cfg", "home = /x\nuv = 0.5.1\n", "uv pip install -e "),
        ("pyvenv.cfg", "home = /x\n", "pip install -e "),
    ],
)
def test_the_environment_says_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str, begins: str
) -> None:
    prefix = tmp_path / "venv"
    prefix.mkdir()
    (prefix / file).write_text(text)
    monkeypatch.setattr(extras.sys, "prefix", str(prefix))
    assert install_hint("gcp").startswith(begins)


def test_a_checkout_that_runs_as_it_is_is_installed_from_there() -> None:
    checkout = Path(__file__).parents[2]
    assert shlex.split(install_hint("report"))[-1] == f"{checkout}[report]"


def test_no_page_asks_an_index_for_the_name() -> None:
    root = Path(__file__).parents[2]
    pages = [root / "README.md", *root.glob("docs/**/*.md"), *root.glob("configs/**/*.yaml")]
    by_name = re.compile(r"install 'cloudtrain\[\w+\]'")  # not `… @ git+URL`
    asking = [str(page) for page in pages if by_name.search(page.read_text("utf-8"))]
    assert asking == []
