"""The last step for a node with GPUs: TensorFlow itself sees as many as there should be."""

from __future__ import annotations

from cloudtrain.model import ClusterConfig, Node
from cloudtrain.playbooks import nvidia, tensorflow
from cloudtrain.shell import script
from cloudtrain.step import Step


def steps(config: ClusterConfig, node: Node) -> tuple[Step, ...]:
    """Nothing where no GPU should be. Proved once for a driver, an environment and a number."""
    gpus, python = nvidia.wanted(config, node), tensorflow.bin_folder(config, node)
    if gpus is None or python is None or config.setup.tensorflow is None:
        return ()
    environment = python.removesuffix("/bin")
    arguments = (nvidia.ROOT, environment, str(gpus.count))
    return (
        Step(
            name=f"TensorFlow sees {gpus}",
            run=script(_CHECK, *arguments, _SEES),
            unless=script(_SEEN, *arguments),
            once_per_host=True,
        ),
    )


_STAMP = """\
root=$1 environment=$2 count=$3
stamp=$environment/.sees-$count-gpus
driver() {
    cat "$root/sys/module/nvidia/version"
}
"""
_SEEN = _STAMP + """[ -e "$stamp" ] && [ "$(cat "$stamp")" = "$(driver)" ]\n"""

# TensorFlow looks for CUDA's libraries beside itself. Some releases do not look where pip puts
# them (before 2.14, and 2.16: https://github.com/tensorflow/tensorflow/issues/63362), and none
# before 2.14 finds libdevice, without which XLA, and Keras's optimizers with it, fail on a GPU.
_CHECK = (
    _STAMP
    + """\
set -eu
python=$environment/bin/python
rm -f "$stamp"
sees() {
    "$python" -I -c "$1" "$count" </dev/null
}
if ! words=$(sees "$4" 2>&1); then
    place=$("$python" -I -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
    [ -d "$place/nvidia" ] || { echo "$words" >&2; exit 1; }
    echo "linking CUDA's libraries to where TensorFlow looks for them"
    for library in "$place"/nvidia/*/lib/*.so*; do
        ln -sfn "../nvidia/${library#"$place/nvidia/"}" "$place/tensorflow/"
    done
    if [ -e "$place/nvidia/cuda_nvcc/nvvm/libdevice" ] && "$python" -I -c \\
        'import sys, importlib.metadata as m
sys.exit(tuple(map(int, m.version("tensorflow").split(".")[:2])) >= (2, 14))'; then
        echo "import os; os.environ.setdefault('XLA_FLAGS'," \\
            "'--xla_gpu_cuda_data_dir=$place/nvidia/cuda_nvcc')" >"$place/cloudtrain_xla.pth"
    fi
    sees "$4"
fi
driver >"$stamp.new"
mv "$stamp.new" "$stamp"
"""
)

# What TensorFlow tells of its libraries is on stderr, in C++, and goes into a file first.
_SEES = """\
import os, re, subprocess, sys, tempfile
wanted = int(sys.argv[1])
os.environ.update(TF_CPP_MIN_LOG_LEVEL="0", TF_CPP_VMODULE="dso_loader=1,gpu_device=1")
log = tempfile.TemporaryFile()
kept = os.dup(2)
os.dup2(log.fileno(), 2)
try:
    import tensorflow as tf
    found = len(tf.config.list_physical_devices("GPU"))
finally:
    os.dup2(kept, 2)
    log.seek(0)
    said = log.read().decode("utf-8", "replace").splitlines()
    if sys.exc_info()[0]:
        print("\\n".join(said[-10:]), file=sys.stderr)
if found == wanted:
    sys.exit(0)
HINTS = (
    ("driver version is insufficient", "the driver is too old for this TensorFlow's CUDA"),
    ("SYSTEM_NOT_READY|not yet init", "the NVSwitches need nvidia-fabricmanager: is it active?"),
    ("cuInit|cuda drivers|NO_DEVICE", "TensorFlow cannot use the driver: try `nvidia-smi` there"),
    ("libcudnn|cuDNN", "cuDNN is missing or of another version: look at nvidia-cudnn in "
     "setup.packages and setup.requirements"),
    ("dynamic library|dlopen|libcu", "libraries of CUDA are missing: `setup.tensorflow` from "
     "2.11 on brings them; an older one needs them in the image or from setup.run"),
)
telling = [
    re.sub(r"^.*?[IWEF]\\d* .*?\\S+:\\d+\\] *", "", line)
    for line in said
    if any(re.search(pattern, line) for pattern, _ in HINTS)
]
for line in list(dict.fromkeys(telling))[-6:]:
    print(line, file=sys.stderr)
print("TensorFlow %s sees %d of %d GPUs" % (tf.__version__, found, wanted), file=sys.stderr)
try:
    listed = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE).stdout.decode()
except OSError:
    listed = ""
hint = next((hint for p, hint in HINTS if any(re.search(p, line) for line in telling)), "")
if "MIG " in listed:
    hint = "the GPUs are cut into MIG devices, of which CUDA uses one: sudo nvidia-smi -mig 0"
elif found and not hint:
    hint = "is CUDA_VISIBLE_DEVICES set on the node?"
print("hint: " + (hint or "`nvidia-smi` on the node tells what the driver sees"), file=sys.stderr)
sys.exit(1)
"""
