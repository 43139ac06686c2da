"""Shell functions that install packages into an environment: with uv, and with pip where uv cannot.

uv takes a quarter of pip's time or less (bench/ready.md), with the same indexes, constraints and
files (node/pip_settings.py). pip is asked for whatever uv refuses, and its answer then counts:
users know its errors and search for them."""

from __future__ import annotations

from cloudtrain.core.ship import text

OLDEST = "0.5"
"""Oldest uv of a node's own that is used. Run with 0.13.9 (2026-11-27)."""

PIP = """\
# pip_install PYTHON HINT ARGUMENTS…: what pip says of the network comes before the hint.
pip_install() {
    into=$1 advice=$2
    shift 2
    said=${into%/*}/.pip-said
    {
        "$into" -m pip install $cache --no-input --disable-pip-version-check --progress-bar off \\
            --no-warn-script-location "$@" </dev/null 2>&1 || : >"$said.failed"
    } | tee "$said"
    if [ ! -e "$said.failed" ]; then
        rm -f "$said"
        return
    fi
    unreachable='Failed to establish a new connection|Failed to resolve|No route to host'
    if grep -qE "$unreachable|Network is unreachable|ProxyError" "$said"; then
        advice='the node cannot reach the package index: check its network, proxies, PIP_INDEX_URL'
    fi
    rm -f "$said" "$said.failed"
    echo "hint: $advice" >&2
    exit 1
}
"""

UV = f"""\
# find_uv PYTHON FOLDER: sets $uv to a uv of the node's own, or to one from the package index in
# FOLDER; to nothing, with a note, where neither can be had.
find_uv() {{
    uv=
    case $(version "$1") in
        2.* | 3.[0-7]) return 0;;  # uv has no support for it
    esac
    case $(uv --version 2>/dev/null </dev/null) in
        "uv 0."[0-4].* | "") ;;
        *) uv=$(command -v uv); return 0;;
    esac
    mkdir -p "$2"
    if command -v flock >/dev/null 2>&1; then
        exec 8>"$2.lock"
        flock 8
    fi
    uv=$2/bin/uv
    if ! "$uv" --version >/dev/null 2>&1 </dev/null; then
        rm -rf "$2/bin" "$2/lib"
        "$1" -m venv "$2" </dev/null && "$2/bin/python" -m pip install -q --no-input \\
            --disable-pip-version-check --only-binary=:all: "uv>={OLDEST}" </dev/null 2>"$2/said" ||
        {{
            uv=
            echo "note: the package index has no uv for this node: pip installs, which takes longer"
        }}
    fi
    exec 8>&-
}}
# create_environment PYTHON FOLDER: as `python -m venv`, which takes 2 s of CPU to unpack and
# compile the pip that the Python brings along.
create_environment() {{
    if [ -n "$uv" ] && "$1" -m venv --without-pip "$2" </dev/null; then
        wheels=$("$1" -I -c 'import ensurepip, os, sysconfig
own = os.path.join(os.path.dirname(ensurepip.__file__), "_bundled")
print(sysconfig.get_config_var("WHEEL_PKG_DIR") or own)' </dev/null)
        brought=pip
        case $(version "$1") in 3.8 | 3.9 | 3.1[01]) brought="pip setuptools";; esac
        "$uv" pip install -q --no-config --no-cache --offline --no-index --find-links "$wheels" \\
            --python "$2/bin/python" $brought >/dev/null 2>&1 </dev/null && return
    fi
    "$1" -m venv "$2" </dev/null
}}
pip_settings=$(cat <<'END'
{text("pip_settings.py")}END
)
# uv_install PYTHON ARGUMENTS…: those of `pip install`. In a shell of its own, for its variables.
uv_install() (
    into=$1
    shift
    settings=$("$into" -m pip config list </dev/null 2>/dev/null |
        "$into" -I -c "$pip_settings" 2>/dev/null) || {{ echo "$settings"; exit 1; }}
    eval "$settings"
    if grep -rqsE '^[[:space:]]*--pre[[:space:]]*$' "$folder/pip/own"; then
        set -- "$@" --prerelease=allow
    fi
    if [ -n "${{index:-}}" ]; then
        export UV_INDEX="setup=$index${{UV_INDEX:+ $UV_INDEX}}" UV_INDEX_STRATEGY=first-index
        [ -z "$index_user" ] || export UV_INDEX_SETUP_USERNAME="$index_user"
        [ -z "$index_password" ] || export UV_INDEX_SETUP_PASSWORD="$index_password"
    fi
    export NO_COLOR=1 UV_NO_PROGRESS=1 UV_PYTHON_DOWNLOADS=never
    if [ -n "$uv_cache" ]; then
        export UV_CACHE_DIR="$uv_cache" UV_LINK_MODE=hardlink
    else
        export UV_LINK_MODE=copy  # a file that is changed in place must not change the user's cache
    fi
    "$uv" pip install --python "$into" $uv_options "$@" </dev/null 2>&1
)
# records lend|take-back: uv looks for packages in a layer alone, so that those below it have
# records there while it works. With $start and $layer, for node/layer.py; else there is no layer.
records() {{
    [ -n "${{layer:-}}" ] || return 0
    /bin/sh -c "$start" sh "$layer" "$1" "${{python_%/bin/python}}" </dev/null
}}
# install_packages PYTHON HINT ARGUMENTS…
install_packages() {{
    if [ -n "$uv" ]; then
        python_=$1 hint_=$2
        shift 2
        answer=${{python_%/*}}/.uv-said
        records lend
        uv_install "$python_" "$@" >"$answer" && uv_failed= || uv_failed=yes
        records take-back
        if [ -z "$uv_failed" ]; then
            sed -n '/^[RPIU][a-z]*ed /p' "$answer"  # Resolved, Prepared, Installed
            rm -f "$answer"
            return
        fi
        if [ -n "${{index:-}}" ]; then
            sed "/^warning: Requirements file/d; s/^hint: /uv: /" "$answer" | tail -n 30 >&2
            # Of its own index or of the node's: both are asked.
            if grep -qE 'error sending request|HTTP status|[(]40[137] ' "$answer"; then
                hint_="check \\`setup.index\\`: its address, user and password, and whether the"
                hint_="$hint_ node can reach it and its own index"
            fi
            rm -f "$answer"
            echo "hint: $hint_" >&2
            exit 1
        fi
        sed -n 's/^error: /uv: /p' "$answer" | head -n 1
        echo "asking pip"
        rm -f "$answer"
        set -- "$python_" "$hint_" "$@"
    fi
    if [ -n "${{index:-}}" ]; then
        echo "\\`setup.index\\` requires uv, which does not install here" >&2
        echo "hint: uv needs Python 3.8 or later, an index that has it, and no --hash in" \\
            "\\`setup.requirements: code:FILE\\`" >&2
        exit 1
    fi
    pip_install "$@"
}}
"""
"""Variables: `$index` and what belongs to it (package_index.py); `$cache`, pip's options on its
cache; `$uv_cache`, a folder for uv's, to be deleted before the environment is sealed, or empty for
the user's own; `$uv_options`, further options of uv."""
