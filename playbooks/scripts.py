"""POSIX sh scripts that the playbooks run on a node; their arguments are `$1`, `$2`, …. A script
that fails may end with a line `hint: …`, which becomes the error's hint."""

from __future__ import annotations

from cloudtrain.playbooks import installer, package_index
from cloudtrain.playbooks.sh_functions import ASK, CONDA_PYTHON, LINK, TOLD

DEBIAN = """\
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}
# sudo passes no variables on. Changed config files are kept; Ubuntu's needrestart asks nothing.
quietly() {
    as_root env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 LC_ALL=C "$@" </dev/null
}
apt_get() {
    quietly apt-get -q -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 \\
        -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold "$@"
}
# No timeout covers the lock of the lists: github.com/ipspace/netlab/pull/2473 and
# github.com/ChainSafe/forest-iac/pull/290, whose logs show both. $apt_says keeps the failure.
apt_update() {
    for hold in 5 10 15 30 60 60 60 60 0; do
        apt_says=$(apt_get update 2>&1) && { apt_says=; return; }
        case $apt_says in *lists/lock*) ;; *) hold=0;; esac
        [ "$hold" = 0 ] || { echo "another apt-get is at work: waiting $hold s"; sleep "$hold"; }
        [ "$hold" != 0 ] || break
    done
    apt_says="apt-get update failed: $(echo "$apt_says" | grep -E '^[EW]:' | tail -n 1)"
    echo "$apt_says" >&2
    return 1
}
# Repairs what a killed dpkg left: apt's own --fix-broken skips packages that need a reinstallation.
debian_repair() {
    quietly dpkg --configure -a
    halves=$(dpkg-query -W -f '${db:Status-Eflag} ${Package}\\n' | sed -n 's/^reinstreq //p')
    [ -z "$halves" ] || { apt_update && apt_get install --reinstall $halves; }
    apt_get --fix-broken install
}
# A mirror may fail for a while.
debian_install() {
    [ -n "$1" ] && command -v apt-get >/dev/null 2>&1 && as_root true 2>/dev/null || return 1
    echo "apt-get install $*"
    for pause in 5 20 0; do
        debian_repair || true
        apt_update && apt_get install "$@" && return
        [ "$pause" = 0 ] || { echo "apt-get failed: retrying in $pause s"; sleep "$pause"; }
    done
    return 1
}
"""
"""Functions for apt-get as root, without questions: waits for locks, repairs interrupted work."""

MISSING = """\
missing() {
    for package in "$@"; do
        case $package in
            ca-certificates) test -s /etc/ssl/certs/ca-certificates.crt;;
            procps) command -v pgrep;;
            python3-venv) python3 -c 'import ensurepip, venv';;
            openmpi-bin) command -v mpirun;;
            libopenmpi-dev) command -v mpicxx;;
            *) command -v "$package";;
        esac </dev/null >/dev/null 2>&1 || printf ' %s' "$package"
    done
}
"""
"""Prints those of these packages that the node lacks."""

INSTALL_MISSING = """\
wanted=$(missing "$@")
[ -n "$wanted" ] || exit 0
debian_install $wanted && exit 0
echo "the node lacks$wanted, and apt-get as root could not install it" >&2
echo "hint: use an image of Ubuntu or Debian that can reach its package mirror" \\
    "(with network.private: through NAT), or one that has them" >&2
exit 1
"""

CHANGED = """\
# changed ENVIRONMENT: its first file that was added, removed or written since it was sealed. Python
# itself writes into __pycache__. 0.1 s for a TensorFlow (25,000 files, 2026-11-22).
changed() {
    find "$1/lib" "$1/bin" -name __pycache__ -prune -o \\
        \\( -type f -o -type l -o -name site-packages \\) -cnewer "$1/.sealed" -print -quit \\
        2>/dev/null || true
}
"""
"""Shell function: many clusters share an environment, and none of their tasks may change it."""

SEAL = '[ ! -e "$environment/.sealed" ] || : >"$environment/.sealed"\n'
"""After a step that changes an environment on purpose."""

TURN = """\
mkdir -p "$(dirname "$folder")"
venvs=$(cd "$(dirname "$folder")" && pwd)
if command -v flock >/dev/null 2>&1; then
    exec 9>"$folder.lock"
    flock -n 9 || { echo "waiting for another process on this host to create it"; flock 9; }
fi
# Environments of earlier versions were not sealed: what pip installed later is newer.
changed_unsealed() {
    marker=$folder/.complete
    [ ! -e "$folder/.horovod-built" ] || marker=$folder/.horovod-built
    find "$folder"/lib/python3*/site-packages -maxdepth 1 ! -name __pycache__ -newer "$marker" \\
        -print -quit 2>/dev/null || true
}
if test -f "$folder/.complete" && fits &&
    "$folder/bin/python" -I -c 'import pip' 2>/dev/null </dev/null
then
    if [ -e "$folder/.sealed" ]; then file=$(changed "$folder"); else file=$(changed_unsealed); fi
    if [ -z "$file" ]; then
        [ -e "$folder/.sealed" ] || : >"$folder/.sealed"
        exit 0
    fi
    users=$(grep -lsF "$(cd "$folder" && pwd -P)/lib/" /proc/[0-9]*/maps | sed 's/[^0-9]*//g')
    echo "the environment was changed after it was created: $file"
    if [ -n "$users" ]; then
        echo "it cannot be created again while these processes use it:" $users >&2
        echo 'hint: end them (`cloudtrain stop-run`), then run this again; a task may install' \\
            'into its own environment ($VIRTUAL_ENV), which ends with its run' >&2
        exit 1
    fi
fi
"""
"""Waits for others that create $folder; ends if it is there, `fits` and unchanged. Sets $venvs."""

ENVIRONMENT_THERE = (
    CHANGED
    + """\
test -f "$1/.complete" && test -f "$1/.sealed" && test -z "$(changed "$1")" &&
    exec "$1/bin/python" -I -c 'import pip'
"""
)
"""Check of an environment: pip is missing if its Python was upgraded away."""

INSTALL = """\
cache= uv_cache= uv_options=
[ ! -e "$folder/pip/compile.txt" ] || uv_options=--compile-bytecode
if [ -e "$folder/pip/no-cache.txt" ]; then
    cache=--no-cache-dir uv_cache=$venvs/.${folder##*/}.uv-cache
    rm -rf "$uv_cache"
fi
pins='check `setup.packages` and `setup.requirements`: an old pin may have no wheel for this'
pins="$pins Python, or be incompatible with this TensorFlow"
install() {
    install_packages "$folder/bin/python" "$pins" "$@"
}
"""
"""Sets what `install PYTHON-ARGUMENTS…` needs, by the files in $folder/pip."""

ENVIRONMENT = (
    DEBIAN
    + installer.PIP
    + installer.UV
    + LINK
    + CHANGED
    + """\
set -eu
folder=$1 first=$2 last=$3 package=$4 asked=$5
shift 5

version() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' </dev/null 2>/dev/null
}
fits() { :; }
suits() {
    "$1" -c 'import sys
first, last = [tuple(map(int, text.split("."))) for text in sys.argv[1:]]
sys.exit(not first <= sys.version_info[:len(first)] <= last)' "$first" "$last" \\
        </dev/null 2>/dev/null
}
# A name in PATH may be a pyenv shim, which only points to the real one.
places() {
    case $1 in
        "~/"*) echo "$HOME/${1#??}"; return;;
        */*) echo "$1"; return;;
    esac
    command -v "$1" || return 0
    for root in "$(command -v "$1" | sed -n 's|/shims/[^/]*$||p')" "$HOME/.pyenv"; do
        for place in "$root"/versions/*/bin/"$1"; do
            [ ! -x "$place" ] || echo "$place"
        done
    done
}
search() {
    python= unable= found=
    for name in "$@"; do
        list=$(places "$name")
        while IFS= read -r place; do
            [ -n "$place" ] && version=$(version "$place") || continue
            case " $found " in *" $version "*) ;; *) found="$found $version";; esac
            suits "$place" || continue
            if "$place" -c 'import ensurepip, venv' </dev/null 2>/dev/null; then
                python=$place
                return
            fi
            unable=$place
        done <<END
$list
END
    done
}

"""
    + TURN
    + """\
# A Python of uv's own, beside the environments; uv itself comes from the package index.
uv_python() {
    find_uv python3 "$venvs/uv"
    [ -n "$uv" ] || return 1
    export UV_PYTHON_INSTALL_DIR="$venvs/uv/pythons" UV_PYTHON_PREFERENCE=only-managed
    echo "Python $1 from uv"
    "$uv" python install --no-bin --no-progress "$1" </dev/null || return 1
    search "$("$uv" python find "$1" </dev/null)"
    unset UV_PYTHON_INSTALL_DIR UV_PYTHON_PREFERENCE
}

"""
    + CONDA_PYTHON
    + ASK
    + """
without=
if [ -n "$asked" ]; then
    ask_index "$@"
fi
search "$@"
if [ -z "$python" ] && [ -n "$unable" ] && debian_install "$package"; then
    search "$@"
fi
if [ -z "$python" ] && [ -n "$package" ]; then
    makes_venvs() {
        python3 -c 'import ensurepip, venv' </dev/null 2>/dev/null
    }
    case $last in
        3.[5-7] | 3.[5-7].*)
            conda_python "$last" || echo "micromamba could not install Python $last" >&2;;
        *)
            makes_venvs || ! debian_install python3-venv || search "$@"
            if [ -z "$python" ] && makes_venvs; then
                uv_python "$last" || echo "uv could not install Python $last" >&2
            fi;;
    esac
fi
if [ -z "$python" ]; then
    wanted="Python $first to $last"
    [ "$first" != "$last" ] || wanted="Python $first"
    case $1 in */*) wanted="$wanted at $1";; esac
    if [ -n "$unable" ]; then
        echo "$unable cannot create virtual environments: its module ensurepip is missing" >&2
        echo "hint: install it on the node: sudo apt-get install python3-venv" >&2
    else
        echo "no $wanted on the node; it has:${found:- none}" >&2
        echo "hint: install one there, or set another setup.python or setup.tensorflow" >&2
    fi
    exit 1
fi

rm -rf "$folder"
echo "virtual environment with $python"
find_uv "$python" "$venvs/uv"
create_environment "$python" "$folder"
mkdir "$folder/pip"
tar -xf - -C "$folder/pip"
for earlier in $without; do
    sed "s/^${earlier%%<*}==.*/$earlier/" "$folder/pip/install.txt" >"$folder/pip/install.new"
    mv "$folder/pip/install.new" "$folder/pip/install.txt"
done
"""
    + INSTALL
    + """\
# First, so that later packages keep them, unless one needs other versions.
if [ -s "$folder/pip/cuda.txt" ]; then
    echo "install of CUDA's libraries"
    install -r "$folder/pip/cuda.txt" -c "$folder/pip/constraints.txt"
fi
if [ -s "$folder/pip/install.txt" ]; then
    echo "install"
    install -r "$folder/pip/install.txt" -c "$folder/pip/constraints.txt"
fi
if [ -s "$folder/pip/install-alone.txt" ]; then
    install --no-deps -r "$folder/pip/install-alone.txt"
fi
link_cuda "$folder" || true
[ -z "$uv_cache" ] || rm -rf "$uv_cache"
"""
    + TOLD
    + """\
rm -f "$folder/.lock" "$folder/.gitignore"  # uv's
for place in "$folder"/lib/python3*/site-packages; do
    mkdir -p "$place/__pycache__"  # Python would, and change the folder
done
: >"$folder/.sealed"
: >"$folder/.complete.new"
mv "$folder/.complete.new" "$folder/.complete"
"""
)

BELOW = """\
# versions ENVIRONMENT: a sum of the packages that it has.
versions() {
    ls "$1"/lib/python3*/site-packages | LC_ALL=C sort | grep '[.]dist-info$' | cksum
}
"""

LAYER_THERE = (
    CHANGED
    + BELOW
    + """\
test -f "$1/.complete" && test -f "$1/.sealed" && test -z "$(changed "$1")" &&
    test "$(versions "$2")" = "$(cat "$1/below")" && exec "$1/bin/python" -I -c 'import pip'
"""
)
"""Check of a layer: it is made anew where the environment below has other packages by now."""

LAYER = (
    installer.PIP
    + installer.UV
    + LINK
    + CHANGED
    + BELOW
    + package_index.OWN_INDEX
    + """\
set -eu
own_index "$1" "$2"
folder=$3 below=$4 start=$5 layer=$6
version() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' </dev/null 2>/dev/null
}
fits() {
    [ "$(versions "$below")" = "$(cat "$folder/below" 2>/dev/null)" ]
}
"""
    + TURN
    + """\
folder=$venvs/${folder##*/}
case $below in /*) ;; *) below=$PWD/$below;; esac
rm -rf "$folder"
find_uv "$below/bin/python" "$venvs/uv"
/bin/sh -c "$start" sh "$layer" "$folder" "$below" </dev/null
mkdir "$folder/pip"
tar -xf - -C "$folder/pip"
"""
    + INSTALL
    + """\
# The user's own lines in files of their own, from their folder: pip names them as the user does.
file= apart=
if [ -e "$folder/pip/own-file.txt" ]; then
    { read -r file; read -r apart; } <"$folder/pip/own-file.txt"
fi
bounds="-c ../constraints.txt"
install_own() {
    folder=$(cd "$folder" && pwd)
    cd "$folder/pip/own"
    install "$@" $bounds
    cd - >/dev/null
}
set --
[ -z "$file" ] || [ -n "$apart" ] || set -- -r "$file"
[ ! -e "$folder/pip/own/setup.packages" ] || set -- -r setup.packages "$@"
base="-r ../below.txt"
[ ! -s "$folder/pip/install.txt" ] || set -- -r ../install.txt "$@"
if [ $# -gt 0 ]; then
    echo "install"
    install_own $base "$@"
fi
# With an index of its own, which may lack TensorFlow: what is installed is found without one.
# With hashes, which each line that comes along would need.
case $apart in
    index) echo "install -r $file"; install_own $base -r "$file";;
    hashes)
        echo "install -r $file"
        uv_options="$uv_options --require-hashes" bounds=  # each line there has its version
        install_own -r "$file";;
esac
link_cuda "$folder" || true
[ -z "$uv_cache" ] || rm -rf "$uv_cache"
versions "$below" >"$folder/below"
rm -f "$folder/.lock" "$folder/.gitignore"  # uv's
for place in "$folder"/lib/python3*/site-packages; do
    mkdir -p "$place/__pycache__"  # Python would, and change the folder
done
: >"$folder/.sealed"
: >"$folder/.complete.new"
mv "$folder/.complete.new" "$folder/.complete"
"""
)

OWN_LINE_DONE = SEAL + ': >"$done"\n'
"""After node/setup_line.sh."""

CODE_THERE = """test -f "$1.complete" && test -d "$1\""""

GIT = (
    DEBIAN
    + """\
set -eu
folder=$1 url=$2 commit=$3 package=$4 pointers=$5
export GIT_TERMINAL_PROMPT=0
export GIT_ALLOW_PROTOCOL="${GIT_ALLOW_PROTOCOL:-https:http:ssh:git:file}"
export GIT_SSH_COMMAND="${GIT_SSH_COMMAND:-ssh -o BatchMode=yes}"
export GIT_LFS_SKIP_SMUDGE=1  # a checkout would fetch them one by one, from a remote not yet set
if ! command -v git >/dev/null 2>&1 && ! debian_install "$package"; then
    echo "git is not installed on the node" >&2
    echo "hint: install it there, or set code.path to a local checkout" >&2
    exit 1
fi
# Hooks and templates that are configured here must not interfere.
git() {
    command git -c core.hooksPath=/dev/null -c init.templateDir= -c advice.detachedHead=false "$@"
}
rm -rf "$folder" "$folder.new" "$folder.complete"
mkdir -p "$folder.new"
git init -q "$folder.new"
cd "$folder.new"
# A server may refuse a commit that no branch or tag points to; some do not support --depth.
if ! git fetch -q --depth 1 --no-tags "$url" "$commit" 2>/dev/null; then
    echo "git fetch of all branches"
    git fetch -q --tags "$url" '+refs/heads/*:refs/remotes/origin/*' || {
        echo "hint: can $url be reached from there? If not, set code.path to a local checkout" >&2
        exit 1
    }
fi
git checkout -q "$commit" -- 2>&1 || {
    echo "hint: is the commit pushed to $url?" >&2
    exit 1
}
git remote add origin "$url"
if [ -f .gitmodules ]; then
    git submodule --quiet update --init --recursive --depth 1 ||
        git submodule --quiet update --init --recursive
fi
# Until then, files in Git LFS are pointers of three lines.
kept_in_lfs='[ -z "$(git ls-files ":(attr:filter=lfs)")" ] || pwd'
places=$(eval "$kept_in_lfs"; git submodule --quiet foreach --recursive "$kept_in_lfs")
if [ -n "$places" ] && [ -z "$pointers" ]; then
    git lfs version >/dev/null 2>&1 || debian_install "${package:+git-lfs}" || {
        echo "some files of this repository are in Git LFS, but git-lfs is not installed" >&2
        echo "hint: install it, or run cloudtrain with GIT_LFS_SKIP_SMUDGE=1 to skip them" >&2
        exit 1
    }
    echo "git lfs pull"
    # `git lfs install` would persist this, and git would fail if git-lfs is missing later.
    pull() {
        git -c filter.lfs.smudge='git-lfs smudge -- %f' -c filter.lfs.clean='git-lfs clean -- %f' \\
            -c filter.lfs.process='git-lfs filter-process' -c filter.lfs.required=true lfs pull
    }
    echo "$places" | while IFS= read -r place; do
        (cd "$place" && pull </dev/null && rm -rf "$(git rev-parse --git-dir)/lfs") || exit
    done
fi
cd - >/dev/null
mv "$folder.new" "$folder"
: >"$folder.complete"
"""
)

FOLDER = """\
set -eu
folder=$1
rm -rf "$folder" "$folder.new" "$folder.complete"
mkdir -p "$folder.new"
tar --no-same-owner -xpf - -C "$folder.new"
# tar accepts a stream that is cut between two files: the marker comes last in it.
if ! test -f "$folder.new/complete"; then
    echo "the stream of files ended early" >&2
    exit 1
fi
mv "$folder.new/code" "$folder"
mv "$folder.new/complete" "$folder.complete"
rmdir "$folder.new"
"""
