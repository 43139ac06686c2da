"""`data:` on real nodes: what tasks find in its folder, from each kind of store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from cloudtrain.stores import open_store
from tests.standins.stores import KINDS
from tests.support.project import Project

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
    assert "MB/s" in done.stderr or "data: done" in done.stderr
    copies = list((own.folder / "cache").rglob("large"))
    assert len(copies) == 1, "both nodes share this machine"
