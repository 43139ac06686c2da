"""The `horovod` playbook: builds Horovod on the node for its TensorFlow and checks the result."""

from __future__ import annotations

from functools import partial

from cloudtrain.catalog import cuda
from cloudtrain.core import paths
from cloudtrain.core.cloud import is_cloud
from cloudtrain.core.model import ClusterConfig, Node, Problem
from cloudtrain.core.shell import Step, command, script
from cloudtrain.playbooks import nvidia, scripts, tensorflow, tensorflow_releases
from cloudtrain.training.horovod import LIBRARY
from cloudtrain.training.strategies import strategy_of

TOOLS = ("g++", "make", "cmake", "openmpi-bin", "libopenmpi-dev")
"""Debian packages that it is built with."""


def steps(config: ClusterConfig, node: Node) -> tuple[Step, ...]:
    """Steps after the `tensorflow` playbook; without `setup.tensorflow` only a check."""
    if strategy_of(config).library is not LIBRARY:
        return ()
    folder = tensorflow.bin_folder(config, node)
    environment = folder.removesuffix("/bin") if folder else ""
    if config.setup.tensorflow is None:
        return (_check(environment, f"{paths.cluster_folder(config.name)}/setup/horovod"),)
    gpus = nvidia.wanted(config, node)
    built = f"{environment}/.horovod-built"
    look = _BUILT + scripts.MISSING
    tools = Step(
        name="Horovod's compiler and Open MPI",
        run=script(scripts.DEBIAN + look + "set -eu\n" + scripts.INSTALL_MISSING, built, *TOOLS),
        unless=script(look + _TOOLS_THERE, built, *TOOLS),
    )
    return (
        *((tools,) if is_cloud(config.provider) else ()),
        Step(
            name=f"Horovod {LIBRARY.version}",
            run=script(
                _BUILD,
                environment,
                f"{node.cache}/wheels",
                LIBRARY.version,
                str(gpus.count if gpus else 0),
                _ABOUT,
                built,
                nvidia.ROOT,
                cuda.toolkit(config.setup.tensorflow).cuda,
            ),
            unless=command("test", "-e", built),
            once_per_host=True,
        ),
        _check(environment, f"{environment}/.horovod-checked"),
    )


def problems(config: ClusterConfig) -> tuple[Problem, ...]:
    """Combinations that Horovod cannot be built with, found before anything is created."""
    version = config.setup.tensorflow
    if strategy_of(config).library is not LIBRARY or version is None:
        return ()
    found = partial(Problem, file=config.source, line=None)
    try:
        number = tensorflow_releases.release(version)
    except ValueError:
        return ()  # the tensorflow playbook reports it
    first, last = LIBRARY.tensorflow
    wrong: list[Problem] = []
    if not first <= number <= last:
        text = (
            f"Horovod {LIBRARY.version}, its last release, builds with TensorFlow "
            f"{first[0]}.{first[1]} to {last[0]}.{last[1]}, not with {version}: "
            f'set `tensorflow: "{LIBRARY.advised}"`'
        )
        wrong.append(found(field="setup.tensorflow", text=text))
    if config.setup.keras == "3":
        text = f"Horovod {LIBRARY.version} cannot train with Keras 3: set `keras: auto`"
        wrong.append(found(field="setup.keras", text=text))
    return tuple(wrong)


def _check(environment: str, checked: str) -> Step:
    """Check of the build, once: it starts a Python per feature, which takes half a minute."""
    return Step(
        name="horovodrun --check-build",
        run=script(_CHECK, environment, checked),
        unless=command("test", "-e", checked),
        once_per_host=True,
    )


# Once it is built, its tools are no longer needed.
_BUILT = """\
built=$1
shift
"""
_TOOLS_THERE = '[ -e "$built" ] || [ -z "$(missing "$@")" ]\n'

_ABOUT = """\
import sys
from importlib.metadata import PackageNotFoundError, version
for name in ("tensorflow_cpu", "tensorflow"):
    try:
        print("tf%s-cp%d%d" % (version(name), *sys.version_info[:2]))
        break
    except PackageNotFoundError:
        pass
"""
"""Prints what the wheel is built for: it links to this TensorFlow's own library."""

# The wheel stays in the node's cache for other environments with the same TensorFlow. pip's own
# cache would also use it for another TensorFlow.
# CMake 4 reads the files of Horovod's gloo only with CMAKE_POLICY_VERSION_MINIMUM. A compiler takes
# up to 1 GB, and Horovod's own setup starts eight of them.
_BUILD = (
    """\
set -eu
environment=$1 wheels=$2 version=$3 gpus=$4 about=$5 built=$6 root=$7 toolkit=$8
python=$environment/bin/python

if command -v flock >/dev/null 2>&1; then
    mkdir -p "$wheels"
    exec 9>"$wheels/horovod.lock"
    flock -n 9 || { echo "waiting for another process on this host to build it"; flock 9; }
    [ ! -e "$built" ] || exit 0
fi

key=$version-$("$python" -I -c "$about" </dev/null)
unset HOROVOD_GPU_OPERATIONS HOROVOD_WITH_MPI
export HOROVOD_WITHOUT_MPI=1
if command -v mpicxx >/dev/null 2>&1; then
    unset HOROVOD_WITHOUT_MPI
    export HOROVOD_WITH_MPI=1
    key=$key-mpi$(mpirun --version 2>/dev/null </dev/null | sed -n '1s/.*[^0-9.]//p')
fi
if [ "$gpus" != 0 ]; then
    # An image has several, and /usr/local/cuda may be newer than TensorFlow's: the same major
    # version is compatible, the same minor one the best.
    own=$(command -v nvcc || true)
    for cuda in "$root/usr/local/cuda-$toolkit" "${own%/bin/nvcc}" "$root/usr/local/cuda" \\
        "$root/usr/local/cuda-${toolkit%.*}".*; do
        release=$("$cuda/bin/nvcc" --version 2>/dev/null </dev/null |
            sed -n 's/.* release \\([0-9]*\\)[.].*/\\1/p') || true
        [ "$release" != "${toolkit%.*}" ] || break
    done
    for nccl in "$root/usr" "$cuda" "$root/usr/local/nccl2" none; do
        [ ! -e "$nccl/include/nccl.h" ] || break
    done
    if [ "$release" = "${toolkit%.*}" ] && [ "$nccl" != none ]; then
        export HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_CUDA_HOME="$cuda" HOROVOD_NCCL_HOME="$nccl"
        key=$key-nccl-cuda$release
    else
        echo "no CUDA $toolkit with NCCL on this node: gradients are summed on the CPU"
    fi
fi

folder=$wheels/horovod-$key
if [ ! -d "$folder" ]; then
    missing=
    for tool in g++ make cmake; do
        command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
    done
    if [ -n "$missing" ]; then
        echo "Horovod is built from source, and the node lacks$missing" >&2
        echo "hint: install it there: sudo apt-get install g++ make cmake" >&2
        exit 1
    fi
    jobs=$(awk -v cpus="$(nproc)" '/^MemAvailable/ {
        some = int($2 / 1500000); print some < 1 ? 1 : some < cpus ? some : cpus
    }' /proc/meminfo)
    echo "building it from source with $jobs compilers: some minutes, once"
    export MAKEFLAGS="-j$jobs" CMAKE_POLICY_VERSION_MINIMUM=3.5
    export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1
    export HOROVOD_WITH_GLOO=1
    rm -rf "$folder.new"
    "$python" -m pip wheel --no-input --disable-pip-version-check --progress-bar off --no-deps \\
        --no-cache-dir --no-build-isolation --no-binary horovod -w "$folder.new" \\
        "horovod==$version" </dev/null
    mv "$folder.new" "$folder"
fi
"$python" -m pip install -q --no-input --disable-pip-version-check --no-deps --force-reinstall \\
    --no-warn-script-location "$folder"/horovod-*.whl </dev/null
echo "${HOROVOD_GPU_OPERATIONS-}" >"$built"
"""
    + scripts.SEAL
)

# The program reports an extension that cannot be loaded only by omitting its X.
_CHECK = """\
set -eu
environment=$1 checked=$2
[ -z "$environment" ] || PATH=$environment/bin:$PATH
if ! command -v horovodrun >/dev/null 2>&1; then
    echo "no horovodrun on the node" >&2
    echo 'hint: set `setup.tensorflow: "2.15.1"`, and Horovod is built for it' >&2
    exit 1
fi
said=$(horovodrun --check-build </dev/null 2>&1) || { echo "$said" >&2; exit 1; }
echo "$said" | grep -F '[X]' || true
for needed in TensorFlow Gloo $(cat "$environment/.horovod-built" 2>/dev/null); do
    case $said in
        *"[X] $needed"*) ;;
        *)
            echo "this Horovod is built without $needed" >&2
            [ "$needed" != TensorFlow ] ||
                ${environment:+"$environment/bin/"}python3 -c 'import horovod.tensorflow' \\
                    </dev/null 2>&1 | tail -n 3 >&2
            exit 1;;
    esac
done
mkdir -p "$(dirname "$checked")"
: >"$checked"
"""
