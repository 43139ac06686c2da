"""Build the environment of commands on a local node: only a few of this machine's variables, and
no credentials.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import sys
from collections.abc import Mapping
from pathlib import Path

PASSED_ON = re.compile(
    r"PIP_.+|UV_.+|(?:https?|all|ftp|no)_proxy|SSL_CERT_(?:FILE|DIR)"
    r"|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|TMPDIR|TZ|LANG|LC_.+",
    re.IGNORECASE,
)
"""Variables for installing packages on this machine, and those of a login shell."""


CACHES = ("PIP_CACHE_DIR", "UV_CACHE_DIR")
"""Variables that name the user's own caches: what is built on a node must not get there."""


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables passed on from the caller's environment.

    The package managers' config files are passed as paths, because the node has a different home.
    """
    passed = {name: value for name, value in environ.items() if PASSED_ON.fullmatch(name)}
    home = Path(environ.get("HOME") or Path.home())
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    for variable, files in (
        ("PIP_CONFIG_FILE", (config / "pip" / "pip.conf", home / ".pip" / "pip.conf")),
        ("UV_CONFIG_FILE", (config / "uv" / "uv.toml",)),
    ):
        there = [file for file in files if file.is_file()]
        if there:
            passed.setdefault(variable, str(there[0]))
    return {"LANG": "C.UTF-8", **passed, "PATH": path(environ)}


DATASETS = (".keras/datasets", "tensorflow_datasets")
"""Folders in a home where `keras.datasets` and TensorFlow Datasets keep downloads."""


def datasets(environ: Mapping[str, str]) -> dict[str, str]:
    """The user's downloaded datasets, by path in a node's home: each file and folder by itself, so
    that the node keeps what it downloads.
    """
    home = Path(environ.get("HOME") or Path.home())
    found: dict[str, str] = {}
    for name in DATASETS:
        with contextlib.suppress(OSError):
            found |= {f"{name}/{each.name}": str(each) for each in (home / name).iterdir()}
    return found


def of_node(name: str, user: str, home: Path) -> dict[str, str]:
    """Its own variables. NCCL must take nodes of one machine for several machines: what it uses
    between the processes of one, they do not share.
    """
    own = {"HOME": str(home), "USER": user, "LOGNAME": user, "SHELL": login_shell()}
    return {**own, "NCCL_HOSTID": name}


def path(environ: Mapping[str, str]) -> str:
    """The caller's PATH without this program's virtual environment, whose packages a node does not
    have.

    Its base Python comes last, so that one is found in any case.
    """
    own = Path(sys.prefix, "bin") if sys.prefix != sys.base_prefix else None
    given = map(Path, (environ.get("PATH") or os.defpath).split(os.pathsep))
    kept = [str(folder) for folder in given if folder.is_absolute() and folder != own]
    base = str(Path(sys.executable).resolve().parent)
    return os.pathsep.join([*kept, *([] if base in kept else [base])])


def login_shell() -> str:
    try:
        shell = pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:
        return "/bin/sh"
    usable = os.access(shell, os.X_OK) and Path(shell).name not in {"nologin", "false"}
    return shell if usable else "/bin/sh"
