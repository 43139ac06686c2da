"""Python 3.7 from conda-forge: the real step, with a micromamba that a server here has."""

from __future__ import annotations

import hashlib
import http.server
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.protocols import Completed
from cloudtrain.core.shell import Command
from cloudtrain.playbooks import sh_functions, tensorflow
from tests.support.nodes_here import HereTransport, node
from tests.support.tensorflow_parts import config, python

MICROMAMBA = """#!/bin/sh
# `micromamba create … --prefix FOLDER …`: leaves a python there, and writes what it was asked.
echo "$HOME $MAMBA_ROOT_PREFIX $*" >>"LOG"
while [ "$1" != --prefix ]; do shift; done
mkdir -p "$2/bin" "$MAMBA_ROOT_PREFIX/pkgs"
[ ! -e "DIES" ] || { kill -9 0; }
cp "PYTHON" "$2/bin/python"
"""
TOOLS = (
    "tee",
    *(
        "sh",
        "dirname",
        "mkdir",
        "cp",
        "rm",
        "mv",
        "cat",
        "tar",
        "sed",
        "grep",
        "flock",
        "id",
        "env",
    ),
    *("chmod", "uname", "find"),
)


@dataclass
class Release:
    """What the server has at the address of micromamba; each request is counted."""

    data: bytes
    failures: int = 0
    asked: int = 0
    url: str = ""


@pytest.fixture
def release(tmp_path: Path) -> Iterator[Release]:
    found = python(tmp_path / "conda", "python", "3.7")
    text = MICROMAMBA.replace("LOG", str(tmp_path / "log")).replace("PYTHON", str(found))
    served = Release(data=text.replace("DIES", str(tmp_path / "dies")).encode())

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked += 1
            fails = served.asked <= served.failures
            self.send_response(503 if fails else 200)
            self.send_header("Content-Length", str(0 if fails else len(served.data)))
            self.end_headers()
            self.wfile.write(b"" if fails else served.data)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served.url = f"http://127.0.0.1:{server.server_port}/micromamba-linux-64"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield served
        server.shutdown()
        thread.join()


@dataclass
class Rented:
    """A node whose own Python is newer, as on Ubuntu 22.04 and 24.04."""

    folder: Path
    release: Release
    expected: str

    def run(self, command: Command, data: bytes = b"") -> Completed:
        tools = self.folder / "bin"
        replaced = [
            word.replace(sh_functions.MICROMAMBA_URL, self.release.url).replace(
                sh_functions.MICROMAMBA_SHA256, self.expected
            )
            for word in command.arguments
        ]
        transport = HereTransport(self.folder / "nodes", {"PATH": str(tools)})
        return transport.run(node(), Command(tuple(replaced)), stdin=data)

    def ready(self, wanted: ClusterConfig) -> Completed:
        (step,) = tensorflow.steps(wanted, node())
        assert step.stdin is not None
        return self.run(step.run, b"".join(step.stdin()))

    def has(self, wanted: ClusterConfig) -> bool:
        (step,) = tensorflow.steps(wanted, node())
        assert step.unless is not None
        return self.run(step.unless).exit_code == 0

    @property
    def log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def rented(tmp_path: Path, release: Release) -> Rented:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in TOOLS:
        (tools / tool).symlink_to(str(shutil.which(tool)))
    (tools / "python3").symlink_to(Path("/proc/self/exe").resolve())
    return Rented(tmp_path, release, hashlib.sha256(release.data).hexdigest())


OLD = config(tensorflow="1.15")


def test_a_rented_node_gets_python_3_7_from_conda_forge(rented: Rented) -> None:
    done = rented.ready(OLD)
    assert done.exit_code == 0, done.stderr.decode()
    home = rented.folder / "nodes" / "mnist-chief0"
    own = home / ".cache/cloudtrain/venvs/micromamba"
    assert done.stdout.decode().splitlines()[:2] == [
        f"Python 3.7 from conda-forge, by micromamba {sh_functions.MICROMAMBA}",
        f"virtual environment with {own}/python3.7/bin/python",
    ]
    assert rented.log == [
        f"{own} {own}/root create --yes --quiet --no-rc --prefix {own}/python3.7 "
        "--override-channels --channel conda-forge python=3.7 pip"
    ]
    assert rented.has(OLD)
    assert sorted(path.name for path in home.iterdir()) == [".cache"], "nothing else is touched"


def test_the_next_environment_downloads_nothing(rented: Rented) -> None:
    rented.ready(OLD)
    assert rented.ready(config(tensorflow="2.1")).exit_code == 0
    assert (rented.release.asked, len(rented.log)) == (1, 1)


def test_another_checksum_is_refused_and_nothing_runs(rented: Rented) -> None:
    rented.expected = "0" * 64
    done = rented.ready(OLD)
    words = done.stderr.decode()
    assert done.exit_code == 1
    assert f"not {'0' * 64}: it was not run" in words
    assert "micromamba could not install Python 3.7" in words
    assert words.splitlines()[-1].startswith("hint: ")
    assert rented.log == []
    assert not list(rented.folder.rglob("micromamba/micromamba*"))


def test_a_server_that_fails_once_is_asked_again(rented: Rented) -> None:
    rented.release.failures = 1
    assert rented.ready(OLD).exit_code == 0
    assert rented.release.asked == 2


def test_an_installation_that_was_killed_is_begun_again(rented: Rented) -> None:
    (rented.folder / "dies").write_text("")
    assert rented.ready(OLD).exit_code < 0
    assert not rented.has(OLD)
    (rented.folder / "dies").unlink()
    assert rented.ready(OLD).exit_code == 0
    assert rented.has(OLD)
    assert len(rented.log) == 2


def test_an_arm_machine_is_told_that_there_is_none(rented: Rented) -> None:
    uname = rented.folder / "bin" / "uname"
    uname.unlink()
    uname.write_text('#!/bin/sh\n[ "$1" = -s ] && echo Linux || echo aarch64\n')
    uname.chmod(0o755)
    done = rented.ready(OLD)
    assert done.exit_code == 1
    assert "Python 3.7 is for Linux on x86-64, this is aarch64" in done.stderr.decode()
    assert rented.release.asked == 0


def test_the_users_own_machine_is_left_alone(rented: Rented) -> None:
    done = rented.ready(config(tensorflow="1.15", provider="local"))
    assert done.exit_code == 1
    assert "no Python 3.5 to 3.7 on the node" in done.stderr.decode()
    assert rented.release.asked == 0
