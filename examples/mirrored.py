"""Train on all devices of one machine in step: MirroredStrategy.

Uses the GPUs where there are any; otherwise two logical CPU devices stand in for them.
"""

import argparse
from pathlib import Path

import tensorflow as tf

import digits


def main():
    options = arguments()
    strategy = tf.distribute.MirroredStrategy(devices())
    tf.keras.utils.set_random_seed(options.seed)

    with strategy.scope():
        model = digits.compiled_model()
    batches = digits.dataset(options.global_batch, options.seed)
    model.fit(batches, epochs=options.epochs, verbose=2)
    model.export(Path(options.output) / "model")
    loss, accuracy = model.evaluate(batches, verbose=0)
    print(f"final loss {loss:.6f} accuracy {accuracy:.4f}", flush=True)


def devices():
    """Names of the devices to train on; None means every GPU."""
    if tf.config.list_physical_devices("GPU"):
        return None
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    return ["CPU:0", "CPU:1"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="output", help="folder for the saved model")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--global-batch", type=int, default=96, help="images over all devices")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
