"""`shared:` with real programs: what the ps write, the chief reads back, and evaluators score."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.e2e.test_resume_tensorflow import PARAMETER_SERVER
from tests.support.lent import lent_home
from tests.support.project import ROOT, Project
from tests.support.sshd import sshd_nodes

LOCAL = yaml.safe_load((ROOT / "configs" / "local.yaml").read_text(encoding="utf-8"))
SETUP = {**LOCAL["setup"], "prove": "off"}
LIMIT = 300.0

real = [
    pytest.mark.tensorflow,
    pytest.mark.xdist_group("tensorflow"),
    pytest.mark.usefixtures("tensorflow_python"),
]

KERAS = """
import os, sys
import tensorflow as tf

job_dir = sys.argv[1]
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
    ).join()
strategy = tf.distribute.ParameterServerStrategy(
    resolver, tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
)
data = tf.keras.utils.experimental.DatasetCreator(
    lambda _: tf.data.Dataset.from_tensors((tf.ones((8, 4)), tf.ones((8, 1)))).repeat()
)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(8), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
checkpoint = tf.keras.callbacks.ModelCheckpoint(
    os.path.join(job_dir, "ckpt-{epoch}"), save_weights_only=True
)
model.fit(data, epochs=2, steps_per_epoch=3, callbacks=[checkpoint], verbose=0)
latest = tf.train.latest_checkpoint(job_dir)
model.load_weights(latest).assert_existing_objects_matched()
print("read back", os.path.basename(latest), flush=True)
model.save(os.path.join(job_dir, "export"))
"""
"""Keras' ModelCheckpoint merges what chief and ps have written, in a folder that all must see."""


class TestWithTensorFlow:
    pytestmark = real

    @pytest.mark.sweep(1)
    @pytest.mark.parametrize("job_dir", ["{shared}", "job"])
    def test_a_chief_reads_back_what_it_saved_through_two_ps(
        self, project: Project, job_dir: str
    ) -> None:
        (project.code / "job.py").write_text(KERAS)
        config = project.config(
            strategy="parameter_server",
            nodes={"chief": {}, "worker": {"count": 1}, "ps": {"count": 2}},
            setup=SETUP,
            shared="job",
            train={"command": f"python job.py {job_dir}", "checkpoints": None},
        )
        done = project.cloudtrain("run", config, timeout=LIMIT)
        assert done.returncode == 0, done.stderr
        assert "chief0 │ read back ckpt-2" in done.stdout
        (landed,) = project.store.glob("*/chief0/job")
        assert {"ckpt-2.index", "checkpoint", "export"} <= {each.name for each in landed.iterdir()}
        assert (landed / "export" / "saved_model.pb").exists()
        assert not list(project.store.glob("*/ps*/job"))

    def test_a_restart_finds_the_folder_as_it_was_and_a_resumed_run_what_landed(
        self, project: Project
    ) -> None:
        (project.code / "job.py").write_text(PARAMETER_SERVER.replace('"ckpt"', '"job"'))
        sections = {
            "strategy": "parameter_server",
            "nodes": {"chief": {}, "worker": {"count": 1}, "ps": {"count": 2}},
            "setup": SETUP,
            "shared": "job",
        }
        train = {"command": "python job.py 20", "max_restarts": 1, "checkpoints": None}
        done = project.cloudtrain("run", project.config(**sections, train=train), timeout=LIMIT)
        assert done.returncode == 0, done.stderr
        begun = re.findall(r"begins at step (\d+) with (\d+)", done.stdout)
        assert [step for step, _ in begun] == ["0", "10"]
        assert "ends at step 20 with 20" in done.stdout
        train |= {"command": "python job.py 30"}
        config = project.config(**sections, name=f"{project.name}b", train=train)
        (first,) = project.runs()
        source = f"{project.store.as_uri()}/{first['id']}"
        done = project.cloudtrain("run", config, "--resume", source, timeout=LIMIT)
        assert done.returncode == 0, done.stderr
        assert "begins at step 20 with 20" in done.stdout
        assert "ends at step 30 with 30" in done.stdout

    def test_an_evaluator_scores_what_the_chief_saves_in_the_script_as_it_is(
        self, project: Project
    ) -> None:
        shutil.copy(ROOT / "tests" / "strangers" / "with_evaluator.py", project.code)
        config = project.config(
            setup=SETUP,
            nodes={"chief": {}, "worker": {"count": 1}, "evaluator": {}},
            shared="ckpt",
            train={
                "command": "python with_evaluator.py",
                "checkpoints": None,
                "evaluator_grace": "15s",
            },
        )
        done = project.cloudtrain("run", config, timeout=LIMIT)
        assert done.returncode == 0, done.stderr
        assert re.search(r"evaluator0 │ scored ckpt/ckpt-3 0\.\d+", done.stdout)


WRITES = """
import os

role = os.environ["CLOUDTRAIN_ROLE"]
with open(f"team model/{role}", "w") as file:
    file.write(os.environ["CLOUDTRAIN_SHARED"])
"""


@pytest.mark.openssh
def test_machines_of_the_users_own_share_the_path_that_is_named(tmp_path: Path) -> None:
    with sshd_nodes(tmp_path / "machines", ["a", "b"]) as machines:
        project = Project(tmp_path / "project")
        project.environment["HOME"] = str(lent_home(tmp_path / "home", machines))
        (project.code / "job.py").write_text(WRITES)
        (tmp_path / "nfs").mkdir()
        roles = zip(machines, ["chief", "worker"], strict=True)
        path = project.config(
            provider="hosts",
            strategy="custom",
            hosts=[
                {
                    "address": each.node.address,
                    "port": each.node.ssh_port,
                    "user": each.node.user,
                    "role": role,
                }
                for each, role in roles
            ],
            nodes={"chief": {}, "worker": {}},
            shared={"folder": "team model", "path": str(tmp_path / "nfs")},
            train={"command": "python3 job.py", "checkpoints": None, "success": "all"},
        )
        done = project.cloudtrain("run", path, "--yes")
        assert done.returncode == 0, done.stderr
        (run,) = project.runs()
        place = tmp_path / "nfs" / project.name / run["id"]
        assert project.landed("chief0", "team model/worker") == str(place)
        assert project.landed("chief0", "team model/chief") == str(place)
        assert not list(project.store.glob("*/worker0/*"))
        assert {each.name for each in place.iterdir()} == {"chief", "worker"}, "it is the user's"


def test_a_folder_that_cannot_be_made_on_hosts_is_one_error(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    config = project.config(
        provider="hosts",
        hosts=[{"address": "127.0.0.1", "role": "chief"}],
        nodes={"chief": {}},
        strategy="custom",
        shared="job",
    )
    done = project.cloudtrain("plan", config)
    assert done.returncode == 2
    assert "shared.path: is missing: a folder that all hosts share already" in done.stderr
    assert "train.checkpoints: leave it out: `shared` lands" in done.stderr
