"""An AI Platform job becomes a config that `plan` accepts; what is lost is named at its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.core.errors import ConfigError, UsageError
from cloudtrain.core.model import SharedFolder
from cloudtrain.importers.ai_platform import LEGACY
from tests.support.import_parts import Desk, lost, tree
from tests.support.releases import NEWEST

SUBMIT = "gcloud ai-platform jobs submit training mnist_1 --region us-central1"
"""The shortest line that submits."""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def training(*lines: str) -> str:
    return "trainingInput:\n" + "".join(f"  {line}\n" for line in lines)


CUSTOM = ("scaleTier: CUSTOM", "masterType: n1-standard-8", "region: europe-west1")


# ── name, place, rights ──────────────────────────────────────────────────────


def test_job_project_and_region_of_the_submit_line_are_name_project_and_placement(
    desk: Desk,
) -> None:
    found = tree(desk.imported(None, f"{SUBMIT} --project=p-1"))
    assert found["name"] == "mnist-1"
    assert (found["provider"], found["project"]) == ("gcp", "p-1")
    assert found["placement"] == ["us-central1"]


def test_a_long_or_odd_job_name_is_made_to_fit(desk: Desk) -> None:
    job = "1_My_JOB_" + "x" * 60
    found = desk.imported(None, f"gcloud ml-engine jobs submit training {job} --region us-east1")
    assert found.config.name == "my-job-" + "x" * 23


def test_a_flag_wins_over_the_file(desk: Desk) -> None:
    assert desk.imported(training(*CUSTOM)).config.placement == ("europe-west1",)
    assert desk.imported(training(*CUSTOM), SUBMIT).config.placement == ("us-central1",)


def test_without_a_region_the_placement_is_to_be_filled_in(desk: Desk) -> None:
    found = desk.imported(training("masterType: n1-standard-8"))
    assert "placement" in found.fill_in
    assert "FILL IN" in found.text


def test_the_service_account_is_the_nodes_identity_and_a_network_is_named(desk: Desk) -> None:
    account = "trainer@my-project.iam.gserviceaccount.com"
    found = desk.imported(
        training(
            *CUSTOM,
            f"serviceAccount: {account}",
            "network: projects/1/global/networks/vpc",
            "pythonModule: t.task",
            "args: [--data, gs://b/x]",
        )
    )
    assert found.config.identity == account
    assert lost(found) == [
        "config.yaml:6: trainingInput.network: choose a subnet of vpc with network.subnet",
    ]


# ── nodes ────────────────────────────────────────────────────────────────────


def test_roles_counts_and_accelerators(desk: Desk) -> None:
    found = desk.imported(
        training(
            *CUSTOM,
            "masterConfig: {acceleratorConfig: {count: 1, type: NVIDIA_TESLA_T4}}",
            "workerType: n1-standard-16",
            "workerCount: 3",
            "workerConfig:",
            "  acceleratorConfig: {count: '2', type: NVIDIA_TESLA_V100}",
            "parameterServerType: n1-highmem-8",
            "parameterServerCount: 2",
            "evaluatorType: n1-standard-4",
            "evaluatorCount: 1",
        )
    )
    assert tree(found)["nodes"] == {
        "chief": {"count": 1, "machine": "n1-standard-8", "accelerator": "T4:1"},
        "worker": {"count": 3, "machine": "n1-standard-16", "accelerator": "V100:2"},
        "ps": {"count": 2, "machine": "n1-highmem-8"},
        "evaluator": {"count": 1, "machine": "n1-standard-4"},
    }
    assert found.config.strategy == "parameter_server"


def test_the_same_by_flags(desk: Desk) -> None:
    found = desk.imported(
        None,
        f"{SUBMIT} --scale-tier custom --master-machine-type n1-standard-8 "
        "--master-accelerator count=1,type=nvidia-tesla-t4 --worker-count 2 "
        "--worker-machine-type n1-standard-8 --worker-accelerator=type=nvidia-tesla-t4,count=1",
    )
    assert tree(found)["nodes"] == {
        "chief": {"count": 1, "machine": "n1-standard-8", "accelerator": "T4:1"},
        "worker": {"count": 2, "machine": "n1-standard-8", "accelerator": "T4:1"},
    }
    assert found.config.strategy == "multi_worker_mirrored"


@pytest.mark.parametrize(
    ("tier", "nodes", "strategy"),
    [
        ("BASIC", {"chief": "n1-standard-4"}, "one_device"),
        ("BASIC_GPU", {"chief": "n1-standard-8"}, "one_device"),
        (
            "STANDARD_1",
            {"chief": "n1-highcpu-8", "worker": "n1-highcpu-8", "ps": "n1-standard-4"},
            "parameter_server",
        ),
        (
            "PREMIUM_1",
            {"chief": "n1-highcpu-16", "worker": "n1-highcpu-16", "ps": "n1-highmem-8"},
            "parameter_server",
        ),
    ],
)
def test_scale_tiers(desk: Desk, tier: str, nodes: dict[str, str], strategy: str) -> None:
    config = desk.imported(training(f"scaleTier: {tier}", "region: us-central1")).config
    assert {role: group.machine for role, group in config.nodes.items()} == nodes
    assert config.strategy == strategy


def test_standard_1_has_four_workers_and_three_ps(desk: Desk) -> None:
    config = desk.imported(None, f"{SUBMIT} --scale-tier standard-1").config
    assert {role: group.count for role, group in config.nodes.items()} == {
        "chief": 1,
        "worker": 4,
        "ps": 3,
    }


@pytest.mark.parametrize("machine", LEGACY)
def test_each_legacy_machine_type_is_an_n1_that_plan_accepts(desk: Desk, machine: str) -> None:
    found = desk.imported(
        training("scaleTier: CUSTOM", f"masterType: {machine}", "region: us-central1")
    )
    chief = found.config.nodes["chief"]
    name, kind, number = LEGACY[machine]
    assert chief.machine == name
    if kind == "K80":
        assert str(chief.accelerator) == f"T4:{min(number, 4)}"
        assert lost(found) == [
            "config.yaml:3: trainingInput.masterType: "
            "K80 is retired: the cloud no longer offers it; T4 instead"
        ]
    else:
        assert str(chief.accelerator or "") == (f"{kind}:{number}" if kind else "")
        assert lost(found) == []
    assert found.config.strategy == ("mirrored" if number > 1 else "one_device")


@pytest.mark.parametrize("line", ["scaleTier: BASIC_TPU", "workerType: cloud_tpu"])
def test_a_tpu_job_is_refused_at_its_line(desk: Desk, line: str) -> None:
    with pytest.raises(ConfigError, match=r"config.yaml:3: trainingInput\.\w+: .* not imported"):
        desk.imported(training("masterType: n1-standard-8", line))


# ── software, code, command ──────────────────────────────────────────────────


def test_runtime_and_python_version(desk: Desk) -> None:
    found = desk.imported(training(*CUSTOM, "runtimeVersion: '2.2'", "pythonVersion: '3.7'"))
    assert (found.config.setup.tensorflow, found.config.setup.python) == ("2.2", "3.7")
    assert f'or "{NEWEST}" with keras: legacy' in found.text


def test_a_python_that_the_release_has_no_wheels_for_is_named(desk: Desk) -> None:
    found = desk.imported(training(*CUSTOM, "runtimeVersion: '1.15'", "pythonVersion: '3.9'"))
    assert found.config.setup.python == "auto"
    assert [line.split(": as ")[0] for line in lost(found)] == [
        "config.yaml:6: trainingInput.pythonVersion"
    ]
    old = desk.imported(training(*CUSTOM, "runtimeVersion: '1.15'", "pythonVersion: '2.7'"))
    assert "Python 2 is not supported" in lost(old)[0]


def test_the_packages_parent_is_the_code_and_setup_py_has_its_requirements(desk: Desk) -> None:
    desk.write(
        {
            "multi/trainer/__init__.py": "",
            "multi/trainer/task.py": "print()",
            "multi/setup.py": "from setuptools import setup\n"
            "REQUIRED = ['pandas>=1', 'tensorflow==2.8.0']\n"
            "setup(name='trainer', install_requires=REQUIRED)\n",
        }
    )
    found = desk.imported(
        None, f"{SUBMIT} --package-path multi/trainer --module-name trainer.task -- --epochs=3"
    )
    assert tree(found)["code"] == {"path": "multi"}
    assert found.config.setup.packages == ("pandas>=1",)
    assert found.config.setup.tensorflow == "2.8.0"
    assert found.config.train.command == "python -m trainer.task --epochs=3"
    assert lost(found) == []


def test_requirements_that_setup_py_computes_are_named_at_its_line(desk: Desk) -> None:
    desk.write(
        {
            "trainer/task.py": "",
            "setup.py": "from setuptools import setup\nsetup(\n  install_requires=open('r'))",
        }
    )
    found = desk.imported(None, f"{SUBMIT} --package-path trainer/ --module-name trainer.task")
    (line,) = lost(found)
    assert line.endswith(
        "setup.py:3: install_requires: is computed: list the packages under setup.packages"
    )


def test_built_packages_are_named_and_a_module_that_is_here_is_the_code(desk: Desk) -> None:
    desk.write({"trainer/task.py": ""})
    found = desk.imported(
        training(*CUSTOM, "packageUris: [gs://b/trainer-0.1.tar.gz]", "pythonModule: trainer.task")
    )
    assert tree(found)["code"] == {"path": "."}
    assert lost(found) == [
        "config.yaml:5: trainingInput.packageUris[0]: gs://b/trainer-0.1.tar.gz is a built package:"
        " set code.path or code.git to its source"
    ]


def test_each_argument_is_one_word_whatever_it_contains(desk: Desk) -> None:
    found = desk.imported(
        training(
            *CUSTOM,
            "pythonModule: trainer.task",
            """args: ["--a", "it's; rm -rf $HOME", "{role} {output} ${HOME}", "ü"]""",
        )
    )
    (task,) = desk.plan(found).tasks
    assert task.command == (
        "python -m trainer.task --a 'it'\"'\"'s; rm -rf $HOME' '{''role} {''output} ${HOME}' 'ü'"
    )


def test_the_job_dir_is_the_store_and_the_scripts_folder_below_output(desk: Desk) -> None:
    found = desk.imported(
        None,
        f"{SUBMIT} --module-name trainer.task --job-dir gs://bkt/x/ -- "
        "--model-dir gs://bkt/x/model --other gs://bkt/xy --steps 5",
    )
    assert found.config.artifacts.store == "gs://bkt/x"
    assert found.config.train.command == (
        "python -m trainer.task --model-dir {output}/job/model --other gs://bkt/xy --steps 5"
        " --job-dir {output}/job"
    )
    assert lost(found) == [
        "--submit: -- …: gs://bkt/xy: nodes have no rights there; bring input with `data:`, write"
        " output to {output}, or set `identity:`"
    ]


def test_variables_of_the_submitting_shell_are_named(desk: Desk) -> None:
    found = desk.imported(
        None,
        "TIER=BASIC\nJOB=m_$(date +%s)\ngcloud ai-platform jobs submit training $JOB \\\n"
        "  --scale-tier $TIER --region=$REGION --job-dir gs://$BUCKET/x \\\n"
        "  --module-name trainer.task -- --epochs $EPOCHS --literal '$EPOCHS' && echo done",
    )
    assert found.config.name == "m"
    assert found.config.nodes["chief"].machine == "n1-standard-4"
    assert set(found.fill_in) >= {"placement", "artifacts.store"}
    assert lost(found) == [
        "--submit: JOB: $(date +%s) of the submitting shell is not known here: fill in its value",
        "--submit: --region: $REGION of the submitting shell is not known here: fill in its value",
        "--submit: --job-dir: $BUCKET of the submitting shell: export it, or fill in its value",
        "--submit: -- …: $EPOCHS of the submitting shell: export it, or fill in its value",
    ]
    assert found.config.train.command == (
        "python -m trainer.task --epochs FILL_IN_EPOCHS --literal '$EPOCHS' --job-dir {output}/job"
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('--layers $LAYERS --one "$LAYERS"', "--layers 64 32 --one '64 32'"),
        ('$FLAGS --out=$NAME/x $NONE "$NONE"', "--a 1 --b=2 --out=m/x ''"),
        ("p$LAYERS", "p64 32"),
        ("'$LAYERS' \\$LAYERS", "'$LAYERS' '$LAYERS'"),
        ("$MORE", "--c 64 32"),
        ('${EPOCHS:-3 4} "${EPOCHS:-3 4}"', "3 4 '3 4'"),
    ],
)
def test_what_is_quoted_there_is_quoted_here_and_the_rest_is_split(
    desk: Desk, arguments: str, expected: str
) -> None:
    found = desk.imported(
        None,
        'LAYERS="64 32"\nFLAGS="--a 1 --b=2"\nNAME=m\nNONE=\nMORE="--c $LAYERS"\n'
        f"gcloud ai-platform jobs submit training j --module-name a.b -- {arguments}",
    )
    assert found.config.train.command == f"python -m a.b {expected}"


def test_a_flag_takes_the_default_of_its_variable(desk: Desk) -> None:
    found = desk.imported(
        None,
        "B=${BUCKET:-mine}\ngcloud ai-platform jobs submit training m --module-name a.b"
        " --region ${REGION:-us-east1} --job-dir gs://$B/x",
    )
    assert found.config.placement == ("us-east1",)
    assert found.config.artifacts.store == "gs://mine/x"
    assert lost(found) == []


@pytest.mark.parametrize(
    ("job_dir", "store"),
    [
        ("gs://$BUCKET/mnist/x", "gs://my-bucket/mnist/x"),
        ("gs://b-$PROJECT/x", "gs://b-my-bucket/x"),
        ("gs://bucket/$WHO/x", "gs://bucket/FILL_IN_WHO/x"),
        ("$BUCKET/mnist", "gs://my-bucket/mnist"),
    ],
)
def test_a_bucket_path_keeps_what_is_known_of_it(desk: Desk, job_dir: str, store: str) -> None:
    found = desk.imported(
        None,
        f"gcloud ai-platform jobs submit training j --job-dir {job_dir} --module-name a.b"
        f' -- --model "{job_dir}/model"',
    )
    assert found.config.artifacts.store == store
    assert "artifacts.store" in found.fill_in
    assert found.config.train.command == (
        "python -m a.b --model {output}/job/model --job-dir {output}/job"
    )


def test_scheduling_is_the_deadline_and_a_longer_lifetime(desk: Desk) -> None:
    found = desk.imported(
        training(*CUSTOM, "scheduling: {maxRunningTime: 7200s, maxWaitTime: 60s}")
    )
    assert found.config.train.deadline == 7200
    assert found.config.limits.max_lifetime == 10800
    assert lost(found) == [
        "config.yaml:5: trainingInput.scheduling.maxWaitTime:"
        " no counterpart: placement is tried in order"
    ]


def test_a_container_is_mapped_by_the_dockerfile_that_is_here(desk: Desk) -> None:
    desk.write(
        {
            "Dockerfile": "FROM tensorflow/tensorflow:2.3.1-gpu\nWORKDIR /app\n"
            "RUN apt-get update && apt-get install -y libsndfile1 && \\\n"
            "    pip install --no-cache-dir 'pandas>=1' scikit-learn\nCOPY . /app\n"
            'ENV MODE=fast\nHEALTHCHECK NONE\nENTRYPOINT ["python", "/app/main.py"]\n',
            "main.py": "",
        }
    )
    found = desk.imported(
        training(*CUSTOM, "masterConfig: {imageUri: gcr.io/p/i}", "args: ['--n', '1']")
    )
    assert found.config.setup.tensorflow == "2.3.1"
    assert found.config.setup.packages == ("pandas>=1", "scikit-learn")
    assert found.config.setup.run == (
        "sudo apt-get update",
        "sudo apt-get install -y libsndfile1",
    )
    assert found.config.train.command == "python main.py --n 1"
    assert dict(found.config.train.env) == {"MODE": "fast"}
    assert [line.rpartition("/")[2] for line in lost(found)] == [
        "Dockerfile:7: HEALTHCHECK: not mapped: NONE",
        "Dockerfile is mapped instead",
    ]


def test_an_image_without_a_dockerfile_is_what_the_tasks_run_in(desk: Desk) -> None:
    found = desk.imported(training(*CUSTOM, "masterConfig: {imageUri: gcr.io/p/i}"))
    assert (found.config.setup.image, lost(found)) == ("docker://gcr.io/p/i", [])
    assert found.config.setup.tensorflow is None
    known = desk.imported(
        training(
            *CUSTOM, "masterConfig: {imageUri: us-docker.pkg.dev/x/training/tf-gpu.2-11:latest}"
        )
    )
    assert known.config.setup.image == "docker://us-docker.pkg.dev/x/training/tf-gpu.2-11:latest"
    assert 'in containers; else setup.tensorflow: "2.11"' in known.text


# ── what is left ─────────────────────────────────────────────────────────────


def test_whatever_is_not_mapped_is_named_once_at_its_first_line(desk: Desk) -> None:
    found = desk.imported(
        training(
            *CUSTOM,
            "hyperparameters:",
            "  goal: MAXIMIZE",
            "  params: [{parameterName: lr}]",
            "newField:",
            "  - {a: 1, b: 2}",
            "masterConfig: {diskConfig: {bootDiskSizeGb: 200, bootDiskType: pd-ssd}}",
        )
        + "labels: {team: vision}\n"
    )
    assert lost(found) == [
        "config.yaml:5: trainingInput.hyperparameters: tuning is not mapped:"
        " one run with fixed values is",
        "config.yaml:11: labels: not mapped",
        "config.yaml:8: trainingInput.newField: not mapped",
        "config.yaml:10: trainingInput.masterConfig.diskConfig.bootDiskType: not mapped",
    ]
    assert found.config.nodes["chief"].disk_gb == 200
    for line in lost(found):
        assert f"#   {line}" in found.text


def test_a_flag_that_is_not_known_is_named(desk: Desk) -> None:
    found = desk.imported(None, f"{SUBMIT} --kms-key k --stream-logs --max-wait-time=9s")
    assert lost(found)[0] == "--submit: --kms-key: not mapped"


def test_a_value_that_the_config_refuses_is_dropped_and_named_at_its_line(desk: Desk) -> None:
    found = desk.imported(
        training(
            *CUSTOM,
            "workerCount: 4000",
            "workerType: n1-standard-8",
            "runtimeVersion: latest",
            "jobDir: gs://x/y",
        )
    )
    assert [line.split(": as ")[0] for line in lost(found)] == [
        "config.yaml:5: trainingInput.workerCount",
        "config.yaml:7: trainingInput.runtimeVersion",
        "config.yaml:8: trainingInput.jobDir",
    ]


def test_on_local_nodes_machines_and_buckets_fall_away(desk: Desk) -> None:
    found = desk.imported(
        training(*CUSTOM, "workerCount: 1", "workerType: n1-standard-8", "jobDir: gs://bkt/x"),
        provider="local",
    )
    assert tree(found)["nodes"] == {"chief": {"count": 1}, "worker": {"count": 1}}
    assert found.config.provider == "local"
    assert (found.config.artifacts.store or "").startswith("file:///")
    assert "instead of gs://bkt/x" in found.text


def test_on_another_cloud_the_machines_are_named(desk: Desk) -> None:
    found = desk.imported(training(*CUSTOM), provider="aws")
    assert found.config.nodes["chief"].machine is None
    assert "n1-standard-8 is no machine of aws" in lost(found)[0]


def test_the_strategy_comes_from_the_code_if_it_is_here(desk: Desk) -> None:
    script = "import tensorflow as tf\ns = tf.distribute.{}()\n"
    line = f"{SUBMIT} --package-path trainer --module-name trainer.task"
    for name, strategy in [
        ("MirroredStrategy", "mirrored"),
        ("MultiWorkerMirroredStrategy", "multi_worker_mirrored"),
    ]:
        desk.write({"trainer/__init__.py": "", "trainer/task.py": script.format(name)})
        found = desk.imported(None, line)
        assert found.config.strategy == strategy
        assert "as the code has it" in found.text
    assert desk.imported(None, line, strategy="one_device").config.strategy == "one_device"


def test_a_strategy_of_the_code_that_the_roles_forbid_is_named(desk: Desk) -> None:
    desk.write({"trainer/task.py": "import tensorflow as tf\ntf.distribute.MirroredStrategy()\n"})
    found = desk.imported(
        training(*CUSTOM, "workerCount: 1", "workerType: n1-standard-8"),
        f"{SUBMIT} --package-path trainer --module-name trainer.task",
    )
    assert found.config.strategy == "multi_worker_mirrored"
    assert lost(found)[0].startswith("config.yaml: mirrored, as the code has it, does not fit:")


def test_a_strategy_can_be_given_and_must_fit(desk: Desk) -> None:
    both = training(*CUSTOM, "workerCount: 1", "workerType: n1-standard-8")
    assert desk.imported(both, strategy="custom").config.strategy == "custom"
    with pytest.raises(ConfigError, match="strategy mirrored runs on one node"):
        desk.imported(both, strategy="mirrored")


@pytest.mark.parametrize("line", ["", "echo hello", "gcloud compute instances list", "gcloud 'x"])
def test_a_line_that_submits_nothing_is_refused(desk: Desk, line: str) -> None:
    with pytest.raises(UsageError, match="--submit"):
        desk.imported(None, line)


def test_an_unknown_file_is_refused_with_a_list_of_what_is_read(desk: Desk) -> None:
    with pytest.raises(UsageError) as caught:
        desk.imported("hello: world\n", file="x.yaml")
    assert caught.value.message == "x.yaml is nothing that `import` reads"
    assert "trainingInput" in (caught.value.hint or "")
    for other in ("", "- 1\n", "a: [", "text"):
        with pytest.raises((UsageError, ConfigError)):
            desk.imported(other)


@pytest.mark.parametrize("theirs", ["parameterServer", "evaluator"])
def test_roles_that_share_a_job_dir_get_a_shared_folder(desk: Desk, theirs: str) -> None:
    roles = (f"{theirs}Type: n1-standard-4", f"{theirs}Count: 1", "workerType: n1-standard-4")
    found = desk.imported(
        training(*CUSTOM, *roles, "workerCount: 1", "jobDir: gs://jobs/j", "pythonModule: t.task")
    )
    assert found.config.shared == SharedFolder(folder="job")
    assert found.config.train.command.endswith("--job-dir {shared}")
    assert found.config.artifacts.store == "gs://jobs/j"
