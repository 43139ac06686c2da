"""Two projects with the same file name, as users type: neither changes the other's cluster."""

from __future__ import annotations

import json

import pytest

from tests.support.project import Project

pytestmark = pytest.mark.usefixtures("own_home")


def test_no_command_of_one_project_changes_the_cluster_of_the_other(project: Project) -> None:
    """On real nodes of this machine, from the first `up` to the end."""
    mine = project.config()
    theirs = project.folder / "another" / "cluster.yaml"
    theirs.parent.mkdir()
    (project.folder / ".hg").mkdir()  # one repository, whose files may name each other's folders
    theirs.write_text(mine.read_text())
    assert project.cloudtrain("up", mine).returncode == 0
    record_before = (project.home / "clusters" / project.name / "config.json").read_bytes()
    for words in (
        ["up"],
        ["train"],
        ["run"],
        ["stop-run"],
        ["down", "--yes"],
        ["down", "--discard", "--yes"],
    ):
        done = project.cloudtrain(words[0], theirs, *words[1:])
        assert done.returncode == 2, (words, done.stderr)
        assert f"was created from {mine}" in done.stderr
    record_after = (project.home / "clusters" / project.name / "config.json").read_bytes()
    assert record_after == record_before
    assert project.cloudtrain("forget", project.name).returncode == 2
    done = project.cloudtrain("train", theirs, "--adopt", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["state"] == "succeeded"
    assert project.cloudtrain("down", mine).returncode == 2, "it is the other's now"
    assert project.cloudtrain("down", project.name).returncode == 0
    assert project.cloudtrain("forget", project.name).returncode == 0
    assert not (project.home / "clusters" / project.name).exists()
