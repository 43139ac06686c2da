import os
import tensorflow as tf
import numpy as np
from sklearn.datasets import load_digits

def mnist_dataset(batch_size):
  x_train, y_train = load_digits(return_X_y=True)
  # The `x` arrays are in uint8 and have values in the [0, 16] range.
  # You need to convert them to float32 with values in the [0, 1] range.
  x_train = x_train.reshape(-1, 8, 8) / np.float32(16)
  y_train = y_train.astype(np.int64)
  train_dataset = tf.data.Dataset.from_tensor_slices(
      (x_train, y_train)).shuffle(1797).repeat().batch(batch_size)
  return train_dataset

def build_and_compile_cnn_model():
  model = tf.keras.Sequential([
      tf.keras.layers.InputLayer(input_shape=(8, 8)),
      tf.keras.layers.Reshape(target_shape=(8, 8, 1)),
      tf.keras.layers.Conv2D(32, 3, activation='relu'),
      tf.keras.layers.Flatten(),
      tf.keras.layers.Dense(128, activation='relu'),
      tf.keras.layers.Dense(10)
  ])
  model.compile(
      loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      optimizer=tf.keras.optimizers.SGD(learning_rate=0.001),
      metrics=['accuracy'])
  return model
