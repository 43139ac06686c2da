"""The offline checks with real programs: a script's Python, the command-line limit, the CLI."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloudtrain.cli.plan import as_document
from cloudtrain.cluster.plan import make_plan
from cloudtrain.commands.check import check
from cloudtrain.commands.offline_checks import LONGEST, notes
from cloudtrain.commands.plan import plan_report
from tests.support.offline_checks_parts import TWO, written
from tests.support.project import Project

# ── evaluator, secrets ───────────────────────────────────────────────────────


def test_an_evaluator_without_checkpoints_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "home"))
    nodes = {**TWO, "evaluator": {}}
    config = written(tmp_path, nodes=nodes, train={"command": "true"})
    words = "evaluator: without train.checkpoints it gets no checkpoints"
    assert any(
        note.startswith(words) for note in as_document(plan_report(make_plan(config)))["notes"]
    )
    assert any(
        f.text.startswith(words) for f in check(make_plan(config)) if f.what == "note" and f.ok
    )
    given = written(tmp_path, nodes=nodes, train={"command": "true", "checkpoints": "ckpt"})
    assert notes(given) == ()


# ── lengths ──────────────────────────────────────────────────────────────────


def test_what_just_fits_starts_on_a_node(project: Project) -> None:
    length = LONGEST - len("BIG=")
    config = project.config(
        strategy="one_device",
        nodes={"chief": {}},
        train={"command": "echo ${#BIG} > output/n", "env": {"BIG": "x" * length}},
    )
    # `$$` would be the shell's own
    config.write_text(config.read_text().replace("${#BIG}", "$${#BIG}"))
    done = project.cloudtrain("run", config)
    assert done.returncode == 0, done.stderr
    assert project.landed("chief0", "output/n") == f"{length}\n"


# ── the script ───────────────────────────────────────────────────────────────


def test_check_and_run_say_it_before_a_node_exists(project: Project) -> None:
    config = project.config(train={"command": "python3 rnak.py"})
    checked = project.cloudtrain("check", config, "--json")
    assert checked.returncode == 1
    findings = json.loads(checked.stdout)["findings"]
    assert [f["what"] for f in findings if not f["ok"]] == ["script"]
    done = project.cloudtrain("run", config)
    assert done.returncode == 1
    assert "did you mean 'rank.py'?" in done.stderr
    assert not list(project.home.glob("local/*"))
    up = project.cloudtrain("up", config)
    assert up.returncode == 0
    assert "warning: train.command: rnak.py does not exist in" in up.stderr
