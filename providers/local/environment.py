"""Choose what a local node has of this machine. In the environment of its commands: a few variables
and no credentials. Of its files: the system, interpreters and caches, and no more. Check, before
nodes are created, that the machine has enough for them.

Nothing here fails on a path that this user may not read: such a path is left out."""

# os.path answers False where Path raises PermissionError.
# ruff: noqa: PTH110, PTH112, PTH113

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import pwd
import re
import shutil
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import chain
from pathlib import Path
from urllib.parse import unquote

from cloudtrain.core.errors import CloudtrainError, PermissionsError, UsageError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.paths import PACKAGE
from cloudtrain.core.protocols import Finding
from cloudtrain.providers.local.private_view import OUTSIDE, SHARED_MEMORY, TEMPORARY, View

PASSED_ON = re.compile(
    r"PIP_.+|UV_.+|(?:https?|all|ftp|no)_proxy|SSL_CERT_(?:FILE|DIR)"
    r"|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|TMPDIR|TZ|LANG|LC_.+",
    re.IGNORECASE,
)
"""Variables for installing packages on this machine, and those of a login shell."""


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
    that the node keeps what it downloads."""
    home = Path(environ.get("HOME") or Path.home())
    found: dict[str, str] = {}
    for name in DATASETS:
        with contextlib.suppress(OSError):
            found |= {f"{name}/{each.name}": str(each) for each in (home / name).iterdir()}
    return found


def of_node(name: str, user: str, home: Path) -> dict[str, str]:
    """Its own variables. NCCL must take nodes of one machine for several machines: what it uses
    between the processes of one, they do not share."""
    own = {"HOME": str(home), "USER": user, "LOGNAME": user, "SHELL": login_shell()}
    return {**own, "NCCL_HOSTID": name}


def path(environ: Mapping[str, str]) -> str:
    """The caller's PATH without this program's virtual environment, whose packages a node does not
    have.

    Its base Python comes last, so that one is found in any case."""
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


# ── files ──────────────────────────────────────────────────────────────────────────────────────


SHARED = "CLOUDTRAIN_LOCAL_SHARED"
"""Variable with more paths that nodes see as they are, separated by `:`; `/` means all."""

DISK = "CLOUDTRAIN_LOCAL_DISK"
"""Variable with the size of a disk in memory (`8g`, `50%`) for the home of each new node."""

SYSTEM = frozenset(
    (
        *("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "opt", "var", "run"),
        *("proc", "sys", "dev", "boot", "nix", "gnu", "snap", "cvmfs"),
    )
)
"""Folders of `/` with programs and devices. All others have someone's data."""

BIN = frozenset({"bin", "sbin", "shims", "condabin", "Scripts"})
LIBRARIES = ("lib", "libexec", "conda-meta")
INTERPRETERS = re.compile(r"(?:python|pypy)[\d.]*|uv|conda|mamba|micromamba")
OWN, PROOFS = "own", "proofs"
"""Folders of the cache: with one for each config's folder; with figures of compute checks."""
SHOWN_OF_RUN = (
    *("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager/resolv.conf"),
    *("/run/nvidia-persistenced", "/run/opengl-driver", "/run/current-system", "/run/udev/data"),
)
"""Names of servers, and what GPUs and the system's own links need. The rest of /run has sockets of
services, such as docker.sock."""
SERVICES = ("/var/snap", "/var/lib/lxd", "/var/lib/incus", "/var/mail", "/var/spool")
"""More of the system's folders with sockets, or with what is one user's."""


def view_of_nodes(
    config: ClusterConfig, *, state: Path, cache: Path, environ: Mapping[str, str]
) -> View | None:
    """View of every node, without its own home; None if everything is shared.

    `state` and `cache` are CLOUDTRAIN_HOME and CLOUDTRAIN_CACHE."""
    shared = [path for path in environ.get(SHARED, "").split(os.pathsep) if path]
    if "/" in shared or config.setup.image is not None:
        return None  # containers are views of their own, and nothing starts them inside of one
    passed = passed_on(environ)
    real_cache = _resolved(cache)
    own = {*_homes(environ), *map(Path, TEMPORARY)}
    hidden = {
        *_top_folders(),
        *_private_folders(config, state, environ),
        *_unreadable_by_others(),
        real_cache / OWN,
    }
    writable, shared_too = _real((own_cache(config, cache), cache / PROOFS)), _real(shared)
    always = _real((cache,))
    read_only = _real(
        chain(
            _own_programs(),
            _programs(environ),
            _named_in(passed),
            _of_config(config),
            datasets(environ).values(),
            map(Path, SHOWN_OF_RUN),
        )
    )
    read_only -= {path for path in read_only if any(each.is_relative_to(path) for each in own)}
    covered = {*hidden, *map(Path, (*TEMPORARY, SHARED_MEMORY))}
    return View(
        hidden=_text(hidden),
        writable=_text(writable),
        shared=_text(shared_too),
        read_only=_text(
            always | _uncovered(read_only - shared_too, covered, writable | shared_too | always)
        ),
        disk=environ.get(DISK, ""),
    )


def _uncovered(
    paths: Set[Path], hidden: Set[Path], shown: Set[Path] = frozenset()
) -> frozenset[Path]:
    """The paths that the node would not see: the nearest of what contains them is hidden."""
    kept: set[Path] = set()
    for path in sorted(paths, key=lambda each: len(each.parts)):
        around = next(
            (each for each in (path, *path.parents) if each in hidden | shown | kept), None
        )
        if around is not None and around not in shown | kept:
            kept.add(path)
    return frozenset(kept)


def _text(paths: Iterable[Path]) -> tuple[str, ...]:
    return tuple(sorted(map(str, paths)))


def _top_folders() -> Iterator[Path]:
    for entry in os.scandir("/"):
        kept = entry.name in SYSTEM or entry.path in TEMPORARY
        if not kept and entry.is_dir(follow_symlinks=False) and _has_files(entry):
            yield Path(entry.path)


def _private_folders(
    config: ClusterConfig, state: Path, environ: Mapping[str, str]
) -> Iterator[Path]:
    """Folders of the user, also where these are in a folder of the system."""
    sources = {config.folder} if config.source else set()
    if config.code.path is not None:
        sources.add(config.folder / Path(config.code.path).expanduser())
    for path in {*_homes(environ), *sources}:
        real = _resolved(path)
        if os.path.isdir(real) and len(real.parts) > (3 if real.is_relative_to("/usr") else 2):
            yield real
    yield from (each for each in _homes(environ) if each.parent == Path("/") != each)
    yield _resolved(state)
    yield Path("/run")


def _unreadable_by_others() -> Iterator[Path]:
    """Folders of the system that not everybody may read: what this user may is nobody else's."""
    yield from map(Path, SERVICES)
    for place in ("/etc", "/opt", "/usr/local", "/var", "/var/lib"):
        with contextlib.suppress(OSError):
            for entry in os.scandir(place):
                if entry.is_dir(follow_symlinks=False) and entry.stat().st_mode & 0o005 != 0o005:
                    yield Path(entry.path)


def own_cache(config: ClusterConfig, cache: Path) -> Path:
    """The cache of this config's nodes, which configs of the same folder share."""
    folder = os.fsencode(_resolved(config.folder))
    return cache / OWN / hashlib.sha256(folder).hexdigest()[:12]


def _homes(environ: Mapping[str, str]) -> frozenset[Path]:
    homes = {Path(environ.get("HOME") or Path.home())}
    with contextlib.suppress(KeyError):  # a container that runs with an unknown user id
        homes.add(Path(pwd.getpwuid(os.getuid()).pw_dir))
    return frozenset(_resolved(home) for home in homes if os.path.isdir(home))


def _has_files(entry: os.DirEntry[str]) -> bool:
    try:
        with os.scandir(entry) as inside:
            return next(inside, None) is not None
    except OSError:
        return True


def _own_programs() -> Iterator[Path]:
    """This program and its interpreter: the servers import from them, also later."""
    yield PACKAGE
    yield _resolved(Path(__file__)).parents[1]  # in a checkout, a folder of its own
    yield from map(Path, (sys.prefix, sys.base_prefix))
    for path in sys.path:
        if os.path.isdir(Path(path, "paramiko")):
            yield Path(path)


def _programs(environ: Mapping[str, str]) -> Iterator[Path]:
    """Folders of the PATH that nodes get, and what the interpreters in them need."""
    for name in path(environ).split(os.pathsep):
        folder = Path(name)
        if os.path.isdir(folder) and os.access(folder, os.R_OK | os.X_OK):
            yield folder
            yield from _around(folder)
            for entry in os.scandir(folder):
                if INTERPRETERS.fullmatch(entry.name):
                    yield from interpreter(Path(entry.path))


def interpreter(program: Path) -> Iterator[Path]:
    """A program, the installation or virtual environment around it, and that one's base."""
    if not (os.path.isfile(program) and os.access(program, os.X_OK)):
        return
    for each in (program, _resolved(program)):
        yield each
        yield from _around(each.parent)
        settings = each.parent.parent / "pyvenv.cfg"
        if os.path.isfile(settings):
            yield each.parent.parent
            yield from _base_of(settings)


def _around(folder: Path) -> Iterator[Path]:
    """Prefix of a folder of programs; in `~` and `~/.local` only the parts that are of programs.

    Not that of a program alone: ~/.docker/bin and ~/.fly/bin stand beside tokens."""
    if folder.name not in BIN:
        return
    prefix = folder.parent
    if prefix.name == ".local":
        yield from (prefix / "lib", prefix / "share" / "uv", prefix / "share" / "pipx")
    elif folder.name == "shims" or any(os.path.isdir(prefix / name) for name in LIBRARIES):
        yield prefix


def _base_of(settings: Path) -> Iterator[Path]:
    """Installation that a virtual environment is based on (`home` of pyvenv.cfg, PEP 405).

    The file may be a stranger's: a folder that has no interpreter is not shown for its sake."""
    try:
        text = settings.read_text(errors="replace")
    except OSError:
        return
    found = re.search(r"(?m)^home\s*=\s*(.+?)\s*$", text)
    base = Path(found[1]) if found else None
    if base is not None and base.name in BIN and _has_interpreter(base):
        yield base
        yield from _around(base)
        yield from _around(_resolved(base))


def _has_interpreter(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(
            INTERPRETERS.fullmatch(entry.name) and os.access(entry.path, os.X_OK)
            for entry in os.scandir(folder)
        )
    return False


def _named_in(passed: Mapping[str, str]) -> Iterator[Path]:
    """Files and folders that variables for pip and uv name: settings, certificates, wheels."""
    for name, value in passed.items():
        if name not in ("PATH", "TZ", *OUTSIDE):
            yield from (Path(word.removeprefix("file://")) for word in value.split())


def _of_config(config: ClusterConfig) -> Iterator[Path]:
    """An interpreter and input data that the config names by their path on this machine."""
    if config.setup.python.startswith(("/", "~")):
        yield from interpreter(Path(config.setup.python).expanduser())
    for data in config.data.values():
        if data.source.startswith("file://"):
            yield Path(unquote(data.source.removeprefix("file://")))


def _real(paths: Iterable[Path | str]) -> frozenset[Path]:
    """Existing absolute paths, and where they lead by symbolic links."""
    found: set[Path] = set()
    for path in map(Path, paths):
        if path.is_absolute() and os.path.exists(path):
            found |= {Path(os.path.normpath(path)), _resolved(path)}
    return frozenset(found - {Path("/")})


def _resolved(path: Path) -> Path:
    return Path(os.path.realpath(path))


# ── checks before nodes are created; they change nothing ───────────────────────────────────────


GB = 1024**3
LEAST_DISK = GB // 2
TASK_MEMORY = 400 * 1024**2
"""Bytes of memory used by an idle TensorFlow process (measured: docs/local.md)."""


def check_system() -> Finding:
    linux = sys.platform == "linux"
    text = "Linux" if linux else f"`provider: local` needs Linux; this is {sys.platform}"
    hint = "run it in a Linux container or virtual machine"
    return _finding("system", linux, text, UsageError, hint)


def check_writable(folder: Path) -> Finding:
    there = _existing(folder)
    good = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    text = f"{folder} is {'' if good else 'not '}writable"
    hint = f"make {there} writable, or set CLOUDTRAIN_HOME or CLOUDTRAIN_CACHE to another folder"
    return _finding("folder", good, text, PermissionsError, hint)


def check_disk(folder: Path, trash: object = None) -> Finding:
    """Check the disk; `trash`: what is being deleted there, if anything is."""
    free = shutil.disk_usage(_existing(folder)).free
    hint = "a TensorFlow environment takes about 2 GB: free some space"
    text = f"{free / GB:.1f} GB free for {folder}" + (f"; {trash}" if trash else "")
    return _finding("disk", free >= LEAST_DISK, text, UsageError, hint)


def check_memory(nodes: int) -> Finding:
    """Check the memory for a TensorFlow task on each node; small tasks may need less."""
    free = _available_memory()
    need = nodes * TASK_MEMORY
    text = f"{free / GB:.1f} GB of memory free, {nodes} TensorFlow tasks take about {need / GB:.1f}"
    hint = None if free >= need else "use fewer nodes, or tasks without TensorFlow"
    return Finding(what="memory", ok=True, text=text, hint=hint)


def check_loopback(address: str) -> Finding:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            text = f"cannot listen on {address}: {error.strerror}"
            hint = "give the loopback interface 127.0.0.0/8 (`ip addr show lo`)"
            lacking = error.errno == errno.EADDRNOTAVAIL
            return _finding("loopback", False, text, PermissionsError, hint if lacking else None)
    return Finding(what="loopback", ok=True, text=f"nodes listen on {address} and up")


def _finding(
    what: str, good: bool, text: str, error: type[CloudtrainError], hint: str | None
) -> Finding:
    """Finding with that error and hint unless it is good."""
    if good:
        return Finding(what=what, ok=True, text=text)
    return Finding(what=what, ok=False, text=text, hint=hint, error=error)


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def _available_memory() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else 0
