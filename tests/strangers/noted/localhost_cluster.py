import json
import os
import sys

import tensorflow as tf

index = int(sys.argv[1]) if len(sys.argv) > 1 else 0
tf_config = {
    "cluster": {"worker": ["localhost:12345", "localhost:23456"]},
    "task": {"type": "worker", "index": index},
}
os.environ["TF_CONFIG"] = json.dumps(tf_config)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
print(strategy.num_replicas_in_sync)
