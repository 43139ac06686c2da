"""The `packages` playbook: what the delivered code requires, over `setup:`'s environment."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from functools import partial
from pathlib import Path

from cloudtrain.config import requirements
from cloudtrain.core import paths, ship
from cloudtrain.core.model import ClusterConfig, Node, Problem
from cloudtrain.core.shell import Command, Step, command, script
from cloudtrain.playbooks import installer, package_index, tensorflow

BUILDS = ("pyproject.toml", "setup.py", "setup.cfg")
"""A folder that pip installs has one of these (packaging.python.org, read 2026-11-22)."""


def steps(config: ClusterConfig, node: Node, code: str) -> tuple[Step, ...]:
    """Install `setup.requirements: code:FILE` and `setup.install` of the code with the digest
    `code`, after it is delivered; none if neither is set."""
    shared, folder = tensorflow.environment_folder(config, node), _folder(config, node, code)
    if shared is None or folder is None:
        return ()
    return (
        Step(
            name=", ".join(named(config)),
            run=script(
                _INSTALL,
                *package_index.arguments(config),
                folder,
                shared,
                paths.code_folder(config.name, code),
                code,
                requirements.of_code(config) or "",
                ship.START,
                ship.text("layer.py"),
                ship.text("requirement_lines.py"),
                *config.setup.install,
            ),
            unless=command("test", "-e", f"{folder}/.complete"),
            stdin=partial(package_index.password, config),
        ),
    )


def environment_folder(config: ClusterConfig, node: Node, code: str) -> str | None:
    """The environment below a task's own layer, absolute or relative to the home, if any."""
    return _folder(config, node, code) or tensorflow.environment_folder(config, node)


def packages_command(config: ClusterConfig, node: Node, code: str) -> Command | None:
    """Command that prints what a task may import (node/packages.py). None if there is no
    environment."""
    folder = environment_folder(config, node, code)
    return command(f"{folder}/bin/python", "-c", ship.text("packages.py")) if folder else None


def named(config: ClusterConfig) -> tuple[str, ...]:
    """Entries of the config that install packages of the code: `setup.install: .`"""
    file = requirements.of_code(config)
    found = [f"setup.requirements: {requirements.CODE}{file}"] if file else []
    return (*found, *(f"setup.install: {path}" for path in config.setup.install))


def note(config: ClusterConfig) -> str | None:
    """One line for `plan`."""
    if not named(config):
        return None
    return f"{', '.join(named(config))}: installed with the delivered code, for its runs alone"


def problems(config: ClusterConfig, there: Collection[str] | None) -> tuple[Problem, ...]:
    """Problems with what the delivered files lack. `there`: their paths, if known here."""
    wanted = [("setup.requirements", requirements.of_code(config))]
    wanted += [("setup.install", path) for path in config.setup.install]
    found: list[Problem] = []
    for field, path in wanted:
        if path is None:
            continue
        text = None
        if config.code.path is None and config.code.git is None:
            text = "requires `code:`: it names a path in the delivered code"
        elif there is not None:
            text = _missing(path, field == "setup.requirements", there)
        if text is not None:
            found.append(Problem(file=config.source, line=None, field=field, text=text))
    return tuple(found)


def _missing(path: str, is_file: bool, there: Collection[str]) -> str | None:
    plain = os.path.normpath(re.sub(r"\[[^]]*\]$", "", path))
    if any(str(parent) in there for parent in Path(plain).parents):
        return None  # behind a link, which is delivered as a link
    if plain in there:  # the file, a wheel, or a link
        return None
    if is_file:
        return f"the delivered code has no file {plain}"
    if any(os.path.normpath(f"{plain}/{name}") in there for name in BUILDS):
        return None
    return f"the delivered code has no {' or '.join(BUILDS[:2])} in {plain}"


def _folder(config: ClusterConfig, node: Node, code: str) -> str | None:
    import hashlib  # slow to import, and `plan` needs none

    shared = tensorflow.environment_folder(config, node)
    if shared is None or not named(config):
        return None
    text = repr((_RECIPE, shared, code, named(config), config.setup.index))
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return f"{paths.cluster_folder(config.name)}/packages/{digest}"


_RECIPE = 1
"""Version of the script below."""

# A layer of the requirements is named by their text and the index, so that a change of the code
# alone installs none of them again; the one on top, with `setup.install`, belongs to one digest of
# the code.
_INSTALL = (
    installer.PIP
    + installer.UV
    + package_index.OWN_INDEX
    + """\
version() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' </dev/null 2>/dev/null
}
set -eu
own_index "$1" "$2"
shift 2
absolute() {
    case $1 in /*) echo "$1";; *) echo "$PWD/$1";; esac
}
folder=$(absolute "$1") shared=$(absolute "$2") code=$(absolute "$3") digest=$4 requirements=$5
start=$6 layer=$7 reader=$8
shift 8
packages=$(dirname "$folder")
mkdir -p "$packages"
if command -v flock >/dev/null 2>&1; then
    exec 9>"$packages/lock"
    flock 9
    [ ! -e "$folder/.complete" ] || exit 0
fi
program() {
    /bin/sh -c "$start" sh "$@" </dev/null
}
bounds=$packages/bounds
cat "$shared/pip/constraints.txt" >"$bounds"
for place in "$shared"/lib/python3*/site-packages/tensorflow-[0-9]*.dist-info \\
    "$shared"/lib/python3*/site-packages/tensorflow_[cg]pu-[0-9]*.dist-info; do
    [ -d "$place" ] || continue
    version=${place%.dist-info}
    for name in tensorflow tensorflow-cpu tensorflow-gpu; do
        echo "$name==${version##*-}" >>"$bounds"
    done
done
cache= uv_cache= uv_options=
if [ -e "$shared/pip/no-cache.txt" ]; then
    cache=--no-cache-dir uv_cache=$packages/uv-cache
fi
find_uv "$shared/bin/python" "$(dirname "$shared")/uv"
hint='`setup.tensorflow` decides on TensorFlow, and bounds what it depends on: set the version'
hint="$hint that your code requires, or relax what it requires"

below=$shared
if [ -n "$requirements" ]; then
    if [ ! -f "$code/$requirements" ]; then
        echo "the delivered code has no $requirements" >&2
        echo "hint: \\`setup.requirements: code:FILE\\` starts in the top folder of the code" >&2
        exit 1
    fi
    key=$(program "$reader" "$code/$requirements" "$bounds" "$digest" "$packages/read")
    [ -z "$index" ] || key=$key-$(echo "$index" | cksum | cut -d " " -f 1)
    below=$packages/requirements-$key
    if [ ! -e "$below/.complete" ] || [ "$(cat "$below/.below")" != "$shared" ]; then
        rm -rf "$below"
        program "$layer" "$below" "$shared"
        cp -a "$code" "$below/source"  # its lines may name folders of the code, also editable ones
        cd "$below/source"
        program "$reader" "$requirements"
        echo "install -r $requirements"
        # uv takes no bounds beside hashes, and pip asks for all hashes where there is one.
        ! grep -qx hashes "$packages/read.marks" || uv=
        ! grep -qx pre "$packages/read.marks" || uv_options=--prerelease=allow
        install_packages "$below/bin/python" "$hint" -r "$requirements" -c "$packages/read.bounds"
        cd "$packages"
        uv_options=
        : >"$below/.complete"
    fi
fi
rm -rf "$folder"
program "$layer" "$folder" "$below"
if [ $# -gt 0 ]; then
    cp -a "$code" "$folder/source"  # a build writes into its folder
    cd "$folder/source"
    for path in "$@"; do
        echo "install $path"
        install_packages "$folder/bin/python" "$hint" -c "$bounds" "./$path"
    done
    cd "$packages"
    rm -rf "$folder/source"
fi
[ -z "$uv_cache" ] || rm -rf "$uv_cache"
: >"$folder/.complete"
"""
)
