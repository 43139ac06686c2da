"""Short JSON of programs on nodes, which read and write it without the module `json`."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.node import short_json

TEXTS = st.text(st.characters())  # halves of characters, too, which stand for invalid UTF-8
NUMBERS = st.integers() | st.floats(allow_nan=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda values: st.lists(values) | st.dictionaries(TEXTS, values),
    max_leaves=10,
)


@given(value=VALUES)
def test_what_is_written_is_what_json_reads(value: object) -> None:
    assert json.loads(short_json.written(value)) == json.loads(json.dumps(value))


@given(value=VALUES)
def test_what_json_writes_is_what_is_read(value: object) -> None:
    line = json.dumps(value)
    assert short_json.read(line.encode() + b"\n") == json.loads(line)


def test_every_text_is_written_in_one_line_of_ascii() -> None:
    line = short_json.written({'a\n"b\\': ["é", "\x7f", "\U0001f600", "\udcff", "\u2028"]})
    assert line.isascii()
    assert line.isprintable()


def test_what_is_no_number_is_read_and_written_as_json_does() -> None:
    assert short_json.written(float("nan")) == json.dumps(float("nan"))
    found = short_json.read(b"[NaN, -Infinity]")
    assert (str(found[0]), found[1]) == ("nan", float("-inf"))
