import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
resolver = strategy.cluster_resolver
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])


def _is_chief(task_type, task_id):
    return (task_type == "worker" and task_id == 0) or task_type is None


path = "output/model" if _is_chief(resolver.task_type, resolver.task_id) else "/tmp/model"
model.save(path)
