"""Globs: what a pattern matches, what lies inside a folder, and that no pattern fails."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.core.paths import is_inside, shown
from cloudtrain.node.listing import literal, matches, may_hold

MEANT = [
    ("output/**", "output/a"),
    ("output/**", "output/a/b/.hidden"),
    ("output", "output/a"),
    ("output/", "output/a"),
    ("./output", "output/a"),
    ("**", ".a"),
    (".", "a/b"),
    ("**/*.h5", "a.h5"),
    ("**/*.h5", "a/b/c.h5"),
    ("a/**/b", "a/b"),
    ("a/**/b", "a/x/y/b"),
    ("a/**/b", "a/x/b/below"),
    ("*.log", "x.log"),
    ("?", "ü"),
    ("[a-c]x", "bx"),
    ("[!a-c]x", "dx"),
    ("a[", "a["),
    ("**/**/x", "x"),
    ("*", "new\nline"),
]
NOT_MEANT = [
    ("output/**", "outputs/a"),
    ("output/**", "a/output/b"),
    ("*.log", "a/x.log"),
    ("a/*", "b/a"),
    ("a/*/b", "a/b"),
    ("A", "a"),
    ("", "a"),
    ("/a", "a"),
    ("../a", "a"),
    ("a/../b", "b"),
]


@pytest.mark.parametrize(("pattern", "path"), MEANT)
def test_a_pattern_means(pattern: str, path: str) -> None:
    assert matches(path, pattern)


@pytest.mark.parametrize(("pattern", "path"), NOT_MEANT)
def test_a_pattern_does_not_mean(pattern: str, path: str) -> None:
    assert not matches(path, pattern)


NAME = st.text(alphabet="ab.*?[]!-/\n\\ü", min_size=1, max_size=12)


@given(path=st.text(max_size=20), pattern=st.text(max_size=20))
def test_no_path_and_no_pattern_fails(path: str, pattern: str) -> None:
    matches(path, pattern)
    may_hold(path, pattern)
    shown(path).encode("utf-8")


@given(path=NAME, pattern=NAME)
def test_every_folder_of_a_path_that_is_meant_may_hold_it(path: str, pattern: str) -> None:
    if is_inside(path) and matches(path, pattern):
        while path:
            assert may_hold(path, pattern)
            path = posixpath.dirname(path)


@given(path=NAME, other=NAME)
def test_a_literal_means_itself_alone(path: str, other: str) -> None:
    if is_inside(path) and is_inside(other):
        assert matches(path, literal(path))
        assert matches(other, literal(path)) == f"{other}/".startswith(f"{path}/")


@given(pattern=st.sampled_from(["*a" * 12, "**/" * 12 + "b", "**/a/" * 6 + "b"]))
def test_no_pattern_takes_for_ever(pattern: str) -> None:
    assert not matches("/".join(["a" * 30] * 60), pattern + "c")
