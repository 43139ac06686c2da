import json
import os

import tensorflow as tf


def resolve():
    if "TF_CONFIG" not in os.environ:
        return "chief", 0
    config = json.loads(os.environ["TF_CONFIG"])
    return config["task"]["type"], config["task"]["index"]


def hosts(cluster):
    if "ps" not in cluster:
        return cluster["worker"]
    return cluster["ps"] + cluster["worker"]


if __name__ == "__main__":
    kind, index = resolve()
    strategy = tf.distribute.MirroredStrategy()
    print(kind, index, strategy.num_replicas_in_sync)
