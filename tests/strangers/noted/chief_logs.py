import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
kind = strategy.cluster_resolver.task_type
level = "INFO" if kind == "chief" else "WARNING"
if kind == "chief":
    print("the chief is here")
tf.get_logger().setLevel(level)
