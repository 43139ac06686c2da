"""Long lines on a terminal are broken between words, below the text that they continue."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.console.lines import terminal_width, wrapped


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            "ok    quota   eight of all the nine",
            ["ok    quota   eight of all the", "              nine"],
        ),
        (
            "  note: the disk is full, or nearly so",
            ["  note: the disk is full, or", "        nearly so"],
        ),
        ("error: a.yaml:3: nodes.worker: many", ["error: a.yaml:3: nodes.worker:", "       many"]),
        (
            "  done when  chief0, worker0 exit 0",
            ["  done when  chief0, worker0", "             exit 0"],
        ),
        ("first try `cloudtrain plan FILE` here", ["first try", "  `cloudtrain plan FILE` here"]),
        ("  store  gs://a-bucket/with/a/name", ["  store", "    gs://a-bucket/with/a/name"]),
        ("  n1  T4:1  100 GB  port 8900 a", ["  n1  T4:1  100 GB", "            port 8900 a"]),
        (
            "  image  projects/and/a/name/that/is/long",
            ["  image  projects/and/a/name/that/is/long"],
        ),
        ("    deeper text that has no label", ["    deeper text that has no", "      label"]),
    ],
)
def test_a_line_is_broken_at_words_and_continues_below_its_text(
    line: str, shown: list[str]
) -> None:
    assert wrapped(line, 30).split("\n") == shown


def test_nothing_is_broken_in_a_pipe_or_where_there_is_room() -> None:
    assert terminal_width(io.StringIO()) is None
    assert wrapped("a " * 200, None) == "a " * 200
    assert wrapped("ok    quota     eight", 24) == "ok    quota     eight"


@given(st.text("ab `:\n", max_size=90), st.integers(10, 40))
def test_no_word_is_lost_or_cut(text: str, width: int) -> None:
    assert wrapped(text, width).split() == text.split()
    lines = wrapped(text, width).split("\n")
    assert all(len(line) <= width or " " not in line.strip() or "`" in line for line in lines)
