"""A manifest is what was written, or refused with words: others may write to a store too."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.artifacts.manifest import (
    Checkpoint,
    Manifest,
    from_json,
    read_manifest,
    to_json,
)
from cloudtrain.core.errors import StoreError
from cloudtrain.core.model import Artifact
from cloudtrain.core.paths import is_inside
from cloudtrain.stores import open_store
from tests.support.landing_parts import write_manifest

DIGEST = "0" * 64
PATHS = st.text(
    st.characters(blacklist_characters="\0", blacklist_categories=()), min_size=1, max_size=20
).filter(is_inside)


def landed(path: str) -> Artifact:
    return Artifact(path=path, size=1, sha256=DIGEST, at=f"again/{path}", mtime=-5, stamp="1/2/3")


def example() -> dict[str, Any]:
    files = {path: landed(path) for path in ("chief0/ckpt/a", "chief0/output/x")}
    checkpoint = Checkpoint(task="chief0", folder="ckpt", paths=("chief0/ckpt/a",))
    return to_json(
        Manifest(run="r", files=files, checkpoint=checkpoint, complete=True, warnings=("w",))
    )


@given(paths=st.lists(PATHS, unique=True, max_size=5), warnings=st.lists(st.text(max_size=9)))
def test_what_is_written_is_read(paths: list[str], warnings: list[str]) -> None:
    manifest = Manifest(
        run="r", files={path: landed(path) for path in paths}, warnings=tuple(warnings)
    )
    assert from_json(json.loads(json.dumps(to_json(manifest)))) == manifest


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(facts=JSON)
def test_anything_else_is_a_value_error(facts: object) -> None:
    with pytest.raises(ValueError):
        from_json(facts)


@given(data=st.data())
def test_a_manifest_with_one_thing_replaced_is_read_or_refused(data: st.DataObject) -> None:
    facts = copy.deepcopy(example())
    where = data.draw(st.sampled_from([facts, facts["checkpoint"], facts["files"][0]]))
    where[data.draw(st.sampled_from(sorted(where)))] = data.draw(JSON)
    try:
        manifest = from_json(facts)
    except ValueError:
        return
    assert all(is_inside(path) and is_inside(each.at) for path, each in manifest.files.items())


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../b", "a//b", "", ".", "a\0"])
@pytest.mark.parametrize("field", ["path", "at"])
def test_a_path_that_leads_out_is_refused(path: str, field: str) -> None:
    facts = example()
    facts["files"][1][field] = path
    with pytest.raises(ValueError, match="not a path inside"):
        from_json(facts)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"format": 2}, "`format` should be 1"),
        ({"run": "../r"}, "`run` is not a path inside"),
        ({"complete": 1}, "`complete` should be a valid boolean"),
        ({"files": [{"path": "a", "size": -1, "sha256": DIGEST}]}, r"`files\[0\].size` should be"),
        ({"files": [{"path": "a", "size": 1, "sha256": "A" * 64}]}, r"`files\[0\].sha256` should"),
        ({"files": example()["files"] * 2}, "a path is listed twice"),
        ({"files": []}, "its checkpoint names files that are not listed"),
        ({"checkpoint": {"task": "a", "folder": "b", "paths": ["a/c"]}}, "outside its folder"),
        ({"checkpoint": {"task": "a", "folder": "..", "paths": []}}, "`checkpoint.folder`"),
    ],
)
def test_a_refused_manifest_says_why(change: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        from_json({**example(), **change})


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"\xff", b"[]", b'{"format": 2}', b"[" * 100_000, b"1" * 10_000, b'"\\ud800"'],
)
def test_a_file_that_is_no_manifest_is_a_store_error_with_its_place(
    tmp_path: Path, text: bytes
) -> None:
    store = open_store(tmp_path.as_uri())
    store.upload("r/manifest.json", [text])
    with pytest.raises(StoreError, match=r"/r/manifest\.json is not a manifest") as raised:
        read_manifest(store, "r")
    assert raised.value.hint


def test_no_manifest_is_none(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    assert read_manifest(store, "r") is None
    write_manifest(store, Manifest(run="r"))
    assert read_manifest(store, "r") == Manifest(run="r")


def test_a_checkpoint_lives_with_its_files_only() -> None:
    manifest = from_json(example())
    assert manifest.without(["chief0/output/x"]).checkpoint is not None
    assert manifest.without(["chief0/ckpt/a"]).checkpoint is None
    assert manifest.with_files([landed("chief0/ckpt")]).checkpoint is None
    newer = Checkpoint(task="chief0", folder="ckpt", paths=("chief0/ckpt/b",))
    after = manifest.with_files([landed("chief0/ckpt/b")]).with_checkpoint(newer)
    assert set(after.files) == {"chief0/ckpt/b", "chief0/output/x"}
