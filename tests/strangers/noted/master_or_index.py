import json
import os

import tensorflow as tf


class Trainer:
    def __init__(self):
        self.tf_config = json.loads(os.environ["TF_CONFIG"])
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def callbacks(self):
        found = []
        if self.tf_config["task"]["type"] == "master" or self.tf_config["task"]["index"] == 0:
            found.append(tf.keras.callbacks.CSVLogger("output/log.csv"))
        return found


print(Trainer().callbacks())
