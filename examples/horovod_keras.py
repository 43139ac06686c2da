"""Train on every worker in step, each on its part of every batch: Horovod.

Horovod's launcher tells each process which one it is; without one it trains in one process. Needs
Keras 2: TensorFlow up to 2.15, or TF_USE_LEGACY_KERAS=1.
"""

import argparse
from pathlib import Path

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from horovod.tensorflow import broadcast_variables

import digits


def main():
    options = arguments()
    hvd.init()
    use_one_gpu(hvd.local_rank())
    tf.keras.utils.set_random_seed(options.seed)

    model = digits.compiled_model()
    model.compile(
        optimizer=hvd.DistributedOptimizer(model.optimizer),
        loss=model.loss,
        metrics=["sparse_categorical_accuracy"],
    )
    model.optimizer.build(model.trainable_variables)
    batches = digits.dataset(options.global_batch, options.seed)

    done = tf.Variable(0, name="epochs_done")
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, done=done)
    manager = tf.train.CheckpointManager(checkpoint, options.checkpoints, max_to_keep=1)
    if hvd.rank() == 0:
        manager.restore_or_initialize()
    # Only rank 0 may have found a checkpoint: all begin with what it has.
    broadcast_variables([*model.variables, *model.optimizer.variables, done], root_rank=0)

    model.fit(
        batches.map(my_part),
        initial_epoch=int(done.numpy()),
        epochs=options.epochs,
        callbacks=[Keep(manager, done)] if hvd.rank() == 0 else [],
        verbose=2 if hvd.rank() == 0 else 0,
    )
    if hvd.rank() == 0:
        model.save(Path(options.output) / "model")
    loss, accuracy = model.evaluate(batches, verbose=0)
    print(f"final loss {loss:.6f} accuracy {accuracy:.4f}", flush=True)


def use_one_gpu(number):
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[number], "GPU")


def my_part(images, labels):
    """Every rank's is equally long, so that the mean of their gradients is that of the batch."""
    return images[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]


class Keep(tf.keras.callbacks.Callback):
    """A checkpoint after each epoch."""

    def __init__(self, manager, done):
        super().__init__()
        self.manager, self.done = manager, done

    def on_epoch_end(self, epoch, logs=None):
        self.done.assign(epoch + 1)
        self.manager.save()


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
