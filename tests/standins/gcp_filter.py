"""The `filter` of Compute Engine's lists: AIP-160, or one `field eq regular-expression`.

As the discovery document describes it; what it does not describe is refused, so that nobody leans
on something that the cloud may read otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from tests.standins.gcp_errors import ApiError, real

Test = Callable[[dict[str, Any]], bool]
Known = Callable[[list[str]], bool]
TOKEN = re.compile(
    r"""\s*(?:(?P<sign>!=|<=|>=|=|<|>|:|\(|\))|"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>[^']*)'"""
    r"""|(?P<word>[^\s()=!<>:"']+))"""
)
LITERAL = r"""\"[^\"]*\"|'[^']*'|[^\s()]+"""
LEGACY = re.compile(rf"\s*(\(?)\s*([\w.-]+)\s+(eq|ne)\s+({LITERAL})\s*(\)?)\s*")


def parse(text: str, known: Known) -> Test:
    """Raises 400 for what it does not understand; `known` tells whether there is such a field."""
    legacy = LEGACY.fullmatch(text)
    if legacy and bool(legacy[1]) == bool(legacy[5]):
        return _legacy(legacy[2], legacy[3], legacy[4], known)
    parser = _Parser(text, known)
    test = parser.all_of()
    if parser.next is not None:
        raise _refused(text)
    return test


class _Parser:
    """all_of: any_of (AND? any_of)* · any_of: one (OR one)* · one: ( all_of ) | field sign value

    OR binds tighter than AND, as in https://google.aip.dev/160; AND may be left out between
    parentheses alone.
    """

    def __init__(self, text: str, known: Known) -> None:
        self.text, self.known = text, known
        self._tokens = self._read()
        self.next: tuple[str, str] | None = None
        self._step()

    def _read(self) -> Iterator[tuple[str, str]]:
        place = 0
        while self.text[place:].strip():
            found = TOKEN.match(self.text, place)
            if not found:
                raise _refused(self.text)
            kind = str(found.lastgroup)
            yield kind, found[kind]
            place = found.end()

    def _step(self) -> tuple[str, str] | None:
        taken, self.next = getattr(self, "next", None), next(self._tokens, None)
        return taken

    def _word(self, word: str) -> bool:
        if self.next == ("word", word):
            self._step()
            return True
        return False

    def all_of(self) -> Test:
        tests = [self.any_of()]
        while True:
            closed = self.closed
            if self._word("AND") or (self.next == ("sign", "(") and closed):
                tests.append(self.any_of())
            else:
                return lambda item: all(test(item) for test in tests)

    def any_of(self) -> Test:
        tests = [self.one()]
        while self._word("OR"):
            tests.append(self.one())
        return lambda item: any(test(item) for test in tests)

    closed = False
    """Whether the last `one` stood in parentheses."""

    def one(self) -> Test:
        if self.next == ("sign", "("):
            self._step()
            test = self.all_of()
            if self._step() != ("sign", ")"):
                raise _refused(self.text)
            self.closed = True
            return test
        self.closed = False
        name, sign, value = self._step(), self._step(), self._step()
        if not (name and sign and value) or sign[0] != "sign" or sign[1] in "()":
            raise _refused(self.text)
        if name[0] != "word" or value[0] == "sign":
            raise _refused(self.text)
        return self._comparison(name[1], sign[1], value[1], value[0] == "word")

    def _comparison(self, name: str, sign: str, value: str, bare: bool) -> Test:
        path = name.split(".")
        if not self.known(path):
            raise _refused(self.text)
        if bare and "*" in value and (sign, value) != (":", "*"):
            raise _refused(self.text)
        wanted = re.sub(r"\\(.)", r"\1", value)

        def test(item: dict[str, Any]) -> bool:
            found = _values(item, path)
            if sign == ":" and bare and value == "*":
                return bool(found)
            if sign == "!=":
                return all(not _compare(one, "=", wanted) for one in found)
            return any(_compare(one, sign, wanted) for one in found)

        return test


def _legacy(name: str, sign: str, literal: str, known: Known) -> Test:
    if not known(name.split(".")):
        raise _refused(name)
    try:
        pattern = re.compile(literal[1:-1] if literal[0] in "\"'" else literal)
    except re.error as error:
        raise _refused(literal) from error

    def test(item: dict[str, Any]) -> bool:
        found = any(pattern.fullmatch(_text(one)) for one in _values(item, name.split(".")))
        return found == (sign == "eq")

    return test


def _values(item: Any, path: list[str]) -> list[Any]:
    if isinstance(item, list):
        return [found for one in item for found in _values(one, path)]
    if not path:
        return [] if item is None else [item]
    return _values(item.get(path[0]), path[1:]) if isinstance(item, dict) else []


def _compare(found: Any, sign: str, wanted: str) -> bool:
    if sign == ":":
        return wanted in found if isinstance(found, str) else _text(found) == wanted
    if sign == "=":
        return _text(found) == wanted
    try:
        pair: tuple[Any, Any] = (float(found), float(wanted))
    except (TypeError, ValueError):
        pair = (_text(found), wanted)
    signs: dict[str, bool] = {
        "<": pair[0] < pair[1],
        ">": pair[0] > pair[1],
        "<=": pair[0] <= pair[1],
        ">=": pair[0] >= pair[1],
    }
    return signs[sign]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refused(text: str) -> ApiError:
    return real("filter-invalid", text=text)
