"""Charts of a report: each an SVG by matplotlib (the extra `report`), with its
values in a table behind it. Without matplotlib, the tables alone."""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import re
import sys
from collections.abc import Sequence
from functools import cache, lru_cache

from cloudtrain.core.own_python import NEUTRAL
from cloudtrain.report.facts import Chart, Series
from cloudtrain.report.html import Html, element, folded, joined, table

COLOURS = 6
"""Colours of curves in page.css, from --c0 on; then they repeat, with another line."""

LINES = ("-", "--", ":", "-.")

CURVES = 16
"""Curves of one chart that are drawn; the table has all."""

FEWEST = 3
"""Points of the longest curve from which a chart is drawn: two are read faster in the table."""

ROWS = 12
"""Points of each curve in its table."""

TIMES = ("second", "minute")
"""Units of `x` that are times."""

INK = "#010203"
"""Stands for the page's own text colour while matplotlib draws."""


@cache
def missing_library() -> bool:
    return importlib.util.find_spec("matplotlib") is None


def charts(found: Sequence[Chart]) -> Html:
    figures = [figure(number, chart) for number, chart in enumerate(found)]
    return element("div", figures, class_="charts")


def figure(number: int, chart: Chart) -> Html:
    drawn = [series for series in chart.series if series.x][:CURVES]
    if max((len(series.x) for series in drawn), default=0) < FEWEST:
        drawn = []
    parts = [element("figcaption", f"{chart.metric} by {chart.unit}")]
    if drawn and not missing_library():
        word = re.sub(r"[^a-z0-9]", "", chart.metric.lower())[:20]  # for ids, as of one page
        parts.append(_svg(f"c{word}{number}", chart, tuple(drawn)))
        parts.append(element("ul", [_key(n, each) for n, each in enumerate(drawn)], class_="key"))
    lost = sum(series.not_finite for series in chart.series)
    if lost:
        parts.append(element("p", f"{lost} values are NaN or infinite, and not shown."))
    if len(chart.series) > len(drawn) > 0 and len(drawn) == CURVES:
        parts.append(element("p", f"The first {CURVES} of {len(chart.series)} curves are drawn."))
    values = table(f"{chart.metric} by {chart.unit}", _HEAD, map(_row, chart.series))
    parts.append(values if missing_library() else folded("Values", values))
    return element("figure", parts)


_HEAD = ("curve", "first", "last", "lowest", "highest", "points")


def _row(series: Series) -> tuple[str, ...]:
    if not series.x:
        return (_name(series), *("–" for _ in _HEAD[1:]))
    step = max(1, -(-len(series.x) // ROWS))
    pairs = zip(series.x[::step], series.y[::step], strict=True)
    points = ", ".join(f"{x:g}: {y:.4g}" for x, y in pairs)
    low, high = min(series.y), max(series.y)
    figures = (series.y[0], series.y[-1], low, high)
    return (_name(series), *(f"{each:.4g}" for each in figures), points)


def _name(series: Series) -> str:
    return f"{series.name}, attempt {series.attempt}" if series.attempt else series.name


def _key(number: int, series: Series) -> Html:
    kinds = {"-": "solid", "--": "dashed", ":": "dotted", "-.": "double"}
    colour, line = _look(number)
    style = f"border-top-style:{kinds[line]};border-color:var(--c{colour})"
    return element("li", element("span", class_="line", style=style), f" {_name(series)}")


def _look(number: int) -> tuple[int, str]:
    """Colour and line of a curve: neither alone tells two of them apart."""
    return number % COLOURS, LINES[(number // COLOURS + number) % len(LINES)]


@lru_cache(maxsize=64)
def _svg(name: str, chart: Chart, drawn: tuple[Series, ...]) -> Html:
    """The chart as an SVG element without foreign text: names are in the page around it. Colours
    are the page's, so that they follow dark mode and print. `report --watch` draws again what has
    changed."""
    _import_matplotlib()
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    settings = {"svg.fonttype": "none", "svg.hashsalt": name, "text.parse_math": False}
    settings |= {"text.color": INK, "axes.edgecolor": INK}
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(settings)
        found = Figure(figsize=(5.2, 2.6), layout="constrained")
        found.patch.set_visible(False)
        axes = found.add_subplot()
        axes.patch.set_visible(False)
        for number, series in enumerate(drawn):
            colour, line = _look(number)
            mark = "o" if len(series.x) < 3 else ""
            axes.plot(series.x, series.y, line, marker=mark, color=_stand_in(colour), linewidth=1.8)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=chart.unit in ("step", "epoch")))
        if chart.unit in TIMES:  # how busy nodes were
            axes.set_ylim(bottom=0.0, top=100.0 if chart.metric.endswith("%") else None)
            for curve in axes.lines:
                curve.set_clip_on(False)
        axes.tick_params(colors=INK, labelcolor=INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, color=INK, alpha=0.15)
        written = io.StringIO()
        metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        found.savefig(written, format="svg", metadata=metadata)
    return _inline(written.getvalue(), name, chart, drawn)


def _import_matplotlib() -> None:
    """Without `./matplotlibrc`, which it reads before any other, and fails on what is no text
    (matplotlib.matplotlib_fname): charts do not depend on the folder in which a command runs."""
    if "matplotlib" in sys.modules or not os.path.lexists("matplotlibrc"):
        return
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(NEUTRAL)
        importlib.import_module("matplotlib")
    finally:
        os.fchdir(here)
        os.close(here)


def _stand_in(colour: int) -> str:
    return f"#01020{colour + 4}"


def _inline(text: str, name: str, chart: Chart, drawn: Sequence[Series]) -> Html:
    """matplotlib's file as an element of a page: own ids, the page's colours, a title."""
    body = text[text.index("<svg") :]
    head, body = body.split(">", 1)
    view = re.search(r'viewBox="([\d. -]+)"', head)
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'id="', f'id="{name}-', body)
    body = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", body).replace("xlink:href", "href")
    body = body.replace(INK, "currentColor")
    for colour in range(COLOURS):
        body = body.replace(_stand_in(colour), f"var(--c{colour})")
    ends = "; ".join(f"{_name(each)} from {each.y[0]:.4g} to {each.y[-1]:.4g}" for each in drawn)
    words = joined(
        [
            element("title", f"{chart.metric} by {chart.unit}", id=f"{name}-title"),
            element("desc", f"A line chart. {ends}.", id=f"{name}-desc"),
        ]
    )
    box = view[1] if view else "0 0 374 187"
    start = (
        f'<svg role="img" aria-labelledby="{name}-title {name}-desc" viewBox="{box}" '
        'xmlns="http://www.w3.org/2000/svg">'
    )
    return Html(start + words + body)
