"""Hints for failures of a GPU, CUDA, a collective or a bucket, for `cause.hint_for`.

Patterns of messages as TensorFlow, XLA, NCCL and the clouds' own libraries write them; `{0}` is the
pattern's first group. They come before the general ones, which would blame a path or a package.
"""

from __future__ import annotations

_NO_IDENTITY = (
    "nodes have no cloud credentials: pass the script a key with `secrets`, or put the data on the"
    " node (`code:`, or a download in `setup.run`)"
)
_OTHER_GPU = (
    "this TensorFlow has no code for this GPU: use another `accelerator`, or a newer"
    " `setup.tensorflow` (docs/machines.md lists which work together)"
)
_SICK = (
    "the GPU, or a kernel on it, failed: run `cloudtrain exec NAME -- nvidia-smi`; if it fails"
    " again on the same node, delete that node, then run `cloudtrain up`"
)

GPU_HINTS: tuple[tuple[str, str], ...] = (
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
        r"Collective ops must be configured at program startup",
        "create the strategy first, before any other call to TensorFlow in the script",
    ),
    (
        r"CUDA_ERROR_INVALID_PTX|CUDA_ERROR_INVALID_HANDLE|CUDA_ERROR_NO_BINARY_FOR_GPU"
        r"|no kernel image is available|PTX version [\d.]+ does not support"
        r"|CUDNN_STATUS_ARCH_MISMATCH",
        _OTHER_GPU,
    ),
    (
        # https://github.com/aws/deep-learning-containers/pull/6418: 2.21 with cuDNN 9.5
        r"Autotuner could not find any supported configs",
        "this cuDNN does not support this TensorFlow: remove nvidia-cudnn from `setup.packages`; on"
        ' GPUs before Turing (V100, P100, P4) set `setup.tensorflow: "2.19"`',
    ),
    (
        r"libdevice not found|libdevice\.10\.bc",
        "XLA cannot find CUDA's libdevice: add `nvidia-cuda-nvcc-cu12` to `setup.packages`, or"
        " set XLA_FLAGS=--xla_gpu_cuda_data_dir=… in `train.env` to its folder",
    ),
    (
        r"[Pp]txas|No PTX compilation provider",
        "XLA cannot compile for the GPU: add `nvidia-cuda-nvcc-cu12` for this TensorFlow's CUDA to"
        " `setup.packages`, or set XLA_FLAGS=--xla_gpu_cuda_data_dir=… to its folder",
    ),
    (
        r"NCCL[\s\S]{0,200}unhandled|unhandled (?:system|cuda) error|ncclCommInitRank"
        r"|ncclSystemError",
        "NCCL could not connect the GPUs: `train.env: {{NCCL_DEBUG: INFO}}` shows why;"
        " NCCL_IB_DISABLE=1, or NCCL_SOCKET_IFNAME set to the nodes' interface, often helps",
    ),
    (
        r"(?:assigned to device|is joining)[\s\S]{0,300}group has type",
        "the tasks have different GPUs: give all roles that train the same `accelerator`, and"
        " check CUDA_VISIBLE_DEVICES",
    ),
    (
        r"current incarnation doesn't match",
        "a task of an earlier attempt is still running, or one task was restarted alone: run"
        " `cloudtrain stop-run`, then train again",
    ),
    (
        r"Barrier timed out|Barrier .*(?:DEADLINE_EXCEEDED|timed out)|DeadlineExceededError",
        "a task joined later than the others waited: raise `train.start_timeout`, or check what"
        " delays the slowest one (data, downloads)",
    ),
    (
        r"system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY",
        "the machine's NVSwitches wait for the fabric manager: run `cloudtrain exec NAME -- sudo"
        " systemctl restart nvidia-fabricmanager`, or recreate the node",
    ),
    (
        r"devices are busy or unavailable|CUDA_ERROR_DEVICE_UNAVAILABLE",
        "another process is using the GPU: `cloudtrain exec NAME -- nvidia-smi` shows which",
    ),
    (
        r"CUDA_ERROR_ILLEGAL_ADDRESS|illegal memory access|\bXid\b|fallen off the bus"
        r"|uncorrectable ECC|CUDA_ERROR_ECC|CUDA_ERROR_LAUNCH_FAILED",
        _SICK,
    ),
    (
        r"Dst tensor is not initialized",
        "the GPU's memory was full when data was copied to it: use a smaller batch, or a GPU with"
        " more memory",
    ),
    (
        r"DNN library is not found|DNN library initialization failed|CUDNN_STATUS_\w+"
        r"|Could not create cudnn handle|cuDNN failed to initialize|matching major version"
        r"|CUBLAS_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED)|without (?:BLAS|DNN) support",
        "cuDNN or cuBLAS cannot start: `setup.packages` has a version other than this TensorFlow"
        " needs, it no longer supports the GPU (before Turing), or another process uses its memory",
    ),
    (
        r"(libcud(?:art|nn)|libcu(?:blas|fft|rand|solver|sparse)|libnccl|libnvinfer)\S*: cannot"
        r" open shared object file",
        "CUDA's `{0}` is missing: `setup.tensorflow` from 2.11 on installs it; otherwise add it to"
        " `setup.packages`",
    ),
    (
        r"(libGL)\.so\S*: cannot open shared object file",
        'OpenCV needs `{0}`: set `setup.run: ["sudo apt-get install -y libgl1 libglib2.0-0"]`, or'
        " use opencv-python-headless",
    ),
    (
        r"(lib(?:gthread|glib)[\w.-]*): cannot open shared object file",
        'the node lacks `{0}`: set `setup.run: ["sudo apt-get install -y libglib2.0-0"]`',
    ),
    (
        r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file",
        'the node lacks the system library `{0}`: install its package in `setup.run: ["sudo apt-get'
        ' install -y …"]`',
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
        "a wheel needs `{0}`, newer than the node's system: use `image: ubuntu-24.04`, or an older"
        " version of that package",
    ),
    (
        r"Too many open files|Errno 24\b",
        "more open files than the node allows: run `ulimit -n 65536` before the program in"
        " `train.command`",
    ),
    (
        r"[Uu]nshardable|failed to apply FILE sharding|not enough .*files.*shard",
        "the dataset cannot be sharded by file: set `tf.data.Options().experimental_distribute."
        "auto_shard_policy` to `AutoShardPolicy.DATA`",
    ),
    (
        r"NonMatchingChecksum|has wrong checksum",
        "the download does not match its dataset's checksum: download it again, or use a newer"
        " tensorflow-datasets in `setup.packages`",
    ),
)
