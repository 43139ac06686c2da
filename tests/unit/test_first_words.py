"""First mistakes in a config, and the hints that answer them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.catalog.gpus import canonical_name
from cloudtrain.cli.nodes import node_lines
from cloudtrain.commands.init import SCHEMA, init
from cloudtrain.config import load
from cloudtrain.core.errors import ConfigError, CredentialsError, UsageError
from cloudtrain.core.model import Node
from cloudtrain.stores import open_store

ONE = "name: t\nprovider: local\nstrategy: one_device\ntrain: {command: true}\n"


def test_an_empty_folder_is_given_a_script_that_the_config_runs(tmp_path: Path) -> None:
    init("local", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"local.yaml", "train.py", SCHEMA}
    compile((tmp_path / "train.py").read_text(), "train.py", "exec")


def test_a_folder_with_something_in_it_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine.py").touch()
    init("local", tmp_path)
    assert not (tmp_path / "train.py").exists()


def test_a_file_with_another_ending_is_the_one_that_was_meant(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(ONE)
    for name in ("good.yml", "goood.yaml"):
        with pytest.raises(UsageError) as caught:
            load(tmp_path / name)
        assert caught.value.hint == f"did you mean {tmp_path / 'good.yaml'}?"


def test_a_folder_is_no_config_and_its_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(ONE)
    with pytest.raises(UsageError, match=r"cannot read .*: it is a directory") as caught:
        load(tmp_path)
    assert caught.value.hint == "name a file in it: b.yaml"


def test_a_brace_that_is_left_open_is_pointed_to(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("name: t\nstrategy: {one_device  # }\nnodes: {a: '}', b: [1]}\ntrain:\n")
    with pytest.raises(ConfigError, match="check that the bracket opened on line 2 is closed"):
        load(path)


def test_a_bucket_name_that_is_too_short_is_said_so(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(ONE + "artifacts: {store: gs://b/p}\n")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value) == (
        f"{path}:5: artifacts.store: must name a bucket of 3 to 63 characters: this name is too "
        "short, not 'gs://b/p'"
    )


def test_an_accelerator_that_nobody_has_is_named_as_written() -> None:
    assert canonical_name("V10000") == "V10000"
    assert canonical_name("V100-32GB") == canonical_name("v100-32g") == "V100-32GB"


def test_hosts_without_hosts_show_how_one_is_written(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(ONE.replace("local", "hosts") + "hosts: []\n")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert "for example `hosts: [{address: 10.0.0.4" in (caught.value.hint or "")


def test_a_large_cluster_is_a_line_a_role_and_those_that_are_otherwise() -> None:
    nodes = [
        Node(
            name=f"m-worker{n}",
            role="worker",
            index=n,
            state="stopped" if n == 7 else "running",
            address=f"10.0.0.{n}",
            internal="",
            placement="us-east4-c",
            machine="n1-standard-8",
            fault="another host key" if n == 9 else "",
        )
        for n in range(127)
    ]
    assert list(node_lines(nodes)) == [
        "  worker  126 running, 1 stopped  us-east4-c  n1-standard-8",
        "    worker7  stopped   10.0.0.7:22  us-east4-c  n1-standard-8",
        "    worker9  running   10.0.0.9:22  us-east4-c  n1-standard-8",
        "      another host key",
    ]
    assert len(list(node_lines(nodes[:16]))) == 17


@pytest.mark.parametrize(
    ("key", "words"),
    [("garbage", "is not a valid json file.: Expecting value"), ('{"type": "x"}', "Type is x")],
)
def test_a_key_file_that_is_broken_is_told_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, words: str
) -> None:
    path = tmp_path / "key.json"
    path.write_text(key)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    with pytest.raises(CredentialsError) as caught:
        open_store("gs://some-bucket/x")
    assert words in str(caught.value)
    assert "Storage: ('" not in str(caught.value)
    assert f"correct {path}" in (caught.value.hint or "")
