"""A run's record as JSON and back, by small functions: `status` loads nothing more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from cloudtrain.run_record import Cause, Run, RunAttempt, RunState, Task

RUN_STATES = get_args(RunState)
MOST_ATTEMPTS = 10_000
YEAR_9999 = 253_370_764_800.0
"""Its first second, Unix time."""


def run_to_json(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "cluster": run.cluster,
        "command": run.command,
        "state": run.state,
        "created": run.created,
        "ended": run.ended,
        "exit_code": run.exit_code,
        "code": run.code,
        "store": run.store,
        "clustered": run.attempts[-1].clustered if run.attempts else None,
        "tasks": [
            {"name": task.name, "role": task.role, "index": task.index}
            | {"node": task.node, "port": task.port, "attempt": task.attempt}
            for task in run.tasks
        ],
        "attempts": [attempt_to_json(attempt) for attempt in run.attempts],
    }


def attempt_to_json(attempt: RunAttempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "started": attempt.started,
        "ended": attempt.ended,
        "exits": dict(attempt.exits),
        "cause": None if attempt.cause is None else cause_to_json(attempt.cause),
        "clustered": attempt.clustered,
        "formed_after": attempt.formed_after,
    }


def cause_to_json(cause: Cause) -> dict[str, Any]:
    return {
        "task": cause.task,
        "node": cause.node,
        "kind": cause.kind,
        "text": cause.text,
        "exit_code": cause.exit_code,
        "last_lines": list(cause.last_lines),
        "hint": cause.hint,
        "collateral": list(cause.collateral),
    }


def run_from_json(data: object) -> Run:
    """Raises ValueError naming the first key that is missing or of another type."""
    facts = _object(data, "run")
    state = _text(facts, "state")
    if state not in RUN_STATES:
        raise _wrong("state", "one that a run can have")
    return Run(
        id=_text(facts, "id"),
        cluster=_text(facts, "cluster"),
        command=_text(facts, "command"),
        state=state,  # type: ignore[arg-type]  # checked above
        created=time_from_json(facts, "created"),
        ended=_optional_time(facts, "ended"),
        exit_code=_optional_integer(facts, "exit_code"),
        code=_optional_text(facts, "code") or "",
        store=_optional_text(facts, "store"),
        tasks=tuple(_task(task) for task in _list(facts, "tasks")),
        attempts=tuple(_attempt(attempt) for attempt in _list(facts, "attempts")),
    )


def _task(data: object) -> Task:
    facts = _object(data, "tasks")
    return Task(
        role=_text(facts, "role"),
        index=_integer(facts, "index"),
        node=_text(facts, "node"),
        port=_integer(facts, "port"),
        attempt=_number(facts, "attempt") if "attempt" in facts else 0,
    )


def _attempt(data: object) -> RunAttempt:
    facts = _object(data, "attempts")
    exits = _object(facts.get("exits", {}), "exits")
    cause = facts.get("cause")
    return RunAttempt(
        number=_number(facts, "number"),
        started=time_from_json(facts, "started"),
        ended=_optional_time(facts, "ended"),
        exits={task: _integer(exits, task) for task in exits},
        cause=None if cause is None else _cause(cause),
        clustered=_optional_truth(facts, "clustered"),
        formed_after=_optional_number(facts, "formed_after"),
    )


def _cause(data: object) -> Cause:
    facts = _object(data, "cause")
    return Cause(
        task=_text(facts, "task"),
        node=_text(facts, "node"),
        kind=_text(facts, "kind"),  # type: ignore[arg-type]  # shown, never decided upon
        text=_text(facts, "text"),
        exit_code=_optional_integer(facts, "exit_code"),
        last_lines=_texts(facts, "last_lines"),
        hint=_optional_text(facts, "hint"),
        collateral=_texts(facts, "collateral"),
    )


def _object(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(what, "an object")
    return value


def _list(facts: Mapping[str, Any], key: str) -> list[Any]:
    value = facts.get(key, [])
    if not isinstance(value, list):
        raise _wrong(key, "a list")
    return value


def _texts(facts: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values = _list(facts, key)
    if not all(isinstance(value, str) for value in values):
        raise _wrong(key, "a list of texts")
    return tuple(values)


def _text(facts: Mapping[str, Any], key: str) -> str:
    value = facts.get(key)
    if not isinstance(value, str):
        raise _wrong(key, "a text")
    return value


def _optional_text(facts: Mapping[str, Any], key: str) -> str | None:
    return None if facts.get(key) is None else _text(facts, key)


def time_from_json(facts: Mapping[str, Any], key: str) -> float:
    """Unix time. Python's JSON has NaN and infinity too, and no calendar has every number."""
    value = facts.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < YEAR_9999:
        raise _wrong(key, "a time")
    return value


def _optional_time(facts: Mapping[str, Any], key: str) -> float | None:
    return None if facts.get(key) is None else time_from_json(facts, key)


def _optional_truth(facts: Mapping[str, Any], key: str) -> bool | None:
    value = facts.get(key)
    if value is not None and not isinstance(value, bool):
        raise _wrong(key, "true or false")
    return value


def _optional_number(facts: Mapping[str, Any], key: str) -> float | None:
    value = facts.get(key)
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise _wrong(key, "a number")


def _integer(facts: Mapping[str, Any], key: str) -> int:
    value = facts.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(key, "a whole number")
    return value


def _number(facts: Mapping[str, Any], key: str) -> int:
    """Of an attempt: every one up to it is looked at."""
    value = _integer(facts, key)
    if not 0 <= value <= MOST_ATTEMPTS:
        raise _wrong(key, "the number of an attempt")
    return value


def _optional_integer(facts: Mapping[str, Any], key: str) -> int | None:
    return None if facts.get(key) is None else _integer(facts, key)


def _wrong(key: str, wanted: str) -> ValueError:
    return ValueError(f"`{key}` is missing or not {wanted}")
