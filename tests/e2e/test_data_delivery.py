"""`data:` on real nodes: what tasks find in its folder, from each kind of store."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cloudtrain.stores import open_store
from tests.standins.stores import KINDS
from tests.support.lent import lent_home
from tests.support.project import Project
from tests.support.sshd import SshdNode, sshd_nodes

READ = """
import hashlib, os, sys
folder = sys.argv[1]
assert os.environ["CLOUDTRAIN_DATA_D"] == folder
for top, _, names in sorted(os.walk(folder)):
    for name in sorted(names):
        path = os.path.join(top, name)
        data = open(path, "rb").read()
        print("has", os.path.relpath(path, folder), hashlib.sha256(data).hexdigest()[:8])
"""

EMPTY, HELLO = "e3b0c442", "2cf24dba"
FILES = {"a b/ü'.bin": b"hello", "empty": b"", "large": b"x" * 40_000_000}


@pytest.fixture
def own(project: Project) -> Project:
    project.environment["CLOUDTRAIN_CACHE"] = str(project.folder / "cache")
    (project.code / "read.py").write_text(READ)
    return project


@pytest.fixture(params=["file", *KINDS])
def uri(
    request: pytest.FixtureRequest, own: Project, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    with ExitStack() as stack:
        if request.param == "file":
            uri = (own.folder / "data").as_uri()
        else:
            store = stack.enter_context(KINDS[request.param]())
            uri = f"{store.uri}/data"
            own.environment |= store.environment
            for name, value in store.environment.items():
                monkeypatch.setenv(name, value)
        yield uri


def seen(output: str) -> dict[str, list[str]]:
    """`path digest` of each file that a task has read, by task."""
    found: dict[str, list[str]] = {}
    for line in output.splitlines():
        task, _, text = line.partition(" │ ")
        if text.startswith("has "):
            found.setdefault(task.split()[-1], []).append(text[4:])
    return found


@pytest.mark.sweep(1)
def test_every_task_reads_it_from_every_kind_of_store(own: Project, uri: str) -> None:
    store = open_store(uri)
    for path, data in FILES.items():
        store.upload(path, [data])
    config = own.config(
        data={"d": uri}, train={"command": "python3 read.py {data.d}", "checkpoints": None}
    )
    done = own.cloudtrain("run", config)
    assert done.returncode == 0, done.stderr
    expected = [f"empty {EMPTY}", "large 8f3b1c71", f"a b/ü'.bin {HELLO}"]
    tasks = seen(done.stdout)
    assert sorted(tasks) == ["chief0", "worker0"]
    for lines in tasks.values():
        assert [line.split()[0] for line in lines] == [line.split()[0] for line in expected]
        assert lines[0] == expected[0]
        assert lines[2] == expected[2]
    assert "MB/s" in done.stderr or "data: " in done.stderr
    copies = list((own.folder / "cache").rglob("large"))
    assert len(copies) == 1, "both nodes share this machine"


def test_each_rank_gets_its_shard_and_a_role_its_own(own: Project) -> None:
    for name in ("d", "e"):
        store = open_store((own.folder / name).as_uri())
        for number in range(5):
            store.upload(f"{number}", [b"hello"])
    config = own.config(
        data={
            "d": {"from": (own.folder / "d").as_uri(), "shard": True, "rest": "drop"},
            "e": {"from": (own.folder / "e").as_uri(), "role": "worker"},
        },
        train={
            "command": "python3 read.py {data.d}; echo has e=$CLOUDTRAIN_DATA_E",
            "checkpoints": None,
        },
    )
    done = own.cloudtrain("run", config)
    assert done.returncode == 0, done.stderr
    tasks = seen(done.stdout)
    assert tasks["chief0"] == [f"0 {HELLO}", f"2 {HELLO}", "e="]
    assert tasks["worker0"][:2] == [f"1 {HELLO}", f"3 {HELLO}"]
    assert tasks["worker0"][2].startswith("e=/")


def test_a_restart_uses_the_listing_of_the_first_attempt(own: Project) -> None:
    store = open_store((own.folder / "d").as_uri())
    store.upload("a", [b"hello"])
    later = own.folder / "d" / "later"
    own.environment["CLOUDTRAIN_LOCAL_SHARED"] = str(own.folder / "d")  # the task may write there
    config = own.config(
        nodes={"chief": {}},
        data={"d": (own.folder / "d").as_uri()},
        train={
            "command": 'python3 read.py {data.d}; [ -e "$LATER" ] || { touch "$LATER"; exit 42; }',
            "env": {"LATER": str(later)},
            "checkpoints": None,
            "max_restarts": 1,
        },
    )
    done = own.cloudtrain("run", config)
    assert done.returncode == 0, done.stderr
    assert seen(done.stdout)["chief0"] == [f"a {HELLO}"] * 2


def test_data_that_is_deleted_before_the_run_starts_keeps_no_nodes(own: Project) -> None:
    data = own.folder / "data"
    data.mkdir()
    (data / "a").write_text("a")
    own.environment["CLOUDTRAIN_LOCAL_SHARED"] = str(data)
    config = own.config(
        data={"d": data.as_uri()},
        setup={"run": [f"rm -f {shlex.quote(str(data / 'a'))}"]},
        train={"command": "python3 read.py {data.d}", "checkpoints": None},
    )
    done = own.cloudtrain("run", config)
    assert done.returncode == 2, done.stderr
    assert f"data.d: no object under {data.as_uri()}" in done.stderr
    assert own.processes() == {}


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[SshdNode]]:
    """They outlive the project, whose last `down` asks them."""
    with sshd_nodes(tmp_path / "sshd", ["chief0", "worker0"]) as machines:
        yield machines


def test_machines_of_ones_own_get_a_folder_of_this_machine_over_ssh(
    machines: list[SshdNode], own: Project, tmp_path: Path
) -> None:
    source = own.folder / "d"
    store = open_store(source.as_uri())
    for path, data in FILES.items():
        store.upload(path, [data])
    own.environment["HOME"] = str(lent_home(tmp_path / "home", machines))
    hosts = [
        {
            "address": machine.node.address,
            "port": machine.node.ssh_port,
            "user": machine.node.user,
            "role": role,
        }
        for machine, role in zip(machines, ("chief", "worker"), strict=True)
    ]
    config = own.config(
        provider="hosts",
        hosts=hosts,
        data={"d": source.as_uri()},
        train={"command": "python3 read.py {data.d}", "checkpoints": None},
    )
    done = own.cloudtrain("run", config)
    assert done.returncode == 0, done.stderr
    for lines in seen(done.stdout).values():
        assert [line.rpartition(" ")[0] for line in lines] == ["empty", "large", "a b/ü'.bin"]
