"""Trainer in the shape that AI Platform Training asked for: --job-dir and flags that it may add."""

import argparse
import logging
import os

import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow import keras
from tensorflow.keras import layers
from tensorflow.keras.utils import to_categorical


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--job-dir", type=str, required=True, help="where to write checkpoints and export models")
    parser.add_argument("--num-epochs", type=float, default=2)
    parser.add_argument("--batch-size", default=128, type=int)
    parser.add_argument("--learning-rate", default=0.01, type=float)
    parser.add_argument("--verbosity", choices=["DEBUG", "ERROR", "FATAL", "INFO", "WARN"], default="INFO")
    args, _ = parser.parse_known_args()
    return args


def _is_chief(task_type, task_id):
    return task_type is None or task_type == "chief" or (task_type == "worker" and task_id == 0)


def _get_temp_dir(dirpath, task_id):
    base_dirpath = "workertemp_" + str(task_id)
    temp_dir = os.path.join(dirpath, base_dirpath)
    tf.io.gfile.makedirs(temp_dir)
    return temp_dir


def write_filepath(filepath, task_type, task_id):
    dirpath = os.path.dirname(filepath)
    base = os.path.basename(filepath)
    if not _is_chief(task_type, task_id):
        dirpath = _get_temp_dir(dirpath, task_id)
    return os.path.join(dirpath, base)


def create_keras_model(learning_rate):
    inputs = keras.Input(shape=(64,))
    x = layers.Dense(100, activation=tf.nn.relu, kernel_initializer="uniform")(inputs)
    x = layers.Dropout(0.2)(x)
    x = layers.BatchNormalization()(x)
    outputs = layers.Dense(10, activation="softmax")(x)
    model = keras.Model(inputs, outputs)
    model.compile(
        loss="categorical_crossentropy",
        optimizer=keras.optimizers.RMSprop(lr=learning_rate),
        metrics=["accuracy"],
    )
    return model


def train_and_evaluate(args):
    cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy(cluster_resolver=cluster_resolver)
    task_type, task_id = (
        strategy.cluster_resolver.task_type,
        strategy.cluster_resolver.task_id,
    )
    logging.info("task %s %s, %d replicas", task_type, task_id, strategy.num_replicas_in_sync)

    x, y = load_digits(return_X_y=True)
    x, y = (x / 16).astype("float32"), to_categorical(y, 10)
    train = tf.data.Dataset.from_tensor_slices((x[:1500], y[:1500])).shuffle(1500, seed=123)
    train = train.repeat(int(args.num_epochs)).batch(args.batch_size, drop_remainder=True)
    valid = tf.data.Dataset.from_tensor_slices((x[1500:], y[1500:])).batch(297)

    with strategy.scope():
        model = create_keras_model(args.learning_rate)
    lr_decay = keras.callbacks.LearningRateScheduler(
        lambda epoch: args.learning_rate + 0.02 * (0.5 ** (1 + epoch)), verbose=True
    )
    tensorboard = keras.callbacks.TensorBoard(os.path.join(args.job_dir, "keras_tensorboard"), histogram_freq=1)
    model.fit(
        train,
        steps_per_epoch=int(1500 / args.batch_size),
        epochs=int(args.num_epochs),
        validation_data=valid,
        validation_steps=1,
        verbose=1,
        callbacks=[lr_decay, tensorboard],
    )
    export_path = os.path.join(args.job_dir, "keras_export")
    write_model_path = write_filepath(export_path, task_type, task_id)
    model.save(write_model_path)
    if not _is_chief(task_type, task_id):
        tf.io.gfile.rmtree(os.path.dirname(write_model_path))
    print("Model exported to: {}".format(write_model_path))


if __name__ == "__main__":
    args = get_args()
    logging.basicConfig(level=args.verbosity)
    train_and_evaluate(args)
