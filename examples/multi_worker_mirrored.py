"""Train on every worker in step, each on its part of every batch: MultiWorkerMirroredStrategy.

All tasks of the cluster run this same script; TF_CONFIG tells each which one it is, and without
TF_CONFIG it trains in one process. Multi-worker `fit` needs Keras 2: TF_USE_LEGACY_KERAS=1.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

import tensorflow as tf

import digits


def main():
    options = arguments()
    # The strategy comes first: it must start the server before any other TensorFlow operation.
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=communication())
    chief = is_chief(strategy.cluster_resolver)
    tf.keras.utils.set_random_seed(options.seed)

    with strategy.scope():
        model = digits.compiled_model()
    batches = digits.dataset(options.global_batch, options.seed)
    model.fit(
        batches,
        epochs=options.epochs,
        callbacks=[tf.keras.callbacks.BackupAndRestore(options.checkpoints)],
        verbose=2 if chief else 0,
    )
    save(model, Path(options.output) / "model", chief)
    loss, accuracy = model.evaluate(batches, verbose=0)
    print(f"final loss {loss:.6f} accuracy {accuracy:.4f}", flush=True)


def communication():
    """NCCL between GPUs. By itself TensorFlow reduces gradients over gRPC, through the CPU."""
    kinds = tf.distribute.experimental.CommunicationImplementation
    has_gpus = bool(tf.config.list_physical_devices("GPU"))
    return tf.distribute.experimental.CommunicationOptions(
        implementation=kinds.NCCL if has_gpus else kinds.AUTO
    )


def is_chief(resolver):
    """One task writes what is to be kept: the chief, or the first worker where there is none."""
    if not resolver.cluster_spec().jobs:
        return True
    return resolver.task_type == "chief" or (
        "chief" not in resolver.cluster_spec().jobs
        and resolver.task_type == "worker"
        and resolver.task_id == 0
    )


def save(model, path, chief):
    """Every task takes part in saving, and all but the chief throw their copy away."""
    if chief:
        model.save(path)
        return
    scratch = tempfile.mkdtemp()
    model.save(Path(scratch) / "model")
    shutil.rmtree(scratch)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="output", help="folder for the saved model")
    parser.add_argument("--checkpoints", default="ckpt", help="folder to resume from")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--global-batch", type=int, default=96, help="images over all workers")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
