"""Train asynchronously, variables on the parameter servers: ParameterServerStrategy.

All tasks of the cluster run this same script; TF_CONFIG tells each which one it is. The chief
trains through the workers and saves; workers and ps serve until they are stopped. `fit` on a
cluster needs Keras 2: TF_USE_LEGACY_KERAS=1.
"""

import argparse
from pathlib import Path

import tensorflow as tf

import digits

CHIEF_DISK = "/job:chief/task:0/device:CPU:0"
"""Variables are on the ps, and each ps would write its part on its own machine's disk."""


def main():
    options = arguments()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        serve(resolver)
    else:
        train(resolver, options)


def serve(resolver):
    """Carry out what the chief sends; never returns."""
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
    )
    print(f"{resolver.task_type} {resolver.task_id} serves", flush=True)
    server.join()


def train(resolver, options):
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    tf.keras.utils.set_random_seed(options.seed)

    with strategy.scope():
        model = digits.compiled_model()
    resume = Resume(model, options.checkpoints)
    # Each worker goes round its own copy of the data; a step is one batch on one of them.
    batches = tf.keras.utils.experimental.DatasetCreator(
        lambda context: digits.dataset(options.batch, options.seed).repeat()
    )
    model.fit(
        batches,
        initial_epoch=resume.epoch(),
        epochs=options.epochs,
        steps_per_epoch=options.steps,
        callbacks=[resume],
        verbose=2,
    )
    model.save(
        Path(options.output) / "model",
        options=tf.saved_model.SaveOptions(experimental_io_device=CHIEF_DISK),
    )
    loss, accuracy = model.evaluate(batches, steps=options.steps, verbose=0)
    print(f"final loss {loss:.6f} accuracy {accuracy:.4f}", flush=True)


class Resume(tf.keras.callbacks.Callback):
    """A checkpoint after each epoch; BackupAndRestore has no way to name the disk."""

    def __init__(self, model, folder):
        super().__init__()
        self._options = tf.train.CheckpointOptions(experimental_io_device=CHIEF_DISK)
        self._manager = tf.train.CheckpointManager(
            tf.train.Checkpoint(model=model, optimizer=model.optimizer), folder, max_to_keep=2
        )

    def epoch(self):
        """The first epoch that is still to be trained, after restoring what was saved."""
        latest = self._manager.latest_checkpoint
        if latest is None:
            return 0
        self._manager.checkpoint.restore(latest, options=self._options)
        return int(latest.rsplit("-", 1)[1])

    def on_epoch_end(self, epoch, logs=None):
        self._manager.save(checkpoint_number=epoch + 1, options=self._options)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="output", help="folder for the saved model")
    parser.add_argument("--checkpoints", default="ckpt", help="folder to resume from")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40, help="batches in an epoch")
    parser.add_argument("--batch", type=int, default=32, help="images in a batch")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
