"""Console on a terminal: stages as live bars, everything else printed above them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment, Segments
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from cloudtrain.console import Style
from cloudtrain.console.lines import printable, quoted, wrapped
from cloudtrain.console.paced import PacedOutput, Room
from cloudtrain.console.screen import AlikeLines, Progress, TaskOutput, can_write, counted
from cloudtrain.core.protocols import Stage

ROWS = 8
"""Nodes shown with their current work; the others are only counted."""

ECHO = 3
"""Columns left free on the right: the terminal echoes `^C` there, and must not begin a new line."""


def plain_rich(**options: Any) -> Console:
    """A console of rich that prints text as it is."""
    return Console(highlight=False, markup=False, emoji=False, **options)


def full_screen(lines: Callable[[int], Sequence[str]]) -> Live:
    """Draw lines on the terminal's alternate screen while a block runs; they get its height."""
    console = plain_rich()

    def picture() -> Text:
        text = "\n".join(map(printable, lines(console.height)))
        return Text(text, no_wrap=True, overflow="ellipsis")

    return Live(get_renderable=picture, console=console, screen=True, refresh_per_second=2)


class TerminalConsole:
    def __init__(self, *, err: TextIO, out: TextIO, style: Style) -> None:
        self.style = style
        self._rich = plain_rich(file=Progress(err), force_terminal=True)
        self._same = out.isatty()
        """Whether task output goes to the terminal that is drawn on."""
        colours = self._same and not os.environ.get("NO_COLOR")
        folds = self._same and not style.full_log
        self._out = TaskOutput(out, colours=colours, folds=folds)
        self._alike = AlikeLines() if folds and can_write(out, "×") else None
        self._room = Room() if folds and style.skips else None
        self._paced = PacedOutput(self._out, self._show, skips=self._room is not None)
        self._stages: list[_Bar] = []
        self._below: Callable[[], Sequence[str]] | None = None
        self._live: Live | None = None
        self._lock = threading.RLock()

    def say(self, text: str) -> None:
        self._print(Text(self._wrapped(text)))

    def warn(self, text: str) -> None:
        line = Text(self._wrapped(f"warning: {text}"))
        line.stylize("yellow", 0, len("warning:"))
        self._print(line)

    @contextmanager
    def stage(self, title: str, total: int) -> Iterator[Stage]:
        bar = _Bar(title, total)
        with self._lock:
            self._stages.append(bar)
            self._draw()
        try:
            yield bar
        except BaseException:
            self._end(bar, Text("✗ ", "red"))
            raise
        self._end(bar, Text("✓ ", "green"))

    def task_output(self, task: str, data: bytes) -> None:
        if self._same:
            self._paced.add(task, data)
        else:
            self._out.write(self._out.feed(task, data))

    def flush(self) -> None:
        self._paced.draw()
        with self._lock:
            lines = self._out.rest()
            if self._alike is not None:  # the last lines, so that none of them is skipped
                lines = [*self._alike.add(lines, time.monotonic()), *self._alike.rest()]
            self._write(lines)

    def _show(self, lines: list[tuple[str, str]], skipped: int = 0) -> bool:
        """Show lines of tasks, after a moment in which other tasks may print the same; True if some
        wait."""
        with self._lock:
            if self._alike is not None:
                lines = self._alike.add(lines, time.monotonic())
            self._write(self._room.fit(lines, skipped) if self._room is not None else lines)
            return self._alike is not None and self._alike.waiting

    @contextmanager
    def below(self, lines: Callable[[], Sequence[str]]) -> Iterator[None]:
        """Not if task output goes elsewhere: `| tee` would write into what is drawn."""
        if not self._same:
            yield
            return
        with self._lock:
            self._below = lines
            self._draw()
        try:
            yield
        finally:
            self._paced.draw()
            with self._lock:
                self._below = None
                self._undraw()

    def _write(self, lines: list[tuple[str, str]]) -> None:
        with self._lock:
            if self._live is None or not self._same:
                self._out.write(lines)
                return
            if not lines:
                return
            # As it is: Text takes 20 µs a line, and each print draws the bars anew.
            self._rich.print(Segments([Segment(self._out.text(lines))]), soft_wrap=True)

    def _wrapped(self, text: str) -> str:
        return wrapped(printable(quoted(text)), self._rich.width)

    def _print(self, text: Text) -> None:
        self._paced.draw()  # what tasks said before
        # soft_wrap: the terminal folds a long line of a task, so that it can be copied whole
        self._rich.print(text, soft_wrap=True)

    def _end(self, bar: _Bar, mark: Text) -> None:
        with self._lock:
            self._stages.remove(bar)
            self._undraw()
        self._print(Text.assemble(mark, bar.summary()))

    def _draw(self) -> None:
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

    def _undraw(self) -> None:
        """Draw no longer, if there is nothing left to draw."""
        if not self._stages and self._below is None and self._live is not None:
            self._live.stop()
            self._live = None

    def _picture(self) -> RenderableType:
        rows: list[RenderableType] = []
        for bar in tuple(self._stages):
            rows += [bar.head(), *bar.rows()]
        below = self._below
        lines = () if below is None else below()
        rows += [Text(printable(line), "dim", no_wrap=True) for line in lines]
        for row in rows:
            if isinstance(row, Text):
                row.truncate(self._rich.width - ECHO, overflow="ellipsis")
        return Group(*rows)


class _Bar:
    """A stage as a bar, with the current work of unfinished nodes below it."""

    def __init__(self, title: str, total: int) -> None:
        self._title, self._total = printable(title), total
        self._begun = time.monotonic()
        self._doing: dict[str, str] = {}
        self._done: dict[str, str] = {}
        self._spinner = Spinner("dots", style="cyan")
        self._lock = threading.Lock()

    def node(self, name: str, text: str) -> None:
        with self._lock:
            self._done.pop(name, None)
            self._doing[name] = printable(text)

    def done(self, name: str, text: str = "") -> None:
        with self._lock:
            self._doing.pop(name, None)
            self._done[name] = printable(text)

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
            waiting = self._total - len(self._done) - len(doing)
        cluster = common_prefix([name for name, _ in doing])
        rows = [
            Text(f"    {name.removeprefix(cluster)}  {text}", "dim", no_wrap=True)
            for name, text in doing[:ROWS]
        ]
        more = [f"{len(doing) - ROWS} more"] if len(doing) > ROWS else []
        more += [f"{waiting} waiting"] if doing and waiting > 0 else []
        if more:
            rows.append(Text(f"    … and {', '.join(more)}", "dim"))
        return rows

    def summary(self) -> Text:
        count = f"  {counted(self._done, self._total)}" if self._total else ""
        return Text.assemble(self._title, count, (f"  {self._seconds()}", "dim"))

    def _seconds(self) -> str:
        return f"{time.monotonic() - self._begun:.1f}s"


def common_prefix(names: Sequence[str]) -> str:
    """The cluster's name and a hyphen, if all names begin with them; never a whole name."""
    first, last = (min(names), max(names)) if len(names) > 1 else ("", "")
    same = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)
    return first[: first.rfind("-", 0, same) + 1]
