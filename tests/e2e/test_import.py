"""Jobs of other tools, imported as a user types it and trained with a real TensorFlow."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from tests.support.project import ROOT, Project

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.xdist_group("tensorflow"),
    pytest.mark.usefixtures("tensorflow_python"),
]

LIMIT = 200.0
"""Seconds for one job: about 12 on a quiet machine with two cores."""

SETUP_PY = """\
from setuptools import find_packages, setup

REQUIRED_PACKAGES = ["scikit-learn", "tensorflow==2.21"]
setup(name="trainer", version="0.1", install_requires=REQUIRED_PACKAGES, packages=find_packages())
"""

CONFIG_YAML = """\
trainingInput:
  scaleTier: CUSTOM
  masterType: n1-standard-8
  workerType: n1-standard-8
  workerCount: 1
  hyperparameters: {goal: MAXIMIZE}
"""

DOCKERFILE = """\
FROM tensorflow/tensorflow:2.21
WORKDIR /srv
COPY . .
RUN pip install --no-cache-dir scikit-learn
"""


def imported(project: Project, *arguments: str) -> str:
    """The config's name, and its store in the project; what stderr said is returned."""
    done = project.cloudtrain("import", *arguments, "--output", "mine.yaml")
    assert done.returncode == 0, done.stderr
    path = project.folder / "mine.yaml"
    text = path.read_text(encoding="utf-8")
    assert "file://${HOME}/cloudtrain-artifacts" in text
    path.write_text(
        re.sub(r"file://\S+/cloudtrain-artifacts\S*", f"'{project.store.as_uri()}'", text),
        encoding="utf-8",
    )
    return done.stderr


@pytest.mark.sweep(1, of="imports")
def test_an_ai_platform_package_trains_on_local_nodes(project: Project) -> None:
    package = ROOT / "tests" / "strangers" / "package"
    shutil.copytree(package, project.folder / "job")
    (project.folder / "job" / "setup.py").write_text(SETUP_PY)
    (project.folder / "job" / "config.yaml").write_text(CONFIG_YAML)
    line = (
        f"gcloud ai-platform jobs submit training {project.name} --config job/config.yaml \\\n"
        "  --package-path job/trainer --module-name trainer.task --region us-central1 \\\n"
        "  --job-dir gs://my-bucket/mnist"
    )
    said = imported(project, "--submit", line, "--provider", "local")
    assert said.splitlines() == [
        "not mapped: job/config.yaml:6: trainingInput.hyperparameters:"
        " tuning is not mapped: one run with fixed values is"
    ]
    done = project.cloudtrain("run", "mine.yaml", timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert list(project.store.glob("*/chief0/output/job/keras_export/saved_model.pb"))
    (record,) = project.runs()
    assert record["state"] == "succeeded"


@pytest.mark.sweep(1, of="imports")
def test_a_compose_file_with_tf_config_trains_on_local_nodes(project: Project) -> None:
    shutil.copytree(ROOT / "examples", project.folder / "app")
    (project.folder / "app" / "Dockerfile").write_text(DOCKERFILE)
    cluster = {"chief": [f"chief:{project.port}"], "worker": [f"worker:{project.port}"]}
    services = {
        role: {
            "build": "./app",
            "command": ["python", "/srv/multi_worker_mirrored.py", "--output", "/out"],
            "environment": {
                "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": 0}}),
                "TF_CPP_MIN_LOG_LEVEL": "2",
            },
        }
        for role in cluster
    }
    source = json.dumps({"name": project.name, "services": services}, indent=2)
    (project.folder / "compose.yaml").write_text(source.replace('"/out"', '"out"'))
    assert imported(project, "compose.yaml") == ""
    config = project.folder / "mine.yaml"
    written = config.read_text()
    image = re.search(r"image: docker://\S+ +# in containers; else setup\.(.+)", written)
    assert image, "no registry is reached from here, so that is what is taken"
    config.write_text(written.replace(image[0], image[1]))
    done = project.cloudtrain("run", "mine.yaml", timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("final loss 0.") == 2
    (record,) = project.runs()
    assert (record["state"], record["cluster"]) == ("succeeded", project.name)
