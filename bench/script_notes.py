"""What `plan` notes of other people's programs: right, false and missed notes.

    python bench/script_notes.py

renews script_notes.md. The programs, each with a config and the notes that it is owed, are those of
tests/support/stranger_notes.py; tests/unit/test_script_notes.py judges the same. They were written
for this, in the style of public ones, beside the notes: how `plan` does on programs that nobody
here has seen must be measured elsewhere.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]
RESULTS = Path(__file__).with_suffix(".md")

from tests.support.stranger_notes import Program, programs  # noqa: E402

HEAD = """\
# Notes of `plan` on other people's programs

Written by bench/script_notes.py, {date}: {programs} programs with {configs} configs; of the notes
{right} right, {false} false, {missed} missed. Right means that script and config disagree as the
note says; the programs are in tests/strangers and examples, written beside the notes in the style
of public ones.

| program | config | right | false | missed |
|---|---|---|---|---|
"""


def main() -> None:
    rows, right, false, missed = [], 0, 0, 0
    every = list(programs())
    with tempfile.TemporaryDirectory() as folder:
        for program in every:
            found = program.judged(Path(folder))
            right, false, missed = (
                count + len(notes)
                for count, notes in zip((right, false, missed), found, strict=True)
            )
            rows.append(f"| {' | '.join(row(program, *found))} |")
    text = HEAD.format(
        date=time.strftime("%Y-%m-%d"),
        programs=len({program.path for program in every}),
        configs=len(every),
        right=right,
        false=false,
        missed=missed,
    )
    RESULTS.write_text(text + "\n".join(rows) + "\n", encoding="utf-8")
    print(f"{right} right, {false} false, {missed} missed")


def row(program: Program, right: list[str], false: list[str], missed: list[str]) -> Iterator[str]:
    yield program.script.partition(" ")[0].removeprefix("tests/")
    counts = (
        f"{role} {1 if not isinstance(group, dict) else group.get('count', 1)}"
        for role, group in program.nodes.items()
        if group is not False
    )
    yield f"{program.strategy}: {', '.join(counts)}"
    for notes in (right, false, missed):
        yield "<br>".join(note.replace("|", "\\|") for note in notes)


if __name__ == "__main__":
    main()
