from __future__ import absolute_import
from __future__ import division
from __future__ import print_function

import argparse
import json
import os

import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from trainer import model


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        '--job-dir',
        type=str,
        required=True,
        help='local or GCS location for writing checkpoints and exporting models')
    parser.add_argument('--num-epochs', type=int, default=3)
    parser.add_argument('--batch-size', default=128, type=int)
    parser.add_argument('--learning-rate', default=.01, type=float)
    parser.add_argument(
        '--verbosity',
        choices=['DEBUG', 'ERROR', 'FATAL', 'INFO', 'WARN'],
        default='INFO')
    args, _ = parser.parse_known_args()
    return args


def train_and_evaluate(args):
    task = json.loads(os.environ['TF_CONFIG'])['task']
    strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy(
        communication=tf.distribute.experimental.CollectiveCommunication.RING)
    x, y = load_digits(return_X_y=True)
    train_x, eval_x, train_y, eval_y = train_test_split(x / 16.0, y, test_size=256, random_state=1)
    num_train_examples, input_dim = train_x.shape

    with strategy.scope():
        keras_model = model.create_keras_model(input_dim=input_dim, learning_rate=args.learning_rate)

    training_dataset = model.input_fn(
        train_x, train_y, shuffle=True, num_epochs=args.num_epochs, batch_size=args.batch_size)
    validation_dataset = model.input_fn(
        eval_x, eval_y, shuffle=False, num_epochs=args.num_epochs, batch_size=256)

    lr_decay_cb = tf.keras.callbacks.LearningRateScheduler(
        lambda epoch: args.learning_rate + 0.02 * (0.5 ** (1 + epoch)),
        verbose=True)
    tensorboard_cb = tf.keras.callbacks.TensorBoard(
        os.path.join(args.job_dir, 'keras_tensorboard'),
        histogram_freq=1)

    keras_model.fit(
        training_dataset,
        steps_per_epoch=int(num_train_examples / args.batch_size),
        epochs=args.num_epochs,
        validation_data=validation_dataset,
        validation_steps=1,
        verbose=1,
        callbacks=[lr_decay_cb, tensorboard_cb])

    export_path = os.path.join(args.job_dir, 'keras_export')
    if task['type'] != 'chief':
        export_path += '_' + task['type'] + str(task['index'])
    tf.saved_model.save(keras_model, export_path)
    print('Model exported to: {}'.format(export_path))


if __name__ == '__main__':
    args = get_args()
    tf.compat.v1.logging.set_verbosity(args.verbosity)
    train_and_evaluate(args)
