import argparse

import tensorflow as tf


def input_fn():
    return tf.data.Dataset.from_tensors(({"x": tf.zeros((8, 1))}, tf.zeros((8, 1)))).repeat()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--job-dir", required=True)
    args = parser.parse_args()
    estimator = tf.estimator.LinearRegressor([tf.feature_column.numeric_column("x")], model_dir=args.job_dir)
    estimator.train(input_fn, max_steps=100)
    estimator.export_saved_model(args.job_dir + "/export", None)
