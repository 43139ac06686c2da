"""Records are read strictly, tolerate what another version wrote, and name the key at fault."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.core.codec import ANY_TEXT, PATH, UNIX_TIME, InvalidRecord, decode, encode, pick


@dataclass(frozen=True, kw_only=True)
class Part:
    name: str
    at: float | None = field(default=None, metadata=UNIX_TIME)
    paths: tuple[str, ...] = field(default=(), metadata=PATH)


@dataclass(frozen=True, kw_only=True)
class Whole:
    count: int = 0
    ratio: float = 0.0
    done: bool = False
    mode: Literal["auto"] | bool = "auto"
    kind: Literal["a", "b"] = field(default="a", metadata=ANY_TEXT)
    parts: tuple[Part, ...] = ()
    digest: str = field(default="0", metadata={"pattern": "[0-9a-f]+"})
    exits: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)


def test_a_value_is_read_as_it_was_written() -> None:
    whole = Whole(
        count=10**30,
        ratio=1.5,
        mode=False,
        parts=(Part(name="\udcff", at=0), Part(name="b", paths=("\udcff/x",))),
        exits={"chief0": -9},
        facts={"any": [None, {"x": 1}]},
    )
    assert decode(Whole, json.loads(json.dumps(asdict(whole)))) == whole


def test_unknown_keys_are_ignored_and_missing_ones_have_their_default() -> None:
    assert decode(Whole, {"colour": "blue", "parts": [{"name": "a", "size": 1}]}) == Whole(
        parts=(Part(name="a"),)
    )


def test_an_int_is_taken_for_a_float_and_a_newer_kind_for_one_of_ours() -> None:
    whole = decode(Whole, {"ratio": 2, "kind": "c"})
    assert (type(whole.ratio), whole.ratio, whole.kind) == (float, 2.0, "c")


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ([], "it should be an object"),
        (None, "it should be an object"),
        ({"count": "1"}, "`count` should be a valid integer"),
        ({"count": True}, "`count` should be a valid integer"),
        ({"count": 1.0}, "`count` should be a valid integer"),
        ({"ratio": True}, "`ratio` should be a valid number"),
        ({"ratio": float("nan")}, "`ratio` should be a finite number"),
        ({"ratio": float("-inf")}, "`ratio` should be a finite number"),
        ({"done": 0}, "`done` should be a valid boolean"),
        ({"mode": 1}, "`mode` should be of another type"),
        ({"kind": 1}, "`kind` should be a valid string"),
        ({"exits": {"chief0": None}}, "`exits.chief0` should be a valid integer"),
        ({"facts": []}, "`facts` should be an object"),
        ({"parts": "a"}, "`parts` should be a list"),
        ({"parts": [{"name": "a"}, {}]}, "`parts[1].name` is missing"),
        ({"digest": "0\n"}, "`digest` should match '[0-9a-f]+'"),
        (
            {"parts": [{"name": "a", "paths": ["b", "\udcff/../c"]}]},
            "`parts[0].paths[1]` is not a path inside its folder",
        ),
        (
            {"parts": [{"name": "a", "at": -1}]},
            "`parts[0].at` should be greater than or equal to 0",
        ),
        ({"parts": [{"name": "a", "at": 1e300}]}, "`parts[0].at` should be less than 253370764800"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_first_key(data: object, fault: str) -> None:
    with pytest.raises(InvalidRecord) as raised:
        decode(Whole, data)
    assert str(raised.value) == fault


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.sampled_from(sorted(asdict(Whole()))), JSON)
def test_anything_is_read_or_refused(key: str, value: object) -> None:
    try:
        whole = decode(Whole, {key: value})
    except InvalidRecord as error:
        found = error.key
    else:
        found = key
        text = json.dumps(asdict(whole))  # compared as text: NaN, which `facts` may have, is no NaN
        assert json.dumps(asdict(decode(Whole, json.loads(text)))) == text
    assert found.startswith(key)


def test_a_document_for_scripts_has_the_keys_of_its_view_in_their_order() -> None:
    whole = {"first": Part(name="a", at=1.0), "days": (date(2026, 11, 27),)}
    assert list(pick(Part(name="a", at=2.0), "since=at name").items()) == [
        ("since", 2.0),
        ("name", "a"),
    ]
    assert encode(whole) == {
        "first": {"name": "a", "at": 1.0, "paths": []},
        "days": ["2026-11-27"],
    }
    assert encode(whole, {"Part": "called=name", "date": str})["first"] == {"called": "a"}
    assert encode([Part(name="a")], {"Part": lambda part: (part.name,)}) == [["a"]]
