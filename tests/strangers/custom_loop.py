import json
import os

import tensorflow as tf
from sklearn.datasets import load_digits

tf_config = json.loads(os.environ["TF_CONFIG"])
task_type, task_id = tf_config["task"]["type"], tf_config["task"]["index"]
num_workers = sum(len(hosts) for hosts in tf_config["cluster"].values())

strategy = tf.distribute.MultiWorkerMirroredStrategy()
per_worker_batch_size = 32
global_batch_size = per_worker_batch_size * num_workers
num_epochs, num_steps_per_epoch = 3, 10
checkpoint_dir = os.path.join("output", "ckpt")


def dataset_fn(global_batch_size, input_context):
    batch_size = input_context.get_per_replica_batch_size(global_batch_size)
    x, y = load_digits(return_X_y=True)
    dataset = tf.data.Dataset.from_tensor_slices(((x / 16).astype("float32"), y))
    dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return dataset.shuffle(1797).repeat().batch(batch_size)


with strategy.scope():
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(64, activation="relu", input_shape=(64,)), tf.keras.layers.Dense(10)]
    )
    dataset = strategy.experimental_distribute_datasets_from_function(
        lambda ctx: dataset_fn(global_batch_size, ctx)
    )
    optimizer = tf.keras.optimizers.RMSprop(learning_rate=0.001)
    train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")


@tf.function
def train_step(iterator):
    def step_fn(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            per_example = tf.keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, reduction=tf.keras.losses.Reduction.NONE
            )(y, predictions)
            loss = tf.nn.compute_average_loss(per_example, global_batch_size=global_batch_size)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        train_accuracy.update_state(y, predictions)
        return loss

    losses = strategy.run(step_fn, args=(next(iterator),))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


epoch = tf.Variable(0, dtype=tf.int64, name="epoch")
step_in_epoch = tf.Variable(0, dtype=tf.int64, name="step_in_epoch")


def write_dir(path):
    if task_type == "chief" or (task_type == "worker" and task_id == 0 and "chief" not in tf_config["cluster"]):
        return path
    return os.path.join(path, "workertemp_" + str(task_id))


checkpoint = tf.train.Checkpoint(model=model, epoch=epoch, step_in_epoch=step_in_epoch)
manager = tf.train.CheckpointManager(checkpoint, directory=write_dir(checkpoint_dir), max_to_keep=1)
latest = tf.train.latest_checkpoint(checkpoint_dir)
if latest:
    checkpoint.restore(latest)

while epoch.numpy() < num_epochs:
    iterator = iter(dataset)
    total_loss = 0.0
    for _ in range(num_steps_per_epoch):
        total_loss += train_step(iterator)
    print("Epoch: %d, accuracy: %f, train_loss: %f." % (epoch.numpy(), train_accuracy.result(), total_loss / num_steps_per_epoch))
    train_accuracy.reset_states()
    epoch.assign_add(1)
    manager.save()
