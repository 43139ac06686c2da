"""Last step for a node with GPUs: TensorFlow itself must list as many as planned, and the driver be
new enough for its code."""

from __future__ import annotations

import json

from cloudtrain.catalog import cuda
from cloudtrain.core.model import ClusterConfig, Node
from cloudtrain.core.shell import Step, script
from cloudtrain.core.ship import text
from cloudtrain.playbooks import nvidia, scripts, tensorflow
from cloudtrain.playbooks.sh_functions import LINK


def steps(config: ClusterConfig, node: Node) -> tuple[Step, ...]:
    """The check, once per driver, environment and number of GPUs; none for a node without GPUs."""
    gpus, python = nvidia.wanted(config, node), tensorflow.bin_folder(config, node)
    if gpus is None or python is None or config.setup.tensorflow is None:
        return ()
    arguments = (python.removesuffix("/bin"), str(gpus.count))
    needed = json.dumps(cuda.needed(gpus.kind))
    return (
        Step(
            name=f"TensorFlow sees {gpus}",
            run=script(_CHECK, *arguments, text("gpus_seen.py"), needed),
            unless=script(_SEEN, *arguments),
            once_per_host=True,
        ),
    )


# WSL 2, gVisor and some containers have no /sys/module/nvidia. The folder is where WSL 2 has the
# driver's programs: https://learn.microsoft.com/windows/ai/directml/gpu-cuda-in-wsl
_STAMP = """\
environment=$1 count=$2
stamp=$environment/.sees-$count-gpus
driver() {
    PATH=$PATH:/usr/lib/wsl/lib nvidia-smi --query-gpu=driver_version --format=csv,noheader \\
        2>/dev/null </dev/null | sort -u | grep . || echo unknown
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
    "$python" -I -c "$1" "$count" "$2" </dev/null
}
code=0
words=$(sees "$3" "$4" 2>&1) || code=$?
case $code in
    0) ;;
    3)  # what setup.run installed has no links yet
        link_cuda "$environment"
        """
    + scripts.SEAL
    + """
        sees "$3" "$4" || exit 1;;
    *) echo "$words" >&2; exit 1;;
esac
driver >"$stamp.new"
mv "$stamp.new" "$stamp"
"""
)
