"""Last step for a node with GPUs: TensorFlow itself must list as many as planned."""

from __future__ import annotations

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
    arguments = (nvidia.ROOT, python.removesuffix("/bin"), str(gpus.count))
    return (
        Step(
            name=f"TensorFlow sees {gpus}",
            run=script(_CHECK, *arguments, text("gpus_seen.py")),
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
    3)  # what setup.run installed has no links yet
        link_cuda "$environment"
        """
    + scripts.SEAL
    + """
        sees "$4" || exit 1;;
    *) echo "$words" >&2; exit 1;;
esac
driver >"$stamp.new"
mv "$stamp.new" "$stamp"
"""
)
