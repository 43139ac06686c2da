"""The data and the model of the examples: 1,797 real 8×8 images of handwritten digits."""

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits


def dataset(global_batch, seed):
    """Batches in an order that only the seed decides: equal in every process, epoch and restart."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.RandomState(seed).permutation(len(images))
    images = (images[order] / 16.0).astype("float32").reshape(-1, 8, 8, 1)
    labels = labels[order].astype("int64")
    # A rest that the replicas cannot share evenly would weigh its images differently.
    batches = tf.data.Dataset.from_tensor_slices((images, labels)).batch(
        global_batch, drop_remainder=True
    )
    options = tf.data.Options()
    # The images are in memory, not in files: each worker takes its part of every batch.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return batches.with_options(options)


def compiled_model():
    """A small convolutional network; call it inside `strategy.scope()`."""
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(16, 3, activation="relu", input_shape=(8, 8, 1)),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=tf.keras.optimizers.Adam(0.002),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )
    return model
