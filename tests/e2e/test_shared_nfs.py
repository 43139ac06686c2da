"""`shared:` on rented machines with disks of their own: NFS from the chief's, and a chief that is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.standins.cloud import running
from tests.standins.image import with_archive
from tests.standins.nfs import Nfs, exports, with_nfs
from tests.standins.nodes import Nodes, unavailable
from tests.support.cloud_user import Account
from tests.support.project import Project

SCRIPT = """
import os, sys, time

role, shared = os.environ["CLOUDTRAIN_ROLE"], sys.argv[1]
own = role + os.environ["CLOUDTRAIN_INDEX"]
with open("job/" + own, "w") as file:
    file.write(open("/etc/hostname").read() if False else own)
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
