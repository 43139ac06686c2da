"""Advice for messages of GPUs, CUDA, XLA and collectives in a task's log.

tests/data/gpu_messages.json has the messages, each with its source."""

from __future__ import annotations

import re

from cloudtrain.catalog import cuda, gpus

LOADING = re.compile(rb"'cuModuleLoadData\S* data\)' failed with '(CUDA_ERROR_\w+)'")
"""Why TensorFlow's kernels could not be loaded: it warns of that (kernel_gen's
tf_gpu_runtime_wrappers.cc), and its exception says only CUDA_ERROR_INVALID_HANDLE."""

_NEWEST = "{}.{}".format(*gpus.NEWEST)
_OLD_DRIVER = (
    "the node's NVIDIA driver is too old for this TensorFlow's code for this GPU: an H100 or H200"
    f" needs driver {cuda.oldest_driver(_NEWEST, 'H100')} or newer with TensorFlow {_NEWEST}, or"
    f' set `setup.tensorflow: "{next(iter(cuda.needed("H100")))}"`'
    " (docs/machines.md has the table, `cloudtrain check --gpu` asks a machine)"
)
_OTHER_GPU = (
    "this TensorFlow has no code for this GPU: use another `accelerator`, or a newer"
    " `setup.tensorflow` (docs/machines.md lists which work together)"
)
_SICK = (
    "the GPU, or a kernel on it, failed: run `cloudtrain exec NAME -- nvidia-smi`; if it fails"
    " again on the same node, delete that node, then run `cloudtrain up`"
)
_LOST = (
    "the node has lost the GPU: `cloudtrain exec NAME -- sudo dmesg` shows its Xid error; delete"
    " that node, then run `cloudtrain up`, or reboot a machine of your own"
)
_FEWER = (
    "the script names a GPU that its task does not have: count them by"
    " `tf.config.list_physical_devices('GPU')`, check CUDA_VISIBLE_DEVICES, or give the node more"
    " in `accelerator`"
)
_CONTAINER = (
    "the container does not get the machine's GPUs: install nvidia-container-toolkit on the"
    " machine, restart Docker there, and start the container with `--gpus all`"
)

ROWS: tuple[tuple[str, str], ...] = (
    (
        r"Collective ops must be configured at program startup",
        "create the strategy first, before any other call to TensorFlow in the script",
    ),
    # ── the driver ──
    (r"UNSUPPORTED_PTX|UnsupportedPtx|unsupported toolchain", _OLD_DRIVER),
    (
        r"(?i)driver/library version mismatch|NVML/RM version mismatch|LibRmVersionMismatch"
        r"|does not match DSO version|COMPAT_NOT_SUPPORTED_ON_DEVICE|forward compatibility was",
        "the driver's kernel module and its libraries have different versions, as after an"
        " upgrade: reboot the machine, or delete the node, then run `cloudtrain up`",
    ),
    (
        r"(?i)unable to determine the device handle|GPU is lost|fallen off the bus"
        r"|CUDA_ERROR_EXTERNAL_DEVICE|NVML_ERROR_GPU_IS_LOST|NVMLError_GpuIsLost",
        _LOST,
    ),
    (
        r"cuInit: CUDA_ERROR_UNKNOWN|could not load UVM kernel module|nvidia[-_]uvm not found",
        "the kernel module nvidia_uvm is not loaded: run `cloudtrain up`, which loads it; on a"
        " machine of your own `sudo modprobe nvidia_uvm`, or reboot it",
    ),
    (
        r"NVIDIA-SMI has failed because|(?m:^No devices were found$)|NVML: Driver Not Loaded",
        "the NVIDIA driver does not run, as after an upgrade of the kernel: run `cloudtrain up`,"
        " which mends it on rented nodes, or install it for the running kernel",
    ),
    (
        r"JIT_COMPILER_NOT_FOUND|JIT compiler library not found",
        "libnvidia-ptxjitcompiler of the driver is missing or has another version: install all of"
        " the driver's packages in one version",
    ),
    (
        r"JIT_COMPILATION_DISABLED|JIT compilation was disabled",
        "unset CUDA_DISABLE_PTX_JIT: TensorFlow's code for this GPU has to be compiled",
    ),
    (r"could not select device driver|nvidia-container-cli: |NVML: Unknown Error", _CONTAINER),
    # ── code for the GPU ──
    (
        r"CUDA_ERROR_INVALID_PTX|CUDA_ERROR_NO_BINARY_FOR_GPU|PTX JIT compilation failed"
        r"|no kernel image is available|PTX version [\d.]+ does not support"
        r"|kernel image is invalid|CUDA_ERROR_INVALID_IMAGE|is not defined for option 'gpu-name'"
        r"|(?:CUDNN|CUBLAS)_STATUS_ARCH_MISMATCH",
        _OTHER_GPU,
    ),
    (
        r"CUDA_ERROR_INVALID_HANDLE",
        "TensorFlow has no code for this GPU (on Blackwell: use another `accelerator`), or its"
        f" driver is too old for it (H100, H200: {cuda.oldest_driver(_NEWEST, 'H100')} or newer,"
        f' or `setup.tensorflow: "{next(iter(cuda.needed("H100")))}"`)',
    ),
    (
        r"no supported kernel for GPU devices",
        "this TensorFlow has no such operation on GPUs: if it is a CPU build that your"
        " requirements brought (`pip list`), leave it to `setup.tensorflow`; else place the"
        " operation on the CPU, or call `tf.config.set_soft_device_placement(True)`",
    ),
    (
        r"GPU:\d+ unknown device|[Ii]nvalid device ordinal|CUDA_ERROR_INVALID_DEVICE\b"
        r"|assigned to /\S*(?:GPU|gpu):\d+ but available devices"
        r"|devices matching that specification are registered",
        _FEWER,
    ),
    (
        r"CUDA_ERROR_NOT_INITIALIZED|initialize CUDA in forked|cudaErrorInitializationError",
        "a process was forked after TensorFlow had begun to use the GPU: call"
        " `multiprocessing.set_start_method('spawn')` first, or start the workers before"
        " TensorFlow",
    ),
    (
        # https://github.com/aws/deep-learning-containers/pull/6418: 2.21 with cuDNN 9.5
        r"Autotuner could not find any supported configs",
        "this cuDNN does not support this TensorFlow: remove nvidia-cudnn from"
        ' `setup.packages`; on GPUs before Turing (V100, P100, P4) set `setup.tensorflow: "2.19"`',
    ),
    (
        r"libdevice not found|libdevice\.10\.bc",
        "XLA cannot find CUDA's libdevice: add `nvidia-cuda-nvcc-cu12` to `setup.packages`, or"
        " set XLA_FLAGS=--xla_gpu_cuda_data_dir=… in `train.env` to its folder",
    ),
    (
        r"[Pp]txas|No PTX compilation provider",
        "XLA cannot compile for the GPU: add `nvidia-cuda-nvcc-cu12` for this TensorFlow's"
        " CUDA to `setup.packages`, or set XLA_FLAGS=--xla_gpu_cuda_data_dir=… to its folder",
    ),
    # ── collectives ──
    (
        r"Duplicate GPU detected",
        "two ranks use the same GPU: start as many as the node has, and have each use its own"
        " (`tf.config.set_visible_devices` with Horovod's `local_rank()`)",
    ),
    (
        r"/dev/shm/nccl|posix_fallocate failed|shared memory segment nccl",
        "NCCL has too little shared memory: give the container more (`--shm-size=1g`), empty"
        " /dev/shm, or set `train.env: {{NCCL_SHM_DISABLE: 1}}`",
    ),
    (
        r"peer access is not supported|peer access is already|TOO_MANY_PEERS|peer mapping",
        "these GPUs cannot read each other's memory: set `train.env: {{NCCL_P2P_DISABLE: 1}}`, or"
        " use fewer of them",
    ),
    (
        r"NCCL[\s\S]{0,200}unhandled|unhandled (?:system|cuda) error|ncclCommInitRank"
        r"|nccl(?:System|Internal|Remote|InvalidUsage|UnhandledCuda)(?:Error)?\b"
        r"|NCCL WARN (?:Net|Call to|Cuda|socket)|ibv_\w+ failed|no socket interface found",
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
    # ── the GPU itself ──
    (
        r"system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY|802 system error",
        "the machine's NVSwitches wait for the fabric manager: run `cloudtrain exec NAME --"
        " sudo systemctl restart nvidia-fabricmanager`, or recreate the node",
    ),
    (
        r"devices are busy or unavailable|CUDA_ERROR_DEVICE_UNAVAILABLE",
        "another process is using the GPU: `cloudtrain exec NAME -- nvidia-smi` shows which",
    ),
    (
        r"illegal memory access|unspecified launch failure|illegal instruction was encountered"
        r"|misaligned address|hardware stack error|launch timed out and was terminated"
        r"|CUDA_ERROR_(?:ILLEGAL_\w+|LAUNCH_(?:FAILED|TIMEOUT)|MISALIGNED_ADDRESS|CONTAINED"
        r"|HARDWARE_STACK_ERROR|INVALID_PC|ECC\w*|NVLINK\w*)"
        r"|\bXid\b|(?i:uncorrectable (?:ECC|NVLink))",
        _SICK,
    ),
    (
        r"Dst tensor is not initialized",
        "the GPU's memory was full when data was copied to it: use a smaller batch, or a GPU"
        " with more memory",
    ),
    (
        r"DNN library is not found|DNN library initialization failed|CUDNN_STATUS_\w+"
        r"|Could not create cudnn handle|cuDNN failed to initialize|matching major version"
        r"|CUBLAS_STATUS_\w+|without (?:BLAS|DNN) support",
        "cuDNN or cuBLAS cannot start: `setup.packages` has a version other than this TensorFlow"
        " needs, it no longer supports the GPU (before Turing), or another process uses its"
        " memory",
    ),
    (
        r"(libcud(?:art|nn)|libcu(?:blas|fft|rand|solver|sparse)|libnccl|libnvinfer)\S*: cannot"
        r" open shared object file",
        "CUDA's `{0}` is missing: `setup.tensorflow` from 2.11 on installs it; otherwise add"
        " it to `setup.packages`",
    ),
)
"""Pattern and hint, as in `hints`; `{0}` is the pattern's first group. The first match counts."""
