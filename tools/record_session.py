"""Records the README's terminal: `python tools/record_session.py`.

The commands are typed into a real terminal of 80 × 24 (tmux) in an empty folder, and run on local
nodes. What the terminal shows is drawn as it moves, once in light and once in dark colours, with
long waits made short: docs/session-light.svg and docs/session-dark.svg.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import platformdirs

ROOT = Path(__file__).resolve().parent.parent
COLUMNS, ROWS = 80, 24

COMMANDS = (
    "cloudtrain init local",
    "cloudtrain up local.yaml --yes",
    "cloudtrain train",
    "cloudtrain fetch local.yaml results",
    "cloudtrain down --yes",
)

LOOK = 0.15
"""Seconds between two looks at the terminal."""

LONGEST = 0.6
"""Seconds for which a frame is shown, however long the terminal stood still."""

LAST = 6.0
"""Seconds for which the last frame is shown before all begins again."""

LIMIT = 900.0
"""Seconds that a command may take; the first on a machine installs TensorFlow."""

WIDTH, HEIGHT, MARGIN = 8.4, 18, 14
"""Of a letter and a line, and around them, in pixels."""

NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
COLOURS = {
    "light": {
        "ground": "#f6f8fa", "text": "#1f2328", "dim": "#656d76", "line": "#d0d7de",
        "red": "#a40e26", "green": "#116329", "yellow": "#7d4e00", "blue": "#0550ae",
        "magenta": "#6639ba", "cyan": "#1b6f83", "black": "#24292f", "white": "#57606a",
    },
    "dark": {
        "ground": "#0d1117", "text": "#e6edf3", "dim": "#8d96a0", "line": "#30363d",
        "red": "#ff7b72", "green": "#3fb950", "yellow": "#d29922", "blue": "#58a6ff",
        "magenta": "#bc8cff", "cyan": "#39c5cf", "black": "#484f58", "white": "#b1bac4",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Frame:
    lines: tuple[str, ...]
    """With the sequences of colours, as `tmux capture-pane -e` has them."""
    seconds: float


def main() -> None:
    frames = short(recorded())
    for scheme in COLOURS:
        path = ROOT / "docs" / f"session-{scheme}.svg"
        path.write_text(svg(frames, scheme), encoding="utf-8")
        print(f"{path}: {len(frames)} frames, {sum(frame.seconds for frame in frames):.0f} s")


# ── the terminal ─────────────────────────────────────────────────────────────


def recorded() -> list[Frame]:
    """Every picture of the terminal while the commands are typed and run."""
    frames: list[Frame] = []
    with tempfile.TemporaryDirectory(prefix="session-") as name, terminal(Path(name)) as tmux:
        seen = time.monotonic()

        def look() -> None:
            nonlocal seen
            now, shown = time.monotonic(), "\n".join(asked(*tmux, "capture-pane", "-e", "-p"))
            lines = tuple(shown.replace(f"{name}/home", "/home/me").replace(name, "~").split("\n"))
            if frames and frames[-1].lines == lines:
                frames[-1] = replace(frames[-1], seconds=frames[-1].seconds + now - seen)
            else:
                frames.append(Frame(lines, LOOK))
            seen = now

        for command in COMMANDS:
            for word in re.findall(r"\S+ ?", command):
                asked(*tmux, "send-keys", "-l", "--", word)
                time.sleep(2 * LOOK)
                look()
            before = (Path(name) / "prompts").read_text().count("\n")
            asked(*tmux, "send-keys", "Enter")
            ends = time.monotonic() + LIMIT
            while (Path(name) / "prompts").read_text().count("\n") == before:
                if time.monotonic() > ends:
                    raise SystemExit(f"{command}: no end within {LIMIT:g} s")
                look()
                time.sleep(LOOK)
            time.sleep(LOOK)
            look()
            code = (Path(name) / "prompts").read_text().split()[-1]
            if code != "0":
                raise SystemExit("\n".join([*frames[-1].lines, f"{command}: exit code {code}"]))
    return frames


@contextmanager
def terminal(folder: Path) -> Iterator[list[str]]:
    """A shell in a terminal, whose prompt notes the exit code of each command; yields tmux."""
    for part in ("bin", "home", "first"):
        (folder / part).mkdir()
    program = folder / "bin" / "cloudtrain"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m cloudtrain "$@"\n')
    program.chmod(0o755)
    notes = shlex.quote(str(folder / "prompts"))
    (folder / "rc").write_text(f"PROMPT_COMMAND='echo $? >>{notes}'\nPS1='$ '\n")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("CLOUDTRAIN_")},
        "CLOUDTRAIN_HOME": str(folder / "state"),
        "CLOUDTRAIN_CACHE": os.environ.get("CLOUDTRAIN_CACHE")
        or platformdirs.user_cache_dir("cloudtrain"),
        "HOME": str(folder / "home"),
        "LC_ALL": "C.UTF-8",
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    environment.pop("NO_COLOR", None)
    tmux = ["tmux", "-S", str(folder / "socket"), "-f", os.devnull]
    size = ["-x", str(COLUMNS), "-y", str(ROWS)]
    shell = ["bash", "--noprofile", "--rcfile", str(folder / "rc"), "-i"]
    asked(*tmux, "-u", "new-session", "-d", *size, *shell, cwd=folder / "first", env=environment)
    try:
        while not (folder / "prompts").exists():
            time.sleep(LOOK)
        yield tmux
    finally:
        asked(*tmux, "kill-server")
        left = [str(program), "down", "--yes", "--discard"]  # nothing, unless a command failed
        subprocess.run(
            left, cwd=folder / "first", env=environment, capture_output=True, check=False
        )


def asked(*words: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> list[str]:
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def short(frames: list[Frame]) -> list[Frame]:
    """The same without long waits; of pictures that follow each other fast, one."""
    found: list[Frame] = []
    for frame in frames:
        if found and found[-1].seconds < LOOK:
            frame = Frame(frame.lines, frame.seconds + found.pop().seconds)
        found.append(Frame(frame.lines, min(LONGEST, frame.seconds)))
    return [*found[:-1], replace(found[-1], seconds=LAST)]


# ── the picture ──────────────────────────────────────────────────────────────


def svg(frames: list[Frame], scheme: str) -> str:
    """The frames as groups that are visible one after the other; the last alone without motion."""
    colours = COLOURS[scheme]
    whole = sum(frame.seconds for frame in frames)
    width, height = COLUMNS * WIDTH + 2 * MARGIN, ROWS * HEIGHT + 2 * MARGIN
    style = [
        f"text{{font:14px ui-monospace,Menlo,Consolas,monospace;white-space:pre;"
        f"fill:{colours['text']}}}",
        ".b{font-weight:700}",
        *(f".{name}{{fill:{colours[name]}}}" for name in ("dim", *NAMES)),
    ]
    groups, begin, drawn = [], 0.0, dict[str, str]()
    for number, frame in enumerate(frames):
        at, end = 100 * begin / whole, 100 * (begin + frame.seconds) / whole
        begin += frame.seconds
        keys = f"{at:.3f}%{{opacity:1}}{end:.3f}%{{opacity:0}}100%{{opacity:0}}"
        if number < len(frames) - 1:
            style.append(f"@keyframes k{number}{{0%{{opacity:0}}{keys}}}")
            style.append(
                f"#f{number}{{opacity:0;animation:k{number} {whole:.2f}s step-end infinite}}"
            )
        else:
            keys = f"0%{{opacity:0}}{at:.3f}%{{opacity:1}}100%{{opacity:1}}"
            style.append(f"@keyframes k{number}{{{keys}}}")
            style.append(f"#f{number}{{animation:k{number} {whole:.2f}s step-end infinite}}")
        rows = [(row, line) for row, line in enumerate(frame.lines) if line.strip()]
        for _, line in rows:
            drawn.setdefault(line, f"l{len(drawn)}")
        uses = (f'<use href="#{drawn[line]}" y="{row * HEIGHT}"/>' for row, line in rows)
        groups.append(f'<g id="f{number}">{"".join(uses)}</g>')
    style.append("@media(prefers-reduced-motion:reduce){g{animation:none!important}}")
    lines = "".join(f'<g id="{name}">{line_svg(line)}</g>' for line, name in drawn.items())
    words = "; ".join(COMMANDS)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" role="img">'
        f"<title>A terminal: {escape(words)}, on three local nodes</title>"
        f"<style>{''.join(style)}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="{colours["ground"]}" '
        f'stroke="{colours["line"]}"/><defs>{lines}</defs>{"".join(groups)}</svg>\n'
    )


def line_svg(line: str) -> str:
    """A line of the terminal: its pieces, each at its column, so that all letters are aligned."""
    y = MARGIN + HEIGHT - 5
    spans, column = [], 0
    for text, look in pieces(line):
        if text.strip():
            start = column + len(text) - len(text.lstrip())
            shown = escape(text.strip())
            length = f' textLength="{len(text.strip()) * WIDTH:g}"'
            style = f' class="{look}"' if look else ""
            spans.append(
                f'<text x="{MARGIN + start * WIDTH:g}" y="{y}"{length}{style}>{shown}</text>'
            )
        column += len(text)
    return "".join(spans)


def pieces(line: str) -> Iterator[tuple[str, str]]:
    """Text and its classes: `("✓ ", "green")`."""
    colour, bold, dim = "", False, False
    for text, codes in re.findall(r"([^\x1b]+)|\x1b\[([\d;]*)m", line):
        if text:
            yield text, " ".join(filter(None, ["dim" if dim else colour, "b" if bold else ""]))
            continue
        for code in map(int, (codes or "0").split(";")):
            if code == 0:
                colour, bold, dim = "", False, False
            elif code in (1, 2, 22):
                bold, dim = code == 1, code == 2
            elif code == 39:
                colour = ""
            elif code // 10 in (3, 9) and code % 10 < 8:
                colour = NAMES[code % 10]


if __name__ == "__main__":
    main()
