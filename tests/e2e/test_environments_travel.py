"""One node creates an environment; the others, and the nodes of a later cluster, get it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.standins.cloud import DESCRIPTIONS, running
from tests.standins.image import with_archive, with_noted_uv, with_package
from tests.standins.nodes import Nodes, unavailable
from tests.standins.stores import KINDS, Store
from tests.support.cloud_user import READY, Account
from tests.support.project import Project

UV_LOG = "/tmp/uv.log"
SAME = (
    "cd ~/.cache/cloudtrain/venvs/python-packages-*/ && "
    "{ find . -name __pycache__ -prune -o -type f ! -name '.*' -print; find . -type l; } |"
    " sort | while read -r path; do"
    ' [ -L "$path" ] && echo "$path $(readlink "$path")" || sha256sum "$path"; done | sha256sum &&'
    " bin/python -I -c 'import many; print(many.all_of_it())'"
)


@pytest.fixture
def account(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Account, Store]]:
    if reason := unavailable():
        pytest.skip(reason)
    name, project = request.param, Project(tmp_path / "user's project")
    image = tmp_path / "image"
    with_archive(image)
    with_package(image)
    with_noted_uv(image, UV_LOG)
    with (
        Nodes(files=image) as nodes,
        running(name, nodes=nodes) as cloud,
        KINDS[DESCRIPTIONS[name].store]() as store,
    ):
        project.environment.update({**store.environment, **cloud.environment})
        yield Account(project, cloud, nodes), store


@pytest.mark.sweep(1, of="environments")
@pytest.mark.parametrize("account", READY, indirect=True)
def test_one_node_asks_the_package_index_and_a_later_cluster_asks_it_nothing(
    account: tuple[Account, Store],
) -> None:
    user, store = account
    config = user.config(setup={"packages": ["many"]}, artifacts={"store": store.uri})
    user.do("up", config, "--yes")
    assert sum(asked_the_index(user)) == 1
    (content,) = set(contents(user))
    assert content.endswith("400\n")
    user.do("down", user.project.name, "--yes")

    said = user.do("up", config, "--yes").stderr
    assert sum(asked_the_index(user)) == 0, said
    assert set(contents(user)) == {content}
    assert "cannot get" not in said
    user.do("down", user.project.name, "--yes")
    assert user.cloud.holdings() == []


@pytest.mark.sweep(1, of="environments")
@pytest.mark.parametrize("account", ["gcp"], indirect=True)
def test_an_archive_that_was_changed_in_the_store_is_not_used(
    account: tuple[Account, Store],
) -> None:
    user, store = account
    config = user.config(setup={"packages": ["many"]}, artifacts={"store": store.uri})
    said = user.do("up", config, "--yes").stderr
    user.do("down", user.project.name, "--yes")
    kept = [*(user.project.home / "environments").glob("archive-*.json")]
    assert len(kept) == 2, said
    for record in kept:
        known = json.loads(record.read_text())
        for part in known["parts"]:
            part["sha256"] = "0" * 64
        record.write_text(json.dumps(known))

    said = user.do("up", config, "--yes").stderr
    assert "cannot get python from the store" in said
    assert "cannot get python-packages from the store" in said
    assert "SHA-256" in said
    assert sum(asked_the_index(user)) == 1
    assert len(set(contents(user))) == 1


@pytest.mark.sweep(1, of="environments")
@pytest.mark.parametrize("account", ["gcp"], indirect=True)
def test_with_the_cache_off_each_node_creates_its_own(account: tuple[Account, Store]) -> None:
    user, store = account
    config = user.config(
        setup={"packages": ["many"], "cache": False}, artifacts={"store": store.uri}
    )
    user.do("up", config, "--yes")
    assert all(asked_the_index(user))
    assert not (user.project.home / "environments").exists()


def asked_the_index(user: Account) -> list[bool]:
    """By node: has it looked for the package?"""
    test = f"grep -qs many {UV_LOG} && echo yes || echo no"
    return [user.openssh(node["name"], test).strip() == "yes" for node in user.status()]


def contents(user: Account) -> list[str]:
    return [user.openssh(node["name"], SAME) for node in user.status()]
