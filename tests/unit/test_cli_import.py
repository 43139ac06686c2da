"""`cloudtrain import` as a user types it: where its words go, and with which exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cloudtrain.cli.app import cli, run

SOURCE = "trainingInput:\n  region: us-east1\n  hyperparameters: {goal: MAXIMIZE}\n"
NAMED = (
    "not mapped: config.yaml:3: trainingInput.hyperparameters:"
    " tuning is not mapped: one run with fixed values is"
)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(SOURCE)


def cloudtrain(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def test_the_config_goes_to_stdout_and_what_is_lost_to_stderr() -> None:
    done = cloudtrain("import", "config.yaml")
    assert done.exit_code == 0
    assert done.stdout.startswith("# cloudtrain: imported from config.yaml")
    assert f"#   {NAMED.removeprefix('not mapped: ')}" in done.stdout
    assert done.stderr.splitlines() == [
        NAMED,
        "fill in: setup.tensorflow, code.path, train.command, artifacts.store",
    ]


def test_a_file_is_written_and_never_replaced_without_force(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = cloudtrain("import", "config.yaml", "--output", "mine.yaml")
    assert done.stdout == "wrote mine.yaml; next: cloudtrain plan mine.yaml\n"
    assert cloudtrain("plan", "mine.yaml").exit_code == 0
    Path("mine.yaml").write_text("mine")
    assert run(["import", "config.yaml", "--output", "mine.yaml"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: mine.yaml already exists",
        "hint: pass --force to replace it",
    ]
    assert Path("mine.yaml").read_text() == "mine"
    assert cloudtrain("import", "config.yaml", "--output", "mine.yaml", "--force").exit_code == 0
    assert Path("mine.yaml").read_text() != "mine"


def test_json_is_one_document_with_config_text_and_what_is_lost() -> None:
    done = cloudtrain("import", "config.yaml", "--json")
    document = json.loads(done.stdout)
    assert done.stderr == ""
    assert document["kind"] == "an AI Platform training job"
    assert document["config"]["placement"] == ["us-east1"]
    assert document["unmapped"] == [
        {
            "file": "config.yaml",
            "line": 3,
            "field": "trainingInput.hyperparameters",
            "text": "tuning is not mapped: one run with fixed values is",
        }
    ]
    assert "train.command" in document["fill_in"]
    assert document["yaml"].startswith("# cloudtrain")


def test_the_config_of_a_submit_line_is_read_without_naming_it() -> None:
    line = "gcloud ai-platform jobs submit training j --config config.yaml"
    assert NAMED in cloudtrain("import", "--submit", line).stderr


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "error: nothing to import"),
        (["none.yaml"], "error: none.yaml: no such file"),
        (["config.yaml", "--provider", "ibm"], "error: unknown provider 'ibm'"),
        (["config.yaml", "--strategy", "x"], "error: unknown strategy 'x'"),
        (["config.yaml", "--output", "no/such/folder.yaml"], "error: cannot write no/such/folder"),
        (["."], "error: cannot read ."),
    ],
)
def test_bad_usage_is_an_error_with_exit_code_2(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["import", *arguments]) == 2
    assert capsys.readouterr().err.startswith(error)
