"""Whatever a file holds: a config, or problems in plain English, never a traceback."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cloudtrain.config import from_json, load, to_json
from cloudtrain.config.sections import ConfigFile, section_at
from cloudtrain.config.yaml_source import parse
from cloudtrain.core.errors import ConfigError, UsageError

ROOT = Path(__file__).parents[2]
SAMPLES = [path.read_text() for path in sorted((ROOT / "configs" / "templates").glob("*.yaml"))]
SAMPLES.append((ROOT / "docs" / "most-fields.yaml").read_text("utf-8"))
ENVIRON = {"HOME": "/home/me", "A": "1", "B": "x: [", "C": "", "D": "h\ud800", "E": "\udcff"}
JARGON = (
    "validation",
    "Traceback",
    "NoneType",
    "has an invalid value",
)

quick = settings(
    max_examples=settings().max_examples * 3 // 2,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)


def settle(data: bytes) -> None:
    """Load it; what is wrong must be told so that a person can use it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.yaml"
        path.write_bytes(data)
        try:
            config = load(path, ENVIRON)
        except ConfigError as error:
            told(error)
        except UsageError as error:
            of_another_tool(error)
        else:
            assert from_json(json.loads(json.dumps(to_json(config)))) == config


def of_another_tool(error: UsageError) -> None:
    assert error.message.endswith(", no config of cloudtrain")


def told(error: ConfigError) -> None:
    assert error.problems
    for problem in error.problems:
        line = str(problem)
        assert line.isprintable()
        assert len(line) < 600
        assert not any(word in line for word in JARGON), line


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**4000, -(10**4000)]),  # drawn freely, they take all of the data
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(
        ["${A}", "${B}", "${C}", "${D}", "${E}", "${NOPE}", "${", "off", "1d", "T4:1", "=", "<<"]
    ),
    st.sampled_from(
        ["nan", ".inf", "0o7", "1_000", "2001-01-01", "file:///x", "../..", "~", "\0", "\u2028"]
    ),
)


def keys_at(top: str) -> list[str]:
    section = section_at((top,))
    return list(section.by_key()) if section else []


field_names = sorted(
    {name for top in ConfigFile.names() for name in keys_at(top)}
    | set(ConfigFile.names())
    | {"chief", "worker", "ps", "evaluator", "master"}
)
keys = st.one_of(st.sampled_from(field_names), scalars.filter(lambda key: key == key))
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=6)),
    max_leaves=25,
)


@quick
@example(b"#!sh")
@given(st.binary(max_size=200))
@example(b"")
@example(b"\xef\xbb\xbf")
@example(b"\xff\xfea\x00")
@example(b"a: &a [*a, *b]")
@example(b"? ? ? ? a")
@example(b"[" * 100_000)
@example(b"{a: " * 100_000)
@example(b"- " * 100_000)
@example(b"? " * 50_000)
@example(b"a: !!binary '&'")
@example(b"%TAG ! tag:x,2000:\n---\n!y {}")
@example(b"a: \xe2\x80\xa8b\n\xc2\x85c: d")
def test_any_bytes_are_settled(data: bytes) -> None:
    settle(data)


@quick
@given(st.text(alphabet="abc:{}[]-?&*!|>'\"%@` \n\t#,<~0$\ufeff\u2028é😀", max_size=60))
def test_any_yaml_like_text_is_settled(text: str) -> None:
    settle(text.encode())


@quick
@given(st.dictionaries(st.sampled_from(sorted(ConfigFile.names())), trees, max_size=8))
def test_any_tree_of_known_fields_is_settled(tree: dict[str, object]) -> None:
    settle(yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "replace"))


@quick
@given(st.sampled_from(SAMPLES), st.data())
def test_a_valid_file_with_one_value_changed_is_settled(sample: str, data: st.DataObject) -> None:
    tree = yaml.safe_load(sample)
    place = tree
    while True:
        name = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[name], dict) or not place[name] or data.draw(st.booleans()):
            break
        place = place[name]
    place[name] = data.draw(trees)
    settle(yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "replace"))


@quick
@given(st.sampled_from(SAMPLES), st.integers(0, 4000), st.text(max_size=3), st.integers(0, 3))
def test_a_valid_file_with_one_edit_is_settled(sample: str, at: int, new: str, gone: int) -> None:
    settle((sample[:at] + new + sample[at + gone :]).encode("utf-8", "replace"))


@quick
@given(trees)
def test_a_damaged_record_is_settled(data: object) -> None:
    with pytest.raises(ConfigError):
        from_json(data)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda text: text.split("provider: ")[1][:5])
def test_without_libyaml_a_file_reads_the_same(
    sample: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = parse(sample.encode(), "c.yaml", ENVIRON)
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert parse(sample.encode(), "c.yaml", ENVIRON) == fast
