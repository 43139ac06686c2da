"""Turns an error into a few lines on stderr, a JSON document if asked, and an exit code."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import click

from cloudtrain.cli.flag_variables import variable_at_fault
from cloudtrain.cli.process import stdout_is_lost
from cloudtrain.console.lines import printable, quoted, terminal_width, wrapped
from cloudtrain.core import errors

MAX_LINES = 24
"""Lines of one error that are shown; the JSON and --debug have all."""


def show(error: BaseException, *, as_json: bool, debug: bool, lines: bool = False) -> int:
    """Print the error and return its exit code. `lines`: its JSON is on one line."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    failure = failure_of(error)
    lost = stdout_is_lost()
    if debug:
        import traceback

        _print("".join(traceback.format_exception(error)))
    if not (lost and isinstance(error, KeyboardInterrupt | OSError)):
        _print(_text(failure, debug))
    if as_json and not lost:
        document = {name: value for name, value in failure.items() if value is not None}
        sys.stdout.write(json.dumps({"error": document}, indent=None if lines else 2) + "\n")
    code = failure["exit_code"]
    assert isinstance(code, int)
    return code


def failure_of(error: BaseException) -> dict[str, Any]:
    """The error as --json and --events print it."""
    if isinstance(error, errors.CloudtrainError):
        facts = _facts(error, error.message, error.exit_code, error.hint)
        if isinstance(error, errors.ConfigError):
            return facts | {"problems": [asdict(problem) for problem in error.problems]}
        if isinstance(error, errors.NodesError):
            return facts | {"failures": {name: str(each) for name, each in error.failures.items()}}
        if isinstance(error, errors.UntrustedError):
            return facts | {"facts": list(error.facts)}
        if isinstance(error, errors.RunFailed):
            return facts | {"task_exit_code": error.task_exit_code}
        return facts
    if isinstance(error, click.Abort):
        return _facts(error, "cancelled: nothing was changed", 130)
    if isinstance(error, KeyboardInterrupt):
        return _facts(error, "interrupted", getattr(error, "exit_code", 130))
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        hint = f"`{context.command_path} --help`" if context else None
        if isinstance(error, click.NoSuchOption) and context and context.info_name == "run":
            hint = f"{hint}; words of your own program belong in `train.command`"
        # It begins with the variable if the value is not of the command line.
        variable = variable_at_fault(error) if isinstance(error, click.BadParameter) else None
        text = error.format_message()
        return _facts(error, f"{variable}: {text}" if variable else text, 2, hint)
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        return _facts(error, f"{place}{error.strerror}", 1)
    words = " ".join(str(error).split())
    text = f"internal: {type(error).__name__}: {words}".rstrip(": ")
    return _facts(error, text, 1, "run it again with --debug and report the traceback")


def _facts(
    error: BaseException, message: str, exit_code: int, hint: str | None = None
) -> dict[str, Any]:
    return {"kind": type(error).__name__, "message": message, "hint": hint, "exit_code": exit_code}


def _text(failure: dict[str, Any], debug: bool) -> str:
    start = "" if failure["exit_code"] >= 128 else "error: "
    lines = quoted(failure["message"]).split("\n")
    if len(lines) > MAX_LINES and not debug:
        left = len(lines) - MAX_LINES + 1
        lines = [*lines[: MAX_LINES - 1], f"… and {left} more lines: --debug shows all"]
    if "problems" in failure:  # each is `file:line: field: text`, for editors and people to jump to
        text = "".join(f"{start}{line}\n" for line in lines)
    else:
        text = start + ("\n" + " " * len(start)).join(lines) + "\n"
    return text + (f"hint: {quoted(failure['hint'])}\n" if failure["hint"] else "")


def _print(text: str) -> None:
    try:
        sys.stderr.write(wrapped(printable(text), terminal_width(sys.stderr)))
        sys.stderr.flush()
    except OSError:
        return  # stderr is closed; the exit code remains
