"""Console on a terminal: stages as live bars, everything else printed above them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TextIO, cast

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from cloudtrain.console.lines import printable
from cloudtrain.console.screen import Progress, TaskOutput
from cloudtrain.protocols import Stage

ROWS = 8
"""Nodes shown with their current work; the others are only counted."""


class TerminalConsole:
    def __init__(self, *, err: TextIO, out: TextIO, full_log: bool = True) -> None:
        self._rich = Console(
            file=cast("IO[str]", Progress(err)),
            force_terminal=True,
            highlight=False,
            markup=False,
            emoji=False,
        )
        self._same = out.isatty()
        """Whether task output goes to the terminal that is drawn on."""
        colours = self._same and not os.environ.get("NO_COLOR")
        self._out = TaskOutput(out, colours=colours, folds=self._same and not full_log)
        self._stages: list[_Bar] = []
        self._live: Live | None = None
        self._lock = threading.RLock()

    def say(self, text: str) -> None:
        self._print(Text(printable(text)))

    def warn(self, text: str) -> None:
        self._print(Text.assemble(("warning: ", "yellow"), printable(text)))

    @contextmanager
    def stage(self, title: str, total: int) -> Iterator[Stage]:
        bar = _Bar(title, total)
        self._show(bar)
        try:
            yield bar
        except BaseException:
            self._hide(bar, Text("✗ ", "red"))
            raise
        self._hide(bar, Text("✓ ", "green"))

    def task_output(self, task: str, data: bytes) -> None:
        self._write(self._out.feed(task, data))

    def flush(self) -> None:
        self._write(self._out.rest())

    def _write(self, lines: list[tuple[str, str]]) -> None:
        with self._lock:
            if self._live is None or not self._same:
                self._out.write(lines)
                return
            for task, line in lines:
                prefix = (self._out.prefix(task), self._out.colour(task))
                self._print(Text.assemble(prefix, line))

    def _print(self, text: Text) -> None:
        # soft_wrap: the terminal folds a long line, so that it can be copied whole
        self._rich.print(text, soft_wrap=True)

    def _show(self, bar: _Bar) -> None:
        with self._lock:
            self._stages.append(bar)
            if self._live is None:
                self._live = Live(
                    get_renderable=self._picture,
                    console=self._rich,
                    refresh_per_second=8,
                    transient=True,
                    redirect_stdout=False,
                    redirect_stderr=False,
                )
                self._live.start()

    def _hide(self, bar: _Bar, mark: Text) -> None:
        with self._lock:
            self._stages.remove(bar)
            if not self._stages and self._live is not None:
                self._live.stop()
                self._live = None
        self._print(Text.assemble(mark, bar.summary()))

    def _picture(self) -> RenderableType:
        picture = Table.grid(padding=(0, 1))
        for bar in tuple(self._stages):
            picture.add_row(bar.head())
            for row in bar.rows():
                picture.add_row(row)
        return picture


class _Bar:
    """A stage as a bar, with the current work of unfinished nodes below it."""

    def __init__(self, title: str, total: int) -> None:
        self._title, self._total = printable(title), total
        self._begun = time.monotonic()
        self._doing: dict[str, str] = {}
        self._done: set[str] = set()
        self._spinner = Spinner("dots", style="cyan")
        self._lock = threading.Lock()

    def node(self, name: str, text: str) -> None:
        with self._lock:
            self._done.discard(name)
            self._doing[name] = printable(text)

    def done(self, name: str, text: str = "") -> None:
        with self._lock:
            self._doing.pop(name, None)
            self._done.add(name)

    def head(self) -> RenderableType:
        row = Table.grid(padding=(0, 1))
        row.add_row(
            self._spinner,
            Text(self._title),
            ProgressBar(total=max(1, self._total), completed=len(self._done), width=24),
            Text(f"{len(self._done)} of {self._total}"),
            Text(f"{self._seconds()}", "dim"),
        )
        return row

    def rows(self) -> list[Text]:
        with self._lock:
            doing = list(self._doing.items())
        rows = [
            Text(f"    {name}  {text}", "dim", no_wrap=True, overflow="ellipsis")
            for name, text in doing[:ROWS]
        ]
        if len(doing) > ROWS:
            rows.append(Text(f"    … and {len(doing) - ROWS} more", "dim"))
        return rows

    def summary(self) -> Text:
        count = f"  {len(self._done)} of {self._total}" if self._total else ""
        return Text.assemble(self._title, count, (f"  {self._seconds()}", "dim"))

    def _seconds(self) -> str:
        return f"{time.monotonic() - self._begun:.1f}s"
