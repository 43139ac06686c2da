"""A real TensorFlow reads the TF_CONFIG that we write."""

import dataclasses
import json
import os
import subprocess
from pathlib import Path

import pytest

from cloudtrain.training.tf_config import tf_config
from tests.support.tf_config_parts import addresses_of, tasks_of


@pytest.mark.tensorflow
def test_tensorflow_reads_what_was_written(tensorflow_python: Path) -> None:
    tasks = tasks_of({"chief": 1, "worker": 2, "ps": 1})
    moved = tuple(dataclasses.replace(task, port=9000 + n) for n, task in enumerate(tasks))
    text = tf_config(moved, addresses_of(moved), moved[2])
    script = (
        "import json, tensorflow as tf\n"
        "r = tf.distribute.cluster_resolver.TFConfigClusterResolver()\n"
        "print(json.dumps([r.task_type, r.task_id, r.cluster_spec().as_dict()]))\n"
    )
    done = subprocess.run(
        [tensorflow_python, "-c", script],
        env={**os.environ, "TF_CONFIG": str(text)},
        capture_output=True,
        check=True,
        text=True,
    )
    assert json.loads(done.stdout) == [
        "worker",
        1,
        {
            "chief": ["10.0.0.1:9000"],
            "worker": ["10.0.0.2:9001", "10.0.0.3:9002"],
            "ps": ["10.0.0.4:9003"],
        },
    ]
