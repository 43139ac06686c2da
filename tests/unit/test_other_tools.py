"""Another tool's file is named as what it is, by `import` and by whatever takes a config."""

from __future__ import annotations

import json
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from cloudtrain.commands.init import page
from cloudtrain.config import load, other_tools
from cloudtrain.config.other_tools import IMPORTED as KINDS
from cloudtrain.config.other_tools import tool_of
from cloudtrain.core.errors import ConfigError, UsageError
from cloudtrain.importers import Options, import_job

SKY = "a SkyPilot task"
FILES = {
    "resources: {infra: aws, accelerators: 'V100:8'}\nrun: python t.py\n": SKY,
    "name: pipeline\n---\nname: a\nnum_nodes: 2\nsetup: pip install x\nrun: |\n  a\n": SKY,
    "type: dev-environment\nide: vscode\n": "a dstack dev-environment",
    "type: fleet\nnodes: 2\nplacement_: cluster\n": "a dstack fleet",
    "cluster_name: c\nprovider: {type: gcp}\nhead_node_type: h\n": "a Ray cluster",
    "entrypoint: python t.py\nruntime_env: {working_dir: .}\n": "a Ray job",
    "apiVersion: ray.io/v1\nkind: RayJob\n": "a RayJob of Ray",
    "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\n": "a PyTorchJob of Kubernetes",
    "#!/bin/sh\n# a\n#SBATCH -N 4\nsrun python t.py\n": "a batch script of Slurm (sbatch)",
    "#!/bin/bash\n#PBS -l nodes=2\n": "a batch script of PBS",
    "#!/bin/sh\n#SBATCH -N 2\ncat >c <<X\n[cluster]\nworker=a:1\nX\n": "a batch script of Slurm "
    "(sbatch)",
    json.dumps({"TrainingJobName": "x", "RoleArn": "r"}, indent=2): "a SageMaker training job",
    "import os\nfrom sagemaker.tensorflow import TensorFlow\n": "a script of SageMaker's SDK",
    "type: command\ncommand: x\nenvironment: azureml:e:1\n": "an Azure ML command job",
    "$schema: https://azuremlschemas.azureedge.net/latest/pipelineJob.schema.json\n"
    "type: pipeline\n": "an Azure ML pipeline job",
    '{"cells": [], "nbformat": 4}': "a notebook",
    '{"Version": "2020-12-01", "Steps": []}': "a pipeline of SageMaker",
    "pipelineInfo: {name: p}\nroot: {}\n": "a pipeline of Vertex AI",
    "# syntax=docker\nARG X=1\nFROM python:3.11\nRUN a\n": "a Dockerfile",
    "#!/usr/bin/env bash\necho a: b\n": "a shell script",
    '"""Doc."""\nimport tensorflow as tf\n\nx: int = 1\n': "a Python program",
}
IMPORTED = {
    "trainingInput: {}\n": "an AI Platform training job",
    "services: {a: {image: b}}\n": "a compose file",
    "apiVersion: kubeflow.org/v1\nkind: TFJob\n": "a TFJob",
    "workerPoolSpecs: []\n": "a Vertex AI CustomJob",
    "[cluster]\nworker=a:1\n": "an INI file with [cluster]",
    "# ours\r\n\r\n[x]\r\n[cluster] ; b\r\nworker=a:1\r\n": "an INI file with [cluster]",
}


@pytest.mark.parametrize("text", FILES)
def test_it_is_named_with_the_page_that_helps(text: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(path)
    found = tool_of(text.encode())
    assert found is not None
    assert not found.is_imported, (
        f"{found.what}: move it to IMPORTED here, and delete its `_known` of config/other_tools.py"
    )
    assert caught.value.message == f"{path} is {FILES[text]}, no config of cloudtrain"
    page = {"SkyPilot": "from-skypilot", "dstack": "from-dstack"}
    wanted = next((name for word, name in page.items() if word in FILES[text]), "cloudtrain")
    assert wanted in (caught.value.hint or "")
    options = Options(here=tmp_path, folder=tmp_path, base=tmp_path)
    with pytest.raises(UsageError, match="which `import` does not read"):
        import_job(text.encode(), "job.yaml", None, options)


@pytest.mark.parametrize("text", IMPORTED)
def test_what_import_reads_is_named_with_the_command(text: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(path)
    assert f" is {IMPORTED[text]}, no config" in caught.value.message
    assert caught.value.hint == f"`cloudtrain import {path}` makes a config of it"


def test_each_kind_that_import_reads_has_a_reader_and_a_section() -> None:
    for kind in KINDS:
        module = f"cloudtrain.importers.{kind.module}"
        assert find_spec(module), f"write {module.replace('.', '/')}.py with `read`"
        assert callable(import_module(module).read)
    text, index = page("import").text, page("index").text
    lacking = [kind.name for kind in KINDS if f"\n## {kind.name}" not in text]
    assert lacking == [], "docs/import.md: a section of that name"
    (link,) = re.findall(r"\[(From [^\]]*)\]\(import\.md\)", index)
    lacking = [kind.name for kind in KINDS if kind.name.lower() not in link.lower()]
    assert lacking == [], "docs/index.md: name it in the link to import.md"
    named = {kind.what or kind.title for kind in KINDS}
    assert named == {*IMPORTED.values()}, "add a file of its kind to IMPORTED here"
    known = {*re.findall(r'_known\("([^"]+)"', Path(other_tools.__file__).read_text("utf-8"))}
    assert known & named == set(), "config/other_tools.py: delete its `_known`"
    here = Path(__file__)
    tests = {kind: here.with_name(f"test_import_{kind.module}.py") for kind in KINDS}
    assert [path.name for path in tests.values() if not path.exists()] == [], "add its tests"


def test_an_ini_inside_of_a_document_does_not_make_it_one(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("num_nodes: 2\nrun: |\n  cat <<E\n  [cluster]\n  E\n")
    with pytest.raises(UsageError, match="is a SkyPilot task"):
        load(path)


def test_a_line_submits_no_ini_file(tmp_path: Path) -> None:
    options = Options(here=tmp_path, folder=tmp_path, base=tmp_path)
    line = "gcloud ai custom-jobs create --region us-east1"
    with pytest.raises(UsageError, match=r"--submit submits no c\.ini"):
        import_job(b"[cluster]\nworker=a:1\n", "c.ini", line, options)


@pytest.mark.parametrize("text", ["services: {}\n", "services: {a: {}}\n", "workerPoolSpecs: []\n"])
def test_a_file_that_says_nothing_has_an_error(text: str, tmp_path: Path) -> None:
    options = Options(here=tmp_path, folder=tmp_path, base=tmp_path)
    with pytest.raises(ConfigError, match=r"has no (worker pool|service)"):
        import_job(text.encode(), "job.yaml", None, options)


@pytest.mark.parametrize(
    "text",
    [
        "name: a\nprovider: gcp\nstrategy: x\ntrain:\n  command: |\n    #SBATCH\n    import x\n",
        "provider: local\ntrain: {comand: python t.py}\nsetup: {run: [a]}\n",
        "nodes: {chief: {}}\nrun: x\n",
        "a: [b\n",
        "",
    ],
)
def test_a_config_with_mistakes_is_none(text: str, tmp_path: Path) -> None:
    assert tool_of(text.encode()) is None
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        load(path)
