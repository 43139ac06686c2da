# Multi-worker training with Keras, the way a TF 2.2 tutorial has it.
import json
import os

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

BUFFER_SIZE = 1797
BATCH_SIZE_PER_WORKER = 64
strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy(
    tf.distribute.experimental.CollectiveCommunication.AUTO
)

tf_config = json.loads(os.environ["TF_CONFIG"])
num_workers = len(tf_config["cluster"]["worker"])
global_batch_size = BATCH_SIZE_PER_WORKER * num_workers


def mnist_dataset(batch_size):
    digits = load_digits()
    x_train = np.pad(np.kron(digits.images / np.float32(16), np.ones((3, 3))), ((0, 0), (2, 2), (2, 2)))
    y_train = digits.target.astype(np.int64)
    train_dataset = (
        tf.data.Dataset.from_tensor_slices((x_train.astype("float32"), y_train))
        .shuffle(BUFFER_SIZE)
        .repeat()
        .batch(batch_size)
    )
    return train_dataset


def build_and_compile_cnn_model():
    model = tf.keras.Sequential(
        [
            tf.keras.Input(shape=(28, 28)),
            tf.keras.layers.Reshape(target_shape=(28, 28, 1)),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.01),
        metrics=["accuracy"],
    )
    return model


with strategy.scope():
    multi_worker_model = build_and_compile_cnn_model()

multi_worker_dataset = mnist_dataset(global_batch_size)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
multi_worker_dataset = multi_worker_dataset.with_options(options)

callbacks = [
    tf.keras.callbacks.TensorBoard(log_dir="./logs"),
    tf.keras.callbacks.ModelCheckpoint(filepath="./output/ckpt-{epoch}", save_weights_only=True),
]
multi_worker_model.fit(multi_worker_dataset, epochs=2, steps_per_epoch=10, callbacks=callbacks)
multi_worker_model.save("./output/keras-model")
