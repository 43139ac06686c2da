# Multi-worker training with Keras from .npz files in a folder.
import argparse
import glob
import os

import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--data-dir", required=True)
parser.add_argument("--model-dir", default="output/model")
args = parser.parse_args()

strategy = tf.distribute.MultiWorkerMirroredStrategy()

files = sorted(glob.glob(os.path.join(args.data_dir, "*.npz")))
parts = [np.load(name) for name in files]
images = np.concatenate([part["x"] for part in parts]).astype("float32") / 16
labels = np.concatenate([part["y"] for part in parts])
print("read", len(files), "files,", len(labels), "images", flush=True)

dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(500).repeat().batch(32)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
dataset = dataset.with_options(options)

with strategy.scope():
    model = tf.keras.Sequential(
        [tf.keras.Input(shape=(64,)), tf.keras.layers.Dense(32, "relu"), tf.keras.layers.Dense(10)]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), optimizer="sgd"
    )

model.fit(dataset, epochs=2, steps_per_epoch=5)
model.save(args.model_dir)
