"""Advice on a failed task, for known messages in its log."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable

from cloudtrain.core.run_record import CAUSES, CauseKind
from cloudtrain.diagnosis import gpu_hints
from cloudtrain.training import log_text

_NO_IDENTITY = (
    "without `identity:`, nodes have no cloud credentials: set it, list input under `data:`, or"
    " pass the script a key with `secrets`"
)
_LEGACY = "the script was written for Keras 2: set `setup.keras: legacy`"
_OLDER = 'TensorFlow no longer has this: set `setup.tensorflow: "2.15"`, or port the script'
_OWN_DISK = "each ps writes its part of a checkpoint to its own disk"
_IO_DEVICE = (
    "save with"
    " `tf.train.CheckpointOptions(experimental_io_device='/job:chief/task:0/device:CPU:0')`"
)
_NO_SHARED_FOLDER = (
    "the roles share no folder, and with `ps` each of them writes its part to its own disk; name"
    " the folder's relative path in `shared`, which all nodes then share"
)
OWN_DISK = (
    f"{_OWN_DISK}, and TensorFlow cannot merge the parts of several: name the folder in `shared`,"
    f" which all nodes share, or {_IO_DEVICE}; TensorFlow 1: `Saver(sharded=False)`"
)
_NOT_DELIVERED = (
    "`{0}` is not on the node, which has none of your machine's files: deliver it by `code.path` or"
    " `data:`, and name it by its relative path or `{{data.NAME}}`"
)
_MEMORY = CAUSES["oom"].hint or ""

# Messages as TensorFlow, XLA, NCCL, Python and the clouds' own libraries write them, by subject;
# `{0}` is the pattern's first group. The first match counts: a missing path or package comes after
# what may explain it. A message for each is in tests/data/hint_messages.md or docs/failures.md.
_HINTS: dict[str, tuple[tuple[str, str], ...]] = {
    "cloud storage": (
        (
            r"File system scheme '(\w+)' not implemented",
            "TensorFlow's wheels read only gs://, not `{0}://`: use that service's own library;"
            f" {_NO_IDENTITY}",
        ),
        (
            r"NoCredentialsError|Unable to locate credentials|DefaultCredentialsError"
            r"|Anonymous caller does not have|DefaultAzureCredential failed"
            r"|Could not automatically determine credentials|metadata\.google\.internal[\s\S]*404",
            _NO_IDENTITY,
        ),
        (
            r"does not have storage\.[\w.]+ access|AuthorizationPermissionMismatch"
            r"|An error occurred \((?:AccessDenied|403)\) when calling the \w*Object\w* operation",
            "the account that the script uses may not do this in the bucket: grant it a role there"
            " (`An identity for scripts` in docs/gcp.md, docs/aws.md, docs/azure.md)",
        ),
    ),
    "GPUs, CUDA and collectives": gpu_hints.ROWS,
    "system libraries and Python's version": (
        (
            r"(libGL)\.so\S*: cannot open shared object file",
            'OpenCV needs `{0}`: set `setup.run: ["sudo apt-get install -y libgl1 libglib2.0-0"]`,'
            " or"
            " use opencv-python-headless",
        ),
        (
            r"(lib(?:gthread|glib)[\w.-]*): cannot open shared object file",
            'the node lacks `{0}`: set `setup.run: ["sudo apt-get install -y libglib2.0-0"]`',
        ),
        (
            r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file",
            'the node lacks the system library `{0}`: install its package in `setup.run: ["sudo'
            ' apt-get install -y …"]`',
        ),
        (
            r"No module named '(distutils|imp)(?:\.\w+)*'",
            'Python 3.12 removed `{0}`: set `setup.python: "3.11"`, or a newer `setup.tensorflow`',
        ),
        (
            r"No module named 'pkg_resources'",
            'setuptools 81 removed pkg_resources: add "setuptools<81" to `setup.packages`',
        ),
        (
            r"(GLIBC(?:XX)?_[\d.]+)'? not found",
            "a wheel needs `{0}`, newer than the node's system: use `image: ubuntu-24.04`, or an"
            " older version of that package",
        ),
    ),
    "data and open files": (
        (
            r"Too many open files|Errno 24\b",
            "more open files than the node allows: run `ulimit -n 65536` before the program in"
            " `train.command`",
        ),
        (
            r"[Uu]nshardable|failed to apply FILE sharding|not enough .*files.*shard"
            r"|FILE based sharding|not enough for the required \d+ shards",
            "the dataset cannot be sharded by file: write more files than there are workers, or"
            " shard by element:"
            " `options.experimental_distribute.auto_shard_policy = AutoShardPolicy.DATA`",
        ),
        (
            r"NonMatchingChecksum|has wrong checksum",
            "the download does not match its dataset's checksum: download it again, or use a newer"
            " tensorflow-datasets in `setup.packages`",
        ),
    ),
    "missing packages and programs": (
        (
            r"No module named '(?:tf_keras|tensorflow)'|do not have the tf_keras package"
            r"|Keras cannot be imported",
            "set `setup.tensorflow`, and `setup.keras: legacy` if the script uses Keras 2",
        ),
        (r"No module named 'tensorflow\.(contrib|examples|estimator)", _OLDER),
        (
            r"No module named 'tensorflow_core",
            'only TensorFlow 1.15 to 2.1 have it: set `setup.tensorflow: "2.1"`',
        ),
        (
            r"No module named '([\w.]+)'",
            "add the package of `{0}` to `setup.packages`; if it is your own code, check"
            " `train.dir`, or set `setup.install: .`",
        ),
        (
            r"\$'\\r': command not found|\^M: bad interpreter|\\r['’]: No such file",
            "the script has line ends of Windows: save it with those of Linux (`dos2unix`, or"
            " `*.sh text eol=lf` in .gitattributes)",
        ),
        (r"TensorBoard is not installed", "add `tensorboard` to `setup.packages`"),
        (
            r"can't open file|can't cd to|(python\S*|sh): \S*.*not found",
            "check `train.command`, `train.dir` (inside the code) and what `code:` delivers",
        ),
    ),
    "versions of Keras and TensorFlow": (
        (
            r"site-packages/keras/[\s\S]*PerReplica",
            "Keras 3 cannot `fit` over several nodes: set `setup.keras: legacy`, and import"
            " `tensorflow.keras`, not `keras`",
        ),
        (
            r"type.*PerReplica'|create_per_worker_dataset",
            "Keras 3 cannot `fit` over several nodes: set `setup.keras: legacy`",
        ),
        (
            r"module 'keras[\w.]*' has no attribute|must end in `\.(?:weights\.h5|keras)`"
            r"|must end in \.keras|Cannot convert '.*' to a shape"
            r"|Invalid filepath extension for saving|`save_format` argument is deprecated"
            r"|Argument\(s\) not recognized: \{'lr'|keras/src/[\s\S]*unexpected keyword argument"
            r"|keras/src/[\s\S]*object has no attribute|object has no attribute '(reset_states"
            r"|lr)'",
            _LEGACY,
        ),
        (
            r"module 'tensorflow' has no attribute '(estimator|contrib|Session|placeholder|app"
            r"|flags"
            r"|logging|gfile|ConfigProto|layers|losses)'|experimental_run_v2|multi_gpu_model"
            r"|module 'tf_keras[\w.]*' has no attribute|make_one_shot_iterator|predict_classes",
            _OLDER,
        ),
        (
            r'If "cluster" is set in TF_CONFIG, it must have one "chief" node',
            "set `train.tf_config: estimator`: the evaluator then has the others' cluster",
        ),
        (r"decay is deprecated", 'use `tf.keras.optimizers.legacy`, or `setup.tensorflow: "2.10"`'),
    ),
    "checkpoints and ports": (
        (
            # run on 1.15.5, 2.15.1 and 2.21.0, 2026-11-22
            r"allow_missing_files was set to false and \S+_temp\S*/part-"
            r"|_temp\S*/part-\d+-of-\d+\S*; No such file or directory",
            OWN_DISK,
        ),
        (
            r"(ckpt|model|variables|_temp)\S*; No such file or directory[\s\S]*SaveV2"
            r"|_temp\w*; No such file or directory|\.tempstate\d+; No such file or directory",
            f"{_OWN_DISK}, and has no folder of that name: name it in `shared`, which all nodes"
            f" share, or {_IO_DEVICE}; TensorFlow 1: `Saver(sharded=False)`",
        ),
        (
            r"explicitly assigned to /job:localhost but available devices",
            f"a cluster has no /job:localhost: {_IO_DEVICE}",
        ),
        (
            r"The passed save_path is not a valid checkpoint",
            "the chief's disk lacks files of the checkpoint, as a ps wrote them to its own: name"
            " the folder's relative path in `shared`, which all nodes then share",
        ),
        (
            # tensorflow_estimator v2.15.0, estimator.py: predict and export; saver.py: restore
            r"Couldn't find trained model at (\S+?)\.?(?=[\s']|$)",
            f"{{0}} is on the disk of the task that saved it: {_NO_SHARED_FOLDER}",
        ),
        (
            r"Can't load save_path when it is None",
            f"the script found no checkpoint in its folder: {_NO_SHARED_FOLDER}",
        ),
        (
            r"Could not start gRPC server",
            "the port is in use on that node: choose another `train.port`; a script that sets"
            " TF_CONFIG or its addresses itself must choose another one there",
        ),
        (
            r"(?i)address already in use|port \d+ (?:is|was) (?:already )?in use"
            r"|could not bind to port",
            "another process on that node has the port that the script opens: choose another one"
            " in the script or its arguments (TensorFlow's alone is `train.port`)",
        ),
    ),
    "memory, driver, disk and permissions": (
        (
            r"ResourceExhausted|OOM when allocating|CUDA_ERROR_OUT_OF_MEMORY|MemoryError|bad_alloc",
            _MEMORY,
        ),
        (
            r"CUDA driver version is insufficient|CUDA_ERROR_NO_DEVICE|cuInit|libcuda",
            "the node's NVIDIA driver does not support this TensorFlow: choose another `image`",
        ),
        (r"No space left on device|Errno 28", "give the node more disk: raise `nodes.….disk_gb`"),
        (
            r"(?m)^\S*(?:sh|setsid|env|nohup): (?:.*: )?(\S+): Permission denied$",
            "the node's user may not execute `{0}`: make it executable, or use a program that every"
            " user can run",
        ),
        (
            r"Permission ?(denied|Error)|Errno 13",
            "write to `{{output}}` or to the task's own folder",
        ),
        (r"Read-only file system|Errno 30", "write to `{{output}}` or to the task's own folder"),
    ),
    "TF_CONFIG": (
        (
            r"KeyError: '?TF_CONFIG",
            "this run has no TF_CONFIG: set `train.tf_config: true`, or add a worker",
        ),
        (
            r"KeyError: '(worker|chief|ps|master)'",
            "the script expects a `{0}` in TF_CONFIG: give that role nodes",
        ),
    ),
    "downloads and versions of dependencies": (
        (
            r"URL fetch failure|URLError|Name or service not known|CERTIFICATE_VERIFY_FAILED",
            "the node cannot download this: deliver it with the code, or fetch it in `setup.run`",
        ),
        (
            r"incompatible Protobuf|Descriptors cannot be created directly",
            "two packages need different protobuf versions: pin it in `setup.packages`"
            ' ("protobuf<7")',
        ),
        (
            r"compiled using NumPy 1\.x|numpy\.dtype size changed|module 'numpy' has no attribute",
            'the code needs an older NumPy: add "numpy<2" (or "numpy<1.24") to `setup.packages`',
        ),
    ),
    "arguments of the program": (
        (
            r"unrecognized arguments: (.*)",
            "the script does not accept `{0}`: check `train.command` and what follows `--`",
        ),
        (r"the following arguments are required: (.*)", "add `{0}` to `train.command`"),
    ),
    "steps and batches": (
        (
            r"Collective instance \d+ expected|Shape mismatch in the collective instance",
            "the tasks were at different places of the script: give every rank as many batches, and"
            " evaluate and save on every rank; if a restart began at different steps, set"
            " `train.checkpoints`",
        ),
        (r"batch_size` .*divisible by", "choose a batch size divisible by the number of replicas"),
    ),
    "missing files": (
        (r"No such file or directory: b?'(/[^']+)'", _NOT_DELIVERED),
        (r'No such file or directory: b?"(/[^"]+)"', _NOT_DELIVERED),
        (r"(?:^|\s)['\"]?(/[^\s:;'\"]+)['\"]?[:;] No such file or directory", _NOT_DELIVERED),
        (
            r"No such file or directory",
            "the path is missing on that node: deliver it with `code:`, or create it in"
            " `setup.run`",
        ),
    ),
}

# Also looked for among TensorFlow's own error lines, which a native crash alone leaves.
_NATIVE = (
    "cloud storage",
    "GPUs, CUDA and collectives",
    "system libraries and Python's version",
    "data and open files",
)

_SIGNAL_HINTS = {
    signal.SIGKILL: "if the node ran out of memory, " + _MEMORY,
    signal.SIGILL: "this TensorFlow build needs AVX: choose another `machine`",
    signal.SIGSEGV: "a native crash: look for packages that are incompatible with this TensorFlow",
    signal.SIGABRT: "a native crash: its last lines are in the log",
}


def hint_for(
    kind: CauseKind, log: bytes, number: int | None = None, *, ended: bool = False
) -> str | None:
    """Advice on a failed task, for known messages; `number` is the signal that ended the task."""
    if not CAUSES[kind].logged:
        return CAUSES[kind].hint
    text = log_text.last_exception(log)
    # Without a traceback only the very end counts: a log of hours says "no such file" somewhere.
    text = text if log_text.TRACEBACK in text else "\n".join(log_text.last_lines(log))
    native = "\n".join(log_text.native_errors(log))
    if "CUDA_ERROR_INVALID_HANDLE" in text and (loaded := gpu_hints.LOADING.findall(log)):
        text = f"{loaded[-1].decode()}\n{text}"
    if hint := _known(text, _HINTS) or _known(native, _NATIVE):
        return hint
    if kind in ("exit", "not_started") and log_text.reports_lost_peer(text):
        return "no task failed by itself: check the network between the nodes"
    if kind == "not_started" and not ended:
        return "it may need more time to create its strategy: raise `train.start_timeout`"
    known = _SIGNAL_HINTS.get(signal.Signals(number)) if number else None
    told = CAUSES[kind].log is not None
    return CAUSES[kind].hint if told else known or CAUSES[kind].hint


def _known(text: str, subjects: Iterable[str]) -> str | None:
    for pattern, hint in (row for subject in subjects for row in _HINTS[subject]):
        if found := re.search(pattern, text):
            return hint.format(*found.groups())
    return None
