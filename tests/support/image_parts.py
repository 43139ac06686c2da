"""Images made of this machine's own files, a real registry for them, and a real Podman."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from shlex import quote

import bcrypt
import pip

from tests.support.sshd import eventually, free_place

NEEDED = ("podman", "crun", "docker-registry", "skopeo")
PYTHON = Path("/usr/bin/python3")
PROGRAMS = ("bash", "sh", "cat", "env", "id", "ls", "mkdir", "rm", "sleep", "touch", "true")
PIP = Path(pip.__file__).parent
LEFT_OUT = ("__pycache__", "test", "tests", "idlelib", "tkinter", "ensurepip", "pydoc_data")
LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin"}


def unavailable() -> str | None:
    """What is missing for containers on this machine; None for nothing."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing or not PYTHON.exists():
        return f"needs {', '.join(missing or ['/usr/bin/python3'])}: `make tools`"
    return "needs root, as Podman nests containers" if os.geteuid() != 0 else None


@cache
def layer(python: bool = True, shell: bool = True) -> bytes:
    """A tree with this machine's Python and a few programs, gzipped."""
    programs = [Path("/usr/bin", name) for name in PROGRAMS if shell or name not in ("sh", "bash")]
    files = {path: path.resolve() for path in programs if path.exists()}
    if python:
        files[PYTHON] = PYTHON.resolve()
        files |= {path: path for path in _library(PYTHON.resolve().name)}
    for path in list(files.values()):
        if path.suffix == ".so" or path.parent.name == "bin":
            files |= {Path(each): Path(each).resolve() for each in _libraries(path)}
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tree:
        for short, target in LINKS.items():
            link = tarfile.TarInfo(short)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tree.addfile(link)
        folder = tarfile.TarInfo("tmp")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
        tree.addfile(folder)
        if python:
            about = b"Metadata-Version: 2.1\nName: tensorflow\nVersion: 2.17.0\n"
            place = "usr/lib/python3/dist-packages/tensorflow-2.17.0.dist-info/METADATA"
            installed = tarfile.TarInfo(place)
            installed.size = len(about)
            tree.addfile(installed, io.BytesIO(about))
            for path in sorted(PIP.rglob("*.*")):
                if "__pycache__" not in path.parts:
                    inside = f"usr/lib/python3/dist-packages/pip/{path.relative_to(PIP)}"
                    tree.add(path, arcname=inside, recursive=False)
        for name, source in sorted(files.items()):
            tree.add(source, arcname=_placed(name), recursive=False)
    return gzip.compress(whole.getvalue(), 1, mtime=0)


def _placed(path: Path) -> str:
    first = path.parts[1]
    return str(Path(LINKS[first], *path.parts[2:]) if first in LINKS else path.relative_to("/"))


def _library(name: str) -> Iterator[Path]:
    top = Path(PYTHON.parent.parent, "lib", name)
    for path in top.rglob("*"):
        if path.is_file() and not set(path.parts).intersection(LEFT_OUT):
            yield path


@cache
def _libraries(path: Path) -> tuple[str, ...]:
    said = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
    return tuple(word for word in said.split() if word.startswith("/"))


def architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


@dataclass(frozen=True)
class Image:
    """An image as an OCI layout."""

    layers: Sequence[bytes]
    architecture: str
    variables: Mapping[str, str]
    annotations: Mapping[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        blobs = folder / "blobs" / "sha256"
        blobs.mkdir(parents=True, exist_ok=True)

        def blob(data: bytes) -> dict[str, object]:
            digest = hashlib.sha256(data).hexdigest()
            (blobs / digest).write_bytes(data)
            return {"digest": f"sha256:{digest}", "size": len(data)}

        kind = "application/vnd.oci.image"
        plain = [hashlib.sha256(gzip.decompress(each)).hexdigest() for each in self.layers]
        about = {
            "architecture": self.architecture,
            "os": "linux",
            "config": {
                "Env": [f"{name}={value}" for name, value in self.variables.items()],
                "Entrypoint": ["/never/run"],
                "User": "nobody",
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{each}" for each in plain]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{kind}.manifest.v1+json",
            "config": {
                "mediaType": f"{kind}.config.v1+json",
                **blob(json.dumps(about).encode()),
            },
            "layers": [
                {"mediaType": f"{kind}.layer.v1.tar+gzip", **blob(each)} for each in self.layers
            ],
            "annotations": dict(self.annotations),
        }
        first = {"mediaType": manifest["mediaType"], **blob(json.dumps(manifest).encode())}
        (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [first]}))
        return folder


def image(
    *, python: bool = True, shell: bool = True, architecture_: str = "", **variables: str
) -> Image:
    return Image(
        layers=[layer(python, shell)],
        architecture=architecture_ or architecture(),
        variables={"PATH": "/usr/bin", "IN_IMAGE": "yes", **variables},
    )


@dataclass(frozen=True)
class RegistryHere:
    """A registry on this machine, without TLS."""

    folder: Path
    host: str
    login: tuple[str, str] | None = None

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def push(self, name: str, what: Image) -> str:
        """Returns its whole name."""
        layout = what.write(self.folder / "pushed" / name.replace(":", "_"))
        target = f"docker://{self.host}/{name}"
        words = ["skopeo", "copy", "--quiet", "--dest-tls-verify=false", f"oci:{layout}", target]
        words += ["--dest-creds", ":".join(self.login)] if self.login else []
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return target


@contextlib.contextmanager
def registry(folder: Path, login: tuple[str, str] | None = None) -> Iterator[RegistryHere]:
    """Debian's docker-registry (https://packages.debian.org/bookworm/docker-registry), to which
    only one user may log in, if that is given."""
    folder.mkdir(parents=True)
    address, port = free_place()
    settings: dict[str, object] = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(folder / "images")}},
        "http": {"addr": f"{address}:{port}"},
    }
    if login is not None:
        hashed = bcrypt.hashpw(login[1].encode(), bcrypt.gensalt(4)).decode()
        (folder / "users").write_text(f"{login[0]}:{hashed}\n")
        settings["auth"] = {"htpasswd": {"realm": "it", "path": str(folder / "users")}}
    (folder / "config.yml").write_text(json.dumps(settings))
    with (folder / "log").open("wb") as log:
        words = ["docker-registry", "serve", str(folder / "config.yml")]
        server = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        here = RegistryHere(folder, f"{address}:{port}", login)
        eventually(lambda: "listening on" in here.log)
        yield here
    finally:
        server.kill()
        server.wait()


def podman(folder: Path) -> dict[str, str]:
    """Variables with a PATH whose `podman` runs on this machine, whatever it is nested in."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = '[containers]\ndefault_ulimits = []\n[engine]\ncgroup_manager = "cgroupfs"\n'
    settings += 'events_logger = "none"\nruntime = "crun"\n'
    if _is_hybrid():
        runtime = folder / "crun"
        runtime.write_text(_CRUN.format(crun=shutil.which("crun")))
        runtime.chmod(0o755)
        settings += f'[engine.runtimes]\ncrun = ["{runtime}"]\n'
    (folder / "containers.conf").write_text(settings)
    wrapper = folder / "podman"
    wrapper.write_text(
        f"#!/bin/sh\nexport CONTAINERS_CONF={quote(str(folder / 'containers.conf'))}\n"
        f'echo "$*" >>{quote(str(folder / "asked"))}\nexec {shutil.which("podman")} "$@"\n'
    )
    wrapper.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


_CRUN = """\
#!/bin/sh
exec unshare -m sh -c 'umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup &&
exec {crun} "$@"' sh "$@"
"""
"""crun refuses "cgroups in hybrid mode"; its containers get a cgroup file system of their own."""


def _is_hybrid() -> bool:
    kinds = {line.split()[2] for line in Path("/proc/mounts").read_text().splitlines()}
    return "cgroup" in kinds


def remove_stores(folder: Path) -> None:
    """Whatever Podman still has mounted below a folder."""
    for line in Path("/proc/mounts").read_text().splitlines():
        place = line.split()[1].replace("\\040", " ")
        if Path(place).is_relative_to(folder):
            subprocess.run(["umount", "-l", place], capture_output=True, check=False)
