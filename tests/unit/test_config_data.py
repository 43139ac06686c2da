"""`data:` of the file: its two forms, what is refused with file and line, and records of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.config import from_json, load, to_json, training_sections
from cloudtrain.config.fields import InvalidValue
from cloudtrain.config.training_sections import data_name, data_uri
from cloudtrain.config.yaml_source import Scalar, SourceLocation
from cloudtrain.core.errors import ConfigError
from cloudtrain.core.model import ClusterConfig, DataSource

BASE = """\
provider: local
strategy: multi_worker_mirrored
nodes: {chief: , worker: {count: 2}, evaluator: }
"""


def read(folder: Path, text: str) -> ClusterConfig:
    (folder / "c.yaml").write_text(BASE + text)
    return load(folder / "c.yaml", {"BUCKET": "bucket"})


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    return [line.removeprefix(f"{folder}/") for line in str(caught.value).splitlines()]


def test_a_dataset_is_a_uri_or_a_mapping(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        "data:\n"
        "  digits: gs://${BUCKET}/digits\n"
        "  big: {from: s3://bucket/records, shard: true, rest: drop}\n"
        "  labels: {from: 'https://example.org/a%20b.csv?download=1', role: worker}\n",
    )
    assert config.data == {
        "digits": DataSource(source="gs://bucket/digits"),
        "big": DataSource(source="s3://bucket/records", shard=True, rest="drop"),
        "labels": DataSource(source="https://example.org/a%20b.csv?download=1", role="worker"),
    }
    assert from_json(to_json(config)) == config


def test_a_record_of_an_earlier_version_has_no_data(tmp_path: Path) -> None:
    recorded = to_json(read(tmp_path, ""))
    del recorded["data"]
    assert from_json(recorded).data == {}


FORMS = f"must be {training_sections.FORMS}"


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (
            "d: ./digits",
            f"data.d: {FORMS}, not './digits': a local folder is file:///absolute/path",
        ),
        ("d: http://x/y", f"data.d: {FORMS}, not 'http://x/y': did you mean https://?"),
        ("d: ftp://x/y", f"data.d: {FORMS}, not 'ftp://x/y'"),
        ("d: {from: s33://b}", f"data.d.from: {FORMS}, not 's33://b': did you mean s3://?"),
        ("d: gs://b/x", "data.d: must name a bucket of 3 to 63 characters"),
        ("d: s3://Bucket/x", "data.d: must be s3://BUCKET, optionally with a prefix"),
        ("d: az://account", "data.d: must be az://ACCOUNT/CONTAINER, optionally with a prefix"),
        ("d: file:///", "data.d: must be file:// and an absolute path"),
        ("d: gs://bucket/a/../b", "data.d: must not contain .."),
        ("d: gs://bucket//a", "data.d: must not contain // or /./ in its path"),
        ("d: s3://bucket/a?versionId=1", "data.d: must not contain ? or #"),
        ("d: https://example.org/", "data.d: must name one file: https:// has no listing"),
        ("d: https://me:pw@example.org/a", "data.d: contains a user or password in the URL"),
        ("d: https://a.org/b?X-Amz-Signature=1", "data.d: contains a signature or key in the URL"),
        ("d: https://[a.org/b", "data.d: must be an https:// URL"),
        ("Digits: gs://bucket/a", "data.Digits: a dataset's name is a lower-case letter"),
        ("a-b: gs://bucket/a", "data.a-b: a dataset's name is a lower-case letter"),
        ("d: {shard: true}", "data.d.from: is missing: the URI of the data"),
        ("d: [gs://bucket/a]", "data.d: must be a mapping"),
        ("d: {form: gs://bucket/a}", "data.d.form: unknown field: did you mean 'from'?"),
        (
            "d: {from: gs://bucket/a, role: wroker}",
            "data.d.role: wroker is no role of this cluster: did you mean 'worker'?",
        ),
        (
            "d: {from: gs://bucket/a, role: reader}",
            "data.d.role: reader is no role of this cluster: the roles are chief,",
        ),
        (
            "d: {from: gs://bucket/a, role: evaluator, shard: true}",
            "data.d.shard: is for nodes that train: evaluator reads no shard of the data",
        ),
        ("d: {from: gs://bucket/a, rest: drop}", "data.d.rest: requires `shard: true`"),
        (
            "d: gs://bucket/a\n  d: gs://bucket/b",
            "data.d: is given twice, first on line 5: remove one",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, entry: str, expected: str) -> None:
    found = problems(tmp_path, f"data:\n  {entry}\n")
    line = 6 if "\n" in entry else 5
    assert len(found) == 1, found
    assert found[0].startswith(f"c.yaml:{line}: {expected}")


def test_a_password_in_a_url_is_not_repeated(tmp_path: Path) -> None:
    found = problems(tmp_path, "data:\n  d: https://me:hunter2@example.org/a\n")
    assert "hunter2" not in "".join(found)


def test_a_shard_without_chief_and_workers_needs_a_role(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "provider: local\nstrategy: custom\nnodes: {reader: {count: 2}}\n"
        "data: {d: {from: gs://bucket/a, shard: true}}\n"
    )
    with pytest.raises(ConfigError, match=r"data\.d\.role: is missing: `shard` without it"):
        load(tmp_path / "c.yaml", {})


def test_a_placeholder_of_an_unknown_dataset_is_a_problem_with_its_line(tmp_path: Path) -> None:
    text = (
        "data: {digits: gs://bucket/a}\n"
        "train:\n"
        "  command: python t.py {data.digits} {data.digist} {other}\n"
        "  env:\n"
        "    WHERE: '{data.labels}'\n"
    )
    assert problems(tmp_path, text) == [
        "c.yaml:6: train.command: names {data.digist}, which `data:` does not have: "
        "did you mean 'digits'?",
        "c.yaml:8: train.env.WHERE: names {data.labels}, which `data:` does not have: "
        "it has digits",
    ]


def test_a_placeholder_without_any_data_says_how_to_add_it(tmp_path: Path) -> None:
    assert problems(tmp_path, "train: {command: 'python t.py {data.digits}'}\n") == [
        "c.yaml:4: train.command: names {data.digits}, which `data:` does not have: "
        "add it, such as `data: {digits: gs://BUCKET/prefix}`"
    ]


@given(st.text(max_size=40))
def test_any_name_makes_a_variable_or_is_refused(name: str) -> None:
    try:
        data_name(name)
    except InvalidValue:
        return
    variable = f"CLOUDTRAIN_DATA_{name.upper()}"
    assert variable.isascii()
    assert variable.isidentifier()


@given(
    st.sampled_from(["gs://bucket/", "s3://bucket/", "az://account/c/", "file:///", "https://h/"]),
    st.text(max_size=30),
)
def test_any_uri_is_taken_as_written_or_refused(start: str, rest: str) -> None:
    try:
        value = data_uri(Scalar(start + rest, SourceLocation("c.yaml", 1)))
    except ValueError:
        return
    assert value == start + rest
    assert ".." not in value.split("/")
    assert value.isprintable() or not any(ord(c) < 32 for c in value)


def test_a_line_of_a_role_without_the_data_is_refused(tmp_path: Path) -> None:
    data = "data: {d: {from: gs://bucket/d, role: worker}, s: {from: gs://bucket/s, shard: true}}\n"
    assert problems(tmp_path, data + "train: {command: 'x {data.d} {data.s}'}\n") == [
        "c.yaml:5: train.command: names {data.d}, which chief and evaluator nodes do not get: "
        "write a line for each role, or read CLOUDTRAIN_DATA_D, which is set where the data is",
        "c.yaml:5: train.command: names {data.s}, which evaluator nodes do not get: "
        "write a line for each role, or read CLOUDTRAIN_DATA_S, which is set where the data is",
    ]
    lines = "train: {command: {worker: 'x {data.d}', default: y}}\n"
    assert read(tmp_path, data + lines).data["d"].role == "worker"
