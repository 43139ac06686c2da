"""Runs what proves something by trying every case or by hours, and writes bench/sweeps.md.

    python tools/sweeps.py                          # every part; hours
    python tools/sweeps.py cloud-crash any-of       # these parts
    python tools/sweeps.py --list                   # what there is, and its last result

The parts are those of tools/sweep_parts.py: tests (`pytest --sweep`), programs, or both.
bench/sweeps.jsonl keeps what became of each test and program, build/sweeps/COMMIT what the programs
wrote. Run again, also after an interruption, it goes on with what has not passed at this commit:
the last one that changed more than pages, with a checksum of what is not committed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from tools.sweep_parts import PARTS, Part  # noqa: E402

TABLE = ROOT / "bench" / "sweeps.md"
RECORDS = TABLE.with_suffix(".jsonl")
CODE = (".", ":!*.md", ":!docs/versions.json")
TEST_LIMIT = 4 * 3600  # seconds: some tests go through all their cases
ENVIRON = {name: text for name, text in os.environ.items() if name != "PYTEST_ADDOPTS"}
DONE = (0, 3)  # exit codes of a program that found nothing wrong, or had nothing to do


def main() -> int:
    options = _options()
    if options.list:
        told = rows(_text(TABLE))
        for part in PARTS:
            print(f"{part.name}: {part.line}\n    {told.get(part.name, 'no result')}")
        return 0
    commits = _commits(options.since)
    options.commit, options.folder = commits[0], ROOT / "build" / "sweeps" / commits[0]
    options.seed = int(hashlib.sha256(commits[-1].encode()).hexdigest(), 16) % 1000
    options.folder.mkdir(parents=True, exist_ok=True)
    try:
        whole = [_swept(part, commits, options) for part in PARTS if part.name in options.parts]
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130
    return 0 if all(whole) else 1


def _options() -> argparse.Namespace:
    names = [part.name for part in PARTS]
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(names)}; or all")
    parser.add_argument("--list", action="store_true", help="the parts and their last results")
    parser.add_argument("--since", metavar="COMMIT", help="what passed there or later counts, too")
    parser.add_argument("--jobs", type=int, default=2, help="how many run at once (2)")
    parser.add_argument("--minutes", type=int, default=30, help="of `away`, for each cloud (30)")
    options = parser.parse_args()
    if unknown := [name for name in options.parts if name not in names]:
        parser.error(f"there is no {', '.join(unknown)}; the parts are {', '.join(names)}")
    options.parts, options.ends = options.parts or names, False
    return options


def _commits(since: str | None) -> list[str]:
    """Those whose results count, this one first."""

    def git(*words: str) -> list[str]:
        asked = ["git", "-C", str(ROOT), *words, "--", *CODE]
        return subprocess.check_output(asked, text=True, errors="replace").splitlines()

    found = git("log", "--format=%h", "-1")
    new = [_text(ROOT / name) for name in git("ls-files", "--others", "--exclude-standard")]
    if changes := git("diff", "HEAD") + new:
        found[0] += f"+{hashlib.sha256(chr(10).join(changes).encode()).hexdigest()[:4]}"
    if since is not None:
        found += git("log", "--format=%h", f"{since}..HEAD") + git(
            "log", "--format=%h", "-1", since
        )
    return found


def _swept(part: Part, commits: Sequence[str], options: argparse.Namespace) -> bool:
    """True if nothing was wrong, and nothing is left but what was skipped."""
    print(f"{part.name}: {part.line}", flush=True)
    tests = _collected(files_of(part, ROOT.glob("tests/*/test_*.py")))
    programs = [words.replace("{seed}", str(options.seed)) for words in part.programs]
    names, known = [*tests, *programs], read(_text(RECORDS), commits)
    try:
        if left := to_do(tests, known):
            _test(left, options)
        _run_all(to_do(programs, known), options)
    finally:
        known = read(_text(RECORDS), commits)
        told = result(part.name, names, known)
        if any(name in known for name in names):
            TABLE.write_text(page(rows(_text(TABLE)) | {part.name: told}))
        print(told, flush=True)
    return all(known.get(name, {}).get("outcome") in ("passed", "skipped") for name in names)


def files_of(part: Part, files: Iterable[Path]) -> list[Path]:
    return sorted(file for file in files if _owner(file.name) is part)


@cache
def _owner(name: str) -> Part:
    return next(part for part in PARTS if any(fnmatch(name, each) for each in part.files.split()))


def _collected(files: Sequence[Path]) -> list[str]:
    """The names of the tests in these files that `pytest --sweep` runs."""
    if not files:
        return []
    asked = [sys.executable, "-m", "pytest", "--sweep", "--collect-only", "-q", *map(str, files)]
    done = subprocess.run(asked, cwd=ROOT, env=ENVIRON, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 5):  # 5: there are none
        sys.exit(f"the tests cannot be collected:\n{done.stdout}{done.stderr}")
    return [line for line in done.stdout.splitlines() if "::" in line]


def to_do(names: Iterable[str], known: Mapping[str, Any]) -> list[str]:
    return [name for name in names if known.get(name, {}).get("outcome") != "passed"]


def _test(tests: Sequence[str], options: argparse.Namespace) -> None:
    file = options.folder / "tests.txt"
    file.write_text("".join(f"{test}\n" for test in tests))
    words = ["-m", "pytest", "-q", "--sweep", f"--timeout={TEST_LIMIT}", "--dist=worksteal"]
    words += ["-p", "tests.support.sweep_record", "--record", str(RECORDS), options.commit]
    words += ["-n", str(min(options.jobs, len(tests))), f"@{file}"]
    process = subprocess.Popen([sys.executable, *words], cwd=ROOT, env=ENVIRON)
    try:
        process.wait()
    except KeyboardInterrupt:
        process.wait()  # it was interrupted as well, and takes its time to clean up
        raise


def _run_all(programs: Sequence[str], options: argparse.Namespace) -> None:
    jobs = 1 if any("{share}" in words for words in programs) else options.jobs
    with ThreadPoolExecutor(jobs) as pool:
        try:
            list(pool.map(lambda words: _run(words, options), programs))
        except KeyboardInterrupt:
            options.ends = True
            pool.shutdown(cancel_futures=True)
            raise


def _run(program: str, options: argparse.Namespace) -> None:
    """Nothing is kept of one that was interrupted or killed."""
    shares = [f"--parts {options.jobs} --part {number}" for number in range(options.jobs)]
    began = time.monotonic()
    running = [
        subprocess.Popen([sys.executable, *words], cwd=ROOT)
        for share in (shares if "{share}" in program else [""])
        for words in [shlex.split(program.format(**vars(options), share=share))]
    ]
    codes = [process.wait() for process in running]
    if not options.ends and all(0 <= code < 128 for code in codes):
        file = ROOT / program.split()[-1].format(**vars(options))
        passed, trials = all(code in DONE for code in codes), counted(program, file)
        trials = trials or {"trials": 1, "wrong": int(not passed)}
        line = {"commit": options.commit, "what": program, "date": date.today().isoformat()}
        line |= {"outcome": "passed" if passed and not trials["wrong"] else "failed"}
        line |= {"seconds": round(time.monotonic() - began, 1), **trials}
        with RECORDS.open("a") as records:
            records.write(json.dumps(line) + "\n")


def counted(program: str, file: Path) -> dict[str, Any] | None:
    """Trials, wrong ones and seconds of a program that tells of each; none: it is one trial."""
    if file.suffix == ".json":
        found = list(json.loads(_text(file)).values())
        wrong = [cell for cell in found if not cell["passed"]]
    elif "{share}" in program:
        found = [
            row for row in map(json.loads, _text(file).splitlines()) if row["why"] != "not reached"
        ]
        wrong = [row for row in found if row["why"]]
    else:
        return None
    seconds = round(sum(row["seconds"] for row in found))
    return {"trials": len(found), "wrong": len(wrong), "seconds": seconds}


# ── results ──────────────────────────────────────────────────────────────────


def read(text: str, commits: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The last result of each test and program at one of the commits."""
    lines = map(json.loads, text.splitlines())
    return {line["what"]: line for line in lines if line["commit"] in commits}


HEAD = """\
# What was proved by trying every case, or by hours

Written by `make sweeps`; `make sweeps ARGUMENTS=NAME` renews the row of a part. A trial is a case
of a test, a kill, a call that went wrong, a run with a fault, or a cell of docs/versions.md.
*Wrong*: something was left, lost, there twice, or ended as it may not. *Left*: skipped, or not run.

| part | trials | wrong | left | seconds | commit | date |
|---|---|---|---|---|---|---|
"""


def result(part: str, names: Sequence[str], known: Mapping[str, Any]) -> str:
    found = [known[name] for name in names if name in known]
    ran = [each for each in found if each["outcome"] != "skipped"]
    trials = sum(each.get("trials", 1) for each in ran)
    wrong = sum(each.get("wrong", each["outcome"] == "failed") for each in ran)
    seconds = sum(each["seconds"] for each in ran)
    commits = ", ".join(dict.fromkeys(each["commit"] for each in ran))
    last = max((each["date"] for each in ran), default="–")
    cells = (part, trials, wrong, len(names) - len(ran), f"{seconds:.0f}", commits or "–", last)
    return f"| {' | '.join(map(str, cells))} |"


def rows(text: str) -> dict[str, str]:
    """Of a table that was written before, by part."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return {line.split(" | ")[0][2:]: line for line in lines[1:]}


def page(told: Mapping[str, str]) -> str:
    return HEAD + "".join(f"{told[part.name]}\n" for part in PARTS if part.name in told)


def _text(file: Path) -> str:
    return file.read_text("utf-8", "replace") if file.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
