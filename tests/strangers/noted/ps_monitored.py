import json
import os

import tensorflow.compat.v1 as tf

config = json.loads(os.environ["TF_CONFIG"])
task = config["task"]
server = tf.train.Server(tf.train.ClusterSpec(config["cluster"]), job_name=task["type"], task_index=task["index"])
if task["type"] == "ps":
    server.join()
with tf.device(tf.train.replica_device_setter(cluster=tf.train.ClusterSpec(config["cluster"]))):
    step = tf.train.get_or_create_global_step()
    add = tf.assign_add(step, 1)
with tf.train.MonitoredTrainingSession(
    master=server.target, is_chief=task["type"] == "chief" or task["index"] == 0 and task["type"] == "worker", checkpoint_dir="ckpt"
) as session:
    while session.run(add) < 100:
        pass
