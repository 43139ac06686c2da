"""URIs, keys and streams, the same for every kind of store."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.core import store_kinds
from cloudtrain.core.errors import UsageError
from cloudtrain.core.extras import install_hint
from cloudtrain.core.presign import Presigner
from cloudtrain.core.store_kinds import StoreKind
from cloudtrain.stores import extra_of, open_store
from cloudtrain.stores.objects import BucketPresigner, CountingReader, decode_key, encode_key
from tests.support.project import ROOT


@pytest.mark.parametrize("kind", store_kinds.KINDS, ids=lambda kind: kind.scheme)
def test_each_kind_has_its_module_its_extra_and_its_rows_on_the_page(kind: StoreKind) -> None:
    module = f"cloudtrain.stores.{kind.scheme}"
    assert importlib.util.find_spec(module), f"write {module.replace('.', '/')}.py"
    opened = getattr(importlib.import_module(module), "opened", None)
    assert opened, f"write `opened` in {module.replace('.', '/')}.py, as StoreKind has it"
    keywords = list(inspect.signature(opened).parameters)
    assert keywords == ["uri", "endpoint", "project", "wishes"], "as StoreKind has it"
    page, stores = text("docs/artifacts.md"), text("tests/standins/stores.py")
    glossary = re.findall(r"^- \*\*store\*\*: (.*)$", text("docs/glossary.md"), re.MULTILINE)
    there: dict[str, Any] = {
        "docs/artifacts.md: add its row": rows_of(kind, "artifacts"),
        "docs/data.md: add its row": rows_of(kind, "data") or not kind.holds_data,
        "docs/glossary.md, `store`: name it": f"`{kind.scheme}://`" in glossary[0],
    }
    if not kind.on_this_machine:
        stand_in = re.search(rf'^KINDS = \{{.*"{kind.scheme}":', stores, re.MULTILINE)
        there["write its stand-in, and add it to KINDS in tests/standins/stores.py"] = stand_in
        there["core/store_kinds.py: its `reader`"] = kind.reader
    if kind.package:
        whole = [row.startswith(f"| `{kind.scheme}://` |") for row in rows_of(kind, "artifacts")]
        there["docs/artifacts.md, `a node receives`: add its row"] = any(whole)
        sentence = page.partition("\nNodes upload to ")[2].partition(".")[0]
        there["docs/artifacts.md, `Nodes upload to`: name it"] = f"`{kind.scheme}://`" in sentence
    assert [place for place, is_there in there.items() if not is_there] == []
    if kind.package:
        presigner = f"cloudtrain.stores.presign.{kind.scheme}"
        assert importlib.util.find_spec(presigner), f"write {presigner.replace('.', '/')}.py"
        classes = vars(importlib.import_module(presigner)).values()
        doors = [*vars(Presigner), *vars(BucketPresigner)]
        asked = {name for name in doors if not name.startswith("_")}
        signs = [each for each in classes if asked <= {*dir(each)}]
        assert signs, f"{presigner}: write its class, with {', '.join(sorted(asked))}"


def text(path: str) -> str:
    return (ROOT / path).read_text("utf-8")


def rows_of(kind: StoreKind, page: str) -> list[str]:
    """Rows of a table of a page that begin with a URI of this kind."""
    lines = text(f"docs/{page}.md").splitlines()
    return [line for line in lines if line.startswith(f"| `{kind.scheme}://")]


@pytest.mark.parametrize(
    "kind", [kind for kind in store_kinds.KINDS if kind.package], ids=lambda kind: kind.scheme
)
def test_the_extra_of_a_kind_brings_its_package_and_is_in_all_and_on_the_page(
    kind: StoreKind,
) -> None:
    extra, package = extra_of(kind), kind.distribution or kind.package.replace(".", "-")
    project = text("pyproject.toml")
    own = re.search(rf'^{extra} = .*"{package}\b', project, re.MULTILINE)
    assert own, f"add an extra `{extra}` with {package} to pyproject.toml"
    of_all = re.search(rf"^all = .*[\[,]{extra}[\],]", project, re.MULTILINE)
    assert of_all, f"add {extra} to the extra `all` in pyproject.toml"
    page = text("docs/dependencies.md").partition("## Extras")[2]
    assert f"`{extra}`" in page, "add it to docs/dependencies.md"
    assert package in page, "add it to docs/dependencies.md"


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("gs://", "gs://BUCKET/prefix"),
        ("s3:///x", "s3://BUCKET/prefix"),
        ("az://account", "az://ACCOUNT/CONTAINER/prefix"),
        ("s3://bucket/a//b", "s3://BUCKET/prefix"),
        ("gs://bucket/../b", "is not a valid prefix"),
        ("http://x/y", "unknown kind of store"),
        ("/a/path", "unknown kind of store"),
        ("", "unknown kind of store"),
        ("file://host/path", "has a host"),
        ("file://relative", "has a host"),
        ("file://~/x", "has a host"),
        ("file:///a%00b", "NUL"),
    ],
)
def test_a_uri_that_names_no_store_of_this_version_says_which_there_are(
    uri: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words) as raised:
        open_store(uri)
    assert "unknown kind" not in words or "s3://BUCKET/prefix" in str(raised.value.hint)


def test_a_missing_package_of_a_store_without_a_cloud_has_an_install_hint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind = StoreKind(
        scheme="sftp",
        form="sftp://HOST/path",
        pattern="",
        package="no_such",
        bucket_schemes=(),
        monthly=None,
    )
    monkeypatch.setattr(store_kinds, "KINDS", (kind,))
    with pytest.raises(UsageError, match="needs no_such, which is not installed") as raised:
        open_store("sftp://host/path")
    assert raised.value.hint == install_hint("sftp")


@given(st.binary(max_size=40))
def test_every_path_has_one_key_and_every_key_one_path(name: bytes) -> None:
    path = os.fsdecode(name)
    key = encode_key(path)
    assert decode_key(key) == path
    key.encode("utf-8")
    assert key.isprintable() or all(ord(c) >= 0x80 for c in key if not c.isprintable())


@given(st.lists(st.binary(max_size=9)), st.lists(st.integers(0, 20)))
def test_a_stream_gives_exactly_what_is_asked_for(chunks: list[bytes], sizes: list[int]) -> None:
    stream, whole = CountingReader(chunks), b"".join(chunks)
    read = [stream.read(size) for size in sizes]
    assert b"".join(read) == whole[: sum(sizes)]
    if sum(sizes) <= len(whole):
        assert [len(data) for data in read] == sizes
    assert b"".join(read) + stream.read() == whole
    assert stream.sha256.hexdigest() == hashlib.sha256(whole).hexdigest()
