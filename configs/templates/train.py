"""Example training script for `cloudtrain run` in an empty folder: replace it with your own.

Every node runs this same file. TF_CONFIG tells it its task; without TF_CONFIG it trains alone.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="output", help="folder for the saved model")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    # Create the strategy first: this joins the cluster.
    config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    several = tf.distribute.MultiWorkerMirroredStrategy
    strategy = several() if config else tf.distribute.MirroredStrategy()

    random = np.random.default_rng(1)
    x = random.normal(size=(1024, 8)).astype("float32")
    y = (x.sum(axis=1) > 0).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(64)
    by_element = tf.data.experimental.AutoShardPolicy.DATA
    options_of_data = tf.data.Options()
    options_of_data.experimental_distribute.auto_shard_policy = by_element
    data = data.with_options(options_of_data)

    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(1, "sigmoid")]
        )
        model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])
    chief = config.get("task", {}).get("type", "chief") == "chief"
    model.fit(data, epochs=options.epochs, steps_per_epoch=16, verbose=2 if chief else 0)

    # Every task takes part in saving; only the chief's copy is kept.
    model.save(Path(options.output if chief else tempfile.mkdtemp()) / "model.keras")


if __name__ == "__main__":
    main()
