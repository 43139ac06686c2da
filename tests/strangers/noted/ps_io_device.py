import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type != "chief":
    tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id).join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
with strategy.scope():
    weights = tf.Variable(tf.zeros((4, 4)))
at_chief = tf.train.CheckpointOptions(experimental_io_device="/job:chief/task:0/device:CPU:0")
tf.train.Checkpoint(weights=weights).write("ckpt/last", options=at_chief)
