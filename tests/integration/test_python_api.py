"""`import cloudtrain` as a notebook uses it: values in and out, nothing printed."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.core.errors import RunFailed, UsageError
from tests.support.project import Project


@pytest.fixture(autouse=True)
def _own_home(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(project.home))


def test_a_notebook_trains_on_local_nodes(
    project: Project, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = cloudtrain.load(project.config())
    assert (config.name, config.provider) == (project.name, "local")

    report = cloudtrain.plan(config)
    assert [task.node.name for task in report.tasks] == [
        f"{project.name}-chief0",
        f"{project.name}-worker0",
    ]
    assert "--output" in report.tasks[0].command
    assert '"type": "chief"' in (report.tasks[0].tf_config or "")
    assert (report.deciding, report.price_at_most, report.bill) == (("chief0",), 0.0, None)

    assert [finding for finding in cloudtrain.check(config) if not finding.ok] == []

    cluster = cloudtrain.up(config)
    assert [node.state for node in cluster.nodes] == ["running", "running"]

    run = cloudtrain.train(config)
    assert (run.state, run.exit_code, run.cluster) == ("succeeded", 0, project.name)
    table = run._repr_html_()
    assert f"<tr><th>run</th><td>{run.id} of {project.name}</td></tr>" in table
    assert "<tr><th>state</th><td>succeeded, exit code 0</td></tr>" in table

    (shown,) = cloudtrain.status(config).clusters
    assert [node.name for node in shown.nodes or ()] == [node.name for node in cluster.nodes]
    assert shown.runs == (run,)

    logs = cloudtrain.logs(project.name)
    assert set(logs) == {"chief0", "worker0"}
    assert "chief0 started, pid" in logs["chief0"]
    (last,) = cloudtrain.logs(config, roles=["worker"], tail=1).values()
    assert len(last.splitlines()) == 1

    manifest = cloudtrain.fetch(config, tmp_path / "results")
    assert manifest.run == run.id
    assert manifest.complete
    for path, landed in manifest.files.items():
        assert (tmp_path / "results" / path).stat().st_size == landed.size

    resumed = cloudtrain.train(config, resume="last", arguments=["--steps", "7"])
    assert resumed.resumed_from is not None
    assert resumed.resumed_from.run == run.id
    row = f"<tr><th>resumed from</th><td>ckpt/ckpt-5 of run {run.id}</td></tr>"
    assert row in resumed._repr_html_()
    assert "chief0 begins at step 5" in cloudtrain.logs(config)["chief0"]

    cloudtrain.down(config)
    (shown,) = cloudtrain.status(project.name).clusters
    assert (shown.open, shown.nodes) == (False, ())
    assert project.processes() == {}
    assert capfd.readouterr() == ("", "")


def test_one_call_goes_up_trains_and_goes_down_and_its_failure_is_raised(
    project: Project, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO, "cloudtrain")
    config = cloudtrain.load(project.config(train={"command": "echo so; exit 3"}))
    with pytest.raises(RunFailed) as caught:
        cloudtrain.run(config)
    assert caught.value.task_exit_code == 3
    (shown,) = cloudtrain.status(config, offline=True).clusters
    assert [run.state for run in shown.runs] == ["failed"]
    assert shown.open is False
    assert "so\n" in cloudtrain.logs(config)["chief0"]
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any("exit code 3" in text for text in said), "whoever wants it has it by `logging`"
    assert capfd.readouterr() == ("", "")


def test_a_name_that_is_not_known_is_an_error_with_a_hint() -> None:
    with pytest.raises(UsageError, match="no cluster 'mnist' is known here"):
        cloudtrain.down("mnist")


def test_an_import_loads_nothing_until_something_is_used() -> None:
    program = (
        "import sys; before = set(sys.modules); import cloudtrain;"
        "print(sorted(set(sys.modules) - before - {'__future__'})); cloudtrain.load;"
        "print('yaml' in sys.modules, 'paramiko' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    own = ["cloudtrain", "cloudtrain.core", "cloudtrain.core.version"]
    assert done.stdout.splitlines() == [str(own), "False False"], done.stderr
