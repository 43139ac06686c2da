# Between-graph replication, the way the guide to distributed TensorFlow 1 had it.
import argparse
import os
import sys

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits

FLAGS = None


def main(_):
    tf.disable_eager_execution()
    cluster = tf.train.ClusterSpec(
        {"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")}
    )
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
        return

    setter = tf.train.replica_device_setter(
        worker_device="/job:worker/task:%d" % FLAGS.task_index, cluster=cluster
    )
    with tf.device(setter):
        x = tf.placeholder(tf.float32, [None, 64])
        y = tf.placeholder(tf.int64, [None])
        weights = tf.get_variable("weights", [64, 10], initializer=tf.zeros_initializer())
        bias = tf.get_variable("bias", [10], initializer=tf.zeros_initializer())
        logits = tf.matmul(x, weights) + bias
        loss = tf.losses.sparse_softmax_cross_entropy(y, logits)
        step = tf.train.get_or_create_global_step()
        train_op = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)

    images, labels = load_digits(return_X_y=True)
    images = images / 16
    is_chief = FLAGS.task_index == 0
    hooks = [tf.train.StopAtStepHook(last_step=FLAGS.train_steps)]
    # A worker talks to the ps and to itself: another one may have ended already.
    mine = ["/job:ps", "/job:worker/task:%d" % FLAGS.task_index]
    with tf.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=is_chief,
        hooks=hooks,
        config=tf.ConfigProto(device_filters=mine),
    ) as session:
        while not session.should_stop():
            batch = np.random.randint(0, len(images), 100)
            feed = {x: images[batch], y: labels[batch]}
            _, value, at, trained = session.run([train_op, loss, step, weights], feed)
    print("worker %d stopped at step %d, loss %.4f" % (FLAGS.task_index, at, value))
    if is_chief:
        os.makedirs(FLAGS.log_dir, exist_ok=True)
        np.save(os.path.join(FLAGS.log_dir, "weights.npy"), trained)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ps_hosts", type=str, default="", help="Comma-separated hostname:port")
    parser.add_argument("--worker_hosts", type=str, default="", help="Comma-separated hostname:port")
    parser.add_argument("--job_name", type=str, default="", help="One of 'ps', 'worker'")
    parser.add_argument("--task_index", type=int, default=0, help="Index of the task in its job")
    parser.add_argument("--train_steps", type=int, default=300)
    parser.add_argument("--log_dir", type=str, default="output")
    FLAGS, unparsed = parser.parse_known_args()
    tf.app.run(main=main, argv=[sys.argv[0]] + unparsed)
