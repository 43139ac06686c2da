"""Answers of a cloud that are not what its API describes: they become an error of that cloud.

A proxy, an emulator or a fault of the cloud may answer with a text where an object belongs. Nothing
is concluded from such an answer: `typed` reads what decides whether something is ours or billed,
and `answers_by_shape` turns what any other line of a driver stumbles over into CloudError."""

from __future__ import annotations

import functools
import inspect
import ipaddress
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from cloudtrain.core.errors import SHAPE, CloudError, NodesError

T = TypeVar("T")
Driver = TypeVar("Driver")


def typed(answer: Mapping[str, Any], name: str, kind: type[T], *, null: bool = False) -> T:
    """The field; an empty one if it is missing or, with `null`, null. Raises TypeError."""
    if name not in answer or (null and answer[name] is None):
        return kind()
    found = answer[name]
    if not isinstance(found, kind):
        raise TypeError(f"{name} is not {_WORDS.get(kind, kind.__name__)}: {found!r:.60}")
    return found


def objects(answer: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """A list of objects; empty if it is missing. Raises TypeError for anything else."""
    found = typed(answer, name, list)
    for each in found:
        if not isinstance(each, dict):
            raise TypeError(f"{name} has what is not an object: {each!r:.60}")
    return found


def unix_time(text: object) -> float | None:
    """Convert a time like `2026-11-21T13:30:00.1234567+00:00` to Unix time: Azure writes seven
    digits, but Python 3.10 reads only six."""
    words = str(text or "").replace("Z", "+00:00")
    head, dot, rest = words.partition(".")
    if dot:
        digits = len(rest) - len(rest.lstrip("0123456789"))
        words = f"{head}.{rest[:digits][:6].ljust(6, '0')}{rest[digits:]}"
    try:
        return datetime.fromisoformat(words).timestamp()
    except ValueError:
        return None


_WORDS: Mapping[type, str] = {dict: "an object", list: "a list", str: "a text"}


def answers_by_shape(driver: type[Driver]) -> type[Driver]:
    """Have the public methods of a driver raise CloudError for an answer of another shape."""
    for name, method in list(vars(driver).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(driver, name, _by_shape(method))
    return driver


def _by_shape(method: Callable[..., T]) -> Callable[..., T]:
    @functools.wraps(method)
    def called(self: Any, *args: Any, **given: Any) -> T:
        try:
            return method(self, *args, **given)
        except NodesError as error:
            told = {name: _told(self.name, each) for name, each in error.failures.items()}
            raise NodesError(told, hint=error.hint) from error
        except SHAPE as error:
            told_error = _told(self.name, error)
            if told_error is error:
                raise
            raise told_error from error

    return called


def _told(cloud: str, error: BaseException) -> BaseException:
    """The error of the cloud, if code that reads its answers raised this one."""
    place = _raised_in(error.__traceback__)
    if not isinstance(error, SHAPE) or ".providers." not in place[0]:
        return error
    words = " ".join(str(error).split())
    return CloudError(
        f"{cloud} answered something that is not what its API describes: "
        f"{type(error).__name__}: {words} ({place[1]})",
        hint="nothing was concluded from it: run it again; if it stays so, report the traceback of "
        "--debug",
    )


def _raised_in(traceback: TracebackType | None) -> tuple[str, str]:
    """Our module that raised it, by its name and as `listing.py:88`."""
    place = ("", "")
    while traceback is not None:
        module = str(traceback.tb_frame.f_globals.get("__name__", ""))
        if module.startswith("cloudtrain."):
            file = Path(traceback.tb_frame.f_code.co_filename).name
            place = (module, f"{file}:{traceback.tb_lineno}")
        traceback = traceback.tb_next
    return place


# ── Addresses in a cloud's answers ────────────────────────────────────────────────────────────


def ip_address(text: object) -> str:
    """The address; "" if the text is not one, as that of a node whose address is not known yet: it
    becomes an argument of ssh and a line of its files."""
    try:
        return str(ipaddress.ip_address(str(text)))
    except ValueError:
        return ""
