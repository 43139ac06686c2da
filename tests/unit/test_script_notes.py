"""What `plan` and `check` note of the script, with its line."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from cloudtrain.checks.check import noted
from cloudtrain.checks.notes import script_notes
from cloudtrain.checks.path_notes import path_notes
from cloudtrain.cli.plan import as_document
from cloudtrain.cluster.plan import make_plan
from cloudtrain.commands.plan import plan_report
from cloudtrain.config import load
from cloudtrain.core.model import ClusterConfig
from cloudtrain.script.facts import strategy_in
from cloudtrain.script.program import ModuleEntry, read_program
from cloudtrain.training.strategies import STRATEGIES
from tests.support.offline_checks_parts import written
from tests.support.stranger_notes import Program, programs

ROOT = Path(__file__).parents[2]
STRANGERS = ROOT / "tests" / "strangers"
MACHINE = {"machine": "n1-standard-8"}
CLOUD: dict[str, Any] = {
    "provider": "gcp",
    "project": "p",
    "placement": ["us-east4-c"],
    "nodes": {"chief": MACHINE, "worker": {**MACHINE, "count": 1}},
}


def coded(folder: Path, source: str, arguments: str = "", **values: Any) -> ClusterConfig:
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code/train.py").write_text(dedent(source))
    train = {"command": f"python train.py {arguments}", **values.pop("train", {})}
    setup = {"tensorflow": "2.21"}
    return written(folder, **{"code": {"path": "code"}, "setup": setup, "train": train, **values})


def notes_of(folder: Path, source: str, arguments: str = "", **values: Any) -> list[str]:
    return list(script_notes(coded(folder, source, arguments, **values)))


def test_they_are_in_plan_its_json_and_check(tmp_path: Path) -> None:
    config = coded(tmp_path, "import tensorflow as tf\ntf.distribute.MirroredStrategy()\n")
    note = (
        "train.py:2: distribute.MirroredStrategy, but the config has `strategy: "
        "multi_worker_mirrored`: set `strategy: mirrored`"
    )
    assert note in as_document(plan_report(make_plan(config)))["notes"]
    assert note in [finding.text for finding in noted(config)]
    assert all(finding.ok for finding in noted(config))


def test_a_script_that_has_the_configs_strategy_among_others_is_fine(tmp_path: Path) -> None:
    source = """
        import tensorflow as tf
        tf.distribute.MirroredStrategy()
        tf.distribute.MultiWorkerMirroredStrategy()
        """
    assert notes_of(tmp_path, source) == []
    differs = notes_of(tmp_path, source, strategy="one_device", nodes={"chief": {}})
    assert differs == [
        "train.py:3: distribute.MirroredStrategy, but the config has `strategy: one_device`"
    ]
    assert notes_of(tmp_path, source, strategy="custom") == []


GPUS: dict[str, Any] = {
    **CLOUD,
    "nodes": {role: {"machine": "g2-standard-4"} for role in ("chief", "worker")},
}


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        ("tf.distribute.MultiWorkerMirroredStrategy()", "communication_options=tf"),
        ("tf.distribute.MultiWorkerMirroredStrategy(resolver)", "communication_options=tf"),
        ("tf.distribute.experimental.MultiWorkerMirroredStrategy()", "communication=tf"),
        ("tf.distribute.experimental.MultiWorkerMirroredStrategy(nccl)", None),
        ("tf.distribute.MultiWorkerMirroredStrategy(communication_options=o)", None),
        ("tf.distribute.MultiWorkerMirroredStrategy(resolver, options)", None),
        ("tf.distribute.MultiWorkerMirroredStrategy(**options)", None),
        ("tf.distribute.MultiWorkerMirroredStrategy(*options)", None),
    ],
)
def test_gradients_that_would_go_over_grpc_between_gpus_are_told_with_the_remedy(
    tmp_path: Path, call: str, advice: str | None
) -> None:
    source = f"import tensorflow as tf\nstrategy = {call}\n"
    told = [note for note in notes_of(tmp_path, source, **GPUS) if "over gRPC" in note]
    assert len(told) == (1 if advice else 0)
    for note in told:
        assert note.startswith("train.py:2: MultiWorkerMirroredStrategy reduces the gradients")
        assert f"pass {advice}" in note
    assert not [note for note in notes_of(tmp_path, source, **CLOUD) if "over gRPC" in note]


def test_gradients_of_a_single_gpu_node_stay_on_it(tmp_path: Path) -> None:
    source = "import tensorflow as tf\ntf.distribute.MultiWorkerMirroredStrategy()\n"
    alone = {**GPUS, "nodes": {"chief": {"machine": "g2-standard-4"}}}
    assert not [note for note in notes_of(tmp_path, source, **alone) if "over gRPC" in note]


def test_parameter_servers_of_tensorflow_1_are_no_contradiction(tmp_path: Path) -> None:
    source = "import tensorflow as tf\ntf.compat.v1.train.replica_device_setter()\n"
    nodes = {"chief": {}, "worker": {}, "ps": {}}
    assert notes_of(tmp_path, source, strategy="parameter_server", nodes=nodes) == []
    assert "set `strategy: custom`" in notes_of(tmp_path, source)[0]


def test_an_estimators_evaluator_needs_the_others_cluster(tmp_path: Path) -> None:
    source = "import tensorflow as tf\ntf.estimator.train_and_evaluate(e, t, v)\n"
    values: dict[str, Any] = {
        "train": {"checkpoints": "ckpt"},
        "strategy": "parameter_server",
        "nodes": {"chief": {}, "worker": {}, "ps": {}, "evaluator": {}},
        "setup": {"tensorflow": "2.15"},
    }
    assert notes_of(tmp_path, source, **values) == [
        "train.py:2: the evaluator of an Estimator refuses a cluster without a chief: set "
        "`train.tf_config: estimator`"
    ]
    as_estimator = {"train": {"tf_config": "estimator", "checkpoints": "ckpt"}}
    assert notes_of(tmp_path, source, **{**values, **as_estimator}) == []
    assert notes_of(tmp_path, source, **{**values, "setup": {"tensorflow": "1.15"}}) == []
    assert notes_of(tmp_path, "import tensorflow as tf\n", **values) == []
    without = {"chief": {}, "worker": {}, "ps": {}}
    assert notes_of(tmp_path, source, **{**values, "nodes": without}) == []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("tf.train.Checkpoint(model=m).save('ckpt/a')", "fails to merge them"),
        ("c = tf.train.Checkpoint(model=m); c.write('ckpt/a')", "fails to merge them"),
        ("c = tf.train.Checkpoint(model=m); c.write('ckpt/a', options=at_chief)", None),
        ("tf.train.Checkpoint(model=m).restore('ckpt/a')", None),
        ("c = tf.train.Checkpoint(model=m); c.restore('ckpt/a')", None),
        ("tf.train.CheckpointManager(c, 'ckpt')", "fails to merge them"),
        ("tf.keras.callbacks.ModelCheckpoint(path)", "fails to merge them"),
        ("tf.keras.callbacks.ModelCheckpoint(path, options=at_chief)", None),
        ("tf.keras.callbacks.ModelCheckpoint('m.keras')", None),
        ("tf.keras.callbacks.ModelCheckpoint(**options)", None),
        ("tf.compat.v1.train.Saver(sharded=True)", "no task can read a whole one"),
        ("tf.compat.v1.train.Saver()", None),
        ("tf.compat.v1.train.MonitoredTrainingSession(checkpoint_dir=d)", "no task can read"),
        ("tf.compat.v1.train.MonitoredTrainingSession(master=t)", None),
        ("isinstance(x, tf.train.Checkpoint)", None),
    ],
)
def test_a_script_that_saves_from_the_ps_is_told_so_with_its_line(
    tmp_path: Path, call: str, words: str | None
) -> None:
    source = f"import tensorflow as tf\n{call}\n"
    ps = {"strategy": "custom", "nodes": {"chief": {}, "worker": {}, "ps": {}}}
    told = [note for note in notes_of(tmp_path, source, **ps) if "writes its part" in note]
    assert len(told) == (1 if words else 0)
    for note in told:
        assert note.startswith("train.py:2: ")
        assert str(words) in note
    assert not [note for note in notes_of(tmp_path, source) if "writes its part" in note]


def test_the_note_on_checkpoints_of_a_ps_is_given_once(tmp_path: Path) -> None:
    ps = {"strategy": "custom", "nodes": {"chief": {}, "worker": {}, "ps": {}}}
    saves = "import tensorflow as tf\ntf.train.Checkpoint(model=m).save('ckpt/a')\n"
    for source in (saves, "print(1)\n"):
        config = coded(tmp_path, source, train={"checkpoints": "ckpt"}, **ps)
        notes = as_document(plan_report(make_plan(config)))["notes"]
        assert sum("writes its part" in note for note in notes) == 1


def test_the_tensorflow_that_its_names_need_is_named_once(tmp_path: Path) -> None:
    source = """
        import tensorflow as tf
        x = tf.placeholder(tf.float32)
        with tf.Session() as session:
            tf.estimator.Estimator(f)
        """
    assert notes_of(tmp_path, source) == [
        "train.py:3: tensorflow.placeholder (and 1 more such names) is not in TensorFlow 2.21: "
        'TensorFlow 1.15 was the last with it; set `setup.tensorflow: "1.15"`',
        "train.py:5: tensorflow.estimator is not in TensorFlow 2.21: TensorFlow 2.15 was the last "
        'with it; set `setup.tensorflow: "2.15"`',
    ]
    assert notes_of(tmp_path, source, setup={}) == []


def test_import_keras_over_several_nodes_is_keras_3(tmp_path: Path) -> None:
    source = "import tensorflow as tf\nimport keras\n"
    (note,) = notes_of(tmp_path, source)
    assert note.startswith("train.py:2: `import keras` is Keras 3, whatever `setup.keras` says")
    assert notes_of(tmp_path, source, setup={"tensorflow": "2.15"}) == []
    assert notes_of(tmp_path, source, nodes={"chief": {}}) == []
    assert notes_of(tmp_path, "from tensorflow import keras\n") == []


def test_a_buckets_uri_is_noted_on_a_cloud_alone(tmp_path: Path) -> None:
    source = """
        import argparse
        DATA = "gs://private/data"
        parser = argparse.ArgumentParser()
        parser.add_argument("--out", default="gs://private/out")
        parser.parse_args()
        """
    assert [note.split(": nodes")[0] for note in notes_of(tmp_path, source, **CLOUD)] == [
        "train.py:3: gs://private/data",
        "train.py:5: gs://private/out",
    ]
    (only,) = notes_of(tmp_path, source, "--out {output}", **CLOUD)
    assert only.startswith("train.py:3: gs://private/data: nodes have no cloud identity")
    assert only.endswith("or set `identity:`")
    assert notes_of(tmp_path, source) == []


def test_with_an_identity_only_another_clouds_buckets_are_noted(tmp_path: Path) -> None:
    given = {**CLOUD, "identity": "trainer@my-project.iam.gserviceaccount.com"}
    assert notes_of(tmp_path, 'DATA = "gs://private/data"\n', **given) == []
    (note,) = notes_of(tmp_path, 'DATA = "s3://private/data"\n', **given)
    assert note.startswith("train.py:1: s3://private/data: nodes have no cloud identity for it")
    assert "`identity:`" not in note


def test_a_saver_that_only_knows_the_chief_needs_one(tmp_path: Path) -> None:
    source = "if kind == 'chief':\n    model.save('x')\n"
    workers = {"chief": False, "worker": {"count": 2}}
    (note,) = notes_of(tmp_path, source, nodes=workers)
    assert note.startswith("train.py:1: compares the role with 'chief', but the config has none")
    assert notes_of(tmp_path, source) == []
    assert "called 'chief' here" in notes_of(tmp_path, "if kind == 'master': save()")[0]


def test_backup_and_restore_needs_a_checkpoint_folder_and_restarts(tmp_path: Path) -> None:
    source = "import tensorflow as tf\ntf.keras.callbacks.BackupAndRestore('ckpt')\n"
    assert "nothing resumes from it without" in notes_of(tmp_path, source)[0]
    again = {"max_restarts": 2}
    assert "each restart starts from the beginning" in notes_of(tmp_path, source, train=again)[0]
    assert notes_of(tmp_path, source, train={"checkpoints": "ckpt"}) == []
    alone: dict[str, Any] = {"strategy": "mirrored", "nodes": {"chief": {}}, "train": again}
    assert notes_of(tmp_path, source, **alone) == []


def test_keys_of_tf_config_that_are_not_there(tmp_path: Path) -> None:
    source = """
        import json, os
        config = json.loads(os.environ["TF_CONFIG"])
        n = len(config["cluster"]["worker"]) + len(config["cluster"]["ps"])
        trial = config["task"]["trial"]
        kind = config["task"]["type"]
        """
    assert notes_of(tmp_path, source) == [
        "train.py:4: TF_CONFIG has no 'cluster.ps' here",
        "train.py:5: TF_CONFIG has no 'task.trial' here",
    ]
    (unset,) = notes_of(tmp_path, source, nodes={"chief": {}})
    assert unset.startswith("train.py:3: TF_CONFIG is not set in this run: set `train.tf_config")


def test_a_script_that_cannot_be_parsed_is_named(tmp_path: Path) -> None:
    (note,) = notes_of(tmp_path, "x = 1\nprint 'Python 2'\n")
    assert note.startswith("train.py:2: not checked, as Python 3.")


# ── arguments ────────────────────────────────────────────────────────────────

ARGPARSE = """
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("--job-dir", required=True)
    parser.add_argument("--epochs", "-e", type=int, default=2)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--sizes", nargs="+", type=int)
    args = parser.parse_args()
    """
CLICK = """
    import click
    @click.command()
    @click.option("--epochs", default=1)
    @click.option("--fast/--slow", default=False)
    @click.option("--job-dir", "-j", required=True)
    def main(epochs, fast, job_dir): pass
    """
ABSL = """
    from absl import app, flags
    flags.DEFINE_string("job_dir", None, "x")
    flags.DEFINE_integer("epochs", 1, "x")
    flags.DEFINE_boolean("fast", False, "x")
    flags.mark_flag_as_required("job_dir")
    app.run(main)
    """
KNOWN = "train.py:{} defines its arguments"


@pytest.mark.parametrize(
    ("source", "arguments", "words"),
    [
        (ARGPARSE, "--job-dir x -e 3 --fast --sizes 1 2", None),
        (ARGPARSE, "--job-dir={output} --epo 3", None),
        (ARGPARSE, "--job-dir x --epcohs 3", "unknown argument --epcohs: did you mean --epochs?"),
        (ARGPARSE, "--job-dir x --nothing", "unknown argument --nothing;"),
        (ARGPARSE, "--epochs 3", "the following arguments are required: --job-dir (or after"),
        (ARGPARSE, "--job-dir x stray", "unrecognized arguments: stray"),
        (ARGPARSE, "--job-dir", "argument --job-dir: expected one argument"),
        (ARGPARSE, "$ARGS", None),
        (ARGPARSE, "--help", None),
        (CLICK, "-j x --slow --epochs=3", None),
        (CLICK, "--job-dir x --epoch 3", "unknown argument --epoch: did you mean --epochs?"),
        (CLICK, "--fast", "the following arguments are required: --job-dir"),
        (ABSL, "--job_dir=x --nofast -epochs 3 --alsologtostderr", None),
        (ABSL, "--job_dir=x --job-dir=y", "unknown argument --job-dir;"),
        (ABSL, "--epochs 1", "the following arguments are required: --job_dir"),
    ],
)
def test_arguments_that_the_script_would_refuse(
    tmp_path: Path, source: str, arguments: str, words: str | None
) -> None:
    found = notes_of(tmp_path, source, arguments)
    assert [note for note in found if words is None or words not in note] == []
    assert len(found) == (words is not None)
    assert all(note.startswith("train.command: ") and "; train.py:" in note for note in found)


def test_arguments_that_it_ignores_are_noted_only_if_one_was_meant(tmp_path: Path) -> None:
    tolerant = ARGPARSE.replace("parse_args()", "parse_known_args()")
    assert notes_of(tmp_path, tolerant, "--job-dir x --master-type y") == []
    (note,) = notes_of(tmp_path, tolerant, "--job-dir x --epocsh 3")
    assert "unknown argument --epocsh is ignored: did you mean --epochs?" in note


@pytest.mark.parametrize(
    "line",
    [
        "for name in NAMES: parser.add_argument(name)",
        "parser.add_argument('--x', **more)",
        "parser.add_argument('--x', action=Own)",
        "parser.add_subparsers()",
        "from absl import flags; flags.DEFINE_string('x', '', '')",
        "args = parser.parse_args(words)",
        "import other; other.add_arguments(parser)",
        "from other import ArgumentParser; parser = ArgumentParser()",
        "class Own(argparse.ArgumentParser): pass",
    ],
)
def test_nothing_is_said_of_arguments_that_are_not_all_in_view(tmp_path: Path, line: str) -> None:
    source = dedent(ARGPARSE).replace("args = ", f"{line}\nargs = ")
    assert notes_of(tmp_path, source, "--nothing") == []


# ── no false alarm ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("program", tuple(programs()), ids=lambda program: program.script)
def test_a_program_gets_the_notes_that_it_is_owed_and_no_other(
    tmp_path: Path, program: Program
) -> None:
    _, false, missed = program.judged(tmp_path)
    assert (false, missed) == ([], [])


def test_the_corpus_is_large_enough() -> None:
    assert len({program.path for program in programs()}) >= 30


def others() -> list[Path]:
    named = {str(one.path.relative_to(ROOT)) for one in programs()} | {"examples/digits.py"}
    scripts = [*(ROOT / "examples").glob("*.py"), *STRANGERS.glob("*.py")]
    return sorted(path for path in scripts if str(path.relative_to(ROOT)) not in named)


def test_scripts_without_a_row_are_left_in_peace_with_their_own_strategy(tmp_path: Path) -> None:
    """What `train.command` would have to give them is not known here."""
    for path in others():
        entry = ModuleEntry(path=path.name, root=".")
        own = strategy_in(read_program(entry, {path.name: path.read_bytes()}.get)) or "custom"
        config = written(
            tmp_path,
            strategy=own,
            nodes={role: {"count": n} for role, n in STRATEGIES[own].example.items()},
            setup={"tensorflow": "2.21"},
            code={"path": str(path.parent)},
            train={"command": f"python {path.name}", "checkpoints": "ckpt"},
        )
        found = [note for note in script_notes(config) if not note.startswith("train.command")]
        assert found == [], path


@pytest.mark.parametrize("name", ["local", "gcp", "aws", "azure", "horovod"])
def test_the_example_configs_have_no_such_note(name: str) -> None:
    path = ROOT / "configs" / f"{name}.yaml"
    assert script_notes(load(path, {"HOME": "/home/user"})) == ()


SAVES_ELSEWHERE = """
    import argparse
    import os
    import tensorflow as tf
    from pathlib import Path
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_dir", default="/tmp/mnist")
    parser.add_argument("--data_dir", default="/tmp/data")
    args = parser.parse_args()
    LOGS = "/var/tmp/logs"
    model.save("/mnt/model.keras")
    model.save(args.model_dir)
    tf.keras.callbacks.TensorBoard(log_dir=os.path.join(LOGS, "fit"))
    tf.keras.callbacks.ModelCheckpoint(f"/opt/ckpt/{run}")
    model.save_weights(Path("/data") / "weights.h5")
    model.save("./model"); model.save(args.out); model.save("/home/ubuntu/model")
    open("/tmp/scratch", "w")
"""


def test_what_a_script_saves_outside_its_work_folder_and_home_is_said_on_clouds(
    tmp_path: Path,
) -> None:
    def said(arguments: str, **values: Any) -> list[str]:
        found = notes_of(tmp_path, SAVES_ELSEWHERE, arguments, **values)
        return [note.partition(", which")[0] for note in found if "lost with its node" in note]

    of_calls = [
        "train.py:11: writes to /mnt/model.keras",
        "train.py:13: writes to /var/tmp/logs",
        "train.py:14: writes to /opt/ckpt/",
        "train.py:15: writes to /data",
    ]
    by_default = "train.py:7: --model_dir is /tmp/mnist by default"
    assert said("", **CLOUD) == [by_default, *of_calls]
    assert said("--model_dir {output}", **CLOUD) == of_calls
    assert said("") == []


def test_a_tmp_folder_in_the_command_is_lost_with_the_only_node_too(tmp_path: Path) -> None:
    alone = {**CLOUD, "nodes": {"chief": MACHINE}, "strategy": "mirrored"}
    config = coded(tmp_path, "", "--model_dir /tmp/model --data_dir /tmp/data", **alone)
    (note,) = path_notes(config)
    assert "/tmp/model: each node has its own, and nothing of it is kept" in note
