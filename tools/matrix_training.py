"""Trains a small model by one strategy and writes what it was trained with: a cell of the matrix.

Delivered to the nodes by tools/tensorflow_matrix.py, where it runs on Python 3.7 to 3.13 with
TensorFlow 1.15 to 2.21. It exits with 1 where the loss does not fall or a replica is missing.
"""

import argparse
import json
import os
import platform
import sys

import numpy as np
import tensorflow as tf

BATCH, STEPS, EPOCHS = 32, 16, 4
PS_DISK = "/job:chief/task:0/device:CPU:0"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("strategy")
    parser.add_argument("--output", required=True)
    parser.add_argument("--shared", help="the model's folder of an Estimator's tasks")
    options = parser.parse_args()
    role = task()["type"]
    if options.strategy == "custom":
        losses, replicas = estimator(options), None
    elif options.strategy == "parameter_server" and role != "chief":
        serve()
        return
    else:
        losses, replicas = TRAIN[options.strategy](options)
    if losses and not losses[-1] < 0.5 * losses[0]:
        sys.exit(f"the loss went from {losses[0]:.4f} to {losses[-1]:.4f}")
    if role == "chief":
        os.makedirs(options.output, exist_ok=True)
        with open(os.path.join(options.output, "result.json"), "w") as file:
            json.dump({"versions": versions(), "losses": losses, "replicas": replicas}, file)


def task():
    given = json.loads(os.environ.get("TF_CONFIG") or "{}")
    return given.get("task") or {"type": "chief", "index": 0}


def nodes(*roles):
    """Number of tasks of these roles TF_CONFIG names; 1 where it names none."""
    cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
    return sum(len(cluster.get(role, ())) for role in roles) or 1


# ── strategies ───────────────────────────────────────────────────────────────


def one_device(options):
    return fit(tf.distribute.OneDeviceStrategy("/cpu:0"), options, replicas=1)


def mirrored(options):
    return fit(tf.distribute.MirroredStrategy(two_devices()), options, replicas=2)


def central_storage(options):
    devices = two_devices()
    strategy = tf.distribute.experimental.CentralStorageStrategy(devices, parameter_device="/cpu:0")
    return fit(strategy, options, replicas=2)


def two_devices():
    """Two logical devices of one CPU, in the words of each release."""
    config = tf.config if hasattr(tf.config, "list_physical_devices") else tf.config.experimental
    cpu = config.list_physical_devices("CPU")[0]
    if hasattr(tf.config, "set_logical_device_configuration"):
        one = tf.config.LogicalDeviceConfiguration()
        tf.config.set_logical_device_configuration(cpu, [one] * 2)
    else:
        one = tf.config.experimental.VirtualDeviceConfiguration()
        tf.config.experimental.set_virtual_device_configuration(cpu, [one] * 2)
    return ["CPU:0", "CPU:1"]


def multi_worker_mirrored(options):
    named = tf.distribute if hasattr(tf.distribute, "MultiWorkerMirroredStrategy") else None
    strategy = (named or tf.distribute.experimental).MultiWorkerMirroredStrategy()
    return fit(strategy, options, replicas=nodes("chief", "worker"))


def parameter_server(options):
    known = hasattr(tf.distribute, "ParameterServerStrategy")
    named = tf.distribute if known else tf.distribute.experimental
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = named.ParameterServerStrategy(resolver)
    return fit(strategy, options, replicas=nodes("worker"))


def serve():
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
        start=True,
    )
    server.join()


def horovod(options):
    import horovod.tensorflow.keras as hvd

    hvd.init()
    if hvd.size() != 2:
        sys.exit(f"{hvd.size()} ranks, not 2")
    model = compiled()
    model.compile(optimizer=hvd.DistributedOptimizer(model.optimizer), loss=model.loss)
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    history = model.fit(data(), epochs=EPOCHS, callbacks=[start], verbose=2)
    return history.history["loss"], hvd.size()


TRAIN = {
    function.__name__: function
    for function in (
        one_device,
        mirrored,
        central_storage,
        multi_worker_mirrored,
        parameter_server,
        horovod,
    )
}


# ── Keras ────────────────────────────────────────────────────────────────────


def fit(strategy, options, replicas):
    if strategy.num_replicas_in_sync != replicas:
        sys.exit(f"{strategy.num_replicas_in_sync} replicas, not {replicas}")
    with strategy.scope():
        model = compiled()
    batches, given = data(), {}
    if options.strategy == "parameter_server":
        batches = tf.keras.utils.experimental.DatasetCreator(lambda context: data().repeat())
        given = {"steps_per_epoch": STEPS}
    board = tf.keras.callbacks.TensorBoard(os.path.join(options.output, "events"))
    callbacks = [board] if task()["type"] == "chief" else []
    history = model.fit(batches, epochs=EPOCHS, callbacks=callbacks, verbose=2, **given)
    save(model, options)
    return [float(loss) for loss in history.history["loss"]], replicas


def save(model, options):
    """The weights by h5py, and a SavedModel; every task takes part in saving that."""
    os.makedirs(options.output, exist_ok=True)
    model.save_weights(os.path.join(options.output, "model.weights.h5"))
    path = os.path.join(options.output, "model")
    if getattr(tf.keras, "__version__", "2").startswith("3."):
        model.export(path)
        return
    given = {}
    if options.strategy == "parameter_server":
        given = {"options": tf.saved_model.SaveOptions(experimental_io_device=PS_DISK)}
    model.save(path, save_format="tf", **given)


def compiled():
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Conv2D(4, 3, activation="relu", input_shape=(8, 8, 1)),
            layers.Flatten(),
            layers.Dense(4),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=tf.keras.optimizers.Adam(0.01), loss=loss)
    return model


def data():
    """Pictures with one bright quarter, which is to be named."""
    random = np.random.RandomState(1)
    labels = random.randint(0, 4, BATCH * STEPS)
    pictures = random.uniform(0, 0.5, (len(labels), 8, 8, 1)).astype("float32")
    for picture, label in zip(pictures, labels):  # noqa: B905  (Python 3.7)
        row, column = divmod(int(label), 2)
        picture[row * 4 : row * 4 + 4, column * 4 : column * 4 + 4] += 0.5
    batches = tf.data.Dataset.from_tensor_slices((pictures, labels.astype("int64"))).batch(BATCH)
    options = tf.data.Options()
    if hasattr(tf.data.experimental, "AutoShardPolicy"):  # since 2.1
        policy = tf.data.experimental.AutoShardPolicy.DATA
        options.experimental_distribute.auto_shard_policy = policy
    return batches.with_options(options)


# ── Estimator ────────────────────────────────────────────────────────────────


def estimator(options):
    """Between-graph replication over chief, worker and ps, as scripts before 2020 have it."""
    config = tf.estimator.RunConfig(model_dir=options.shared, save_checkpoints_steps=100)
    learner = tf.estimator.Estimator(_line, config=config)
    tf.estimator.train_and_evaluate(
        learner,
        tf.estimator.TrainSpec(_points, max_steps=200),
        tf.estimator.EvalSpec(_points, steps=1),
    )
    if config.task_type != "chief":
        return []
    return [14.0, float(learner.evaluate(_points, steps=8)["loss"])]  # 14: of a line of zeros


def _points():
    random = np.random.RandomState(1)
    x = random.uniform(-1, 1, (512, 2)).astype("float32")
    y = (x @ np.array([[2.0], [-3.0]], "float32") + 1).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(32)


def _line(features, labels, mode):
    v1 = tf.compat.v1
    w = v1.get_variable("w", (2, 1), initializer=v1.zeros_initializer())
    b = v1.get_variable("b", (1,), initializer=v1.zeros_initializer())
    loss = v1.losses.mean_squared_error(labels, v1.matmul(features, w) + b)
    step = v1.train.GradientDescentOptimizer(0.05).minimize(loss, v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step)


# ── what it ran with ─────────────────────────────────────────────────────────


def versions():
    try:
        from importlib.metadata import PackageNotFoundError, version
    except ImportError:  # Python 3.7
        import pkg_resources

        PackageNotFoundError = pkg_resources.DistributionNotFound

        def version(package):
            return pkg_resources.get_distribution(package).version

    found = {"python": platform.python_version(), "tensorflow": tf.__version__}
    for package in ("keras", "tf-keras", "numpy", "protobuf", "h5py", "tensorboard", "horovod"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            pass
    return found


if __name__ == "__main__":
    main()
