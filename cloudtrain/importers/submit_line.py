"""Reads a `gcloud … submit` or `gcloud ai custom-jobs create` line: its job, flags and arguments.

Flags: https://cloud.google.com/sdk/gcloud/reference/ai-platform/jobs/submit/training and
https://cloud.google.com/sdk/gcloud/reference/ai/custom-jobs/create"""

from __future__ import annotations

import re
from itertools import takewhile

from cloudtrain.config.other_tools import IMPORTED, ImportedKind
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import UsageError
from cloudtrain.importers import shell_words
from cloudtrain.importers.values import Value

WHERE = "--submit"
"""Stands for the file in messages on the line."""

SWITCHES = frozenset(
    {
        *("stream-logs", "async", "quiet", "q", "enable-web-access", "enable-dashboard-access"),
        *("use-chief-in-tf-config", "user-output-enabled", "log-http"),
    }
)
"""Flags that take no value unless it is written with `=`."""

IGNORED = (SWITCHES - {"use-chief-in-tf-config"}) | {
    *("format", "verbosity", "account", "configuration", "staging-bucket", "config", "flatten"),
    *("filter", "trace-token", "billing-project"),
}
"""Flags that say nothing about the training."""


@dataclass(frozen=True, kw_only=True)
class Submit:
    """One submit line. A variable of the submitting shell stays marked (`shell_words`)."""

    kind: ImportedKind
    """What it submits."""
    job: Value | None
    flags: tuple[tuple[str, Value], ...]
    """Names without dashes, with `_` as `-`; repeated flags several times."""
    arguments: tuple[Value, ...]
    """What follows ` -- `."""

    def flag(self, name: str) -> Value | None:
        """The last value of a flag."""
        return next((value for each, value in reversed(self.flags) if each == name), None)

    def all(self, name: str) -> list[Value]:
        return [value for each, value in self.flags if each == name]


def read_submit(line: str) -> Submit:
    """Read a submit line. Raises UsageError for one that submits no training."""
    try:
        found = shell_words.words(line)
    except ValueError as error:
        raise UsageError(f"--submit cannot be read: {error}") from None
    found, known = _command(found)
    # Without `"$@"`, the script's own arguments: this line has none.
    found = [w for w in found if not re.fullmatch(r"[\ue000\ue007][@*][\ue001\ue008]", w)]
    found = [part for word in found for part in shell_words.filled(word, known)]
    head = [word for word in found if word not in ("alpha", "beta")]
    head[1:2] = ["ai-platform" if word == "ml-engine" else word for word in head[1:2]]
    submits = [row for row in IMPORTED if row.submit]
    for row in submits:
        _, *own = row.submit.removesuffix(" JOB").split()
        if head[1 : len(own) + 1] == own:
            return _submit(head[len(own) + 1 :], row)
    lines = " or ".join(f'--submit "{row.submit} …"' for row in submits)
    raise UsageError("--submit is no line that submits a training", hint=f"pass {lines}")


def _command(found: list[str]) -> tuple[list[str], dict[str, str]]:
    """The words from `gcloud` to the command's end, and the variables that were set before."""
    known: dict[str, str] = {}
    for at, word in enumerate(found):
        if word == "gcloud" or word.endswith("/gcloud"):
            return list(takewhile(_is_no_operator, found[at:])), known
        assignment = re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", word, re.DOTALL)
        if assignment:
            (value,) = shell_words.filled(shell_words.quoted(assignment[2]), known)
            known[assignment[1]] = value
    return [], known


def _is_no_operator(word: str) -> bool:
    return not word.startswith(shell_words.OPERATORS)


def _submit(found: list[str], kind: ImportedKind) -> Submit:
    at = found.index("--") if "--" in found else len(found)
    flags: list[tuple[str, Value]] = []
    job: Value | None = None
    rest = iter(found[:at])
    for word in rest:
        if not word.startswith("-") or word == "-":
            job = job or _value(shell_words.settled(word), "JOB")
            continue
        name, equals, text = word.partition("=")
        name = name.lstrip("-").replace("_", "-")
        if not equals:
            is_switch = name in SWITCHES or name.startswith("no-")
            text = "true" if is_switch else next(rest, "")
        text = text if name == "job-dir" else shell_words.settled(text)
        flags.append((name, _value(text, f"--{name}")))
    return Submit(
        kind=kind,
        job=job,
        flags=tuple(flags),
        arguments=tuple(_value(word, "-- …") for word in found[at + 1 :]),
    )


def _value(text: str, field: str) -> Value:
    return Value(text=text, file=WHERE, field=field)


def pairs(value: Value) -> dict[str, Value]:
    """gcloud's `count=1,type=nvidia-tesla-t4`."""
    found = (part.partition("=") for part in value.text.split(","))
    return {
        name.strip(): value.with_text(text.strip(), f"{value.field} {name}")
        for name, _, text in found
        if name.strip()
    }


def config_of(line: str) -> str | None:
    """The file that the line's `--config` names."""
    found = read_submit(line).flag("config")
    return found.text if found and not shell_words.unknown(found.text) else None
