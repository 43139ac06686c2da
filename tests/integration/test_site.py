"""The documentation site: it builds without a warning, and what is wrong in a page is named."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import build_site

ROOT = Path(__file__).parents[2]


def build(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "build_site.py"), "--out", str(out), *options]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("built") / "site"
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_builds_and_lists_every_page(site: Path) -> None:
    first = (site / "index.html").read_text()
    captions = re.findall(r'class="caption-text">([^<]+)<', first)
    assert captions[:3] == ["Read these five, in this order", "Something is wrong", "How to"]
    navigation = set(re.findall(r'class="reference internal" href="([\w/-]+)\.html"', first))
    docs = ROOT / "docs"
    pages = {str(path.relative_to(docs).with_suffix("")) for path in docs.rglob("*.md")}
    assert navigation == pages - {"index"}


def test_a_page_with_diagrams_has_the_script_that_draws_them(site: Path) -> None:
    blocks = (ROOT / "docs" / "internals" / "states.md").read_text().count("```mermaid\n")
    drawn = (site / "internals" / "states.html").read_text()
    assert drawn.count('<pre class="mermaid">flowchart') == blocks > 0
    assert {"_static/mermaid.min.js", "_static/draw.js"} <= {
        address.partition("?")[0].removeprefix("../") for address in build_site.Page(drawn).loads
    }
    assert (site / "_static" / "mermaid.min.js").stat().st_size > 1_000_000
    assert "mermaid.min.js" not in (site / "local.html").read_text()


def test_what_is_wrong_in_a_page_fails_the_build_and_is_named(tmp_path: Path) -> None:
    source = tmp_path / "docs"
    source.mkdir()
    (source / "index.md").write_text("# Title\n\n## First steps\n\n- [Start](start.md)\n")
    (source / "start.md").write_text(
        "# Start\n\n[a](gone.md)\n[b](index.md#nowhere)\n[c](#no-heading)\n[d](../bench/gone.md)\n"
    )
    (source / "unlisted.md").write_text("# Unlisted\n")
    done = build(tmp_path / "site", "--source", str(source))
    assert done.returncode == 1
    warnings = [line for line in done.stderr.splitlines() if "WARNING" in line]
    for wrong in ("gone.md", "nowhere", "no-heading", "bench/gone", "unlisted.md"):
        assert any(wrong in line for line in warnings), wrong


def test_a_file_from_another_host_and_a_link_without_target_are_problems(tmp_path: Path) -> None:
    (tmp_path / "one.html").write_text(
        '<script src="https://cdn.example/a.js"></script><img src="//img.example/b.png">'
        '<link rel="stylesheet" href="gone.css"><h1 id="here">x</h1>'
        '<a href="#here">1</a><a href="#gone">2</a><a href="two.html">3</a>'
        '<a href="https://other.example/">4</a>'
    )
    (tmp_path / "a.css").write_text(
        '@import "https://fonts.example/c.css"; a { background: url(data:image/png;base64,AA) }'
        ' b { background: url("//img.example/d.png") }'
    )
    assert list(build_site.site_problems(tmp_path)) == [
        "one.html loads https://cdn.example/a.js from another host",
        "one.html loads //img.example/b.png from another host",
        "one.html: no anchor for the link #gone",
        "one.html: no file for the link two.html",
        "one.html: no file for the link gone.css",
        "a.css loads https://fonts.example/c.css from another host",
        "a.css loads //img.example/d.png from another host",
    ]


def test_a_link_of_the_readme_to_a_missing_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(
        "[a](docs/gone.md#x) [b](README.md) `[c](d)`\n```\n[e](f)\n```\n[g](https://example.org/)\n"
    )
    assert list(build_site.text_problems(tmp_path)) == [
        "README.md: no file for the link docs/gone.md#x"
    ]
