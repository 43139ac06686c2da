"""A failed `up` says what is still billed, until when and how to end it, or rolls it back."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from typing import Any

import pytest

from cloudtrain.cluster import provision
from cloudtrain.core.errors import NodeUnreachable, TransientError
from cloudtrain.state import Records
from tests.support.drift_parts import User, cloudtrain, user, worker

__all__ = ["user"]


@pytest.fixture
def no_login(user: User, monkeypatch: pytest.MonkeyPatch) -> User:
    """Nobody gets in, as with a subnet that leads nowhere."""

    def refuse(*given: Any, **named: Any) -> None:
        raise NodeUnreachable("deep-worker2", "no login within 600 s: timed out")

    monkeypatch.setattr(provision, "await_first_login", refuse)
    return user


def test_what_is_billed_is_told_with_price_end_and_command(no_login: User) -> None:
    user = no_login
    user.write(**worker(count=3))
    end = time.time() + 7200
    make = user.cloud.create

    def create(*given: Any) -> Any:
        made = make(*given)
        there = user.cloud.cloud["deep"]
        for name, node in there.items():
            there[name] = replace(node, expires=end)
        return made

    user.cloud.create = create  # type: ignore[method-assign]
    done = user.up()
    assert done.exit_code == 1
    assert "no login within 600 s" in done.stderr
    told = "still billed: deep-worker0, deep-worker1, deep-worker2, "
    assert told in done.stderr
    assert "$/hour, until 20" in done.stderr
    assert "`cloudtrain down deep` destroys them" in done.stderr
    assert len(user.names()) == 3


def test_what_it_made_is_given_back_and_nothing_else(no_login: User) -> None:
    user = no_login
    user.write(**worker(count=4))
    done = user.up("--give-back")
    assert done.exit_code == 1
    assert "no login within 600 s" in done.stderr
    assert user.names() == ["deep-worker0", "deep-worker1"]
    assert "still billed: deep-worker0, deep-worker1, " in done.stderr
    user.cloud.stop("deep", "deep-worker1")
    assert user.up("--give-back").exit_code == 1
    assert user.names() == ["deep-worker0", "deep-worker1"], "its disk may hold work"


def test_a_new_cluster_is_given_back_whole(no_login: User) -> None:
    user = no_login
    assert cloudtrain("down", "deep", "--yes").exit_code == 0
    assert user.up("--give-back").exit_code == 1
    assert user.cloud.cloud == {}
    lines = (Records("deep").folder / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines][-2:] == ["destroy", "destroy"]


def test_where_the_cloud_cannot_be_asked_the_record_names_the_nodes(
    no_login: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = no_login
    user.write(**worker(count=3))

    def silent(cluster: str) -> Any:
        raise TransientError("503")

    def refuse(*given: Any, **named: Any) -> None:
        monkeypatch.setattr(user.cloud, "nodes", silent)
        raise NodeUnreachable("deep-worker2", "no login")

    monkeypatch.setattr(provision, "await_first_login", refuse)
    done = user.up()
    assert "by the record, deep-worker0, deep-worker1, deep-worker2 are" in done.stderr


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"code": {"path": "nowhere"}}, "nowhere is not a folder"),
    ({"train": {"command": "python t.py --out {ouput}"}}, "did you mean {output}?"),
    ({"setup": {"requirements": "needs.txt"}}, "needs.txt cannot be read"),
    ({"setup": {"packages": ["FILL_IN_X"]}}, "FILL_IN_X is still to be filled in"),
)


@pytest.mark.parametrize(("wrong", "words"), WRONG)
def test_what_is_known_here_is_refused_before_anything_is_created(
    user: User, wrong: dict[str, Any], words: str
) -> None:
    cloudtrain("down", "deep", "--yes")
    user.write(**wrong)
    done = user.up()
    assert done.exit_code == 2
    assert words in " ".join(done.stderr.split())
    assert re.search(r"deep\.yaml:\d+: ", done.stderr)
    assert user.names() == []
    assert "billed" not in done.stderr


@pytest.mark.parametrize(("wrong", "words"), WRONG)
def test_what_is_refused_while_nodes_exist_names_them(
    user: User, wrong: dict[str, Any], words: str
) -> None:
    user.write(**wrong)
    done = user.up()
    assert done.exit_code == 2
    assert words in " ".join(done.stderr.split())
    assert "still billed: deep-worker0, deep-worker1, " in done.stderr
    assert "`cloudtrain down deep` destroys them" in done.stderr


@pytest.mark.parametrize(("wrong", "words"), WRONG)
def test_train_refuses_it_too(user: User, wrong: dict[str, Any], words: str) -> None:
    done = cloudtrain("train", user.write(**wrong))
    assert done.exit_code == 2
    assert words in " ".join(done.stderr.split())
