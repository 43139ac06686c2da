"""A shell function that brings Pythons that uv no longer has: from conda-forge, by micromamba."""

from __future__ import annotations

from cloudtrain.core.ship import text

VERSION = "2.3.3-0"
URL = (
    "https://github.com/mamba-org/micromamba-releases/releases/download/"
    f"{VERSION}/micromamba-linux-64"
)
"""One static program (mamba.readthedocs.io, "Micromamba Installation", read 2026-11-22)."""
SHA256 = "9496f94a8b78c536573c93d946ec9bba74bd9ff79ee55aaa4b546e30db8f511b"
"""As github.com/cashapp/hermit-packages (micromamba.hcl) and others have pinned it, 2026-11-22."""

# uv removed 3.7 in April 2025 (github.com/astral-sh/uv/pull/13022); uv 0.13.9 lists 3.8 as the
# oldest (run on 2026-11-22). conda-forge builds nothing new for 3.7 since October 2022
# (conda-forge.org/news/2022/08/24/dropping-python-37), but keeps what it has published
# (conda-forge.org/docs/how-to/emergencies/remove-broken-packages). Not run against conda-forge.
#
# Everything stays in the cache: its HOME too, where micromamba would write .conda.
PYTHON = f"""\
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
        echo "Python $1 from conda-forge, by micromamba {VERSION}"
        [ -x "$home/micromamba" ] ||
            python3 -I - '{URL}' '{SHA256}' "$home/micromamba" <<'END' || return 1
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
