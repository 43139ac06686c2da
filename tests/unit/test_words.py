"""Lists of names in messages."""

import pytest

from cloudtrain.words import some


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b", "c"], "a, b, c"),
        (["a", "b", "c", "d"], "a, b, c and 1 more"),
        (dict.fromkeys("abcde"), "a, b, c and 2 more"),
    ],
)
def test_the_first_names_are_listed_and_the_rest_counted(names: list[str], text: str) -> None:
    assert some(names) == text


def test_how_many_are_listed_can_be_chosen() -> None:
    assert some("abc", 1) == "a and 2 more"
