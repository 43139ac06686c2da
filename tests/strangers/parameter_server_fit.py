# Parameter server training with Model.fit, the way a TF 2.4/2.5 tutorial has it.
import os

import tensorflow as tf
from sklearn.datasets import load_digits

cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if cluster_resolver.task_type in ("worker", "ps"):
    # Start a TensorFlow server and wait.
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    server = tf.distribute.Server(
        cluster_resolver.cluster_spec(),
        job_name=cluster_resolver.task_type,
        task_index=cluster_resolver.task_id,
        protocol=cluster_resolver.rpc_layer or "grpc",
        start=True)
    server.join()
elif cluster_resolver.task_type == "evaluator":
    raise NotImplementedError("side-car evaluation")

strategy = tf.distribute.experimental.ParameterServerStrategy(
    cluster_resolver,
    variable_partitioner=tf.distribute.experimental.partitioners.FixedShardsPartitioner(num_shards=2))


def dataset_fn(input_context):
  global_batch_size = 64
  batch_size = input_context.get_per_replica_batch_size(global_batch_size)
  x, y = load_digits(return_X_y=True)
  dataset = tf.data.Dataset.from_tensor_slices((x / 16.0, y)).shuffle(64).repeat()
  dataset = dataset.shard(
      input_context.num_input_pipelines,
      input_context.input_pipeline_id)
  dataset = dataset.batch(batch_size)
  dataset = dataset.prefetch(2)
  return dataset


dc = tf.keras.utils.experimental.DatasetCreator(dataset_fn)

with strategy.scope():
  normalizer = tf.keras.layers.experimental.preprocessing.Rescaling(2.0, offset=-1.0)
  model = tf.keras.models.Sequential([
      tf.keras.Input(shape=(64,)), normalizer,
      tf.keras.layers.Dense(64, activation='relu'), tf.keras.layers.Dense(10)])

model.compile(
    tf.keras.optimizers.legacy.SGD(lr=0.05),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=['accuracy'],
    steps_per_execution=10)

working_dir = 'my_working_dir'
log_dir = os.path.join(working_dir, 'log')

callbacks = [
    tf.keras.callbacks.TensorBoard(log_dir=log_dir),
    tf.keras.callbacks.EarlyStopping(monitor='loss', patience=5),
]
model.fit(dc, epochs=5, steps_per_epoch=20, callbacks=callbacks)
os.makedirs('output', exist_ok=True)
model.save_weights('output/weights.h5')
