"""Links that a task makes on its node, in its output, in the store and where `fetch` will write,
lead to no file of the user's: none is read, written or deleted there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.project import Project

SCRIPT = """
import os, pathlib

mine, store, here = (pathlib.Path(os.environ[name]) for name in ("MINE", "STORE", "HERE"))
output, run = pathlib.Path(os.environ["CLOUDTRAIN_OUTPUT"]), os.environ["CLOUDTRAIN_RUN"]
(output / "model").write_text("landed")
(output / "key").symlink_to(mine / "id_ed25519")
(output / "keys").symlink_to(mine)
(output / "own").symlink_to("model")
for top in (store, here):
    (top / run).mkdir(parents=True, exist_ok=True)
    (top / run / "chief0").symlink_to(mine)
"""


@pytest.mark.sweep(1, of="links of a task")
@pytest.mark.parametrize("shared", ["all", "the store"])
def test_links_of_a_task_lead_to_no_file_of_the_users(
    project: Project, tmp_path: Path, shared: str
) -> None:
    """`all`: a node such as a machine of `hosts` whose user is this one, with its disk mounted."""
    mine, here = tmp_path / "mine", tmp_path / "here"
    (mine / "output").mkdir(parents=True)
    precious = {mine / "id_ed25519": "key", mine / "output/model": "mine"}
    for path, text in precious.items():
        path.write_text(text)
    for folder in (project.store, here):
        folder.mkdir()
    project.environment["CLOUDTRAIN_LOCAL_SHARED"] = (
        "/" if shared == "all" else f"{project.store}:{here}"
    )
    (project.code / "links.py").write_text(SCRIPT)
    places = {"MINE": str(mine), "STORE": str(project.store), "HERE": str(here)}
    config = project.config(
        nodes={"chief": {}}, train={"command": "python3 links.py", "env": places}
    )
    ran = project.cloudtrain("run", config)
    assert ran.returncode not in (0, 1), ran.stderr
    assert "chief0 is a link" in ran.stderr
    fetched = project.cloudtrain("fetch", "--from-nodes", project.name, here)
    assert fetched.returncode not in (0, 1)
    assert "chief0 is a link" in fetched.stderr
    elsewhere = tmp_path / "elsewhere"
    assert project.cloudtrain("fetch", "--from-nodes", project.name, elsewhere).returncode == 0
    (output,) = elsewhere.glob("*/chief0/output")
    assert {path.name: path.read_text() for path in output.iterdir()} == {
        "model": "landed",
        "own": "landed",
    }
    assert {path: path.read_text() for path in mine.rglob("*") if path.is_file()} == precious
    discarded = project.cloudtrain("down", project.name, "--discard")
    assert discarded.returncode == 0, discarded.stderr
    assert {path: path.read_text() for path in mine.rglob("*") if path.is_file()} == precious
