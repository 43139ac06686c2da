"""`tf.estimator.train_and_evaluate` over chief, worker, ps and evaluator, on its first and its last
TensorFlow here. Each is an environment of its own: 40 s of CPU time to make.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.project import ROOT, Project
from tests.support.pythons import python

SCRIPT = ROOT / "tests" / "strangers" / "estimator_roles.py"
NODES = {"chief": {}, "worker": {"count": 1}, "ps": {"count": 1}, "evaluator": {}}
LIMIT = 300.0

pytestmark = [
    pytest.mark.sweep(0),
    pytest.mark.tensorflow,
    pytest.mark.xdist_group("tensorflow"),
    pytest.mark.timeout(600),
]


def estimator(project: Project, version: str, interpreter: str, **train: Any) -> Path:
    """A config whose tasks share the model's folder."""
    (project.code / "estimator_roles.py").write_bytes(SCRIPT.read_bytes())
    return project.config(
        strategy="parameter_server",
        nodes=NODES,
        setup={"tensorflow": version, "python": interpreter},
        shared="job",
        train={
            "command": "python estimator_roles.py --model-dir {shared} --output {output}",
            "checkpoints": None,
            "start_timeout": "90s",
            "evaluator_grace": "120s",
            **train,
        },
    )


@pytest.mark.parametrize(
    ("version", "minor", "tf_config"),
    [
        pytest.param("2.15", 11, "estimator", id="2.15"),
        pytest.param("1.15", 7, "auto", id="1.15", marks=pytest.mark.other_python),
    ],
)
def test_an_estimator_trains_and_its_evaluator_scores(
    project: Project, version: str, minor: int, tf_config: str
) -> None:
    config = estimator(project, version, python(minor), tf_config=tf_config)
    done = project.cloudtrain("run", config, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    scores = json.loads(project.landed("evaluator0", "output/scores.json"))
    assert scores["global_step"] == 300
    assert scores["loss"] < 0.01
    (run,) = project.runs()
    assert run["state"] == "succeeded"
    assert run["attempts"][0]["clustered"] is True
    assert run["attempts"][0]["tolerated"] == []


def test_an_evaluator_that_fails_is_named_at_the_end_in_status_and_in_the_record(
    project: Project,
) -> None:
    config = estimator(project, "2.15", python(11))
    up = project.cloudtrain("up", config, timeout=LIMIT)
    assert up.returncode == 0, up.stderr
    done = project.cloudtrain("train", config, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    words = 'must have one "chief" node'
    end = done.stderr.partition("the run succeeded without evaluator0")[2]
    assert words in end
    assert "hint: set `train.tf_config: estimator`" in end
    status = project.cloudtrain("status", project.name).stdout
    assert "without evaluator0 on" in status
    assert "hint: set `train.tf_config: estimator`" in status
    (run,) = project.runs()
    (failure,) = run["attempts"][0]["tolerated"]
    assert (failure["task"], failure["exit_code"]) == ("evaluator0", 1)
    assert words in failure["text"]
