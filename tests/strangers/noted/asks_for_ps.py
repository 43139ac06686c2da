# Reads the cluster with every kind of question that scripts ask before they use a role.
import json
import os

import tensorflow as tf

config = json.loads(os.environ.get("TF_CONFIG", "{}"))
cluster = config.get("cluster", {})
if "ps" in cluster and len(cluster["ps"]) == 0:
    raise SystemExit("a ps job without ps")
if "evaluator" not in cluster or not cluster["evaluator"]:
    print("nobody evaluates")
first_ps = cluster["ps"][0] if "ps" in cluster else None
sizes = {role: len(cluster[role]) for role in ("chief", "worker", "ps") if role in cluster}
known = [host for role in cluster for host in cluster[role]]
try:
    print("evaluator at", cluster["evaluator"][0])
except KeyError:
    pass

strategy = tf.distribute.MultiWorkerMirroredStrategy()
print("replicas:", strategy.num_replicas_in_sync, "of", sizes, len(known), first_ps)
