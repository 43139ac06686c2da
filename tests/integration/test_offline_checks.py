"""The offline checks with real programs: a script's Python, the command-line limit, the CLI."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from cloudtrain.checks.check import check
from cloudtrain.checks.commands import LONGEST
from cloudtrain.checks.notes import notes, script_notes
from cloudtrain.cli.plan import as_document
from cloudtrain.cluster.plan import make_plan
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
    words = "evaluator: without `shared` or train.checkpoints it gets no checkpoints"
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


def test_a_script_of_a_repository_on_this_machine_is_read_as_committed(tmp_path: Path) -> None:
    script = "import tensorflow as tf\ntf.distribute.MirroredStrategy()\n"
    repository = tmp_path / "my code"
    repository.mkdir()
    (repository / "train.py").write_text(script)
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    (repository / "train.py").write_text("")
    (repository / "new.py").touch()

    def found(line: str, url: str = repository.as_uri(), **code: str) -> tuple[str, ...]:
        train = {"command": line}
        return script_notes(written(tmp_path, code={"git": url, **code}, train=train))

    (note,) = found("python train.py")
    assert note.startswith("train.py:2: distribute.MirroredStrategy, but the config has")
    assert found("python train.py", "./my code") == (note,)
    (missing,) = found("python new.py")
    assert "new.py is not delivered: it is not committed, or not in HEAD" in missing
    assert "did you mean 'train.py'?" in found("python trian.py")[0]
    assert found("python train.py", ref="nothing") == ()
    assert found("python train.py", "https://git.invalid/x.git") == ()
