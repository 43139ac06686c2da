"""kill -9 at each moment of a creation: what is half made is found, finished or destroyed."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.providers.local import processes, provider
from tests.support.fakes import eventually, no_journal
from tests.support.local_cluster import LocalCluster, local_cluster

ROOT = Path(__file__).parents[2]

CREATE = """
import os, pickle, signal, sys
from cloudtrain.providers.local import processes, provider

moment, file = sys.argv[1:]
plan, identity = pickle.load(open(file, "rb"))
entries = []

def die(when):
    if when == moment:
        os.kill(os.getpid(), signal.SIGKILL)

def journal(event):
    entries.append(event.node)
    die(f"before entry {len(entries)}")
    print(event.node, flush=True)
    die(f"after entry {len(entries)}")

def around(owner, name):
    whole = getattr(owner, name)
    def wrapped(*given, **named):
        die(f"before {name}")
        result = whole(*given, **named)
        die(f"after {name}")
        return result
    setattr(owner, name, wrapped)

around(processes.ForkServer, "__init__")
around(processes.ForkServer, "start")
around(processes, "await_answers")

if moment == "orders sent":
    def send(self, text, timeout):
        self.stdin.write(text)
        self.stdin.close()
        die(moment)
    processes.subprocess.Popen.communicate = send

FORK_SERVER = '''
import os, signal
from cloudtrain.providers.local import fork_server, private_view
calls = []

def around(owner, name, moment):
    whole = getattr(owner, name)
    def wrapped(*given, **named):
        result = whole(*given, **named)
        calls.append(name)
        # The second time in the fork server itself, the first in a forked server.
        once = name in ("setsid", "mark", "_unshare")
        if name == moment and calls.count(name) == (1 if once else 2):
            try:
                open(FILE + ".crashed", "x").close()
            except FileExistsError:
                return result
            os.kill(TOOL, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(owner, name, wrapped)

for name in ("take", "listen", "write", "mark", "fork_server"):
    around(fork_server, name, MOMENT)
around(private_view, "_unshare", MOMENT)  # later, what it would kill is out of its reach
around(os, "fork", MOMENT)
around(os, "setsid", MOMENT)
'''
place = "main()"
patch = FORK_SERVER.replace("TOOL", str(os.getpid())).replace("MOMENT", repr(moment))
patch = patch.replace("FILE", repr(file))
assert processes.BOOTSTRAP.endswith(place)
processes.BOOTSTRAP = processes.BOOTSTRAP.removesuffix(place) + "\\n" + patch + place
print("ready", flush=True)
provider.provider(plan.config).create(plan, identity, journal)
print("created", flush=True)
"""

MOMENTS = [
    *("before __init__", "after __init__", "before entry 1", "after entry 2", "after entry 3"),
    *("before start", "orders sent", "after start", "before await_answers", "after await_answers"),
    *("take", "listen", "write", "fork", "setsid", "mark", "_unshare"),
    "fork_server",
]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    cluster = local_cluster(tmp_path, monkeypatch, workers=2)
    yield cluster
    cluster.destroy()


def start_creation(cluster: LocalCluster, moment: str) -> subprocess.Popen[bytes]:
    file = cluster.identity.private_key.with_name("made.pickle")
    file.write_bytes(pickle.dumps((cluster.plan, cluster.identity)))
    return subprocess.Popen(
        [sys.executable, "-c", CREATE, moment, str(file)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def killed_creation(cluster: LocalCluster, moment: str) -> set[str]:
    """Create until the moment; returns the nodes that the journal has announced."""
    creation = start_creation(cluster, moment)
    output = creation.communicate(timeout=60)[0].decode()
    assert creation.returncode == -9, output
    return set(output.split()) - {"ready"}


def tagged(cluster: LocalCluster) -> dict[int, str]:
    return processes.tags(lambda tag: tag.startswith(f"{cluster.provider._digest}/"))


def assert_one_server_each(cluster: LocalCluster) -> None:
    names = sorted(tag.rpartition("/")[2] for tag in tagged(cluster).values())
    assert names == sorted(node.name for node in cluster.plan.nodes)


def assert_nothing_left(cluster: LocalCluster) -> None:
    """A fork server whose creator was killed while it was being executed had no environment to be
    seen by yet; it has no orders either, and ends at the end of its stdin."""
    eventually(lambda: tagged(cluster) == {})
    assert cluster.provider.sweep() == ()
    assert not (cluster.home / "local" / cluster.name).exists()


@pytest.mark.sweep(3)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_creation_is_destroyed_whole(cluster: LocalCluster, moment: str) -> None:
    announced = killed_creation(cluster, moment)
    assert {node.name for node in cluster.provider.nodes(cluster.name)} <= announced
    cluster.destroy()
    assert_nothing_left(cluster)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_creation_is_finished_by_the_next(cluster: LocalCluster, moment: str) -> None:
    killed_creation(cluster, moment)
    cluster.create()
    assert_one_server_each(cluster)
    for node in cluster.nodes:
        with cluster.connect(node) as client:
            assert client.exec_command("echo here")[1].read() == b"here\n"
    cluster.destroy()
    assert_nothing_left(cluster)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("seed", range(6))
def test_a_creation_killed_at_any_time_is_destroyed_whole(cluster: LocalCluster, seed: int) -> None:
    creation = start_creation(cluster, "no moment of its own")
    with creation:
        assert creation.stdout
        assert creation.stdout.readline() == b"ready\n"
        try:
            creation.wait(timeout=random.Random(seed).uniform(0, 0.3))
        except subprocess.TimeoutExpired:
            creation.kill()
    cluster.destroy()
    assert_nothing_left(cluster)


AS_A_USER = """
import json, os, sys
from pathlib import Path
import pytest
from tests.support.local_cluster import local_cluster

with pytest.MonkeyPatch.context() as patch:
    cluster = local_cluster(Path(sys.argv[1]), patch, workers=1)
    nodes = cluster.create()
    try:
        with cluster.connect(nodes[1]) as client:
            out = client.exec_command("id -u; pwd; setsid sleep 1000 >/dev/null 2>&1 &")[1].read()
            terminal = client.exec_command("tty", get_pty=True)[1].read()
    finally:
        cluster.destroy()
    left = [str(path) for path in (cluster.home / "local").iterdir()]
    print(json.dumps([nodes[1].user, out.decode(), terminal.decode(), left]))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv is not on this machine")
def test_an_ordinary_user_needs_no_root() -> None:
    folder = Path(tempfile.mkdtemp(prefix="cloudtrain-user-"))
    try:
        os.chown(folder, 65534, 65534)
        done = subprocess.run(
            [
                *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
                # To read this Python where root keeps it; it lets nothing be written.
                *("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"),
                *(sys.executable, "-c", AS_A_USER, str(folder)),
            ],
            cwd="/",
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(folder),
                "PYTHONPATH": str(ROOT),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            capture_output=True,
            timeout=120,
            check=False,
        )
    finally:
        shutil.rmtree(folder)
    if b"setpriv:" in done.stderr:
        pytest.skip(f"cannot become another user here: {done.stderr.decode().strip()}")
    assert done.returncode == 0, done.stderr.decode()
    user, output, terminal, left = json.loads(done.stdout)
    assert output.split()[0] == "65534"
    assert output.splitlines()[1].endswith("/local/mnist/mnist-worker0/home")
    assert user not in {"root", "0"}
    assert terminal.startswith("/dev/pts/")
    assert left == []


def test_a_creation_after_another_home_was_used_sees_only_its_own(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create()
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "another"))
    other = provider.provider(cluster.plan.config)
    assert other.nodes(cluster.name) == ()
    other.destroy(cluster.name, no_journal)
    assert_one_server_each(cluster)
