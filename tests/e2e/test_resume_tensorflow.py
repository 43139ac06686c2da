"""Runs that resume others with a real TensorFlow, and ps that have disks of their own."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.standins.stores import KINDS
from tests.support.project import ROOT, Project

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.xdist_group("tensorflow"),
    pytest.mark.usefixtures("tensorflow_python"),
]

LOCAL = yaml.safe_load((ROOT / "configs" / "local.yaml").read_text(encoding="utf-8"))
SETUP = {**LOCAL["setup"], "prove": "off"}
LIMIT = 200.0

MIRRORED = """
import sys
import tensorflow as tf

mode, epochs = sys.argv[1], int(sys.argv[2])
strategy = tf.distribute.MultiWorkerMirroredStrategy()
tf.keras.utils.set_random_seed(3)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(4), tf.keras.layers.Dense(1)])
    model.build((None, 3))
    model.compile(tf.keras.optimizers.Adam(0.05), "mse")
    passed = tf.Variable(0)
x = tf.reshape(tf.range(48, dtype=tf.float32) / 48, (16, 3))
data = tf.data.Dataset.from_tensors((x, tf.reduce_sum(x, 1, keepdims=True))).repeat(4)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
data = data.with_options(options)


def report(epoch, logs):
    print(f"epoch {epoch} loss {logs['loss']:.6f}", flush=True)


callbacks, first = [tf.keras.callbacks.LambdaCallback(on_epoch_end=report)], 0
if mode == "backup":
    callbacks += [tf.keras.callbacks.BackupAndRestore("ckpt", delete_checkpoint=False)]
else:
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, passed=passed)
    resolver = strategy.cluster_resolver
    place = "ckpt" if resolver.task_type == "chief" else "scratch"
    manager = tf.train.CheckpointManager(checkpoint, place, max_to_keep=1)
    checkpoint.restore(tf.train.latest_checkpoint("ckpt"))
    first = int(passed.numpy())

    def save(epoch, logs):
        passed.assign(epoch + 1)
        manager.save()

    callbacks += [tf.keras.callbacks.LambdaCallback(on_epoch_end=save)]
model.fit(data, epochs=epochs, initial_epoch=first, callbacks=callbacks, verbose=0)
"""


def losses(text: str, task: str) -> dict[int, str]:
    found = re.findall(rf"{task} │ epoch (\d+) loss (\d+\.\d+)", text)
    return {int(epoch): loss for epoch, loss in found}


@pytest.mark.sweep(1, of="resumed")
@pytest.mark.parametrize("mode", ["backup", "manager"])
def test_a_resumed_run_has_the_losses_of_an_undisturbed_one(project: Project, mode: str) -> None:
    (project.code / "job.py").write_text(MIRRORED)
    config = project.config(setup=SETUP, train={"command": f"python job.py {mode}"})
    assert project.cloudtrain("up", config, timeout=LIMIT).returncode == 0
    texts = []
    for arguments in (["--", "5"], ["--", "2"], ["--resume", "last", "--", "5"]):
        done = project.cloudtrain("train", *arguments, timeout=LIMIT)
        assert done.returncode == 0, done.stderr
        texts.append(done.stdout)
    for task in ("chief0", "worker0"):
        whole, half, rest = (losses(text, task) for text in texts)
        assert list(whole) == [0, 1, 2, 3, 4]
        assert (list(half), list(rest)) == ([0, 1], [2, 3, 4])
        assert {**half, **rest} == whole


PARAMETER_SERVER = """
import json, os, signal, sys
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
config = json.loads(os.environ["TF_CONFIG"])
task, cluster = config["task"], config["cluster"]
server = tf.train.Server(cluster, job_name=task["type"], task_index=task["index"])
if task["type"] != "chief":
    server.join()
with tf.device(tf.train.replica_device_setter(worker_device="/job:chief/task:0", cluster=cluster)):
    step = tf.train.get_or_create_global_step()
    weights = [tf.get_variable(f"w{i}", [3], initializer=tf.zeros_initializer()) for i in range(3)]
    train = tf.group(*[each.assign_add(tf.ones([3])) for each in weights])
    with tf.control_dependencies([train]):
        train = step.assign_add(1)
with tf.train.MonitoredTrainingSession(
    server.target, checkpoint_dir="ckpt", save_checkpoint_steps=5, save_summaries_steps=None,
    save_summaries_secs=None, log_step_count_steps=None,
) as session:
    now = session.run(step)
    print(f"begins at step {now} with {session.run(weights[1])[0]:g}", flush=True)
    while now < int(sys.argv[1]):
        now = session.run(train)
        if now == 12 and not os.path.exists("../died"):
            open("../died", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
    print(f"ends at step {now} with {session.run(weights[1])[0]:g}", flush=True)
"""

ALONE = """
echo "sees the disk of $(ls "$HOME/../..")"
exec python job.py "$@"
"""
"""Says which nodes' folders the task sees: its disk is its own."""


def private_disks() -> str | None:
    """Why mounts of one's own are not possible here."""
    done = subprocess.run(
        ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr.strip() or "unshare fails" if done.returncode else None


@pytest.fixture
def parameter_servers(project: Project) -> dict[str, Any]:
    why = private_disks()
    if why is not None:
        pytest.skip(f"no private mounts for the tasks on this machine: {why}")
    (project.code / "job.py").write_text(PARAMETER_SERVER)
    (project.code / "alone.sh").write_text(ALONE)
    return {
        "strategy": "parameter_server",
        "nodes": {"chief": {}, "worker": {"count": 1}, "ps": {}},
        "setup": SETUP,
        "train": {"command": "sh alone.sh 20", "max_restarts": 1},
    }


@pytest.mark.sweep(1, of="resumed")
def test_a_ps_with_a_disk_of_its_own_resumes_in_the_run_and_on_another_store(
    project: Project, parameter_servers: dict[str, Any]
) -> None:
    with KINDS["s3"]() as s3:
        project.environment.update(s3.environment)
        there = f"{s3.uri}/{project.name}"
        config = project.config(**parameter_servers, artifacts={"store": there})
        done = project.cloudtrain("run", config, timeout=LIMIT)
        assert done.returncode == 0, done.stderr
        for task in ("chief0", "worker0", "ps0"):
            assert f"{task} │ sees the disk of {project.name}-{task}\n" in done.stdout
        assert "chief0 │ begins at step 0 with 0" in done.stdout
        assert "resumes from ckpt/model.ckpt-1" in done.stderr
        begun = re.findall(r"begins at step (\d+) with (\d+)", done.stdout)
        assert begun[1][0] == begun[1][1]
        assert 10 <= int(begun[1][0]) <= 12
        assert "ends at step 20 with 20" in done.stdout
        second = {**parameter_servers, "train": {"command": "sh alone.sh 30"}}
        config = project.config(**second, name=f"{project.name}b")
        done = project.cloudtrain("run", config, "--resume", there, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert "begins at step 20 with 20" in done.stdout
    assert "ends at step 30 with 30" in done.stdout
    (path,) = project.store.glob("*/manifest.json")
    landed = json.loads(path.read_text())["checkpoint"]["paths"]
    assert {Path(each).name for each in landed} >= {
        "checkpoint",
        "model.ckpt-30.index",
        "model.ckpt-30.data-00000-of-00001",
        "model.ckpt-30.meta",
    }


@pytest.mark.sweep(1, of="resumed")
def test_two_ps_with_disks_of_their_own_fail_with_the_way_out(
    project: Project, parameter_servers: dict[str, Any]
) -> None:
    nodes = {"chief": {}, "worker": {"count": 1}, "ps": {"count": 2}}
    config = project.config(**{**parameter_servers, "nodes": nodes})
    done = project.cloudtrain("run", config, timeout=LIMIT)
    assert done.returncode == 1
    assert "TensorFlow cannot merge the parts of several" in done.stderr
    assert "Saver(sharded=False)" in done.stderr
