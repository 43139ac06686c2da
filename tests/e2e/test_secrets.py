"""Credentials are planted in `secrets:` and in the environment, and then looked for everywhere."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.standins.cloud import DESCRIPTIONS, running
from tests.standins.nodes import Nodes, unavailable
from tests.support.cloud_user import MACHINES
from tests.support.project import Project, until
from tests.support.scanning import Sampled, files_that_tell, sampling, told

ONCE = secrets.token_hex(8)
"""No other process of this machine, nor a file of the tests, holds it."""

SECRET = f"secret-{ONCE}"
OURS = {
    name: f"environment-{number}-{ONCE}"
    for number, name in enumerate(
        (
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
            "AZURE_CLIENT_SECRET",
            "AZURE_STORAGE_CONNECTION_STRING",
            "GITHUB_TOKEN",
            "WANDB_API_KEY",
        )
    )
}
KEY_FILE = f"key-file-{ONCE}"
MARKERS = (SECRET, KEY_FILE, *OURS.values())

VALUE = f"{SECRET}'\"$(id) `id` \\ é"
DIGEST = hashlib.sha256(VALUE.encode()).hexdigest()

JOB = """\
import hashlib, os, pathlib, subprocess, sys, time
value = os.environ["API_KEY"]
print("its digest is", hashlib.sha256(os.fsencode(value)).hexdigest(), flush=True)
others = sorted(set(os.environ) & set(sys.argv[2].split(",")))
print("of the user's own it has", others, flush=True)
pathlib.Path("output/done").write_text("done")
until = time.monotonic() + 60
while not pathlib.Path(sys.argv[1]).exists() and time.monotonic() < until:
    time.sleep(0.02)
if "--fail" in sys.argv:
    raise RuntimeError("as it was told to")
"""


@pytest.fixture
def planted(project: Project) -> Project:
    return plant(project)


def plant(project: Project) -> Project:
    """Caches, temporary files and home are below the project's folder, and so are scanned."""
    key = project.folder.parent / "key.json"
    key.write_text(json.dumps({"type": "service_account", "private_key": KEY_FILE}))
    for variable, name in (("HOME", "home"), ("TMPDIR", "tmp"), ("CLOUDTRAIN_CACHE", "cache")):
        (project.folder / name).mkdir()
        project.environment[variable] = str(project.folder / name)
    project.environment.update(OURS, GOOGLE_APPLICATION_CREDENTIALS=str(key), MY_KEY=VALUE)
    (project.code / "job.py").write_text(JOB)
    return project


def config(planted: Project, **sections: object) -> Path:
    names = ",".join([*OURS, "GOOGLE_APPLICATION_CREDENTIALS", "MY_KEY"])
    go = shlex.quote(str(planted.shared() / "go"))
    return planted.config(
        **{
            "strategy": "mirrored",
            "nodes": {"chief": {}},
            "secrets": {"API_KEY": "${MY_KEY}"},
            "train": {"command": f"python3 job.py {go} {names}"},
            **sections,
        }
    )


class Told:
    """Runs commands with --debug, and keeps all that they say."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.text = ""

    def do(self, *arguments: str | Path, code: int = 0) -> str:
        done = self.project.cloudtrain("--debug", *arguments, timeout=300.0)
        self.text += done.stdout + done.stderr
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr


def test_credentials_are_nowhere_on_nodes_nor_in_records_nor_told(planted: Project) -> None:
    told_by = Told(planted)
    path = config(planted, setup={"run": ["env"]})
    with sampling() as sampled:
        told_by.do("check", path)
        told_by.do("plan", path, "--json")
        told_by.do("up", path)
        told_by.do("train", path, "--detach")
        log = until(lambda: runs_log(planted), 60, "the task's first lines")
        assert f"its digest is {DIGEST}" in log
        assert "of the user's own it has []" in log
        told_by.do("exec", planted.name, "--", "sh", "-c", "env; set")
        told_by.do("status", planted.name, "--json")
        nothing_tells(planted, told_by)  # the task runs, and the node is there
        (planted.shared() / "go").touch()
        told_by.do("logs", "-f", planted.name)
        told_by.do("train", path, "--", "--fail", code=1)
        told_by.do("fetch", planted.name, planted.folder / "fetched")
        told_by.do("logs", planted.name)
        nothing_tells(planted, told_by)
        told_by.do("down", planted.name, "--yes")
    nothing_tells(planted, told_by)
    the_secret_was_in_the_tasks_environment_alone(planted, sampled)


def test_what_fails_does_not_tell_them_either(planted: Project) -> None:
    """A setup step, a store, and a secret that is not set."""
    told_by = Told(planted)
    said = told_by.do("up", config(planted, setup={"run": ["env >&2; false"]}), code=1)
    assert "exit 1" in said
    nothing_tells(planted, told_by)
    full = planted.folder / "full"
    full.write_text("a file, not a folder")
    told_by.do("up", config(planted, artifacts={"store": full.as_uri()}), code=5)
    del planted.environment["MY_KEY"]
    said = told_by.do("up", config(planted), code=2)
    assert "secrets.API_KEY: the environment variable MY_KEY is not set" in said
    nothing_tells(planted, told_by)


def test_the_scan_finds_what_it_looks_for(tmp_path: Path) -> None:
    """Else all of the above would pass for nothing."""
    coded = base64.b64encode(SECRET.encode()).decode()
    for name, text in {"plain": f"x{SECRET}x", "coded": coded, SECRET: "", "none": ""}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "link").symlink_to(SECRET)
    found = [line.rpartition("/")[2] for line in files_that_tell([tmp_path], [SECRET])]
    assert sorted(found) == sorted(f"{n}: {SECRET}" for n in ("plain", "coded", SECRET, "link"))
    line = ["sh", "-c", "sleep 60; :", SECRET]
    with subprocess.Popen(line, env={"CLOUDTRAIN_NODE": KEY_FILE}) as process, sampling() as seen:
        until(lambda: any(told([SECRET], words) for words in seen.commands.copy()), 60)
        process.kill()
    assert {"CLOUDTRAIN_NODE": KEY_FILE} in seen.bearing("CLOUDTRAIN_NODE")


def runs_log(project: Project) -> str:
    logs = project.home.rglob("attempt-1/log")
    text = "".join(log.read_text(errors="replace") for log in logs)
    return text if "own it has" in text else ""


def nothing_tells(project: Project, told_by: Told) -> None:
    assert files_that_tell([project.folder], MARKERS) == []
    assert told(MARKERS, told_by.text.encode()) == []


def the_secret_was_in_the_tasks_environment_alone(project: Project, sampled: Sampled) -> None:
    assert [words for words in sampled.commands if told(MARKERS, words)] == []
    on_node = sampled.bearing("CLOUDTRAIN_NODE")
    in_task = sampled.bearing("CLOUDTRAIN_TASK")
    assert any(one.get("API_KEY") == VALUE for one in in_task)
    outside = [one for one in on_node if one not in in_task]
    assert [one for one in outside if told(MARKERS, repr(one).encode())] == []
    others = MARKERS[1:]
    assert [one for one in in_task if told(others, repr(one).encode())] == []
    bearers = [one for one in sampled.bearing(*OURS) if told(MARKERS, repr(one).encode())]
    assert [one for one in bearers if "CLOUDTRAIN_HOME" not in one] == []  # but the client's own


# ── on a cloud's stand-in, with a real node behind it ────────────────────────


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    if reason := unavailable():
        pytest.skip(reason)
    with Nodes() as nodes:
        yield nodes


def test_a_clouds_node_has_neither_the_secret_nor_the_clouds_credentials(
    tmp_path: Path, nodes: Nodes
) -> None:
    planted = plant(Project(tmp_path / "user's project"))
    told_by = Told(planted)
    with running("aws", nodes=nodes) as cloud:
        planted.environment.update(cloud.environment)
        account_key = cloud.environment["AWS_SECRET_ACCESS_KEY"]
        described = DESCRIPTIONS["aws"]
        path = config(
            planted,
            provider="aws",
            project=described.project or None,
            placement=list(described.placement),
            nodes={"chief": {"machine": MACHINES["aws"]}},
            train={"command": "touch go; python3 job.py go X"},
        )
        try:
            told_by.do("up", path, "--yes")
            assert f"its digest is {DIGEST}" in told_by.do("train", path)
            markers = [*MARKERS, account_key]
            assert files_that_tell([nodes.disks()], markers) == []
            assert files_that_tell([planted.folder], markers) == []
            assert told(markers, told_by.text.encode()) == []
        finally:
            told_by.do("down", planted.name, "--yes")
    assert files_that_tell([planted.folder], MARKERS) == []
