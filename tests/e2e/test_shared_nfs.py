"""`shared:` on rented machines with disks of their own: NFS from the chief's, which may be lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.test_worker_recreated import TASK
from tests.standins.cloud import running
from tests.standins.image import with_archive
from tests.standins.nfs import Nfs, exports, with_nfs
from tests.standins.nodes import Nodes, unavailable
from tests.support.cloud_user import LIMIT, Account
from tests.support.project import Project, until

SCRIPT = """
import os, sys, time

role, shared = os.environ["CLOUDTRAIN_ROLE"], sys.argv[1]
own = role + os.environ["CLOUDTRAIN_INDEX"]
with open("job/" + own, "w") as file:
    file.write(own)
while len([name for name in os.listdir(shared) if name.startswith(("chief", "worker"))]) < 3:
    time.sleep(0.1)
print(own, "sees", sorted(os.listdir("job")), flush=True)
"""


@pytest.fixture
def account(tmp_path: Path) -> Iterator[tuple[Account, Nfs]]:
    if reason := unavailable():
        pytest.skip(reason)
    image = tmp_path / "image"
    with Nfs() as nfs:
        with_archive(image)
        with_nfs(image, nfs.port)
        with Nodes(files=image) as nodes, running("gcp", nodes=nodes) as cloud:
            nfs.nodes = nodes
            project = Project(tmp_path / "user's project")
            project.environment.update(cloud.environment)
            yield Account(project, cloud, nodes), nfs


def test_nodes_with_disks_of_their_own_share_the_chiefs_folder(
    account: tuple[Account, Nfs],
) -> None:
    user, nfs = account
    (user.project.code / "job.py").write_text(SCRIPT)
    config = user.config(
        roles={"chief": 1, "worker": 2},
        strategy="custom",
        shared="job",
        setup={},
        train={"command": "python3 job.py {shared}", "checkpoints": None, "success": "all"},
    )
    user.do("up", config, "--yes")
    name = user.project.name
    names = [f"{name}-{task}" for task in ("chief0", "worker0", "worker1")]
    table = exports(user.nodes, names[0])
    assert list(table) == [f"/srv/cloudtrain/{name}"]
    assert set(table[f"/srv/cloudtrain/{name}"]) == {user.nodes.address_of(n) for n in names[1:]}
    mounted = len(nfs.asked)
    assert mounted == 2
    done = user.do("train", name)
    for task in ("chief0", "worker0", "worker1"):
        assert f"{task} │ {task} sees ['chief0', 'worker0', 'worker1']" in done.stdout
    assert len(nfs.asked) == mounted, "what is mounted is not mounted again"
    (landed,) = user.project.store.glob("*/chief0/job")
    assert {each.name: each.read_text() for each in landed.iterdir()} == {
        task: task for task in ("chief0", "worker0", "worker1")
    }
    assert not list(user.project.store.glob("*/worker*/job"))
    assert nfs.refused == []
    assert json.loads(user.do("status", "--json").stdout)["clusters"]
    user.do("down", name, "--yes")
    assert user.cloud.holdings() == []


LOST = """
import os, sys, time

role, job = os.environ["CLOUDTRAIN_ROLE"], sys.argv[1]
first = not os.path.exists(job + "/checkpoint" if role == "chief" else "began")
if role == "chief" and first:
    for name in ("ckpt-1.index", "ckpt-1.data-00000-of-00001"):
        open(job + "/" + name, "w").write("saved")
    open(job + "/checkpoint", "w").write('model_checkpoint_path: "ckpt-1"')
elif first:
    open("began", "w").close()
while first:
    time.sleep(0.1)
print(role, "finds", sorted(os.listdir("job")), flush=True)
"""


def test_a_new_chief_serves_what_had_landed_and_the_others_mount_it_again(
    account: tuple[Account, Nfs],
) -> None:
    user, nfs = account
    (user.project.code / "job.py").write_text(LOST)
    config = user.config(
        strategy="custom",
        shared="job",
        setup={},
        train={
            "command": "python3 job.py {shared}",
            "checkpoints": None,
            "success": "all",
            "max_restarts": 1,
        },
        artifacts={"every": "1s"},
    )
    values = yaml.safe_load(config.read_text())
    values["nodes"]["chief"]["spot"] = True
    config.write_text(yaml.safe_dump(values))
    chief, worker = (f"{user.project.name}-{task}" for task in ("chief0", "worker0"))
    run = user.project.start("run", config, "--yes")
    until(lambda: list(user.project.store.glob("*/chief0/job/checkpoint*")), LIMIT)
    until(lambda: "chief0/job/checkpoint" in manifest_of(user), LIMIT)
    user.cloud.tell("interrupt", name=chief)
    assert run.wait(LIMIT) == 0, user.project.stderr
    saved = "['checkpoint', 'ckpt-1.data-00000-of-00001', 'ckpt-1.index']"
    for role in ("chief", "worker"):
        assert f"{role}0 │ {role} finds {saved}" in user.project.stdout
    assert f"is not on {chief} any more: the shared folder begins with job/ckpt-1; " in (
        user.project.stderr
    )
    assert [client for client, *_ in nfs.asked] == [worker, worker]
    assert user.cloud.holdings() == []


def manifest_of(user: Account) -> str:
    """The checkpoint that has landed as one."""
    (path,) = user.project.store.glob("*/manifest.json")
    return json.dumps(json.loads(path.read_text())["checkpoint"])


def test_a_worker_that_comes_back_alone_has_the_folder_again(account: tuple[Account, Nfs]) -> None:
    user, nfs = account
    (user.project.code / "job.py").write_text(TASK)
    config = user.config(
        roles={"chief": 1, "worker": 1, "ps": 1},
        strategy="parameter_server",
        shared="job",
        setup={},
        train={"command": "exec python3 job.py {shared}", "checkpoints": None, "max_restarts": 1},
    )
    values = yaml.safe_load(config.read_text())
    values["nodes"]["worker"]["spot"] = True
    config.write_text(yaml.safe_dump(values))
    name = user.project.name
    worker = f"{name}-worker0"
    run = user.project.start("run", config, "--yes")
    until(lambda: "cluster formed" in user.project.stderr, LIMIT)
    until(lambda: "by worker0" in user.project.stdout, LIMIT)
    user.cloud.tell("interrupt", name=worker)
    until(lambda: "worker0 serves again" in user.project.stderr, LIMIT)
    ends = f"cd /srv/cloudtrain/{name}/2*/ && touch chief0"  # what the chief waits for
    user.openssh(worker, ends)
    assert run.wait(LIMIT) == 0, user.project.stderr
    assert sorted(client for client, *_ in nfs.asked) == [f"{name}-ps0", worker, worker]
    assert "is not on" not in user.project.stderr
    assert user.cloud.holdings() == []
