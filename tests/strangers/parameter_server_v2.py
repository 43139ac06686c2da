import multiprocessing
import os

os.environ["GRPC_FAIL_FAST"] = "use_caller"

import tensorflow as tf
from sklearn.datasets import load_digits

cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()

if cluster_resolver.task_type in ("worker", "ps"):
    worker_config = tf.compat.v1.ConfigProto()
    worker_config.inter_op_parallelism_threads = max(4, multiprocessing.cpu_count())
    server = tf.distribute.Server(
        cluster_resolver.cluster_spec(),
        job_name=cluster_resolver.task_type,
        task_index=cluster_resolver.task_id,
        config=worker_config,
        protocol=cluster_resolver.rpc_layer or "grpc",
        start=True,
    )
    server.join()

variable_partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
    min_shard_bytes=(256 << 10), max_shards=1
)
strategy = tf.distribute.experimental.ParameterServerStrategy(
    cluster_resolver, variable_partitioner=variable_partitioner
)
coordinator = tf.distribute.experimental.coordinator.ClusterCoordinator(strategy)

with strategy.scope():
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(64, activation="relu", input_shape=(64,)), tf.keras.layers.Dense(10)]
    )
    optimizer = tf.keras.optimizers.RMSprop(learning_rate=0.001)
    accuracy = tf.keras.metrics.SparseCategoricalAccuracy()


def dataset_fn(_):
    x, y = load_digits(return_X_y=True)
    dataset = tf.data.Dataset.from_tensor_slices(((x / 16).astype("float32"), y))
    return dataset.shuffle(1797).repeat().batch(64)


@tf.function
def per_worker_dataset_fn():
    return strategy.distribute_datasets_from_function(dataset_fn)


@tf.function
def step_fn(iterator):
    def replica_fn(batch_data, labels):
        with tf.GradientTape() as tape:
            pred = model(batch_data, training=True)
            per_example_loss = tf.keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, reduction=tf.keras.losses.Reduction.NONE
            )(labels, pred)
            loss = tf.nn.compute_average_loss(per_example_loss)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        accuracy.update_state(labels, pred)
        return loss

    batch_data, labels = next(iterator)
    losses = strategy.run(replica_fn, args=(batch_data, labels))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


per_worker_dataset = coordinator.create_per_worker_dataset(per_worker_dataset_fn)
per_worker_iterator = iter(per_worker_dataset)
for i in range(3):
    accuracy.reset_states()
    for _ in range(20):
        coordinator.schedule(step_fn, args=(per_worker_iterator,))
    coordinator.join()
    print("Finished epoch %d, accuracy is %f." % (i, accuracy.result().numpy()))
os.makedirs("output", exist_ok=True)
with open("output/accuracy.txt", "w") as f:
    f.write(str(accuracy.result().numpy()))
