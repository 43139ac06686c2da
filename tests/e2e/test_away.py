"""`run --away` on real nodes: a desk trains, lands, deletes the nodes and itself, on its own."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.away.orders import answer_of, load_order_key, new_order, post_order
from cloudtrain.away.published import Published
from cloudtrain.state.folder import ORDER_KEY
from tests.support.away import SECRET, Away, away
from tests.support.cloud_user import READY
from tests.support.project import until

LEFT = {"gcp": ["network", "subnetwork"], "aws": ["security group"], "azure": []}
"""What a desk was using until its end; none of it has a price."""


@pytest.fixture
def there(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Away]:
    with away(getattr(request, "param", "gcp"), tmp_path) as made:
        yield made


@pytest.mark.sweep(1, of="desks")
@pytest.mark.parametrize("there", READY, indirect=True)
def test_a_desk_trains_lands_and_deletes_all_while_the_laptop_is_off(there: Away) -> None:
    user, name = there.user, there.name
    said = user.do("run", there.config(), "--away", "--json")
    assert json.loads(said.stdout)["phase"] != "ended"
    print(said.stderr)
    until(lambda: there.phase() == "training", 120, "the run")
    assert not [path for path in files_of(user.nodes.disks()) if has(path, SECRET)]
    if user.cloud.name == "gcp":
        only_the_desk_has_an_identity_and_all_belongs_to_its_user(there)
    until(lambda: not user.nodes.running(), 200, "the controller to be gone")
    state = there.state()
    assert state is not None
    assert (state.phase, state.exit_code, state.error) == ("ended", 0, None)
    assert there.kinds_held() == LEFT[user.cloud.name]
    landed = {each.path.partition("/")[2]: each for each in there.artifacts().list(f"{state.run}/")}
    assert b"".join(there.artifacts().download(landed["chief0/output/chief0.txt"].path)) == (
        b"done at 5\n"
    )
    refused = user.project.cloudtrain("up", name, "--yes")
    assert (refused.returncode, f"{name} is away" in refused.stderr) == (2, True)
    user.do("down", name, "--yes")
    assert user.cloud.holdings() == []


def only_the_desk_has_an_identity_and_all_belongs_to_its_user(there: Away) -> None:
    app = there.user.cloud.app
    bodies = {
        thing.body["name"]: thing.body
        for thing in app.things.values()
        if thing.collection == "instances"
    }
    assert sorted(bodies) == sorted([there.desk, f"{there.name}-chief0", f"{there.name}-worker0"])
    identified = [name for name, body in bodies.items() if body.get("serviceAccounts")]
    assert identified == [there.desk]
    assert len({body["labels"]["cloudtrain-owner"] for body in bodies.values()}) == 1
    assert len({body["labels"]["cloudtrain-machine"] for body in bodies.values()}) == 1


def files_of(disks: Path) -> Iterator[Path]:
    """What nodes have written to their disks."""
    for path in disks.glob("*/upper/**/*"):
        if path.is_file() and not path.is_symlink():
            yield path


def has(path: Path, text: str) -> bool:
    try:
        return text.encode() in path.read_bytes()
    except OSError:
        return False


@pytest.mark.sweep(1, of="desks")
def test_a_killed_process_on_the_desk_is_started_again_and_an_order_ends_its_run(
    there: Away,
) -> None:
    user = there.user
    user.do("run", there.config(steps=1000), "--away")
    until(lambda: there.phase() == "training", 120, "the run")
    (pid,) = there.processes()
    os.kill(pid, signal.SIGKILL)
    (again,) = until(lambda: [each for each in there.processes() if each != pid], 60)
    second = user.project.cloudtrain("run", there.config(steps=1000), "--away")
    assert second.returncode == 2, second.stderr
    assert "is away: its controller is at work" in second.stderr
    state = there.state()
    assert state is not None
    key = load_order_key(user.project.home / "clusters" / there.name / ORDER_KEY)
    order = new_order(there.name, state.desk, "stop-run", run=state.run, now=time.time())
    post_order(there.artifacts(), key, order)
    until(lambda: not user.nodes.running(), 120, "the controller to be gone")
    answer, ended = answer_of(there.artifacts(), order), there.state()
    assert answer is not None
    assert ended is not None
    assert (answer.state, ended.phase, ended.run) == ("done", "ended", state.run)
    assert ended.exit_code != 0
    assert there.kinds_held() == LEFT["gcp"]
    log = Published(there.artifacts(), there.name).log().decode()
    assert f"joining active run {state.run}" in log
    assert again != pid


@pytest.mark.sweep(1, of="desks")
@pytest.mark.parametrize(
    ("action", "after"),
    [("firewalls.insert", True), ("instances.insert", True)],
)
def test_a_client_killed_while_it_creates_the_desk_leaves_what_the_next_call_finishes(
    there: Away, action: str, after: bool
) -> None:
    user, file = there.user, there.config()
    run = user.project.start("run", file, "--away")
    try:
        user.cloud.fault("kill", action=action, after=after, pid=run.pid)
        assert run.wait(timeout=120) == -signal.SIGKILL, user.project.stderr
    finally:
        run.kill()
    user.cloud.no_more_faults()
    user.cloud.quiet()
    if action == "instances.insert" and after:
        user.do("run", file, "--away")
        until(lambda: not user.nodes.running(), 200, "the controller to be gone")
        state = there.state()
        assert state is not None
        assert (state.phase, state.exit_code) == ("ended", 0)
    user.do("down", there.name, "--yes")
    assert user.cloud.holdings() == []


@pytest.mark.sweep(1, of="desks")
def test_what_a_lost_desk_leaves_is_found_and_deleted_without_it(there: Away) -> None:
    user, name = there.user, there.name
    user.do("run", there.config(steps=1000), "--away")
    until(lambda: there.phase() == "training", 120, "the run")
    user.nodes.halt(there.desk)
    listed = json.loads(user.do("ls", "--cloud", "--json").stdout)
    names = [each["name"] for account in listed["accounts"] for each in account["clusters"]]
    assert sorted(names) == [name, f"{name}-desk"]
    user.do("down", f"{name}-desk", "--discard", "--yes")
    user.do("gc", name, "--yes")
    assert user.cloud.holdings() == []
