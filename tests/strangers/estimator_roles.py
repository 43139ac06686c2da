"""train_and_evaluate over chief, worker, ps and evaluator, as scripts of 2018 to 2020 have it."""

import argparse
import json
import os

import numpy as np
import tensorflow.compat.v1 as tf

tf.logging.set_verbosity(tf.logging.INFO)


def input_fn():
    random = np.random.RandomState(1)
    x = random.uniform(-1, 1, (512, 2)).astype("float32")
    y = (x @ np.array([[2.0], [-3.0]], "float32") + 1).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(32)


def model_fn(features, labels, mode, params):
    w = tf.get_variable("w", (2, 1), initializer=tf.zeros_initializer())
    b = tf.get_variable("b", (1,), initializer=tf.zeros_initializer())
    prediction = tf.matmul(features, w) + b
    loss = tf.losses.mean_squared_error(labels, prediction)
    step = tf.train.GradientDescentOptimizer(params["rate"])
    return tf.estimator.EstimatorSpec(
        mode, loss=loss, train_op=step.minimize(loss, tf.train.get_global_step())
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-dir", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    config = tf.estimator.RunConfig(model_dir=args.model_dir, save_checkpoints_steps=100)
    estimator = tf.estimator.Estimator(model_fn, config=config, params={"rate": 0.05})
    tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(input_fn, max_steps=args.steps),
        tf.estimator.EvalSpec(input_fn, steps=8, start_delay_secs=0, throttle_secs=1),
    )
    os.makedirs(args.output, exist_ok=True)
    if config.task_type == "evaluator":
        scores = estimator.evaluate(input_fn, steps=8)
        text = json.dumps({name: float(value) for name, value in scores.items()})
        with open(os.path.join(args.output, "scores.json"), "w") as file:
            file.write(text)
        print("evaluator scored " + text)
    if config.task_type == "chief":
        print("chief saved " + tf.train.latest_checkpoint(args.model_dir))


if __name__ == "__main__":
    main()
