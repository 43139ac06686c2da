import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
resolver = strategy.cluster_resolver
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])


def _is_chief(task_type):
    return task_type == "chief"


if _is_chief(resolver.task_type):
    model.save("output/model")
