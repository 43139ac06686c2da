"""Computes with TensorFlow on this node, for compute_proof: matrix products, a convolution with its
gradient, XLA, all-reduces.

Run by the environment's Python, with one JSON object. Answers with JSON lines on its first stdout,
each phase announced before it begins, so that a crash or a hang has a name. Ends with its stdin.
Every result is compared with one that is known.
"""

import json
import math
import os
import sys
import threading
import time
import traceback
from typing import Any

GO = threading.Event()
ANSWERS = 9
"""Its first stdout: what libraries print to stdout is no answer."""


def main() -> None:
    os.dup2(1, ANSWERS, inheritable=False)
    os.dup2(2, 1)
    threading.Thread(target=follow, daemon=True).start()
    order = json.loads(sys.argv[1])
    try:
        tell(phase="import")
        import tensorflow

        tell(tensorflow=tensorflow.__version__, ready=True)
        GO.wait()  # until every process of the node has imported it, which takes all cores
        if order["part"] == "node":
            prove_node(tensorflow, order)
        else:
            prove_between(tensorflow, order)
        tell(done=True)
    except BaseException as error:  # noqa: BLE001 - also an exit that a library asks for
        tell(failed="".join(traceback.format_exception_only(type(error), error)).strip()[:4000])
        os._exit(1)
    if order["part"] != "node":
        time.sleep(600)  # peers still read from this process: `follow` ends it
    os._exit(0)


def follow() -> None:
    """Wait for the line that starts the work, and for the end of stdin."""
    while True:
        if not os.read(0, 100):
            os._exit(1)
        GO.set()


def tell(**fact: object) -> None:
    os.write(ANSWERS, (json.dumps(fact) + "\n").encode())


# ── one node ─────────────────────────────────────────────────────────────────


def prove_node(tf: Any, order: "dict[str, Any]") -> None:
    gpus = tf.config.list_physical_devices("GPU")
    tell(gpus=len(gpus))
    if len(gpus) < order["gpus"]:
        raise RuntimeError("TensorFlow sees {} of {} GPUs".format(len(gpus), order["gpus"]))
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    kind, count = ("GPU", len(gpus)) if gpus else ("CPU", 1)
    # Before any other operation, as TensorFlow requires of a strategy.
    strategy = tf.distribute.MirroredStrategy() if count > 1 else None
    devices = [f"/{kind}:{number}" for number in range(count)]
    size = 8192 if gpus else 1024
    tell(phase="matrix product")
    tell(tflops=side_by_side(devices, lambda device: product(tf, device, size)))
    tell(phase="convolution")
    side_by_side(devices, lambda device: convolution(tf, device, 32 if gpus else 1))
    if hasattr(strategy, "run"):  # from TensorFlow 2.2 on
        tell(phase="all-reduce between its GPUs")
        tell(gbytes=rate_of_sums(tf, strategy, 64 << 20, None))
    tell(phase="XLA")
    side_by_side(devices, lambda device: compiled(tf, device))


def side_by_side(devices: "list[str]", work: Any) -> "list[Any]":
    """Work on all devices at once; raises the first failure, with the device before its words."""
    results = {}  # type: dict[str, Any]
    failures = {}  # type: dict[str, BaseException]

    def one(device: str) -> None:
        try:
            results[device] = work(device)
        except BaseException as error:  # noqa: BLE001 - raised below
            failures[device] = error

    threads = [threading.Thread(target=one, args=(device,)) for device in devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for device in devices:
        if device in failures:
            tell(device=device)
            raise failures[device]
    return [results[device] for device in devices]


def product(tf: Any, device: str, size: int) -> float:
    """TFLOP/s of products of matrices of this size: float16 on a GPU, else float32. The best of
    several rounds, each of about 0.2 s on a GPU, 0.05 s on a CPU."""
    on_gpu = "GPU" in device
    dtype = tf.float16 if on_gpu else tf.float32
    with tf.device(device):
        # Random signs: constants draw less power, and so run faster, than what is trained on.
        shape = [size, size]
        a, b = (
            tf.cast(tf.sign(tf.random.stateless_uniform(shape, [7, seed]) - 0.5), dtype)
            for seed in range(2)
        )
        rows = a[:2].numpy().astype("float32")
        expected = rows @ b[:, :64].numpy().astype("float32")
        found = tf.matmul(a, b)[:2, :64].numpy().astype("float32")
        same(float(abs(found - expected).max()), 0.0, 2.0, "matrix product")  # float16 rounds
        best, times = 0.0, 1
        for _ in range(4):
            began = time.perf_counter()
            for _ in range(times):
                result = tf.matmul(a, b)
            result[0, 0].numpy()  # waits for all of them
            seconds = time.perf_counter() - began
            best = max(best, 2.0 * size**3 * times / seconds / 1e12)
            times = max(1, min(2000, int(times * (0.2 if on_gpu else 0.05) / seconds)))
    return best


def convolution(tf: Any, device: str, batch: int) -> None:
    """A convolution and its gradient, on ones: each sum is a number of terms."""
    channels = 16
    with tf.device(device):
        image = tf.ones([batch, 32, 32, channels])
        kernel = tf.Variable(tf.ones([3, 3, channels, channels]))
        with tf.GradientTape() as tape:
            result = tf.nn.conv2d(image, kernel, strides=1, padding="VALID")
            total = tf.reduce_sum(result)
        gradient = tape.gradient(total, kernel)
        terms = batch * 30 * 30
        same(float(tf.reduce_max(result)), 9.0 * channels, 0.01 * 9 * channels, "convolution")
        same(float(tf.reduce_max(gradient)), terms, 0.01 * terms, "gradient")


def compiled(tf: Any, device: str) -> None:
    """A function compiled by XLA: on a GPU that takes libdevice (`sin`) and ptxas."""

    def work(x: Any) -> Any:
        return tf.reduce_sum(tf.sin(tf.matmul(x, x)))

    function = compiling(tf, work)
    if function is None:
        return
    with tf.device(device):
        found = float(function(tf.fill([64, 64], 0.125)))
    same(found, 64 * 64 * math.sin(1.0), 1.0, "compiled function")


def compiling(tf: Any, work: Any) -> Any:
    """A function that XLA compiles; None if this TensorFlow cannot be asked for one (2.0)."""
    for name in ("jit_compile", "experimental_compile"):  # until TensorFlow 2.4
        try:
            # autograph reads the source, which a program from the command line does not have
            return tf.function(work, autograph=False, **{name: True})
        except TypeError:
            pass
    return None


def same(found: float, expected: float, within: float, what: str) -> None:
    if not abs(found - expected) <= within:  # also if it is not a number
        raise ArithmeticError(f"wrong result of the {what}: {found!r} instead of {expected!r}")


# ── between nodes ────────────────────────────────────────────────────────────


def prove_between(tf: Any, order: "dict[str, Any]") -> None:
    """All-reduce over gRPC, TensorFlow's default, then on GPUs with NCCL."""
    os.environ["TF_CONFIG"] = order["tf_config"]
    if not order["gpus"]:
        tf.config.set_visible_devices([], "GPU")
    for gpu in tf.config.list_physical_devices("GPU") if order["gpus"] else ():
        tf.config.experimental.set_memory_growth(gpu, True)
    tell(phase="connection to the other nodes")
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    kinds = tf.distribute.experimental.CommunicationImplementation
    for name, kind in (("grpc", kinds.RING), ("nccl", kinds.NCCL)):
        if name == "nccl" and not order["gpus"]:
            continue
        tell(phase="all-reduce with the other nodes over " + ("gRPC", "NCCL")[name == "nccl"])
        options = tf.distribute.experimental.CommunicationOptions(implementation=kind)
        tell(**{name: rate_of_sums(tf, strategy, order["bytes"], options)})


def rate_of_sums(tf: Any, strategy: Any, size: int, options: Any) -> float:
    """GB/s of all-reduces of a tensor of this many bytes: what each replica's link carries, 2 (n -
    1) / n of the tensor (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md, `busbw`). The best of
    five. The first, which connects, and compares the sum, does not count."""
    replicas = strategy.num_replicas_in_sync

    def step() -> Any:
        context = tf.distribute.get_replica_context()
        number = tf.cast(context.replica_id_in_sync_group, tf.float32) + 1.0
        value = tf.fill([size // 4], number)
        extra = {} if options is None else {"options": options}
        return tf.reduce_max(context.all_reduce(tf.distribute.ReduceOp.SUM, value, **extra))

    run = tf.function(lambda: strategy.run(step), autograph=False)

    def once() -> float:
        return max(float(part) for part in strategy.experimental_local_results(run()))

    same(once(), replicas * (replicas + 1) / 2.0, 0.01, "all-reduce")
    best = 0.0
    for _ in range(5):
        began = time.perf_counter()
        once()
        seconds = time.perf_counter() - began
        best = max(best, size * 2.0 * (replicas - 1) / replicas / seconds / 1e9)
    return best


if __name__ == "__main__":
    main()
