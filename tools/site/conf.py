"""Sphinx's settings for the site that tools/build_site.py makes of docs/*.md."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

project = "cloudtrain"
html_title = "cloudtrain"
extensions = ["myst_parser"]
myst_heading_anchors = 6  # names as GitHub gives them, so that a link works in both places
html_theme = "furo"
html_static_path = [str(Path(__file__).parent / "static")]
html_css_files = ["draw.css"]
html_copy_source = False
html_use_index = False


def with_navigation(page: str) -> str:
    """The first page with a toctree for each of its sections: its links are the navigation."""
    trees = []
    for section in re.split(r"^## ", page, flags=re.M)[1:]:
        links = re.findall(r"\[([^\]]+)\]\(([\w/-]+)\.md\)", section)
        rows = "\n".join(f"{title} <{name}>" for title, name in links)
        caption = section.partition("\n")[0]
        trees.append(f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{rows}\n```")
    return page + "\n" + "\n\n".join(trees) + "\n"


def read_page(app: Sphinx, name: str, source: list[str]) -> None:
    if name == app.config.root_doc:
        source[0] = with_navigation(source[0])
    # A Markdown file outside docs/ is no page of the site: a copy of it is linked.
    up = "../" * (name.count("/") + 1)
    source[0] = re.sub(rf"\]\(({up}[^)]+\.md)\)", r"](path:\1)", source[0])


class Drawings(SphinxPostTransform):
    """Leaves ```mermaid blocks to the browser, which draws them with the site's own script."""

    default_priority = 100  # before Pygments, which does not know the language

    def run(self, **_: Any) -> None:
        for block in list(self.document.findall(nodes.literal_block)):
            if block.get("language") == "mermaid":
                text = f'<pre class="mermaid">{html.escape(block.astext())}</pre>'
                block.replace_self(nodes.raw("", text, format="html"))


def add_scripts(
    app: Sphinx, _name: str, _template: str, _context: dict[str, Any], tree: nodes.document | None
) -> None:
    """Gives the drawing script, 3.5 MB, to the pages that have a drawing."""
    raw = tree.findall(nodes.raw) if tree else ()
    if any('class="mermaid"' in node.astext() for node in raw):
        app.add_js_file("mermaid.min.js")
        app.add_js_file("draw.js")


def setup(app: Sphinx) -> None:
    app.connect("source-read", read_page)
    app.connect("html-page-context", add_scripts)
    app.add_post_transform(Drawings)
