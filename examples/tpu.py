"""Train on the TPU of this host: TPUStrategy. Without TPU_NAME, on the CPU with the same code.

Not tried on a TPU. On a slice of several hosts TensorFlow has one client, worker 0; the others end
at once.
"""

import argparse
import os
from pathlib import Path

import tensorflow as tf

import digits


def main():
    options = arguments()
    if os.environ.get("TPU_WORKER_ID", "0") != "0":
        return
    tf.keras.utils.set_random_seed(options.seed)
    with strategy().scope():
        model = digits.compiled_model()
    batches = digits.dataset(options.global_batch, options.seed)
    model.fit(batches, epochs=options.epochs, verbose=2)
    model.export(Path(options.output) / "model")
    loss, accuracy = model.evaluate(batches, verbose=0)
    print(f"final loss {loss:.6f} accuracy {accuracy:.4f}", flush=True)


def strategy():
    """TPUStrategy on the TPU that TPU_NAME names; the default strategy without one."""
    if not os.environ.get("TPU_NAME"):
        return tf.distribute.get_strategy()
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ["TPU_NAME"])
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="output", help="folder for the saved model")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--global-batch", type=int, default=96, help="images over all cores")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
