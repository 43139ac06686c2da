# Training with a side-car evaluator: one more task reads the checkpoints and scores them.
import os

import tensorflow as tf
from sklearn.datasets import load_digits

x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")
checkpoint_dir = "ckpt"


def compiled_model():
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(64, activation="relu", input_shape=(64,)), tf.keras.layers.Dense(10)]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.Adam(0.01),
        metrics=["accuracy"],
    )
    return model


class Scores(tf.keras.callbacks.Callback):
    def on_test_end(self, logs=None):
        print("scored", tf.train.latest_checkpoint(checkpoint_dir), logs["accuracy"])


cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if cluster_resolver.task_type == "evaluator":
    print("evaluator in", os.environ["TF_CONFIG"])
    tf.keras.utils.SidecarEvaluator(
        model=compiled_model(),
        data=tf.data.Dataset.from_tensor_slices((x[1500:], y[1500:])).batch(297),
        checkpoint_dir=checkpoint_dir,
        callbacks=[Scores()],
    ).start()
else:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = compiled_model()
    dataset = tf.data.Dataset.from_tensor_slices((x[:1500], y[:1500])).shuffle(1500).repeat().batch(64)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    checkpoints = tf.keras.callbacks.ModelCheckpoint(os.path.join(checkpoint_dir, "ckpt-{epoch}"), save_weights_only=True)
    model.fit(dataset.with_options(options), epochs=3, steps_per_epoch=20, callbacks=[checkpoints])
