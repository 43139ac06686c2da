import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    step = tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(step=step)
manager = tf.train.CheckpointManager(checkpoint, "ckpt", max_to_keep=2)
checkpoint.restore(manager.latest_checkpoint)
while step < 100:
    step.assign_add(1)
    manager.save()
