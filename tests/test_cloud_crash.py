"""kill -9 before and after every API call of up and of down, on every cloud: nothing is left."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from cloudtrain.model import ClusterConfig, NodeGroup
from cloudtrain.plan import make_plan
from tests.cloud_client import Client, Job, Outcome, Verb, client
from tests.fakes import make_identity
from tests.standins.cloud import DESCRIPTIONS, Cloud, start

CLOUDS = [
    name
    for name, described in DESCRIPTIONS.items()
    if find_spec(f"cloudtrain.providers.{name}") and find_spec(described.at.partition(":")[0])
]


class Rig:
    """A cloud, a user's processes, and one cluster's keys and journal."""

    def __init__(self, cloud: Cloud, client: Client, folder: Path) -> None:
        self.cloud = cloud
        self.client = client
        self._folders = (folder / f"cluster{number}" for number in itertools.count())
        self.begin_anew()

    def begin_anew(self, workers: int = 1) -> None:
        """An empty account, new keys."""
        self.cloud.renew()
        self.cloud.set(delay=0.0)
        folder = next(self._folders)
        folder.mkdir(parents=True)
        self.journal = folder / "journal"
        self.journal.touch()
        self.plan = make_plan(config(self.cloud, workers))
        self.identity = make_identity(folder, self.plan)

    def job(self, do: Verb, **changes: object) -> Job:
        return replace(Job(do=do, plan=self.plan, identity=self.identity), **changes)  # type: ignore[arg-type]

    def run(self, do: Verb, **changes: object) -> Outcome:
        return self.client.run(self.job(do, **changes), self.journal)

    def killed(self, do: Verb, number: int, after: bool) -> bool:
        """Whether there was such a call to be killed at."""
        self.cloud.forget_calls()
        running = self.client.ready(self.job(do), self.journal)
        self.cloud.fault("kill", number=number, after=after, pid=running.pid)
        outcome = running.go().outcome()
        self.cloud.no_more_faults()
        assert outcome.clean, outcome
        return outcome.killed

    def instances(self) -> list[str]:
        """Names, once for each that exists."""
        return [line.split()[1] for line in self.cloud.holdings() if line.startswith("instance ")]


def config(cloud: Cloud, workers: int) -> ClusterConfig:
    made = cloud.config()
    group = made.nodes["chief"]
    nodes: dict[str, NodeGroup] = {"chief": group, "worker": replace(group, count=workers)}
    return replace(made, nodes=nodes)


@pytest.fixture(scope="module", params=CLOUDS)
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp(request.param)
    with start(request.param) as cloud, client(cloud, folder) as clients:
        yield Rig(cloud, clients, folder)


def points() -> Iterator[tuple[int, bool]]:
    for number in itertools.count(1):
        yield number, False
        yield number, True


def at_every_call(rig: Rig, do: Verb, then: Callable[[int], None]) -> int:
    """`then` after each kill, with the number of the point; returns how many there were."""
    for count, (number, after) in enumerate(points()):
        rig.begin_anew()
        if do == "destroy":
            assert rig.run("create").nodes
        if not rig.killed(do, number, after):
            assert count > 10
            return count
        try:
            then(count)
        except BaseException as error:
            calls = [call["action"] for call in rig.cloud.calls()]
            when = "after" if after else "before"
            error.add_note(f"killed {when} call {number} of {do}: {calls[number - 1 : number]}")
            raise
    raise AssertionError


def test_a_killed_up_or_down_is_cleared_away(
    rig: Rig, record_property: Callable[[str, object], None]
) -> None:
    def destroyed(count: int) -> None:
        assert not rig.run("destroy").error
        assert rig.cloud.holdings() == []

    for verb in ("create", "destroy"):
        count = at_every_call(rig, verb, destroyed)
        record_property(f"{rig.cloud.name} {verb} points", count)
        print(f"{rig.cloud.name}: killed at {count} points of {verb}")


def test_a_killed_up_or_down_is_cleared_away_where_no_file_tells_of_it(rig: Rig) -> None:
    """Another machine, or a lost state folder: what is there is read from labels alone."""

    def swept(count: int) -> None:
        rig.cloud.quiet()
        for name in rig.run("sweep").clusters:
            assert name == "mnist"
            assert not rig.run("destroy", expected=False).error
        assert rig.cloud.holdings() == []

    for verb in ("create", "destroy"):
        at_every_call(rig, verb, swept)


def test_a_killed_up_is_finished_by_the_next_and_nothing_is_doubled(rig: Rig) -> None:
    def finished(count: int) -> None:
        made = rig.run("create").nodes
        assert [node.name for node in made] == ["mnist-chief0", "mnist-worker0"]
        assert rig.instances() == ["mnist-chief0", "mnist-worker0"]
        assert not rig.run("destroy").error
        assert rig.cloud.holdings() == []

    at_every_call(rig, "create", finished)
