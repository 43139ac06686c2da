"""A TFJob becomes a config that `plan` accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.core.errors import ConfigError
from tests.support.import_parts import Desk, lost, tree


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def replica(name: str, *lines: str, replicas: int = 1, policy: str = "Never") -> str:
    container = "".join(f"            {line}\n" for line in lines or ("command: [python, t.py]",))
    return (
        f"    {name}:\n      replicas: {replicas}\n      restartPolicy: {policy}\n"
        "      template:\n        spec:\n          containers:\n"
        "          - name: tensorflow\n            image: tensorflow/tensorflow:2.11.0\n"
        f"{container}"
    )


def job(*replicas: str, spec: str = "", version: str = "kubeflow.org/v1") -> str:
    return (
        f"apiVersion: {version}\nkind: TFJob\nmetadata: {{name: mnist, namespace: demo}}\n"
        f"spec:\n{spec}  tfReplicaSpecs:\n{''.join(replicas)}"
    )


@pytest.mark.parametrize("version", ["kubeflow.org/v1", "kubeflow.org/v1beta2"])
def test_replicas_are_roles_in_the_image_of_the_job(desk: Desk, version: str) -> None:
    source = job(
        replica("PS"), replica("Worker", replicas=2), replica("Chief"), replica("Evaluator"),
        version=version,
    )  # fmt: skip
    found = desk.imported(source)
    assert tree(found)["nodes"] == {
        "chief": {"count": 1},
        "worker": {"count": 2},
        "ps": {"count": 1},
        "evaluator": {"count": 1},
    }
    assert found.config.name == "mnist"
    assert found.config.strategy == "parameter_server"
    assert found.config.setup.image == "docker://tensorflow/tensorflow:2.11.0"
    assert found.config.train.command == "python t.py"
    assert found.config.train.port == 2222
    assert lost(found) == []


def test_master_is_the_chief_and_named(desk: Desk) -> None:
    found = desk.imported(job(replica("Master"), replica("Worker", replicas=2)))
    assert set(found.config.nodes) == {"chief", "worker"}
    assert "config.yaml:6: spec.tfReplicaSpecs.Master: is `chief` here" in lost(found)[0]


def test_without_a_chief_worker_0_is_it(desk: Desk) -> None:
    found = desk.imported(job(replica("Worker", replicas=3)))
    assert tree(found)["nodes"] == {"chief": False, "worker": {"count": 3}}
    alone = desk.imported(job(replica("Worker")))
    assert tree(alone)["nodes"] == {"chief": {"count": 1}}
    assert alone.config.strategy == "one_device"


def test_a_ps_without_a_chief_is_a_custom_job_with_tf_config(desk: Desk) -> None:
    found = desk.imported(job(replica("PS"), replica("Worker", replicas=2)))
    assert (found.config.strategy, found.config.train.tf_config) == ("custom", True)


def test_variables_are_expanded_in_arguments_as_kubernetes_does(desk: Desk) -> None:
    found = desk.imported(
        job(
            replica(
                "Chief",
                'command: [python, train.py, "--epochs=$(EPOCHS)"]',
                'args: ["--x=$$(EPOCHS)", "$(NOT_SET)", "{output}"]',
                "env: [{name: BASE, value: '3'}, {name: EPOCHS, value: $(BASE)0}]",
            )
        )
    )
    (task,) = desk.plan(found).tasks
    assert task.command == ("python train.py --epochs=30 '--x=$(EPOCHS)' '$(NOT_SET)' '{''output}'")
    assert dict(found.config.train.env) == {"BASE": "3", "EPOCHS": "30"}


def test_a_secret_is_a_secret_here_and_other_references_are_named(desk: Desk) -> None:
    found = desk.imported(
        job(
            replica(
                "Chief",
                "command: [python, t.py]",
                "env:",
                "- {name: KEY, valueFrom: {secretKeyRef: {name: s, key: k}}}",
                "- {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}",
                "- {name: DB_PASSWORD, value: hunter2}",
                "envFrom: [{configMapRef: {name: c}}]",
            )
        )
    )
    assert dict(found.config.secrets) == {"KEY": "KEY", "DB_PASSWORD": "DB_PASSWORD"}
    assert "hunter2" not in found.text
    assert sorted(line.split(": ", 2)[2] for line in lost(found)) == [
        "export KEY in the shell that runs cloudtrain",
        "looks like a secret: export DB_PASSWORD; its value is not copied",
        "not mapped",
        "write its variables under train.env or secrets",
    ]


def test_gpus_are_an_accelerator_whose_kind_is_to_be_filled_in(desk: Desk) -> None:
    gpu = replica("Worker", "command: [python, t.py]", "resources: {limits: {nvidia.com/gpu: 2}}")
    found = desk.imported(job(gpu), provider="gcp")
    assert str(found.config.nodes["chief"].accelerator) == "T4:2"
    assert "nodes.chief.accelerator" in found.fill_in
    assert found.config.strategy == "mirrored"
    here = desk.imported(job(gpu))
    assert lost(here) == [
        "config.yaml:15: spec.tfReplicaSpecs.Worker.template.spec.containers[0].resources.limits."
        "nvidia.com/gpu: on a cloud, set nodes.worker.accelerator to KIND:2"
    ]


@pytest.mark.parametrize("place", ["  runPolicy:\n    {}\n", "  {}\n"])
def test_run_policies_also_where_betas_have_them(desk: Desk, place: str) -> None:
    policy = (
        "backoffLimit: 4\n{0}activeDeadlineSeconds: 3600\n{0}cleanPodPolicy: None\n"
        "{0}ttlSecondsAfterFinished: 60"
    )
    pad = "    " if "runPolicy" in place else "  "
    spec = place.replace("{}", policy.format(pad)) + "  successPolicy: AllWorkers\n"
    train = desk.imported(job(replica("Worker", replicas=2), spec=spec)).config.train
    assert (train.max_restarts, train.deadline, train.success) == (4, 3600, "all_workers")


@pytest.mark.parametrize(
    ("policy", "restarts", "named"),
    [("Never", 0, 0), ("ExitCode", 3, 0), ("OnFailure", 3, 1), ("Always", 3, 1)],
)
def test_restart_policies(desk: Desk, policy: str, restarts: int, named: int) -> None:
    found = desk.imported(job(replica("Worker", policy=policy)))
    assert found.config.train.max_restarts == restarts
    assert len(lost(found)) == named


def test_a_command_for_each_role(desk: Desk) -> None:
    found = desk.imported(
        job(
            replica("Chief", "command: [python, train.py]"),
            replica("Worker", "command: [python, serve.py]", replicas=2),
            replica("PS", "command: [python, serve.py]"),
        )
    )
    assert found.config.train.command == "python serve.py"
    assert dict(found.config.train.commands) == {"chief": "python train.py"}


def test_a_shells_line_stays_a_line(desk: Desk) -> None:
    found = desk.imported(
        job(
            replica(
                "Chief",
                "command: [/bin/bash, -c, --]",
                """args: ['cd src && python "$SCRIPT" --n ${N} --r ${role} {index}']""",
            )
        )
    )
    assert found.config.train.command == (
        'cd src && python "$SCRIPT" --n ${N} --r ${role:-} {index}'
    )
    assert "{index} in its shell line is filled in by cloudtrain" in lost(found)[0]


def test_paths_in_the_image_stay_and_volumes_are_named(desk: Desk) -> None:
    source = job(
        replica(
            "Chief",
            "command: [/usr/bin/python3, /opt/train.py, --data, /data]",
            "volumeMounts: [{name: v, mountPath: /data}]",
        )
    )
    found = desk.imported(source + "          volumes: [{name: v}]\n")
    assert found.config.train.command == "python /opt/train.py --data /data"
    assert [line.split(":")[1] for line in lost(found)] == ["16", "15"]


def test_an_image_that_starts_something_of_its_own_is_to_be_filled_in(desk: Desk) -> None:
    found = desk.imported(job(replica("Chief", "args: [--epochs, '3']")))
    assert "train.command" in found.fill_in
    assert "entrypoint is not known" in lost(found)[0]


def test_the_dockerfile_that_is_here_is_read(desk: Desk) -> None:
    desk.write(
        {
            "Dockerfile": "FROM tensorflow/tensorflow:2.8.0\nWORKDIR /app\nCOPY . .\n"
            "RUN pip install -q pandas\nENTRYPOINT python /app/main.py\n",
            "main.py": "",
        }
    )
    found = desk.imported(job(replica("Worker", "env: []", replicas=2)))
    assert found.config.setup.packages == ("pandas",)
    assert found.config.train.command == "python main.py"


def test_other_documents_of_the_file_are_passed_over_and_lines_stay_right(desk: Desk) -> None:
    source = "apiVersion: v1\nkind: Namespace\n---\n" + job(replica("Master"))
    assert lost(desk.imported(source))[0].startswith("config.yaml:9: spec.tfReplicaSpecs.Master:")


def test_a_dynamic_job_is_refused(desk: Desk) -> None:
    with pytest.raises(ConfigError, match=r"config.yaml:5: spec.enableDynamicWorker: a job whose"):
        desk.imported(job(replica("Worker"), spec="  enableDynamicWorker: true\n"))


def test_an_alpha_job_is_refused(desk: Desk) -> None:
    with pytest.raises(ConfigError, match="has no tfReplicaSpecs"):
        desk.imported("kind: TfJob\nspec:\n  replicaSpecs: [{replicas: 1}]\n")
