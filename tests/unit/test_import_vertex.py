"""A Vertex AI CustomJob, or its submit line, becomes a config that `plan` accepts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.core.errors import ConfigError
from tests.support.import_parts import Desk, lost, tree

IMAGE = "us-docker.pkg.dev/vertex-ai/training/tf-gpu.2-11:latest"
SUBMIT = "gcloud ai custom-jobs create --display-name=mnist --region=us-east1"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def pool(count: int = 1, **machine: Any) -> dict[str, Any]:
    return {
        "machineSpec": {"machineType": "n1-standard-8", **machine},
        "replicaCount": str(count),
        "pythonPackageSpec": {
            "executorImageUri": IMAGE,
            "pythonModule": "trainer.task",
            "args": ["--out=gs://bkt/o/model", "--epochs", "3"],
        },
    }


def job(*pools: dict[str, Any], **spec: Any) -> str:
    whole = {"displayName": "My Job", "jobSpec": {"workerPoolSpecs": list(pools), **spec}}
    return json.dumps(whole, indent="\t")


def test_pools_are_chief_worker_ps_and_evaluator(desk: Desk) -> None:
    gpu = {"acceleratorType": "NVIDIA_TESLA_T4", "acceleratorCount": 2}
    found = desk.imported(job(pool(**gpu), pool(3), pool(2), pool(1)), file="job.json")
    assert tree(found)["nodes"] == {
        "chief": {"count": 1, "machine": "n1-standard-8", "accelerator": "T4:2"},
        "worker": {"count": 3, "machine": "n1-standard-8"},
        "ps": {"count": 2, "machine": "n1-standard-8"},
        "evaluator": {"count": 1, "machine": "n1-standard-8"},
    }
    assert (found.config.name, found.config.provider) == ("my-job", "gcp")
    assert found.config.setup.image == f"docker://{IMAGE}"
    assert found.config.strategy == "parameter_server"


def test_an_empty_pool_is_no_role(desk: Desk) -> None:
    empty = {**pool(), "replicaCount": 0}
    found = desk.imported(job(pool(), empty, pool()), strategy="custom")
    assert set(found.config.nodes) == {"chief", "ps"}
    assert [line.split(": ")[2] for line in lost(found)][1:] == ["an empty pool"]


def test_the_output_folder_is_the_store_and_its_variables_are_set(desk: Desk) -> None:
    found = desk.imported(job(pool(), baseOutputDirectory={"outputUriPrefix": "gs://bkt/o/"}))
    assert found.config.artifacts.store == "gs://bkt/o"
    assert found.config.train.command == "python -m trainer.task --out={output}/model --epochs 3"
    assert dict(found.config.train.env) == {
        "AIP_MODEL_DIR": "{output}/model",
        "AIP_CHECKPOINT_DIR": "{output}/checkpoints",
        "AIP_TENSORBOARD_LOG_DIR": "{output}/logs",
    }
    assert lost(found) == []


def test_containers_have_their_command_arguments_and_variables(desk: Desk) -> None:
    own = {
        "machineSpec": {"machineType": "n1-standard-4"},
        "containerSpec": {
            "imageUri": "tensorflow/tensorflow:2.12.0",
            "command": ["python", "main.py"],
            "args": ["--a", "b c"],
            "env": [{"name": "BATCH", "value": "64"}, {"name": "WANDB_API_KEY", "value": "k3y"}],
        },
    }
    found = desk.imported(job(own))
    assert found.config.train.command == "python main.py --a 'b c'"
    assert dict(found.config.train.env) == {"BATCH": "64"}
    assert dict(found.config.secrets) == {"WANDB_API_KEY": "WANDB_API_KEY"}
    assert "k3y" not in found.text
    assert found.config.strategy == "one_device"


def test_scheduling_spot_disk_and_service_account(desk: Desk) -> None:
    with_disk = {**pool(), "diskSpec": {"bootDiskType": "pd-ssd", "bootDiskSizeGb": 200}}
    account = "s@p.iam.gserviceaccount.com"
    found = desk.imported(
        job(
            with_disk,
            pool(),
            scheduling={"timeout": "3600s", "restartJobOnWorkerRestart": True, "strategy": "SPOT"},
            serviceAccount=account,
            network="projects/1/global/networks/vpc",
            tensorboard="projects/1/tensorboards/2",
        )
    ).config
    assert (found.train.deadline, found.limits.max_lifetime) == (3600, 7200)
    assert found.train.max_restarts == 3
    assert found.nodes["chief"].disk_gb == 200
    assert found.nodes["worker"].spot
    assert found.identity == account


def test_flex_start_is_flex_start(desk: Desk) -> None:
    machine = {"machineSpec": {"machineType": "a3-highgpu-8g"}}
    found = desk.imported(job({**pool(), **machine}, scheduling={"strategy": "FLEX_START"})).config
    assert {str(group.provisioning) for group in found.nodes.values()} == {"flex-start"}


def test_a_spec_in_yaml_as_gcloud_takes_it(desk: Desk) -> None:
    found = desk.imported(
        "workerPoolSpecs:\n"
        "  machineSpec: {machineType: n1-highmem-2}\n"
        "  replicaCount: 1\n"
        "  containerSpec: {imageUri: gcr.io/p/i, args: [--n, '1']}\n"
    )
    assert found.config.nodes["chief"].machine == "n1-highmem-2"
    assert "train.command" in found.fill_in


def test_keys_of_the_python_client(desk: Desk) -> None:
    found = desk.imported(
        '{"display_name": "x", "job_spec": {"worker_pool_specs": [{"machine_spec":'
        ' {"machine_type": "n1-standard-4"}, "replica_count": 1, "container_spec":'
        ' {"image_uri": "tensorflow/tensorflow:2.12.0", "command": ["python", "t.py"]}}]},'
        ' "labels": {"a": "b"}}'
    )
    assert found.config.nodes["chief"].machine == "n1-standard-4"
    assert lost(found) == ["config.yaml:1: labels: not mapped"]


def test_the_submit_line_alone(desk: Desk) -> None:
    desk.write({"src/trainer/task.py": ""})
    found = desk.imported(
        None,
        f"{SUBMIT} --project=p --worker-pool-spec=machine-type=n1-standard-8,replica-count=1,"
        f"accelerator-type=NVIDIA_TESLA_V100,accelerator-count=1,executor-image-uri={IMAGE},"
        "local-package-path=src,python-module=trainer.task "
        f"--worker-pool-spec=machine-type=n1-standard-4,replica-count=2,executor-image-uri={IMAGE},"
        "local-package-path=src,python-module=trainer.task "
        "--args=--epochs=3,--lr=0.1 --enable-web-access --kms-key=k",
    )
    assert tree(found)["nodes"] == {
        "chief": {"count": 1, "machine": "n1-standard-8", "accelerator": "V100:1"},
        "worker": {"count": 2, "machine": "n1-standard-4"},
    }
    assert tree(found)["code"] == {"path": "src"}
    assert found.config.train.command == "python -m trainer.task --epochs=3 --lr=0.1"
    assert (found.config.name, found.config.placement) == ("mnist", ("us-east1",))
    assert lost(found) == ["--submit: --kms-key: not mapped"]


def test_a_script_and_arguments_with_another_separator(desk: Desk) -> None:
    desk.write({"train.py": ""})
    found = desk.imported(
        None,
        f"{SUBMIT} --worker-pool-spec=machine-type=n1-standard-4,executor-image-uri={IMAGE},"
        "local-package-path=.,script=train.py --args='^;^--a=1,2;--b'",
    )
    assert found.config.train.command == "python train.py --a=1,2 --b"


def test_the_submit_line_adds_to_a_file(desk: Desk) -> None:
    found = desk.imported(job(pool()), f"{SUBMIT} --config=job.json")
    assert (found.config.name, found.config.placement) == ("mnist", ("us-east1",))


def test_a_tpu_job_is_refused(desk: Desk) -> None:
    with pytest.raises(ConfigError, match="a TPU job is not imported"):
        desk.imported(job(pool(acceleratorType="TPU_V3", acceleratorCount=8)))


def test_a_job_without_pools_is_refused(desk: Desk) -> None:
    with pytest.raises(ConfigError, match="has no worker pool"):
        desk.imported(None, SUBMIT)
