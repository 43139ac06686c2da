"""Moments go by this machine's clock as it was at the beginning, or by that of a cloud."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace

import pytest

from cloudtrain.core import moments
from cloudtrain.core.moments import OFF, SLOW, Moments
from cloudtrain.identities import aws
from cloudtrain.state import clock
from cloudtrain.stores import az, gs

NOON = 1_800_000_000.0


class World:
    """A machine whose clock is `ahead` of the true time, and a cloud that knows this."""

    def __init__(self, ahead: float = 0.0) -> None:
        self.ahead, self.passed = ahead, 5000.0
        self.said: list[str] = []
        self.moments = Moments(lambda: self.true + self.ahead, lambda: self.passed)
        self.moments.say = self.said.append

    @property
    def true(self) -> float:
        return NOON + self.passed

    def answers(self, who: str = "Azure", took: float = 0.2, wrong: float = 0.0) -> None:
        asked = self.passed
        self.passed += took
        date = formatdate(int(self.true + wrong), usegmt=True)
        self.moments.hear(date, asked=asked, who=who)


def test_a_clock_that_is_set_anew_changes_no_moment() -> None:
    world = World()
    before = world.moments.now()
    world.ahead = 20 * 3600.0
    world.passed += 60.0
    assert world.moments.now() - before == 60.0
    assert world.moments.wall() - before == 60.0 + 20 * 3600.0, "files are stamped by the new one"


@pytest.mark.parametrize("ahead", [20 * 3600.0, -3 * 86400.0, 90.0])
def test_a_wrong_clock_is_corrected_by_the_clouds_and_said_once(ahead: float) -> None:
    world = World(ahead)
    assert world.moments.now() == world.true + ahead
    for who in ("Azure", "Google Cloud", "Azure"):
        world.answers(who)
        assert abs(world.moments.now() - world.true) < 1.0
    (text,) = world.said
    assert "of Azure" in text
    assert ("ahead of" in text) == (ahead > 0)


def test_a_clock_that_is_a_little_off_is_believed() -> None:
    world = World(OFF - 2)
    world.answers()
    assert world.moments.now() == world.true + OFF - 2
    assert world.said == []


def test_a_late_answer_and_what_is_no_date_say_nothing() -> None:
    world = World(3600.0)
    world.answers(took=SLOW + 1)
    world.moments.hear(  # requests measures an answer's time by the clock, which was set back
        formatdate(int(world.true), usegmt=True), asked=world.passed + 10800.0, who="Azure"
    )
    for date in (None, "", "yesterday", "Thu, 99 Foo 2026 00:00:00 GMT"):
        world.moments.hear(date, asked=world.passed, who="Azure")
    assert world.moments.offset == 0.0


def test_what_is_known_before_somebody_listens_is_said_then() -> None:
    world = World()
    world.moments = Moments(lambda: world.true + 7200.0, lambda: world.passed)
    world.answers()
    for _ in range(2):
        with world.moments.said_to(world.said.append):
            pass
    (text,) = world.said
    assert text.startswith("the clock of this machine is 2 h ahead of that of Azure: ends are set")


def test_what_a_command_has_heard_corrects_the_next_ones_until_the_clock_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path))
    said: list[str] = []
    world = World(7200.0)
    monkeypatch.setattr(clock, "MOMENTS", world.moments)
    with clock.clock_corrected(said.append):
        world.answers()
    assert len(said) == 1

    for ahead, offset in ((7200.0, -7200.0), (3600.0, 0.0)):
        later = World(ahead)
        monkeypatch.setattr(clock, "MOMENTS", later.moments)
        with clock.clock_corrected(said.append):
            assert abs(later.moments.offset - offset) < 1.0
    assert len(said) == 1


@pytest.mark.parametrize(
    ("hear", "who"), [(aws.heard, "AWS"), (gs.heard, "Google Cloud"), (az.heard, "Azure")]
)
def test_stores_are_heard_as_clouds_are(
    hear: Callable[[object], None], who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(7200.0)
    for name in ("hear", "since_boot"):
        heard = {"hear": world.moments.hear, "since_boot": lambda: world.passed}[name]
        monkeypatch.setattr(moments, name, heard)
    date = {"Date": formatdate(int(world.true), usegmt=True)}
    answer = SimpleNamespace(headers=date, elapsed=timedelta(seconds=0.1))
    if who == "AWS":
        answer.url = "https://sts.eu-west-1.amazonaws.com/"
        aws.heard(http_response=answer)
    else:
        hear(SimpleNamespace(http_response=answer) if who == "Azure" else answer)
    (text,) = world.said
    assert f"of {who}:" in text
