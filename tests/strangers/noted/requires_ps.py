import json
import os

import tensorflow as tf

tf_config = json.loads(os.environ["TF_CONFIG"])
num_ps = len(tf_config["cluster"]["ps"])
num_workers = len(tf_config["cluster"]["worker"])
strategy = tf.distribute.MultiWorkerMirroredStrategy()
print("%d workers, %d parameter servers" % (num_workers, num_ps))
