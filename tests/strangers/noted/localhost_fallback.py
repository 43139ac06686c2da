import json
import os

import tensorflow as tf

if "TF_CONFIG" not in os.environ:
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": ["localhost:12345"]}, "task": {"type": "worker", "index": 0}}
    )
os.environ.setdefault("GRPC_VERBOSITY", "localhost:1")
strategy = tf.distribute.MultiWorkerMirroredStrategy()
print("dashboard on http://localhost:6006", strategy.num_replicas_in_sync)
