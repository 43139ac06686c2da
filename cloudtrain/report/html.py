"""Writes HTML: every text is escaped, and only `element` makes markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def element(name: str, *content: str | Iterable[str], **attributes: str | int) -> Html:
    """An element with its content: `Html` as it is, any other text escaped. `class_` and `for_` are
    written without their underscore, others with a dash for it."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
    )
    return Html(f"<{name}{words}>{joined(content)}</{name}>")


def joined(content: Iterable[str | Iterable[str]]) -> Html:
    found: list[str] = []
    for each in content:
        if isinstance(each, Html):
            found.append(each)
        elif isinstance(each, str):
            found.append(escape(each.encode("utf-8", "replace").decode()))
        else:
            found.append(joined(each))
    return Html("".join(found))


def with_code(text: str) -> Html:
    """Text in which what stands in backticks is code."""
    parts = re.split(r"`([^`]+)`", text)
    return joined(element("code", part) if n % 2 else part for n, part in enumerate(parts))


def table(caption: str, head: Iterable[str], rows: Iterable[Iterable[str]]) -> Html:
    """A table, of which a narrow screen shows each row as a list; the first cell of a row is its
    heading."""
    names = tuple(head)
    titles = element("tr", [element("th", title, scope="col") for title in names])
    lines = []
    for row in rows:
        first, *rest = row
        named = zip(names[1:], rest, strict=True)
        cells = [element("th", first, scope="row")]
        cells += [element("td", cell, data_name=name) for name, cell in named]
        lines.append(element("tr", cells))
    body = (element("caption", caption), element("thead", titles), element("tbody", lines))
    return element(
        "div", element("table", body), class_="wide", tabindex=0, role="region", aria_label=caption
    )


def facts(rows: Mapping[str, str]) -> Html:
    pairs = (joined([element("dt", name), element("dd", text)]) for name, text in rows.items())
    return element("dl", pairs)


def folded(title: str, *content: str | Iterable[str]) -> Html:
    """Content behind a title that opens it."""
    return element("details", element("summary", title), joined(content))
