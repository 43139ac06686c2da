"""`any_of:` and `ordered:` on three clouds' stand-ins at once, with real nodes."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cloudtrain.core.errors import LeasedError
from tests.standins.nodes import unavailable
from tests.support.project import until
from tests.support.three_clouds import ThreeClouds, three_clouds


@pytest.fixture
def user(tmp_path: Path) -> Iterator[ThreeClouds]:
    if reason := unavailable():
        pytest.skip(reason)
    with three_clouds(tmp_path) as user:
        yield user


def test_the_cheapest_with_room_is_taken_and_the_cluster_stays_there(user: ThreeClouds) -> None:
    file = user.config()
    offers = json.loads(user.do("plan", file, "--json").stdout)["offers"]
    assert [offer["provider"] for offer in offers] == ["aws", "azure", "gcp"]
    assert [offer["price_per_hour"] for offer in offers] == [0.407151, 0.407151, 0.786438]

    user.fill("aws", "azure")
    said = user.do("up", file, "--yes").stderr
    assert [line.split("  ", 3)[-1] for line in said.splitlines() if " trying " in line] == [
        "trying aws us-east-1a, 0.41 $/hour: 1 of 3",
        "trying azure eastus, 0.41 $/hour: 2 of 3",
        "trying gcp us-central1-a, 0.79 $/hour: 3 of 3",
    ]
    assert list(user.holding()) == ["gcp"]
    user.fill()  # now the cheaper ones have room, too
    for cloud in ("aws", "azure"):
        user.clouds[cloud].forget_calls()
    assert "trying" not in user.do("up", file, "--yes").stderr
    user.do("train", file, "--", "--steps", "3")
    assert user.project.landed("worker0", "output/worker0.txt") == "done at 3\n"
    assert user.status()["provider"] == "gcp"
    user.do("down", file, "--yes")
    assert user.holding() == {}
    assert user.clouds["aws"].calls() == user.clouds["azure"].calls() == []


@pytest.mark.sweep(2, of="offers")
def test_check_asks_all_candidates_and_the_best_one_counts(user: ThreeClouds) -> None:
    file = user.config()
    del user.project.environment["AWS_ACCESS_KEY_ID"]
    done = user.do("check", file, "--json")
    found = json.loads(done.stdout)
    wrong = {finding["place"] for finding in found["findings"] if not finding["ok"]}
    assert (found["ok"], wrong) == (True, {"aws us-east-1a"})
    said = user.do("check", file).stdout.splitlines()
    assert said[-1] == (
        "nothing found would stop `cloudtrain up` in gcp us-central1-a; azure eastus"
    )
    up = user.do("up", file, "--yes").stderr
    assert "warning: not in aws us-east-1a: credentials: no AWS credentials found" in up
    assert list(user.holding()) == ["azure"]
    user.do("down", file, "--yes")
    assert user.holding() == {}


@pytest.mark.sweep(2, of="offers")
def test_where_nothing_has_room_nothing_is_left_and_each_offer_says_why(user: ThreeClouds) -> None:
    user.fill("aws", "azure", "gcp")
    file = user.config(["gcp", "aws", "azure"], field="ordered")
    done = user.do("up", file, "--yes", code=3)
    error = done.stderr[done.stderr.index("error: ") :].splitlines()
    assert error[0] == "error: no candidate can provide the nodes:"
    assert [line.split(": ")[0].strip() for line in error[1:4]] == [
        "gcp us-central1-a",
        "aws us-east-1a",
        "azure eastus",
    ]
    assert error[-1].startswith("hint: `--wait 6h` tries all of them again")
    assert user.holding() == {}
    assert "nothing of it" in user.do("down", file, "--yes").stderr


@pytest.mark.sweep(2, of="offers")
def test_what_one_account_refused_is_left_before_another_is_recorded(user: ThreeClouds) -> None:
    """Also where a candidate between the two was not even tried."""
    user.fill("gcp")
    file = user.config(["gcp", "gcp", "aws"], field="ordered")
    values = yaml.safe_load(file.read_text())
    values["ordered"][1]["nodes"] = {"worker": {"machine": "n1-standard-999"}}
    file.write_text(yaml.safe_dump(values))
    user.do("up", file, "--yes")
    assert list(user.holding()) == ["aws"]
    (journal,) = user.project.home.glob("clusters/*/events.jsonl")
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    gone = max(number for number, event in enumerate(events) if event["event"] == "gone")
    places = {event["placement"] for event in events[gone:] if event["event"] == "place"}
    assert places == {"us-east-1a"}, "nothing of the other cloud counts for this cluster"
    user.do("down", file, "--yes")
    assert user.holding() == {}


@pytest.mark.sweep(2, of="offers")
def test_a_wait_says_a_line_each_round_and_takes_the_first_room(user: ThreeClouds) -> None:
    user.fill("aws", "azure", "gcp")
    file = user.config(["aws", "gcp"])
    up = user.project.start("up", file, "--yes", "--wait", "10m")
    try:
        until(lambda: "trying again in 2 s" in user.project.stderr, 60)
        assert user.holding() == {}
        user.fill("aws")
        assert up.wait(timeout=120) == 0, user.project.stderr
    finally:
        up.kill()
    waited = user.project.stderr.partition("trying again in 2 s")[2]
    assert "nothing is billed meanwhile; Ctrl-C ends the wait" in waited
    assert "warning" not in waited
    assert "trying" not in waited
    assert list(user.holding()) == ["gcp"]
    user.do("down", user.project.name, "--yes")


@pytest.mark.sweep(2, of="offers")
def test_ctrl_c_ends_a_wait_at_once(user: ThreeClouds) -> None:
    user.fill("gcp")
    up = user.project.start("up", user.config(["gcp"]), "--yes", "--wait", "1h")
    try:
        until(lambda: "trying again in 2 s" in user.project.stderr, 60)
        begun = time.monotonic()
        up.send_signal(signal.SIGINT)
        assert up.wait(timeout=60) == 130
        print(f"ended {time.monotonic() - begun:.1f} s after Ctrl-C")
    finally:
        up.kill()
    assert user.holding() == {}


KILLED = [
    ("aws", "CreateSecurityGroup *", True),
    ("aws", "DeleteSecurityGroup *", False),
    ("azure", "DELETE resourceGroups *", False),
    ("azure", "DELETE resourceGroups *", True),
    ("gcp", "instances.insert", True),
]


@pytest.mark.sweep(2, of="offers")
@pytest.mark.parametrize(("cloud", "action", "after"), KILLED)
def test_a_killed_up_is_finished_or_cleared_away_wherever_it_was(
    user: ThreeClouds, cloud: str, action: str, after: bool
) -> None:
    """kill -9 before or after a call of each part: creation, rollback, the way to the next."""
    user.fill("aws", "azure")
    file = user.config(["aws", "azure", "gcp"], field="ordered")
    up = user.project.start("up", file, "--yes")
    try:
        dry_runs = int(action.startswith("Create"))  # of `check`
        user.clouds[cloud].fault("kill", action=action, skip=dry_runs, after=after, pid=up.pid)
        assert up.wait(timeout=120) == -signal.SIGKILL, user.project.stderr
    finally:
        up.kill()
    user.clouds[cloud].no_more_faults()
    for each in user.clouds.values():
        each.quiet()
    if after:
        user.do("down", user.project.name, "--yes", "--discard")
    else:
        user.do("up", file, "--yes")
        assert list(user.holding()) == ["gcp"]
        assert len(user.status()["nodes"]) == 2
        user.do("down", user.project.name, "--yes")
    assert user.holding() == {}


@pytest.mark.sweep(2, of="offers")
def test_down_finds_a_cluster_that_another_machine_created_in_one_of_the_clouds(
    user: ThreeClouds,
) -> None:
    user.fill("aws", "azure")
    file = user.config()
    user.do("up", file, "--yes")
    user.project.environment["CLOUDTRAIN_HOME"] = str(user.project.folder / "another home")
    there = user.holding()
    refused = user.do("down", file, "--yes", "--discard", code=LeasedError.exit_code)
    assert "is being created until" in refused.stderr
    assert user.holding() == there
    owner = re.findall(r"add `--owner (\S+) --discard`", refused.stderr)[0]
    user.do("down", file, "--yes", "--discard", "--owner", owner)
    assert user.holding() == {}


@pytest.mark.sweep(2, of="offers")
def test_a_run_that_lost_its_node_goes_on_elsewhere_from_its_checkpoint(user: ThreeClouds) -> None:
    waits = "python3 rank.py --output {output} --steps 40 --hold 5 resumed"
    file = user.config(
        ["aws", "gcp"],
        field="ordered",
        train={
            "max_restarts": 1,
            "command": f"[ ! -e ckpt/checkpoint ] || touch resumed; {waits}",
        },
        limits={"wait": "1s"},
        artifacts={"store": user.project.store.as_uri(), "every": "1s"},
    )
    run = user.project.start("run", file, "--json")
    try:
        until(lambda: len(list(user.project.store.glob("*/chief0/ckpt/*"))) > 0, 120)
        user.fill("aws")
        user.clouds["aws"].tell("interrupt", name=f"{user.project.name}-worker0")
        assert run.wait(timeout=300) == 0, user.project.stderr
    finally:
        run.kill()
    print(user.project.stderr)
    assert user.holding() == {}
    first, second = user.project.runs()
    assert (first["state"], second["state"]) == ("failed", "succeeded")
    assert second["resumed_from"]["run"] == first["id"]
