"""Session config of the AI Platform samples: a master, device filters, nothing that saves by it."""

import json
import os

import tensorflow as tf


def get_session_config_from_env_var():
    tf_config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    filters = []
    if tf_config and "task" in tf_config and "type" in tf_config["task"]:
        if tf_config["task"]["type"] == "master":
            filters = ["/job:ps", "/job:master"]
        elif tf_config["task"]["type"] == "worker":
            filters = ["/job:ps", "/job:worker/task:%d" % tf_config["task"]["index"]]
    return tf.compat.v1.ConfigProto(device_filters=filters)


strategy = tf.distribute.MultiWorkerMirroredStrategy()
print(get_session_config_from_env_var())
