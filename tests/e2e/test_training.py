"""The whole tool with a real TensorFlow, as a user types it: examples, other people's scripts."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
import yaml

from tests.support.once import folder_of_run, once
from tests.support.processes import environment
from tests.support.project import ROOT, Project, until

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.xdist_group("tensorflow"),
    pytest.mark.usefixtures("tensorflow_python"),
]

STRANGERS = ROOT / "tests" / "strangers"
LOCAL = yaml.safe_load((ROOT / "configs" / "local.yaml").read_text(encoding="utf-8"))
SETUP = {**LOCAL["setup"], "prove": "off"}
"""Without the proof, which starts one more TensorFlow for each node: test_proof.py has it."""
TWO: dict[str, Any] = {"chief": {}, "worker": {"count": 1}}
MIRRORED = "python multi_worker_mirrored.py"
LIMIT = 200.0
"""Seconds for one job: about 12 on a quiet machine with two cores."""


def example(project: Project, command: str, **sections: Any) -> Path:
    """The config of an example as configs/local.yaml has it, its code in the project."""
    shutil.copytree(ROOT / "examples", project.code, dirs_exist_ok=True)
    train = {"command": command, "grace": "1s", **sections.pop("train", {})}
    return project.config(**{"setup": SETUP, "train": train, **sections})


def trainer(project: Project, task: str) -> int:
    """The pid of the task's Python."""
    role, index = task[:-1], task[-1]
    for pid, words in project.processes().items():
        mine = {f"CLOUDTRAIN_ROLE={role}".encode(), f"CLOUDTRAIN_INDEX={index}".encode()}
        if words.startswith("python ") and mine <= set(environment(pid)):
            return pid
    raise ValueError(f"{task} does not run")


def losses(output: str) -> set[str]:
    return set(re.findall(r"final loss (\d+\.\d{6})", output))


@pytest.fixture(scope="module")
def loss_of_one_process(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The final loss of the mirrored example on one node alone, trained once in a run of tests."""

    def trained() -> list[str]:
        alone = Project(tmp_path_factory.mktemp("alone"))
        one = example(alone, MIRRORED, nodes={"chief": {}})
        try:
            done = alone.cloudtrain("run", one, timeout=LIMIT)
        finally:
            alone.end()
        assert done.returncode == 0, done.stderr
        return sorted(losses(done.stdout))

    return set(once(folder_of_run(tmp_path_factory), "loss of one process", trained))


def test_the_demo_lands_a_model_with_the_loss_of_one_process(
    project: Project, loss_of_one_process: set[str]
) -> None:
    values = {**LOCAL, "name": project.name}
    values["artifacts"] = {**LOCAL["artifacts"], "store": project.store.as_uri()}
    values["code"] = {"path": str(ROOT / "examples")}
    done = project.cloudtrain("run", project.config(**values), "--trust", timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert list(project.store.glob("*/chief0/output/model/saved_model.pb"))
    assert len(re.findall("final loss", done.stdout)) == 3
    assert losses(done.stdout) == loss_of_one_process


@pytest.mark.sweep(1, of="scripts")
def test_what_init_writes_in_an_empty_folder_runs(project: Project) -> None:
    folder = project.folder / "empty"
    folder.mkdir()
    assert project.cloudtrain("init", "--output", "empty/local.yaml").returncode == 0
    config = folder / "local.yaml"
    values = yaml.safe_load(config.read_text())
    values |= {"name": project.name, "setup": SETUP}  # the environment of the other tests
    values["artifacts"]["store"] = project.store.as_uri()
    config.write_text(yaml.safe_dump(values))
    done = project.cloudtrain("run", config, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert "cluster formed after" in done.stderr
    assert list(project.store.glob("*/chief0/output/model.keras"))
    assert not list(project.store.glob("*/worker0/output/model.keras"))


def test_mirrored_trains_on_two_devices_without_tf_config(
    project: Project, loss_of_one_process: set[str]
) -> None:
    config = example(
        project,
        "printenv TF_CONFIG; python mirrored.py --output {output}",
        strategy="mirrored",
        nodes={"chief": {}},
        setup={**SETUP, "keras": "legacy"},  # the environment of the other tests
    )
    done = project.cloudtrain("run", config, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert "cluster" not in done.stdout
    assert losses(done.stdout) == loss_of_one_process
    assert list(project.store.glob("*/chief0/output/model/saved_model.pb"))


PS: dict[str, Any] = {
    "strategy": "parameter_server",
    "nodes": {"chief": {}, "worker": {"count": 2}, "ps": {"count": 1}},
}


def test_a_parameter_server_job_goes_on_without_a_killed_worker_and_leaves_nothing(
    project: Project,
) -> None:
    config = example(project, "python parameter_server.py --epochs 5", **PS)
    run = project.start("run", config)
    until(lambda: "Epoch 2/5" in project.stdout, LIMIT)
    os.kill(trainer(project, "worker1"), signal.SIGKILL)
    assert run.wait(LIMIT) == 0, project.stderr
    assert "worker1 has failed: killed by signal 9; the run continues" in project.stderr
    assert "after the run was decided" not in project.stderr
    assert losses(project.stdout)
    assert list(project.store.glob("*/chief0/output/model/saved_model.pb"))
    assert project.processes() == {}


COORDINATED = """
import os, sys, time
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
    )
    server.join()

strategy = tf.distribute.ParameterServerStrategy(resolver)
with strategy.scope():
    done = tf.Variable(0, dtype=tf.int64)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)


@tf.function
def step():
    tf.print("a step", output_stream=sys.stderr)
    done.assign_add(1)


total = 0
while total < 200 or not os.path.exists(sys.argv[1]):
    for _ in range(10):
        coordinator.schedule(step)
    coordinator.join()
    total += 10
    print("steps", total, flush=True)
    time.sleep(0.2)
print("final", total, int(done.numpy()), flush=True)
"""


@pytest.mark.sweep(1, of="what goes wrong")
def test_a_killed_worker_of_a_parameter_server_job_returns_and_gets_functions_again(
    project: Project,
) -> None:
    (project.code / "coordinated.py").write_text(COORDINATED)
    seen = project.shared() / "seen"
    config = project.config(
        **PS,
        setup=SETUP,
        train={"command": f"python coordinated.py {quote(str(seen))}", "max_restarts": 1},
    )
    run = project.start("run", config)
    until(lambda: re.search(r"worker1 │ a step", project.stdout), LIMIT)
    killed = time.monotonic()
    os.kill(trainer(project, "worker1"), signal.SIGKILL)
    until(lambda: "worker1 serves again" in project.stderr, LIMIT)
    print(f"its port was open again {time.monotonic() - killed:.1f} s after the kill")
    logs = project.home / "clusters"
    until(lambda: any("a step" in one.read_text() for one in logs.rglob("worker1.2.log")), LIMIT)
    print(f"it got functions again {time.monotonic() - killed:.1f} s after the kill")
    seen.touch()
    assert run.wait(LIMIT) == 0, project.stderr
    total, made = map(int, re.findall(r"final (\d+) (\d+)", project.stdout)[0])
    assert made >= total >= 200  # a function of the worker that died may have run twice
    assert "worker1 restarted (attempt 2 of its own)" in project.stderr
    assert project.processes() == {}


@pytest.mark.sweep(1, of="what goes wrong")
def test_a_worker_that_raises_before_it_serves_ends_a_parameter_server_job(
    project: Project,
) -> None:
    raises = "python -c 'raise FileNotFoundError(\"no data\")'"
    line = f"if [ {{role}}{{index}} = worker0 ]; then {raises}; else python parameter_server.py; fi"
    run = project.start("run", example(project, line, **PS))
    until(lambda: "FileNotFoundError: no data" in project.stdout, LIMIT)
    assert run.wait(LIMIT) == 1
    named = r"error: worker0 on \S*-worker0: exit code 1: FileNotFoundError: no data \(before it"
    assert re.search(named, project.stderr)
    assert project.processes() == {}


@pytest.mark.sweep(1, of="what goes wrong")
def test_a_worker_that_ends_well_before_its_strategy_ends_the_run(project: Project) -> None:
    line = f"[ {{role}}{{index}} = worker1 ] || {MIRRORED}"
    nodes = {"chief": {}, "worker": {"count": 2}}
    done = project.cloudtrain("run", example(project, line, nodes=nodes), timeout=LIMIT)
    assert done.returncode == 1
    assert re.search(r"error: worker1 on \S*: ended with exit code 0 before it joined", done.stderr)


@pytest.mark.sweep(1, of="what goes wrong")
def test_trainings_that_ignore_tf_config_are_no_success(project: Project) -> None:
    config = example(project, f"unset TF_CONFIG; {MIRRORED}", nodes=TWO)
    done = project.cloudtrain("run", config, timeout=LIMIT)
    assert done.returncode == 1
    assert "error: the tasks never formed a cluster: 2 separate trainings" in done.stderr
    (record,) = project.runs()
    assert record["clustered"] is False


@pytest.mark.sweep(1, of="what goes wrong")
def test_a_killed_parameter_server_is_named_also_after_a_worker_was_killed(
    project: Project,
) -> None:
    config = example(project, "python parameter_server.py --epochs 200", **PS)
    run = project.start("run", config)
    until(lambda: "Epoch 2/200" in project.stdout, LIMIT)
    os.kill(trainer(project, "worker1"), signal.SIGKILL)
    until(lambda: "worker1 has failed" in project.stderr, LIMIT)
    os.kill(trainer(project, "ps0"), signal.SIGKILL)
    assert run.wait(LIMIT) == 1
    assert re.search(r"error: ps0 on \S*-ps0: killed by SIGKILL", project.stderr)


def within(seconds: float) -> list[Any]:
    """Those are asserted in the sweeps alone: other tests take what this machine has."""
    soon = pytest.param(seconds, id=f"within {seconds:g} s", marks=pytest.mark.sweep(0))
    return [pytest.param(LIMIT, id="at all"), soon]


@pytest.mark.sweep(1, of="what goes wrong")
@pytest.mark.parametrize("limit", within(30))
def test_a_killed_worker_is_named(project: Project, limit: float) -> None:
    nodes = {"chief": {}, "worker": {"count": 2}}
    run = project.start("run", example(project, f"{MIRRORED} --epochs 500", nodes=nodes))
    until(lambda: "Epoch 2/500" in project.stdout, LIMIT)
    killed = time.monotonic()
    os.kill(trainer(project, "worker1"), signal.SIGKILL)
    named = r"worker1 on \S*-worker1: killed by SIGKILL"
    until(lambda: re.search(named, project.stderr), limit)
    print(f"named {time.monotonic() - killed:.1f} s after the kill")
    assert run.wait(max(limit, 60)) == 1
    print(f"ended {time.monotonic() - killed:.1f} s after the kill")
    assert re.search("error: " + named, project.stderr)
    assert project.processes() == {}


@pytest.mark.sweep(1, of="what goes wrong")
@pytest.mark.parametrize("limit", within(60))
def test_a_frozen_worker_is_named(project: Project, limit: float) -> None:
    run = project.start("run", example(project, f"{MIRRORED} --epochs 500", nodes=TWO))
    until(lambda: "Epoch 2/500" in project.stdout, LIMIT)
    frozen = time.monotonic()
    os.kill(trainer(project, "worker0"), signal.SIGSTOP)
    named = r"worker0 on \S*-worker0: its process is stopped"
    until(lambda: re.search(named, project.stderr), limit)
    print(f"named {time.monotonic() - frozen:.1f} s after the stop")
    assert run.wait(max(limit, 60)) == 1
    print(f"ended {time.monotonic() - frozen:.1f} s after the stop")
    assert re.search("error: " + named, project.stderr)
    assert project.processes() == {}


def test_a_killed_worker_is_restarted_and_the_loss_is_that_of_an_unbroken_run(
    project: Project, loss_of_one_process: set[str]
) -> None:
    config = example(project, MIRRORED, nodes=TWO, train={"max_restarts": 1})
    run = project.start("run", config)
    until(lambda: "Epoch 3/5" in project.stdout, LIMIT)
    os.kill(trainer(project, "worker0"), signal.SIGKILL)
    assert run.wait(LIMIT) == 0, project.stderr
    assert "resumes from" in project.stderr
    assert project.stdout.count("Epoch 1/5") == 1
    assert losses(project.stdout) == loss_of_one_process


def test_an_evaluator_scores_the_chiefs_last_checkpoint_and_does_not_decide(
    project: Project,
) -> None:
    shutil.copy(STRANGERS / "with_evaluator.py", project.code)
    config = project.config(
        setup=SETUP,
        nodes={**TWO, "evaluator": {}},
        train={"command": "python with_evaluator.py", "evaluator_grace": "15s"},
    )
    done = project.cloudtrain("run", config, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert re.search(r'evaluator in {"cluster": {"evaluator": \["[\d.:]+"\]}, ', done.stdout)
    assert re.search(r"evaluator0 │ scored ckpt/ckpt-3 0\.\d+", done.stdout)
    assert project.processes() == {}


PS_CLUSTER = {"chief": {}, "worker": {}, "ps": {}}
WORKERS = {"chief": False, "worker": {"count": 2}}
RUN = [
    ("keras_fit_experimental.py", "", TWO, "output/keras-model/saved_model.pb"),
    ("ai_platform_trainer.py", "--job-dir {output} --x=y", TWO, "output/keras_export"),
    ("custom_loop.py", "", TWO, "output/ckpt/checkpoint"),
    ("parameter_server_v2.py", "", PS_CLUSTER, "output/accuracy.txt"),
    ("parameter_server_fit.py", "", PS_CLUSTER, "output/weights.h5"),
    ("two_files/main.py", "", WORKERS, "output/keras-model/saved_model.pb"),
    ("package/trainer/task.py", "--job-dir {output}", TWO, "output/keras_export/saved_model.pb"),
    ("mirrored_notebook.py", "", {"chief": {}}, "output/saved_model/saved_model.pb"),
    ("mirrored_custom_training.py", "", {"chief": {}}, "output/model/saved_model.pb"),
]


@pytest.mark.sweep(1, of="scripts")
@pytest.mark.parametrize(("script", "arguments", "nodes", "made"), RUN)
def test_a_strangers_script_trains_as_it_is(
    project: Project, script: str, arguments: str, nodes: Mapping[str, Any], made: str
) -> None:
    strategy = "multi_worker_mirrored"
    if len(nodes) != 2:
        strategy = "parameter_server" if "ps" in nodes else "mirrored"
    folder, _, name = script.rpartition("/")
    program = "-m trainer.task" if "trainer/" in script else name
    config = project.config(
        strategy=strategy,
        nodes=nodes,
        setup={**SETUP, "keras": "legacy"},
        code={"path": str(STRANGERS / folder.split("/")[0])},
        train={"command": f"python {program} {arguments}"},
    )
    done = project.cloudtrain("run", config, "--trust", timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert list(project.store.glob(f"*/*0/{made}"))


FLAGS = "--ps_hosts={ps.hosts} --worker_hosts={worker.hosts} --job_name={role} --task_index={index}"


@pytest.mark.sweep(1, of="scripts")
@pytest.mark.parametrize("by_role", [False, True])
def test_a_script_that_takes_the_cluster_as_flags_trains(project: Project, by_role: bool) -> None:
    """The classic between-graph script: one ps, two workers, no TF_CONFIG."""
    shutil.copy(STRANGERS / "between_graph.py", project.code)
    command = f"python between_graph.py {FLAGS} --log_dir={{output}}"
    serve = (
        "import sys, tensorflow as tf; hosts = [each.split(',') for each in sys.argv[1:]]; "
        "tf.distribute.Server({'ps': hosts[0], 'worker': hosts[1]}, job_name='ps').join()"
    )
    (project.code / "serve.py").write_text(serve)
    serving = "python serve.py {ps.hosts} {worker.hosts}"
    config = project.config(
        strategy="custom",
        nodes={"ps": {}, "worker": {"count": 2}},
        setup={**SETUP, "keras": "legacy"},  # the environment of the other tests
        train={"command": {"ps": serving, "default": command} if by_role else command},
    )
    done = project.cloudtrain("run", config, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"worker \d stopped at step \d+, loss 0\.\d+", done.stdout)) == 2
    assert list(project.store.glob("*/worker0/output/weights.npy"))
    assert project.processes() == {}


@pytest.mark.sweep(0)  # as test_trainings_that_ignore_tf_config_are_no_success
def test_a_script_that_takes_tf_config_away_trained_alone_on_each_node(project: Project) -> None:
    """Exit code 0 and a model each, that know nothing of each other."""
    config = project.config(
        nodes=TWO,
        setup={**SETUP, "keras": "legacy"},
        code={"path": str(STRANGERS)},
        train={"command": "python tf_config_popped.py"},
    )
    done = project.cloudtrain("run", config, "--trust", timeout=LIMIT)
    assert done.returncode == 1
    assert "the tasks never formed a cluster: 2 separate trainings" in done.stderr
    assert len(list(project.store.glob("*/*0/output/m/saved_model.pb"))) == 2


@pytest.mark.sweep(1, of="what goes wrong")
def test_a_script_for_an_older_tensorflow_fails_with_the_cause_and_what_to_do(
    project: Project,
) -> None:
    config = project.config(
        setup=SETUP, code={"path": str(STRANGERS)}, train={"command": "python estimator.py"}
    )
    done = project.cloudtrain("run", config, "--trust", timeout=LIMIT)
    assert done.returncode == 1
    assert "AttributeError: module 'tensorflow' has no attribute 'estimator'" in done.stderr
    assert 'hint: TensorFlow no longer has this: set `setup.tensorflow: "2.15"`' in done.stderr
