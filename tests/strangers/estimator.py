import argparse

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)


def input_fn():
    x, y = load_digits(return_X_y=True)
    dataset = tf.data.Dataset.from_tensor_slices(({"x": (x / 16).astype(np.float32)}, y.astype(np.int32)))
    return dataset.shuffle(1797).repeat().batch(64)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--job-dir", default="output/estimator")
    args, _ = parser.parse_known_args()
    strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
    config = tf.estimator.RunConfig(train_distribute=strategy, model_dir=args.job_dir)
    classifier = tf.estimator.DNNClassifier(
        feature_columns=[tf.feature_column.numeric_column("x", shape=[64])],
        hidden_units=[64],
        n_classes=10,
        optimizer="SGD",
        config=config,
    )
    tf.estimator.train_and_evaluate(
        classifier,
        train_spec=tf.estimator.TrainSpec(input_fn=input_fn, max_steps=60),
        eval_spec=tf.estimator.EvalSpec(input_fn=input_fn, steps=5),
    )


if __name__ == "__main__":
    main()
