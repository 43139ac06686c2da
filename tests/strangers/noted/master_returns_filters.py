import json
import os

import tensorflow as tf


def _get_session_config():
    tf_config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    if tf_config and "task" in tf_config and "type" in tf_config["task"] and "index" in tf_config["task"]:
        # The master talks only to itself and to the ps
        if tf_config["task"]["type"] == "master":
            return tf.compat.v1.ConfigProto(device_filters=["/job:ps", "/job:master"])
        elif tf_config["task"]["type"] == "worker":
            return tf.compat.v1.ConfigProto(
                device_filters=["/job:ps", "/job:worker/task:%d" % tf_config["task"]["index"]]
            )
    return None


strategy = tf.distribute.MultiWorkerMirroredStrategy()
print(_get_session_config())
