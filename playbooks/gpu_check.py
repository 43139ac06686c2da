"""Last step for a node with GPUs: TensorFlow itself must list as many as planned."""

from __future__ import annotations

from cloudtrain.model import ClusterConfig, Node
from cloudtrain.playbooks import nvidia, tensorflow
from cloudtrain.playbooks.cuda_links import LINK
from cloudtrain.shell import script
from cloudtrain.step import Step


def steps(config: ClusterConfig, node: Node) -> tuple[Step, ...]:
    """The check, once per driver, environment and number of GPUs; none for a node without GPUs."""
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

_CHECK = (
    _STAMP
    + LINK
    + """\
set -eu
python=$environment/bin/python
rm -f "$stamp"
sees() {
    "$python" -I -c "$1" "$count" </dev/null
}
code=0
words=$(sees "$4" 2>&1) || code=$?
case $code in
    0) ;;
    3) link_cuda "$environment"; sees "$4" || exit 1;;  # what setup.run installed has no links yet
    *) echo "$words" >&2; exit 1;;
esac
driver >"$stamp.new"
mv "$stamp.new" "$stamp"
"""
)

# What TensorFlow tells of its libraries is on stderr, in C++, and goes into a file first. Of those
# that it opened it tells too, and of TensorRT, which nothing here needs. Exit code 3: libraries of
# CUDA, not of the driver, could not be loaded.
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
said = [line for line in said if not re.search("Successfully opened|libnvinfer|TF-TRT", line)]
FEWER = (
    ("minimum required Cuda capability", "this TensorFlow has no code for that GPU: take another "
     "setup.tensorflow, or another accelerator"),
)
HINTS = FEWER + (
    ("driver version is insufficient", "the driver is too old for this TensorFlow's CUDA"),
    ("SYSTEM_NOT_READY|not yet init", "the NVSwitches need nvidia-fabricmanager: is it active?"),
    ("Could not load.*libnvidia-ml", "the driver's user part is incomplete: libnvidia-ml.so.1 is "
     "of the driver's package libnvidia-compute"),
    ("libcuda[.]so|cuInit|cuda drivers|NO_DEVICE", "TensorFlow cannot use the driver: try "
     "`nvidia-smi` there"),
    ("Could not load.*cudnn", "cuDNN is missing or of another version: look at nvidia-cudnn in "
     "setup.packages and setup.requirements"),
    ("Could not load|dlopen", "libraries of CUDA are missing: `setup.tensorflow` from "
     "2.11 on brings them; an older one needs them in the image or from setup.run"),
)
of_driver = re.compile("libcuda[.]so|libnvidia-ml")
missing = [l for l in said if "Could not load" in l and not of_driver.search(l)]
hints = FEWER if found else HINTS
telling = [
    re.sub(r"^.*?[IWEF]\\d* .*?\\S+:\\d+\\] *", "", line)
    for line in said
    if any(re.search(pattern, line) for pattern, _ in hints)
]
for line in list(dict.fromkeys(telling))[-6:]:
    print(line, file=sys.stderr)
print("TensorFlow %s sees %d of %d GPUs" % (tf.__version__, found, wanted), file=sys.stderr)
try:
    listed = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE).stdout.decode()
except OSError:
    listed = ""
number = len(re.findall("^GPU ", listed, re.M))
visible = os.environ.get("CUDA_VISIBLE_DEVICES")
hint = next((hint for p, hint in hints if any(re.search(p, line) for line in telling)), "")
if "MIG " in listed:
    hint = "the GPUs are cut into MIG devices, of which CUDA uses one: sudo nvidia-smi -mig 0"
elif found > wanted:
    hint = "nodes.ROLE.accelerator names fewer GPUs than the machine has"
elif visible is not None:
    hint = "CUDA_VISIBLE_DEVICES=%s is set on the node: unset it" % visible
elif 0 < number < wanted:
    hint = ("the driver lists %d GPUs of %d: `sudo dmesg | grep -E 'NVRM|Xid'` on the node tells "
            "why; a node with a broken GPU is best replaced" % (number, wanted))
print("hint: " + (hint or "`nvidia-smi` on the node tells what the driver sees"), file=sys.stderr)
sys.exit(3 if not found and (missing or not said) else 1)
"""
