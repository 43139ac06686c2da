"""Shell functions that bring a program of node/ along, for scripts.ENVIRONMENT and others."""

from __future__ import annotations

from cloudtrain.core.ship import text

# ── a TensorFlow that is newer than this version's table ───────────────────────


ASK = f"""\
# ask_index CANDIDATE…: asks for $asked (version, package, companions); sets $first and $last to
# Pythons with wheels, $without to the requirements in the place of companions that the index
# lacks. Any Python that makes environments brings the pip that asks.
ask_index() {{
    own_first=$first own_last=$last first=3.7 last=3.99
    search "$@" python3
    if [ -z "$python" ] && [ -n "$unable" ] && debian_install "$package"; then
        search "$@" python3
    fi
    first=$own_first last=$own_last
    [ -n "$python" ] || return 0
    rm -rf "$folder.index"
    "$python" -m venv "$folder.index" </dev/null
    set -- $asked
    version=$1
    shift
    echo "TensorFlow $version is newer than the table: asking the package index"
    answer=$folder.index/answer
    if "$folder.index/bin/python" -I - "$version" "$first" "$last" "$@" >"$answer" <<'END'
{text("newer_release.py")}END
    then
        pythons=$(sed -n 1p "$answer")
        without=$(sed -n 's/^without //p' "$answer")
        rm -rf "$folder.index"
    else
        rm -rf "$folder.index"
        exit 1
    fi
    last=${{pythons%% *}} first=${{pythons##* }}
    echo "it has wheels for Python $pythons"
    case " $without " in
        *tf-keras*)
            echo "the package index has no tf-keras of TensorFlow $version, which this needs" >&2
            echo "hint: set setup.keras or an earlier setup.tensorflow" >&2
            exit 1;;
    esac
}}
"""
"""Uses the functions and variables of scripts.ENVIRONMENT."""

TOLD = """\
if [ -n "$asked" ]; then
    "$folder/bin/python" -m pip freeze --disable-pip-version-check </dev/null 2>/dev/null |
        grep -iE '^(tensorflow|keras|tf.keras|numpy|protobuf|nvidia)' | tr '\\n' ' '
    echo
fi
"""
"""Shows what pip chose without bounds of ours."""


# ── Pythons that uv no longer has: from conda-forge, by micromamba ─────────────


MICROMAMBA = "2.3.3-0"
MICROMAMBA_URL = (
    "https://github.com/mamba-org/micromamba-releases/releases/download/"
    f"{MICROMAMBA}/micromamba-linux-64"
)
"""One static program (mamba.readthedocs.io, "Micromamba Installation", read 2026-11-22)."""
MICROMAMBA_SHA256 = "9496f94a8b78c536573c93d946ec9bba74bd9ff79ee55aaa4b546e30db8f511b"
"""As github.com/cashapp/hermit-packages (micromamba.hcl) and others have pinned it, 2026-11-22."""

# uv removed 3.7 in April 2025 (github.com/astral-sh/uv/pull/13022); uv 0.13.9 lists 3.8 as the
# oldest (run on 2026-11-22). conda-forge builds nothing new for 3.7 since October 2022
# (conda-forge.org/news/2022/08/24/dropping-python-37), but keeps what it has published
# (conda-forge.org/docs/how-to/emergencies/remove-broken-packages). Not run against conda-forge.
#
# Everything stays in the cache: its HOME too, where micromamba would write .conda.
CONDA_PYTHON = f"""\
conda_python() {{  # Python $1
    case $(uname -s)-$(uname -m) in
        Linux-x86_64) ;;
        *)
            echo "conda-forge's Python $1 is for Linux on x86-64, this is $(uname -m)" >&2
            return 1;;
    esac
    home=$(cd "$(dirname "$folder")" && pwd)/micromamba
    prefix=$home/python$1
    mkdir -p "$home"
    if command -v flock >/dev/null 2>&1; then
        exec 8>"$home/lock"
        flock 8
    fi
    if [ ! -e "$prefix/.complete" ] || [ -z "$(version "$prefix/bin/python")" ]; then
        echo "Python $1 from conda-forge, by micromamba {MICROMAMBA}"
        [ -x "$home/micromamba" ] ||
            python3 -I - '{MICROMAMBA_URL}' '{MICROMAMBA_SHA256}' "$home/micromamba" \\
                <<'END' || return 1
{text("fetch.py")}END
        rm -rf "$prefix"
        HOME=$home MAMBA_ROOT_PREFIX=$home/root "$home/micromamba" create --yes --quiet --no-rc \\
            --prefix "$prefix" --override-channels --channel conda-forge "python=$1" pip \\
            </dev/null || return 1
        rm -rf "$home/root/pkgs"  # downloads
        : >"$prefix/.complete"
    fi
    search "$prefix/bin/python"
}}
"""


# ── CUDA's libraries in an environment (node/cuda_links.py) ────────────────────


LINK = f"""\
link_cuda() {{  # in the environment $1
    "$1/bin/python" -I - <<'END'
{text("cuda_links.py")}END
}}
"""
